"""Runs over many clients: Flower's differential privacy, local and central, and NVFlare's sparse vectors."""

from __future__ import annotations

import math

from sfumato.accounting import GaussianEvent, LaplaceEvent, Relation, compose, pure, repeat
from sfumato.errors import InvalidInput
from sfumato.governance.outside.finding import Finding
from sfumato.governance.outside.gradient import claimed
from sfumato.governance.outside.settings import Settings


def classical_sigma(epsilon: float, delta: float) -> float:
    """√(2·ln(1.25/δ))/ε: the noise multiplier that Dwork & Roth 2014, theorem A.1, prove for ε < 1 only.

    >>> round(classical_sigma(10, 1e-5), 4)
    0.4845
    """
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def judge_flower_local(run: Settings) -> Finding:
    """`LocalDpMod(clipping_norm, sensitivity, epsilon, delta)`: Gaussian noise on an update, each round.

    Its ε is one round's, by the classical formula. A client's update may be anything of norm ≤ clipping_norm,
    so replacing it moves it by twice that; the sensitivity is a setting of its own that nothing ties to the
    clip.
    """
    epsilon, delta = run.positive("epsilon"), _positive_delta(run)
    rounds = run.whole("rounds")
    problems = []
    if rounds > 1:
        problems.append(
            f"ε = {epsilon:g} is the price of one round; {rounds} rounds were noised and none of them is "
            "composed."
        )
    if epsilon >= 1:
        problems.append(
            "The classical formula for Gaussian noise is proved for ε < 1 only; it was used at ε = "
            f"{epsilon:g}."
        )
    noise = classical_sigma(epsilon, delta)
    if run.has("sensitivity", "clip_norm") and run.positive("sensitivity") < 2 * run.positive("clip_norm"):
        problems.append(
            f"sensitivity = {run.positive('sensitivity'):g} was declared; replacing a client's update of norm "
            f"at most {run.positive('clip_norm'):g} moves it by up to {2 * run.positive('clip_norm'):g}. "
            "Shown beside it."
        )
    shifted = noise * run.positive("sensitivity", 1.0) / (2 * run.positive("clip_norm", 1.0))
    others = (
        {"replace-one, by the clip norm": (repeat(GaussianEvent(shifted), rounds), Relation.REPLACE_ONE)}
        if run.has("sensitivity", "clip_norm")
        else {}
    )
    return Finding(
        event=repeat(GaussianEvent(noise), rounds),
        relation=Relation.ZERO_OUT,
        unit=run.text("unit") or "client",
        delta=delta,
        claimed=claimed(run),
        problems=tuple(problems),
        assumed=("sensitivity is what one client's update can move, as the settings say",),
        others=others,
        elsewhere={relation: event for event, relation in others.values()},
    )


def judge_flower_central(run: Settings) -> Finding:
    """`DifferentialPrivacyServerSideFixedClipping` and its relatives: one Gaussian a round on a sum of updates.

    The server picks the clients and knows them, so that sampling amplifies nothing against it; against others
    it would need a secret Poisson draw, where a fixed number of clients is taken.
    """
    noise, rounds = run.non_negative("noise_multiplier"), run.whole("rounds")
    problems, replaced = [], repeat(GaussianEvent(noise / 2), rounds)
    if run.has("clients", "sampled_clients") and run.whole("sampled_clients") < run.whole("clients"):
        problems.append(
            "Clients are picked by the coordinator, in fixed numbers: picking them amplifies nothing against "
            "whoever picks. Priced as if a client were in every round."
        )
    return Finding(
        event=repeat(GaussianEvent(noise), rounds),
        relation=Relation.ZERO_OUT,
        unit=run.text("unit") or "client",
        delta=run.delta(),
        claimed=claimed(run),
        problems=tuple(problems),
        assumed=("the sum of updates is divided by a declared number of clients, not by those who came",),
        others={"replace-one": (replaced, Relation.REPLACE_ONE)},
        elsewhere={Relation.REPLACE_ONE: replaced},
    )


def judge_nvflare(run: Settings) -> Finding:
    """`SVTPrivacy(fraction, epsilon, noise_var, …)`: a noisy threshold picks weights, each is then noised.

    Of d weights c = ⌈fraction·d⌉ are sent. The threshold costs ε₁ = `epsilon`, the comparisons ε₂ =
    ε₁·(2c)^⅔ (Lyu, Su & Li 2017, section 5), and each weight that is sent, clipped to ±γ and noised by
    Laplace(2γ/noise_var), costs noise_var: ε₁ + ε₂ + c·noise_var a round, of which only ε₁ is shown.
    """
    first, sent_noise = run.positive("epsilon", 0.1), run.positive("release_noise", 0.1)
    fraction = run.positive("fraction", 0.1)
    sent = math.ceil(min(fraction, 1.0) * run.whole("parameters"))
    chosen = first + first * (2 * sent) ** (2 / 3)
    rounds, delta = run.whole("rounds", 1), run.delta() if run.has("delta") else 0.0
    one = compose(pure(chosen), repeat(LaplaceEvent(1 / sent_noise), sent))
    return Finding(
        event=repeat(one, rounds),
        relation=Relation.REPLACE_ONE,
        unit=run.text("unit") or "client",
        delta=delta,
        claimed=claimed(run) if run.has("epsilon") or run.has("claimed_epsilon") else first,
        problems=(
            f"epsilon = {first:g} pays for the threshold alone. {sent:,} weights are sent in a round and each "
            f"costs noise_var = {sent_noise:g} more.",
            *((f"{rounds} rounds were made and none of them is composed.",) if rounds > 1 else ()),
        ),
    )


def _positive_delta(run: Settings) -> float:
    delta = run.delta()
    if not delta:
        raise InvalidInput("expected delta > 0 for Gaussian noise, got delta=0; take the δ of the settings")
    return delta
