"""A second opinion on a run of other software: the ε that it really costs, and the faults of its claim.

Rules turn settings into an event. They cover DP-SGD (Opacus, TensorFlow Privacy, JAX-Privacy), runs over many
clients (Flower, NVFlare), votes and local noise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sfumato import _validate
from sfumato.accounting import (
    ClippedGaussianEvent,
    DpEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    Relation,
    check_affordable,
    compose,
    epsilon,
    event_to_json,
    poisson_sampled,
    protection_warning,
    pure,
    repeat,
)
from sfumato.accounting.meaning import LARGEST_DELTA
from sfumato.errors import InvalidInput, NotPrivate
from sfumato.governance.settings import Setting, Settings, read_settings

_AGREE = 0.02
"""Two accountants may differ by this much, relatively, before a claim is called wrong."""


@dataclass(frozen=True, kw_only=True)
class Opinion:
    """Compare a claimed ε with the one that holds, and list the faults of the claim.

    Attributes:
        library: The software that made the run.
        claimed_epsilon: The ε that was claimed, or None.
        epsilon: The ε that holds at `delta` under `relation`; infinite where none does.
        delta: The δ of both.
        relation: Which data sets are neighbours.
        unit: The unit that is protected.
        problems: Faults, in sentences, the gravest first; empty where the claim holds.
        assumed: Assumptions about facts that the settings do not state.
        others: Prices under other relations or assumptions.
        ignored: Settings that say nothing about privacy.
        event: The releases, as the ledger would charge them.
    """

    library: str
    claimed_epsilon: float | None
    epsilon: float
    delta: float
    relation: Relation
    unit: str
    problems: tuple[str, ...]
    assumed: tuple[str, ...]
    others: dict[str, float]
    ignored: tuple[str, ...]
    event: DpEvent

    @property
    def holds(self) -> bool | None:
        """Whether the claimed ε is no smaller than the one that holds; None without a claim."""
        if self.claimed_epsilon is None:
            return None
        return self.epsilon <= self.claimed_epsilon * (1 + _AGREE)

    def to_json(self) -> dict[str, Any]:
        """Return the opinion as one JSON object."""
        return {
            **{name: getattr(self, name) for name in ("library", "claimed_epsilon", "epsilon", "delta")},
            "relation": str(self.relation),
            "unit": self.unit,
            "holds": self.holds,
            "problems": list(self.problems),
            "assumed": list(self.assumed),
            "others": self.others,
            "ignored": list(self.ignored),
            "event": event_to_json(self.event),
        }


def opinion_of(source: str | os.PathLike[str] | Sequence[Setting]) -> Opinion:
    """Price a run of other software from its settings.

    Args:
        source: A JSON, TOML or YAML file, or names and values. Nothing in a file is executed.

    Returns:
        The opinion.

    Raises:
        InvalidInput: If the settings do not describe a run.

    >>> shuffled = [("library", "opacus"), ("noise_multiplier", 1.2), ("batch_size", 64), ("epochs", 10),
    ...     ("dataset_size", 60000), ("delta", 1e-5), ("poisson_sampling", False), ("epsilon", 0.79)]
    >>> found = opinion_of(shuffled)
    >>> round(found.epsilon, 1), str(found.relation), found.holds
    (14.1, 'zero-out', False)
    """
    settings = read_settings(source) if isinstance(source, str | os.PathLike) else list(source)
    run = Settings(settings)
    library, judge = _recognised(run)
    claimed, delta, found = _judged(run, judge)
    check_affordable(found.event)
    price = _price(found.event, delta, found.relation)
    return Opinion(
        library=library,
        claimed_epsilon=claimed,
        epsilon=price,
        delta=delta,
        relation=found.relation,
        unit=run.text("unit") or found.unit,
        problems=(*_claims(found, claimed, price), *found.problems, *_about_delta(delta, run)),
        assumed=tuple(found.assumed),
        others={name: _price(event, delta, relation) for name, (event, relation) in found.others.items()},
        ignored=run.ignored,
        event=found.event,
    )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The event of a run under one relation, and the faults of its claim.

    Attributes:
        relation: The relation that fits the run.
        prices: The event under each relation for which one is known.
        unit: The unit that is protected, unless the settings name another.
        problems: Faults, in sentences.
        assumed: Assumptions about facts that the settings do not state.
        others: Prices to set beside it: a name, the event and its relation.
        claimed: The ε that was claimed, where it is not named as such.
    """

    relation: Relation
    prices: Mapping[Relation, DpEvent]
    unit: str = "record"
    problems: Sequence[str] = ()
    assumed: Sequence[str] = ()
    others: Mapping[str, tuple[DpEvent, Relation]] = field(default_factory=dict)
    claimed: float | None = None

    @property
    def event(self) -> DpEvent:
        return self.prices[self.relation]

    def under(self, relation: Relation) -> Finding:
        """Return the finding under the relation of the claim; without a price where none is known.

        To blank a unit's values moves a sum by no more than to replace them, so that the price of replace-one
        holds under zero-out.
        """
        if relation is self.relation:
            return self
        prices = dict(self.prices)
        if relation is Relation.ZERO_OUT and self.relation is Relation.REPLACE_ONE:
            prices.setdefault(relation, self.event)
        beside = {str(self.relation): (self.event, self.relation), **self.others}
        beside.pop(str(relation), None)
        problems = list(self.problems)
        if relation not in prices:
            prices[relation] = NonPrivateEvent()
            said = f"The claim is for {relation} neighbours, and no ε of this run is known to hold for them."
            problems.insert(0, said)
        return replace(self, relation=relation, prices=prices, problems=problems, others=beside)


