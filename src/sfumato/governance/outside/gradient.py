"""DP-SGD by Opacus, TensorFlow Privacy, JAX-Privacy or others: a noise multiplier, a rate and steps."""

from __future__ import annotations

import math

from sfumato import _validate
from sfumato.accounting import GaussianEvent, Relation, poisson_sampled, repeat
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
_LEAK = (
    "The rate and the divisor come from the size of the private data set, so whoever sees them learns it; "
    "add-remove neighbours differ in exactly that. Declare a public size."
)


def judge_gradient(run: Settings, library: str) -> Finding:
    """Price DP-SGD by how its batches were really made.

    *Poisson samples*: a record is in a step with probability q, independently: T sampled Gaussians, add-remove.
    *Shuffled batches*: a record is in one step of each pass. Amplification by sampling does not hold (Chua et
    al. 2024, "How private are DP-SGD implementations?"). Under add-remove a record that leaves moves all later
    batches and nothing bounds the change, so the price is E Gaussians under zero-out, or replace-one at twice
    the sensitivity. *Subsets of a fixed size*: priced without amplification under replace-one. *Microbatches*:
    a clipped mean of several records moves by 2C when one of them changes.
    """
    noise, problems, assumed = run.non_negative("noise_multiplier"), list[str](), list[str]()
    if _clips_microbatches(run):
        noise /= 2
        problems.append(
            "Gradients were averaged in microbatches before clipping: one record moves a clipped mean by up "
            "to twice the clip norm, so the noise multiplier is half of the stated one."
        )
    kind = _sampling(run, library, assumed)
    rate, steps, passes = _schedule(run, assumed)
    runs = run.whole("runs", 1)
    if runs > 1:
        problems.append(f"{runs} runs on the same records were made and each is a release: their costs add up.")
    sampled = repeat(poisson_sampled(rate, GaussianEvent(noise)), steps * runs)
    events = {
        POISSON: (sampled, Relation.ADD_REMOVE),
        SHUFFLED: (repeat(GaussianEvent(noise), passes * runs), Relation.ZERO_OUT),
        FIXED: (repeat(GaussianEvent(noise / 2), steps * runs), Relation.REPLACE_ONE),
    }
    replaced = repeat(GaussianEvent(noise / 2), passes * runs)
    beside = {
        "replace-one": (replaced, Relation.REPLACE_ONE),
        "if batches were Poisson samples": (sampled, Relation.ADD_REMOVE),
    }
    event, relation = events[kind]
    problems += [*_BATCHES[kind], *_generator(run), *([_LEAK] if library == "opacus" else [])]
    return Finding(
        event=event,
        relation=relation,
        unit=run.text("unit") or "record",
        delta=run.delta(),
        claimed=claimed(run),
        problems=tuple(problems),
        assumed=tuple(assumed),
        others=beside if kind == SHUFFLED else {},
    )


def claimed(run: Settings) -> float | None:
    """The ε that was claimed, by whichever name; 0 or more."""
    name = "claimed_epsilon" if run.has("claimed_epsilon") else "epsilon"
    value = run.number(name)
    return None if value is None else _validate.non_negative(name, value)


def _clips_microbatches(run: Settings) -> bool:
    if not run.has("microbatches", "batch"):
        return False
    return run.whole("microbatches") < run.whole("batch")


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
    """The rate, the number of steps, and the number of passes over the data."""
    if run.has("sample_rate"):
        rate = _validate.probability("sample_rate", run.positive("sample_rate"))
    else:
        batch, size = run.whole("batch"), run.whole("size")
        if batch > size:
            raise InvalidInput(
                f"expected batch <= size, got batch={batch} and size={size}; one of them is wrong"
            )
        rate = batch / size
    if run.has("steps"):
        steps = run.whole("steps")
        passes = math.ceil(steps * rate - 1e-9)
    else:
        passes = math.ceil(run.positive("epochs"))
        steps = math.ceil(run.positive("epochs") / rate - 1e-9)
    if steps >= 10**9:
        raise InvalidInput(f"expected fewer than 1e9 steps, got {steps}; epochs, batch or size is wrong")
    if run.has("steps", "epochs") and abs(passes - run.positive("epochs")) > 1:
        assumed.append(f"the number of steps, {steps}, counts; it is not what the number of epochs gives")
    return rate, steps, max(1, passes)


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
