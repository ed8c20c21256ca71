"""All that a search or a cross-validation will charge, checked before its first charge.

scikit-learn fits and scores one setting after another, and each pays for itself: a search that the ledger
cannot pay to its end would stop in the middle with a part of the budget gone, and choose nothing. `CoinSplit`
is asked for the parts before the first fit, in the process that was called. Whoever asks is found among the
frames of the interpreter, and knows all settings. What an estimator or scorer of other kinds costs is not
counted.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sklearn.base import clone

from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import ChargeRequest, Ledger

_SEARCH = ("sklearn.model_selection._search", "evaluate_candidates")
_VALIDATION = "sklearn.model_selection._validation"
_VALIDATIONS = ("cross_validate", "cross_val_predict")


@runtime_checkable
class Paying(Protocol):
    """An estimator or scorer that says in advance what one fit or score of it charges."""

    ledger: Ledger | None

    def to_be_charged(self) -> ChargeRequest | None:
        """The charge; None where it depends on the rows."""


class Charged(NamedTuple):
    """A charge that will be made, and where."""

    ledger: Ledger
    request: ChargeRequest


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What is fitted and scored: each of the settings on each of the parts, and at last one on all rows."""

    settings: Sequence[Any]  # estimators
    scorers: Sequence[Any]
    refits: bool

    def charges(self, parts: int) -> Iterator[list[Charged]]:
        """The charges in turn, once for each setting that may be the one that is fitted on all rows."""
        fits, scores = [_charge_of(one) for one in self.settings], [_charge_of(one) for one in self.scorers]
        trials = [found for fit in fits for found in [fit, *scores] * parts]
        last = fits if self.refits else [None]
        return ([found for found in (*trials, refit) if found is not None] for refit in last)


def refuse_beyond_budget(parts: int) -> None:
    """Raise BudgetExceeded if whoever asks for parts of the rows will charge more than a ledger has left."""
    trials = _asking()
    for charges in () if trials is None else trials.charges(parts):
        ledgers = {found.ledger.name: found.ledger for found in charges}
        for name, ledger in ledgers.items():
            _check(ledger, [found.request for found in charges if found.ledger.name == name])


def _check(ledger: Ledger, requests: Sequence[ChargeRequest]) -> None:
    refused = ledger.first_beyond(requests)
    if refused is None:
        return
    spent, left = ledger.epsilon_spent, ledger.epsilon_left
    raise BudgetExceeded(
        f"expected a search that fits what is left of {ledger.place}, got one whose charge {refused + 1} of "
        f"{len(requests)} does not; nothing was charged: epsilon_spent={spent:.6g}, epsilon_left={left:.6g}; "
        "try fewer settings or parts, or a smaller epsilon for each, or use sfumato tune, which pays for the "
        "best of its trials only",
        epsilon_spent=spent,
        epsilon_left=left,
    )


def _charge_of(payer: Any) -> Charged | None:
    if not isinstance(payer, Paying) or payer.ledger is None:
        return None
    try:
        request = payer.to_be_charged()
    except InvalidInput:  # it will be refused, and charge nothing
        return None
    return None if request is None else Charged(payer.ledger, request)


def _asking() -> Trials | None:
    """What whoever called for parts will do with them; None where scikit-learn did not call."""
    frame = inspect.currentframe()
    while frame is not None:
        module, name, seen = str(frame.f_globals.get("__name__")), frame.f_code.co_name, frame.f_locals
        if (module, name) == _SEARCH:
            search = seen["self"]
            settings = [clone(search.estimator).set_params(**one) for one in seen["candidate_params"]]
            return Trials(
                settings=[_last_step(one) for one in settings],
                scorers=_scorers(search.scoring, search.return_train_score),
                refits=bool(search.refit),
            )
        if module == _VALIDATION and name in _VALIDATIONS:
            scorers = _scorers(seen.get("scoring"), seen.get("return_train_score", False))
            return Trials(settings=[_last_step(seen["estimator"])], scorers=scorers, refits=False)
        frame = frame.f_back
    return None


def _last_step(estimator: Any) -> Any:
    steps = getattr(estimator, "steps", None)
    return _last_step(steps[-1][-1]) if isinstance(steps, list) and steps else estimator


def _scorers(scoring: Any, on_both_sides: bool) -> list[Any]:
    each = list(scoring.values()) if isinstance(scoring, Mapping) else [scoring]
    return each * 2 if on_both_sides else each