def _judged(run: Settings, judge: Callable[[Settings], Finding]) -> tuple[float | None, float, Finding]:
    found, stated = judge(run), run.relation()
    delta = run.delta() if run.has("delta") or judge is not judge_nvflare else 0.0
    claimed = run.claimed() if found.claimed is None else found.claimed
    return claimed, delta, found if stated is None else found.under(stated)


def _price(event: DpEvent, delta: float, relation: Relation) -> float:
    try:
        return epsilon(event, delta, relation=relation)
    except (NotPrivate, ArithmeticError):
        return math.inf


def _claims(found: Finding, claimed: float | None, price: float) -> list[str]:
    """Return the gravest faults first: whether the claim holds at all."""
    said = []
    if not math.isfinite(price) and not isinstance(found.event, NonPrivateEvent):
        said.append("No finite ε holds: the noise is zero, or δ is zero where the noise needs one.")
    if claimed is not None and math.isfinite(price):
        if price > claimed * (1 + _AGREE):
            said.append(f"ε = {claimed:g} was claimed; what was done costs ε = {price:.4g} ({found.relation}).")
        elif price < claimed * (1 - _AGREE):
            said.append(
                f"The claim is safe but loose: ε = {claimed:g} was claimed, and ε = {price:.4g} "
                f"({found.relation}) already holds."
            )
    warning = protection_warning(price, 0.0) if math.isfinite(price) else None
    return said if warning is None else [*said, f"This {warning}."]


def _about_delta(delta: float, run: Settings) -> list[str]:
    if run.has("size") and delta * run.whole("size") >= 1:
        return [
            f"δ = {delta:g} is not below 1 / number of records: publishing one record would count as private."
        ]
    if delta >= LARGEST_DELTA:
        return [f"δ = {delta:g} is too large to protect anybody; choose it well below 1 / number of people."]
    return []


# DP-SGD

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
    prices = sampled = _sampled(rate, noise, steps * runs)
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
    return Finding(relation=relation, prices=prices, problems=problems, assumed=assumed, others=others)


def _sampled(rate: float, noise: float, steps: int) -> dict[Relation, DpEvent]:
    """Return the event of Poisson samples of clipped gradients, as each relation sees them."""
    alone = repeat(poisson_sampled(rate, GaussianEvent(noise)), steps)
    replaced = repeat(poisson_sampled(rate, ClippedGaussianEvent(noise / 2)), steps)
    return {Relation.ADD_REMOVE: alone, Relation.ZERO_OUT: alone, Relation.REPLACE_ONE: replaced}


def _clips_means(run: Settings, assumed: list[str]) -> bool:
    if not run.has("microbatches"):
        return False
    if run.has("batch"):
        return run.whole("microbatches") < run.whole("batch")
    assumed.append("a microbatch holds several records, as the settings state no batch size")
    return True


