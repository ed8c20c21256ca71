"""Rules that turn the settings of a run of other software into its event, and name the faults of its claim.

They cover DP-SGD (Opacus, TensorFlow Privacy, JAX-Privacy), runs over many clients (Flower, NVFlare), votes
and local noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from sfumato import _validate
from sfumato.accounting import (
    ClippedGaussianEvent,
    DpEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    Relation,
    compose,
    poisson_sampled,
    pure,
    repeat,
)
from sfumato.errors import InvalidInput
from sfumato.governance.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Finding:
    """State the event of a run, the unit that it protects, and the faults of its claim.

    Attributes:
        event: The releases of the run.
        relation: The relation under which `event` is priced.
        unit: The unit that is protected.
        delta: The δ of the claim.
        claimed: The ε that was claimed, or None.
        problems: Faults, in sentences.
        assumed: Assumptions about facts that the settings do not state.
        others: Prices to set beside it: a name, the event and its relation.
        elsewhere: The event of the same run under other relations, for a claim that names one of them.
    """

    event: DpEvent
    relation: Relation
    unit: str
    delta: float
    claimed: float | None
    problems: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    others: dict[str, tuple[DpEvent, Relation]] = field(default_factory=dict)
    elsewhere: dict[Relation, DpEvent] = field(default_factory=dict)

    def under(self, relation: Relation) -> Finding:
        """The same finding, priced under the relation of the claim; without a price where none is known.

        To blank a unit's values moves a sum by no more than to replace them, so that the price of replace-one
        holds under zero-out.
        """
        if relation is self.relation:
            return self
        event = self.elsewhere.get(relation)
        if event is None and relation is Relation.ZERO_OUT and self.relation is Relation.REPLACE_ONE:
            event = self.event
        beside = {str(self.relation): (self.event, self.relation), **self.others}
        beside.pop(str(relation), None)
        if event is not None:
            return replace(self, event=event, relation=relation, others=beside)
        said = f"The claim is for {relation} neighbours, and no ε of this run is known to hold for them."
        problems = (said, *self.problems)
        return replace(self, event=NonPrivateEvent(), relation=relation, problems=problems, others=beside)


POISSON, SHUFFLED, FIXED = "poisson", "shuffled", "fixed size"
_SAMPLERS = {
    POISSON: ("poisson", "uniformwithreplacement", "uniform_with_replacement"),
    SHUFFLED: ("shuffle", "shuffled", "shuffling", "random", "sequential", "none", "false"),
    FIXED: ("fixed", "fixed_size", "without_replacement", "uniform", "subset"),
}
_USUAL = {"opacus": POISSON, "jax-privacy": POISSON, "tf-privacy": SHUFFLED}
_BATCHES = {
    POISSON: (),
    SHUFFLED: (
        "Batches were shuffled, not sampled: amplification by Poisson sampling does not hold. Each record is "
        "in one batch of every pass, which costs one Gaussian a pass.",
    ),
    FIXED: (
        "Batches were subsets of a fixed size: the Poisson price does not hold. Priced without "
        "amplification, neighbours by replace-one.",
    ),
}
_RELATIONS = {POISSON: Relation.ADD_REMOVE, SHUFFLED: Relation.ZERO_OUT, FIXED: Relation.REPLACE_ONE}
_MEANS = (
    "Gradients were averaged in microbatches before clipping: one record moves a clipped mean by up to twice "
    "the clip norm, so the noise multiplier is half of the stated one."
)
_SAMPLED_MEANS = (
    " A record that is left out moves the others into other microbatches, so sampling amplifies nothing. "
    "Priced as if a record were in every step."
)
_LEAK = (
    "The rate and the divisor come from the size of the private data set, so whoever sees them learns it; "
    "add-remove neighbours differ in exactly that. Declare a public size."
)


def judge_gradient(run: Settings, library: str) -> Finding:
    """Price DP-SGD by how its batches were really made.

    *Poisson samples*: a record is in a step with probability q, independently: T sampled Gaussians, add-remove,
    or replace-one at twice the sensitivity, as no clipped gradient is longer than C.
    *Shuffled batches*: a record is in one step of each pass. Amplification by sampling does not hold (Chua et
    al. 2024, "How private are DP-SGD implementations?"). Under add-remove a record that leaves moves all later
    batches and nothing bounds the change, so the price is E Gaussians under zero-out, or replace-one at twice
    the sensitivity. So it is where batches come in the order of the file. *Subsets of a fixed size*: priced
    without amplification under replace-one.

    *Microbatches*: means of several records are clipped. Where one record changes or turns to nothing in its
    place, one clipped mean moves by at most 2C, under zero-out as under replace-one. Where it leaves, all later
    records move up into other means and nothing bounds the change. So no add-remove price holds; and Poisson
    samples amplify nothing, as the batches with and without the record are far apart. The price is one
    Gaussian of sensitivity 2C for each step: with the coins of the sample fixed, neighbouring batches differ in
    one place, and a mixture of such pairs under the same coins is no further apart than the worst of them
    (joint convexity of the hockey-stick divergence).
    """
    noise, problems, assumed = run.non_negative("noise_multiplier"), list[str](), list[str]()
    means = _clips_means(run, assumed)
    kind = _sampling(run, library, assumed)
    if means:
        problems.append(_MEANS + (_SAMPLED_MEANS if kind == POISSON else ""))
    rate, steps, passes = _schedule(run, assumed)
    runs = run.whole("runs", 1)
    if runs > 1:
        problems.append(f"{runs} runs on the same records were made and each is a release: their costs add up.")
    sampled = _sampled(rate, noise, steps * runs)
    prices = sampled
    if kind != POISSON or means:
        times = runs * (passes if kind == SHUFFLED else steps)
        prices = {
            Relation.ZERO_OUT: repeat(GaussianEvent(noise / 2 if means else noise), times),
            Relation.REPLACE_ONE: repeat(GaussianEvent(noise / 2), times),
        }
    relation = _RELATIONS[kind] if _RELATIONS[kind] in prices else Relation.ZERO_OUT
    others = {}
    if relation is Relation.ZERO_OUT:
        others["replace-one"] = (prices[Relation.REPLACE_ONE], Relation.REPLACE_ONE)
    if kind == SHUFFLED and not means:
        others["if batches were Poisson samples"] = (sampled[Relation.ADD_REMOVE], Relation.ADD_REMOVE)
    problems += [*_BATCHES[kind], *_generator(run), *([_LEAK] if library == "opacus" else [])]
    return Finding(
        event=prices[relation],
        relation=relation,
        unit=run.text("unit") or "record",
        delta=run.delta(),
        claimed=claimed(run),
        problems=tuple(problems),
        assumed=tuple(assumed),
        others=others,
        elsewhere=prices,
    )


def _sampled(rate: float, noise: float, steps: int) -> dict[Relation, DpEvent]:
    """Poisson samples of clipped gradients, as each relation sees them."""
    alone = repeat(poisson_sampled(rate, GaussianEvent(noise)), steps)
    replaced = repeat(poisson_sampled(rate, ClippedGaussianEvent(noise / 2)), steps)
    return {Relation.ADD_REMOVE: alone, Relation.ZERO_OUT: alone, Relation.REPLACE_ONE: replaced}


def claimed(run: Settings) -> float | None:
    """The ε that was claimed, by whichever name; 0 or more."""
    name = "claimed_epsilon" if run.has("claimed_epsilon") else "epsilon"
    value = run.number(name)
    return None if value is None else _validate.non_negative(name, value)


def _clips_means(run: Settings, assumed: list[str]) -> bool:
    if not run.has("microbatches"):
        return False
    if run.has("batch"):
        return run.whole("microbatches") < run.whole("batch")
    assumed.append("a microbatch holds several records, as the settings state no batch size")
    return True


def _sampling(run: Settings, library: str, assumed: list[str]) -> str:
    stated = run.flag("poisson")
    if stated is not None:
        return POISSON if stated else SHUFFLED
    word = run.text("sampling")
    if word is not None:
        plain = word.strip().lower().replace("-", "_").replace(" ", "_")
        for kind, words in _SAMPLERS.items():
            if plain in words or (kind == POISSON and "poisson" in plain):
                return kind
        raise InvalidInput(
            f"expected sampling to be poisson, shuffle or fixed-size, got sampling={_validate.shown(word)}; "
            "say how batches were made"
        )
    if run.flag("shuffle"):
        return SHUFFLED
    kind = _USUAL.get(library, SHUFFLED)
    assumed.append(
        f"batches are {'Poisson samples' if kind == POISSON else 'shuffled'}, as {library} makes them unless "
        "told otherwise"
        if library in _USUAL
        else 'batches are shuffled, as data loaders make them; say sampling = "poisson" if they were sampled'
    )
    return kind


def _schedule(run: Settings, assumed: list[str]) -> tuple[float, int, int]:
    """The rate, the number of steps, and the most passes over the data that these can be.

    Where the short last batch is dropped, a pass has ⌊size/batch⌋ steps, and in a fixed order the first records
    are in every pass. Where the settings state steps and epochs, the steps are sampled, and passes are the
    larger number that either gives.
    """
    if run.has("sample_rate"):
        rate = _validate.probability("sample_rate", run.positive("sample_rate"))
    else:
        batch, size = run.whole("batch"), run.whole("size")
        if batch > size:
            raise InvalidInput(
                f"expected batch <= size, got batch={batch} and size={size}; one of them is wrong"
            )
        rate = batch / size
    epochs = run.positive("epochs") if run.has("epochs") or not run.has("steps") else 0.0
    steps = run.whole("steps") if run.has("steps") else math.ceil(epochs / rate - 1e-9)
    if steps >= 10**9:
        raise InvalidInput(f"expected fewer than 1e9 steps, got {steps}; epochs, batch or size is wrong")
    least_a_pass = math.floor(1 / rate + 1e-9)
    passes = max(math.ceil(epochs), math.ceil(steps / least_a_pass) if run.has("steps") else 1)
    if run.has("steps", "epochs") and abs(steps * rate - epochs) > 1:
        assumed.append(
            f"the number of steps, {steps}, is not what the number of epochs gives: steps count where batches "
            "are sampled, and the larger number of passes where they are not"
        )
    return rate, steps, passes


def _generator(run: Settings) -> list[str]:
    if run.flag("secure"):
        return []
    if run.has("seed"):
        return [
            "The seed of the generator is on record: whoever knows it can draw the same noise and subtract "
            "it. No ε holds against them."
        ]
    if run.flag("secure") is False:
        return ["The noise came from a generator that is not cryptographic (secure mode was off)."]
    return []


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


def judge_votes(run: Settings) -> Finding:
    """PATE with Laplace noise of scale 1/γ on each count (Papernot et al. 2017).

    One teacher that votes otherwise moves two counts by 1: two Laplace releases of multiplier 1/γ a query.
    The figure of a data-dependent analysis is a statement about these votes, not a guarantee.
    """
    gamma, queries = run.positive("query_noise"), run.whole("queries")
    stated = claimed(run)
    problems = [
        "A data-dependent ε describes the votes that were cast and is itself computed from private data; "
        "what holds for any votes is the price given here."
    ]
    return Finding(
        event=repeat(LaplaceEvent(1 / gamma), 2 * queries),
        relation=Relation.ADD_REMOVE,
        unit=run.text("unit") or "record",
        delta=run.delta(),
        claimed=stated,
        problems=tuple(problems),
        assumed=("a record is in the shard of one teacher, and its shard depends on that record alone",),
        elsewhere={Relation.REPLACE_ONE: repeat(LaplaceEvent(1 / gamma), 4 * queries)},  # two teachers
    )


def judge_local(run: Settings) -> Finding:
    """Each record scaled to norm 1 and noised by the Gaussian mechanism before it leaves.

    Two records on the unit sphere are up to 2 apart, and the unit has one report only if it is noised once.
    """
    epsilon, releases = run.positive("epsilon"), run.whole("releases", 1)
    delta = run.delta()
    if not delta:
        raise InvalidInput("expected delta > 0 for Gaussian noise, got delta=0; take the δ of the settings")
    declared = run.positive("sensitivity", 1.0)
    problems = []
    if epsilon >= 1:
        problems.append(
            "The classical formula for Gaussian noise is proved for ε < 1 only; it was used at ε = "
            f"{epsilon:g}."
        )
    if declared < 2:
        problems.append(
            f"sensitivity = {declared:g} was declared; two records of norm 1 are up to 2 apart, so the noise "
            f"is {2 / declared:g} times too small."
        )
    if releases > 1:
        problems.append(f"Each record was noised {releases} times; every time is a release of its own.")
    noise = classical_sigma(epsilon, delta) * declared / 2
    return Finding(
        event=repeat(GaussianEvent(noise), releases),
        relation=Relation.REPLACE_ONE,
        unit=run.text("unit") or "person",
        delta=delta,
        claimed=claimed(run),
        problems=tuple(problems),
        assumed=("the label, too, was noised; one that was sent as it is has no privacy",),
    )
