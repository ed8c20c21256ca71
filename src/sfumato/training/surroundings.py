"""Who calls `fit`: a pipeline whose earlier steps saw the rows, or a search that scores on them.

An estimator is handed rows and is not told what was done to them. scikit-learn's pipelines and searches are
found among the callers, by their protocol: an object with `steps` that ends in the estimator; a trial with the
rows of its split, and perhaps a scorer; a search with its best estimator. What is done by hand before `fit`
cannot be seen.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sfumato.training.scoring import CoinRows, CoinSplit, NoisyAccuracyScorer
from sfumato.trust import OWN_NOISE, draws_by_own_code

FITTED = "not private: read from data: the pipeline's step {name} ({kind}) was fitted on the rows"
SCORED = (
    "not private: the search scores on private rows without noise, or splits them by position; give it "
    "scoring=sfumato.NoisyAccuracyScorer(...) and cv=sfumato.CoinSplit(...), or use sfumato tune"
)

SPLIT = (
    "not private: the rows were split by position, so that a record that leaves moves others; give "
    "cv=sfumato.CoinSplit(...)"
)


def caveats_of_callers(estimator: Any) -> tuple[str, ...]:
    """What the certificate of a fit must say about who called it; nothing where the rows came as they are."""
    caveats = dict.fromkeys(_found(estimator))
    caveats.pop(OWN_NOISE, None)
    return tuple(caveats)


def caveats_of_scorers(estimator: Any) -> tuple[str, ...]:
    """What it must say of the noise by which a search chose its settings."""
    return (OWN_NOISE,) if OWN_NOISE in _found(estimator) else ()


def tell_of(caveats: Sequence[str]) -> None:
    """Warn whoever called `fit` that it is not private, and why."""
    if caveats:
        reasons = "; ".join(each.removeprefix("not private: ") for each in caveats)
        warnings.warn(f"this fit is not private (private_ is False): {reasons}", stacklevel=3)


def _found(estimator: Any) -> Iterator[str]:
    inner, frame = estimator, inspect.currentframe()
    while frame is not None:
        seen = frame.f_locals
        owner: Any = seen.get("self")
        if _ends_in(owner, inner):
            yield from (_fitted(step) for step in owner.steps[:-1] if _learns(step))
            inner = owner
        elif seen.get("estimator") is inner and "train" in seen:
            by_coins = isinstance(seen["train"], CoinRows)
            if "scorer" in seen:
                yield from _scored(seen["scorer"], by_coins)
            elif not by_coins:
                yield SPLIT
        elif inner is not None and getattr(owner, "best_estimator_", None) is inner:
            yield from _scored(owner.scoring, isinstance(owner.cv, CoinSplit))
            inner = owner
        frame = frame.f_back


def _ends_in(owner: Any, inner: Any) -> bool:
    steps = getattr(owner, "steps", None)
    return isinstance(steps, list) and bool(steps) and steps[-1][-1] is inner


def _learns(step: tuple[Any, ...]) -> bool:
    """Whether a step takes anything from the rows that it is fitted on: by its tags, unless they deny it."""
    transformer = step[1]
    if transformer is None or isinstance(transformer, str):  # "passthrough"
        return False
    tags = getattr(transformer, "__sklearn_tags__", None)
    return tags is None or bool(tags().requires_fit)


def _fitted(step: tuple[Any, ...]) -> str:
    return FITTED.format(name=step[0], kind=type(step[1]).__name__)


def _scored(scorer: Any, by_coins: bool) -> list[str]:
    each = list(scorer.values()) if isinstance(scorer, Mapping) else [scorer]
    paid = [one for one in each if isinstance(one, NoisyAccuracyScorer)]
    own = [OWN_NOISE] if any(draws_by_own_code(one.sampler) for one in paid) else []
    return own if len(paid) == len(each) and by_coins else [*own, SCORED]