def _sampling(run: Settings, library: str, assumed: list[str]) -> str:
    stated, word = run.flag("poisson"), run.word("sampling")
    if stated is not None:
        return POISSON if stated else SHUFFLED
    if word is not None:
        for kind, words in _SAMPLERS.items():
            if word in words or (kind == POISSON and "poisson" in word):
                return kind
        raise InvalidInput(
            "expected sampling to be poisson, shuffle or fixed-size, got "
            f"sampling={_validate.shown(run.text('sampling'))}; say how batches were made"
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
    """Return the rate, the number of steps, and the most passes over the data that these can be.

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


# Clients, votes, local noise


def classical_sigma(epsilon: float, delta: float) -> float:
    """√(2·ln(1.25/δ))/ε: the noise multiplier that Dwork & Roth 2014, theorem A.1, prove for ε < 1 only.

    >>> round(classical_sigma(10, 1e-5), 4)
    0.4845
    """
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _too_classical(epsilon: float) -> list[str]:
    said = f"The classical formula for Gaussian noise is proved for ε < 1 only; it was used at ε = {epsilon:g}."
    return [said] if epsilon >= 1 else []


def judge_flower_local(run: Settings) -> Finding:
    """`LocalDpMod(clipping_norm, sensitivity, epsilon, delta)`: Gaussian noise on an update, each round.

    Its ε is one round's, by the classical formula. A client's update may be anything of norm ≤ clipping_norm,
    so replacing it moves it by twice that; the sensitivity is a setting of its own that nothing ties to the
    clip.
    """
    epsilon, delta, rounds = run.positive("epsilon"), run.delta(above_zero=True), run.whole("rounds")
    problems = []
    if rounds > 1:
        problems.append(
            f"ε = {epsilon:g} is the price of one round; {rounds} rounds were noised and none of them is "
            "composed."
        )
    problems += _too_classical(epsilon)
    noise = classical_sigma(epsilon, delta)
    prices: dict[Relation, DpEvent] = {Relation.ZERO_OUT: repeat(GaussianEvent(noise), rounds)}
    others = {}
    if run.has("sensitivity", "clip_norm"):
        declared, clip = run.positive("sensitivity"), run.positive("clip_norm")
        if declared < 2 * clip:
            problems.append(
                f"sensitivity = {declared:g} was declared; replacing a client's update of norm at most "
                f"{clip:g} moves it by up to {2 * clip:g}. Shown beside it."
            )
        prices[Relation.REPLACE_ONE] = repeat(GaussianEvent(noise * declared / (2 * clip)), rounds)
        others["replace-one, by the clip norm"] = (prices[Relation.REPLACE_ONE], Relation.REPLACE_ONE)
    assumed = ["sensitivity is what one client's update can move, as the settings say"]
    return Finding(
        relation=Relation.ZERO_OUT,
        prices=prices,
        unit="client",
        problems=problems,
        assumed=assumed,
        others=others,
    )


def judge_flower_central(run: Settings) -> Finding:
    """`DifferentialPrivacyServerSideFixedClipping` and its relatives: one Gaussian a round on a sum of updates.

    The server picks the clients and knows them, so that sampling amplifies nothing against it; against others
    it would need a secret Poisson draw, where a fixed number of clients is taken.
    """
    noise, rounds = run.non_negative("noise_multiplier"), run.whole("rounds")
    replaced, problems = repeat(GaussianEvent(noise / 2), rounds), []
    if run.has("clients", "sampled_clients") and run.whole("sampled_clients") < run.whole("clients"):
        problems.append(
            "Clients are picked by the coordinator, in fixed numbers: picking them amplifies nothing against "
            "whoever picks. Priced as if a client were in every round."
        )
    return Finding(
        relation=Relation.ZERO_OUT,
        prices={
            Relation.ZERO_OUT: repeat(GaussianEvent(noise), rounds),
            Relation.REPLACE_ONE: replaced,
        },
        unit="client",
        problems=problems,
        assumed=["the sum of updates is divided by a declared number of clients, not by those who came"],
        others={"replace-one": (replaced, Relation.REPLACE_ONE)},
    )


def judge_nvflare(run: Settings) -> Finding:
    """`SVTPrivacy(fraction, epsilon, noise_var, …)`: a noisy threshold picks weights, each is then noised.

    Of d weights c = ⌈fraction·d⌉ are sent. The threshold costs ε₁ = `epsilon`, the comparisons ε₂ =
    ε₁·(2c)^⅔ (Lyu, Su & Li 2017, section 5), and each weight that is sent, clipped to ±γ and noised by
    Laplace(2γ/noise_var), costs noise_var: ε₁ + ε₂ + c·noise_var a round, of which only ε₁ is shown.
    """
    first, sent_noise = run.positive("epsilon", 0.1), run.positive("release_noise", 0.1)
    sent = math.ceil(min(run.positive("fraction", 0.1), 1.0) * run.whole("parameters"))
    chosen, rounds = first + first * (2 * sent) ** (2 / 3), run.whole("rounds", 1)
    one = compose(pure(chosen), repeat(LaplaceEvent(1 / sent_noise), sent))
    return Finding(
        relation=Relation.REPLACE_ONE,
        prices={Relation.REPLACE_ONE: repeat(one, rounds)},
        unit="client",
        claimed=None if run.has("epsilon") or run.has("claimed_epsilon") else first,
        problems=[
            f"epsilon = {first:g} pays for the threshold alone. {sent:,} weights are sent in a round and each "
            f"costs noise_var = {sent_noise:g} more.",
            *([f"{rounds} rounds were made and none of them is composed."] if rounds > 1 else []),
        ],
    )


def judge_votes(run: Settings) -> Finding:
    """PATE with Laplace noise of scale 1/γ on each count (Papernot et al. 2017).

    One teacher that votes otherwise moves two counts by 1: two Laplace releases of multiplier 1/γ a query.
    The figure of a data-dependent analysis is a statement about these votes, not a guarantee.
    """
    gamma, queries = run.positive("query_noise"), run.whole("queries")
    return Finding(
        relation=Relation.ADD_REMOVE,
        prices={
            Relation.ADD_REMOVE: repeat(LaplaceEvent(1 / gamma), 2 * queries),
            Relation.REPLACE_ONE: repeat(LaplaceEvent(1 / gamma), 4 * queries),  # two teachers
        },
        problems=[
            "A data-dependent ε describes the votes that were cast and is itself computed from private data; "
            "what holds for any votes is the price given here."
        ],
        assumed=["a record is in the shard of one teacher, and its shard depends on that record alone"],
    )


def judge_local(run: Settings) -> Finding:
    """Each record scaled to norm 1 and noised by the Gaussian mechanism before it leaves.

    Two records on the unit sphere are up to 2 apart, and the unit has one report only if it is noised once.
    """
    epsilon, releases = run.positive("epsilon"), run.whole("releases", 1)
    delta, declared = run.delta(above_zero=True), run.positive("sensitivity", 1.0)
    problems = _too_classical(epsilon)
    if declared < 2:
        problems.append(
            f"sensitivity = {declared:g} was declared; two records of norm 1 are up to 2 apart, so the noise "
            f"is {2 / declared:g} times too small."
        )
    if releases > 1:
        problems.append(f"Each record was noised {releases} times; every time is a release of its own.")
    noise = classical_sigma(epsilon, delta) * declared / 2
    return Finding(
        relation=Relation.REPLACE_ONE,
        prices={Relation.REPLACE_ONE: repeat(GaussianEvent(noise), releases)},
        unit="person",
        problems=problems,
        assumed=["the label, too, was noised; one that was sent as it is has no privacy"],
    )


# Which software it was


def _recognised(run: Settings) -> tuple[str, Callable[[Settings], Finding]]:
    """Return the software, named by the file or seen from its words, and the rule that prices it."""
    said = (run.word("library") or "").replace("_", "-")
    for names, words, signs, library, judge in _KINDS:
        if any(name in said for name in names) or (
            not said and (run.mentions(*words) or (signs and run.has(*signs)))
        ):
            return library, judge
    if run.has("noise_multiplier"):
        if run.has("rounds"):
            return said or "federated averaging", judge_flower_central
        return said or "DP-SGD", _gradient(said or "DP-SGD")
    raise InvalidInput(
        "expected settings of a run that can be recognised, got none of: noise_multiplier with batch, size "
        "and epochs; library = opacus, tf-privacy, jax-privacy, flower, nvflare, pate or local"
    )


def _gradient(library: str) -> Callable[[Settings], Finding]:
    return lambda run: judge_gradient(run, library)


def _flower(run: Settings) -> Finding:
    return judge_flower_central(run) if run.has("noise_multiplier") else judge_flower_local(run)


# Names in `library`, words in any text, settings that only one of them has, the name to show, and the rule.
_Words = tuple[str, ...]
_KINDS: tuple[tuple[_Words, _Words, _Words, str, Callable[[Settings], Finding]], ...] = (
    (("nvflare", "nvidia"), ("nvflare", "svtprivacy"), ("fraction", "release_noise"), "nvflare", judge_nvflare),
    (("flower", "flwr"), ("flwr", "flower"), ("rounds", "sensitivity"), "flower", _flower),
    (("pate",), ("pate",), ("queries", "query_noise"), "pate", judge_votes),
    (("local",), ("local noise",), (), "local noise", judge_local),
    (("opacus",), ("opacus",), (), "opacus", _gradient("opacus")),
    (("tf-privacy", "tensorflow"), ("tensorflow-privacy", "tensorflow_privacy", "tf_privacy", "tf-privacy"),
     ("noise_multiplier", "microbatches"), "tf-privacy", _gradient("tf-privacy")),
    (("jax",), ("jax_privacy", "jax-privacy"), (), "jax-privacy", _gradient("jax-privacy")),
)  # fmt: skip
