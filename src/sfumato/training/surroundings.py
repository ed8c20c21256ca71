"""Who calls `fit`: a pipeline whose earlier steps saw the rows, or a search that scores on them.

An estimator is handed rows and is not told what was done to them. Whoever calls it is found among the frames
of the interpreter. Three kinds of callers in scikit-learn are known, by their protocol: an object with `steps`
that ends in the estimator; a trial with the rows of its split, and perhaps a scorer; a search with its best
estimator. Any other code of scikit-learn that leads to the fit makes it not private, as nobody here knows what
it does with the rows. What is done by hand before `fit`, or by other packages, cannot be seen.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from sfumato.datasets import Chosen
from sfumato.training.known_steps import is_row_wise
from sfumato.training.scoring import SPLIT, CoinSplit, NoisyAccuracyScorer, chosen_by_coins

FITTED = (
    "not private: read from data: the pipeline's step {name} ({kind}) saw all rows, and is not known to keep "
    "them apart"
)
SCORED = (
    "not private: the search scores on private rows without noise, or splits them by position; give it "
    "scoring=sfumato.NoisyAccuracyScorer(...) and cv=sfumato.CoinSplit(...), or use sfumato tune"
)
UNKNOWN = (
    "not private: {caller} of scikit-learn led to the fit, and what it does with the rows is not known; fit by "
    "itself, in a Pipeline, or in a GridSearchCV"
)
_NOT = "not private: "
_PASSING = {  # calls what it is given, and sees no rows of its own
    ("sklearn.base", "wrapper"),
    ("sklearn.utils._param_validation", "wrapper"),
    ("sklearn.utils.parallel", "__call__"),
}
_SEARCH = "sklearn.model_selection._search"
_OF_TRIALS = {  # what leads to a trial, whose frame tells how its rows were chosen
    "sklearn.model_selection._validation": ("cross_validate", "cross_val_score", "cross_val_predict"),
    _SEARCH: ("fit", "evaluate_candidates", "_run_search"),
}
_SEARCHES = ("GridSearchCV", "RandomizedSearchCV")  # of which all candidates see the same parts


def caveats_of_callers(estimator: Any) -> tuple[str, ...]:
    """What the certificate of a fit must say about who called it; nothing where the rows came as they are."""
    caveats = list(_found(estimator))
    return tuple(dict.fromkeys(one for one in caveats if isinstance(one, str)))


def chosen_by_callers(estimator: Any) -> Chosen:
    """By whose draws the rows of a part, and the settings of a search, were chosen."""
    return Chosen().joined(*(found for found in _found(estimator) if isinstance(found, Chosen)))


def tell_of(caveats: Sequence[str]) -> None:
    """Warn whoever called `fit` that it is not private, and why; of other caveats nobody is warned."""
    reasons = "; ".join(each.removeprefix(_NOT) for each in caveats if each.startswith(_NOT))
    if reasons:
        warnings.warn(f"this fit is not private (private_ is False): {reasons}", stacklevel=3)


def _found(estimator: Any) -> Iterator[str | Chosen]:
    inner, tried, frame = estimator, False, inspect.currentframe()
    while frame is not None:
        seen = frame.f_locals
        owner: Any = seen.get("self")
        if _ends_in(owner, inner):
            yield from (_fitted(step) for step in owner.steps[:-1] if not is_row_wise(step[1]))
            inner, tried = owner, False
        elif inner is not None and seen.get("estimator") is inner and "train" in seen:
            coins = chosen_by_coins(seen["train"])
            if "scorer" in seen:
                yield from _scored(seen["scorer"], coins)
            else:
                yield coins or SPLIT
            inner, tried = None, True
        elif inner is not None and getattr(owner, "best_estimator_", None) is inner:
            yield from _scored(owner.scoring, _split_by(owner.cv))
            yield from [] if _is_known_search(owner) else [UNKNOWN.format(caller=type(owner).__name__)]
            inner, tried = owner, False
        elif _of_scikit_learn(frame) and not _passes(frame, inner, tried):
            yield UNKNOWN.format(caller=_caller(frame))
        elif tried and _of_scikit_learn(frame) and frame.f_code.co_name == "fit":
            inner, tried = owner, False  # the search, or the like, that the trial was for
        frame = frame.f_back


def _of_scikit_learn(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "sklearn"


def _passes(frame: FrameType, inner: Any, tried: bool) -> bool:
    """Whether a frame of scikit-learn only hands on, or belongs to a caller that was judged already."""
    module, name = str(frame.f_globals["__name__"]), frame.f_code.co_name
    known = name.startswith("<") or name in _OF_TRIALS.get(module, ())  # "<": a loop of one of these
    if module == _SEARCH and not name.startswith("<"):
        known &= _is_known_search(frame.f_locals.get("self"))
    judged = tried and module in _OF_TRIALS and known
    return judged or (module, name) in _PASSING or (inner is not None and frame.f_locals.get("self") is inner)


def _is_known_search(owner: Any) -> bool:
    kind = type(owner)
    return kind.__module__ == _SEARCH and kind.__qualname__ in _SEARCHES


def _caller(frame: FrameType) -> str:
    owner = frame.f_locals.get("self")
    return frame.f_code.co_name.lstrip("_") if owner is None else type(owner).__name__


def _ends_in(owner: Any, inner: Any) -> bool:
    steps = getattr(owner, "steps", None)
    return inner is not None and isinstance(steps, list) and bool(steps) and steps[-1][-1] is inner


def _fitted(step: tuple[Any, ...]) -> str:
    return FITTED.format(name=step[0], kind=type(step[1]).__name__)


def _split_by(cv: Any) -> Chosen | None:
    """By whose draws a search splits its rows; None if by anything else, as a class of the user's may do."""
    if type(cv) is CoinSplit:
        return cv.chosen
    if type(cv) is not list:
        return None
    parts = [chosen_by_coins(rows) for both in cv for rows in both]
    known = [chosen for chosen in parts if chosen is not None]
    return Chosen().joined(*known) if known and len(known) == len(parts) else None


def _scored(scorer: Any, coins: Chosen | None) -> Iterator[str | Chosen]:
    """What a search with these scores of parts chosen by these coins must say."""
    kind = type(scorer)
    if (kind.__module__, kind.__qualname__) == ("sklearn.metrics._scorer", "_MultimetricScorer"):
        scorer = vars(scorer).get("_scorers")  # one or several by their names
    each = list(scorer.values()) if isinstance(scorer, Mapping) else [scorer]
    paid = [one for one in each if type(one) is NoisyAccuracyScorer]
    yield from (Chosen.by(one.sampler) for one in paid)
    if coins is not None:
        yield coins
    if coins is None or len(paid) < len(each):
        yield SCORED
