"""DP-SGD by Opacus, TensorFlow Privacy, JAX-Privacy or others: a noise multiplier, a rate and steps."""

from __future__ import annotations

import math

from sfumato import _validate
from sfumato.accounting import (
    ClippedGaussianEvent,
    DpEvent,
    GaussianEvent,
    Relation,
    poisson_sampled,
    repeat,
)
from sfumato.errors import InvalidInput
from sfumato.governance.outside.finding import Finding
from sfumato.governance.outside.settings import Settings

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
    samples amplify nothing, as the batches with and without the record are far apart. What remains is one
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
    are in every pass. Where the settings state steps and epochs, steps are what is sampled, and passes are the
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
