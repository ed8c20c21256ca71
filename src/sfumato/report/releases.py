"""Build the rows of the table of releases: any run that has an ε, and its twin without privacy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sfumato.report.context import Context
from sfumato.runs import (
    Comparison,
    PlainTraining,
    Reports,
    Result,
    Run,
    SeveralHolders,
    Sweep,
    SyntheticDigits,
    Training,
    Tuning,
    Votes,
)

_EVERYBODY = "everybody who sees the model"
_HOLDER = "the data holder"
_NETWORK = {True: "A small network, without privacy", False: "The same network, with privacy"}


@dataclass(frozen=True, kw_only=True)
class ReleaseRow:
    """A row of the table."""

    name: str
    epsilon: float | None  # None: no privacy at all
    delta: float | None
    accuracy: float | None  # on public data; None: not measured
    trusted: str  # with clear data, or with a model that remembers them
    note: str = ""
    method: str = ""  # a release is held against the one without privacy of the same method


def releases(context: Context) -> list[ReleaseRow]:
    """Return the releases and their accuracy: studies first, then single runs."""
    found: list[ReleaseRow] = []
    for kind, rows_of in _ROWS.items():
        for run, result in context.runs_of(kind):
            known = {row.method for row in found if row.method}  # a sweep repeats a comparison's
            found += [row for row in rows_of(run, result) if row.method not in known]
    return found


def _comparison(run: Run, result: Comparison) -> list[ReleaseRow]:
    return [
        ReleaseRow(
            name=_NETWORK[one.epsilon is None],
            epsilon=one.epsilon,
            delta=None if one.epsilon is None else result.delta,
            accuracy=one.test_accuracy,
            trusted=_EVERYBODY if one.epsilon is None else _HOLDER,
            method="network",
        )
        for one in result.networks
    ]


def _sweep(run: Run, result: Sweep) -> list[ReleaseRow]:
    """The method at the ε nearest to 1, averaged over its repetitions, and its twin without privacy."""
    if not result.runs:
        return []
    nearest = min((one.epsilon for one in result.runs), key=lambda epsilon: abs(epsilon - 1))
    same = [one.test_accuracy for one in result.runs if abs(one.epsilon - nearest) <= 0.05 * nearest]
    private = ReleaseRow(
        name=f"The {result.name}, with privacy",
        epsilon=nearest,
        delta=result.delta,
        accuracy=sum(same) / len(same),
        trusted=_HOLDER,
        note=result.note,
        method=result.method,
    )
    if result.plain_accuracy is None:
        return [private]
    plain = replace(
        private,
        name=f"The {result.name}, without privacy",
        epsilon=None,
        delta=None,
        accuracy=result.plain_accuracy,
        trusted=_EVERYBODY,
    )
    return [plain, private]


def _votes(run: Run, result: Votes) -> list[ReleaseRow]:
    return [
        ReleaseRow(
            name="Labels by private vote",
            epsilon=result.epsilon,
            delta=result.delta,
            accuracy=result.student_accuracy,
            trusted="a data holder for each teacher",
            note=result.note,
        )
    ]


def _synthetic(run: Run, result: SyntheticDigits) -> list[ReleaseRow]:
    return [
        ReleaseRow(
            name="Digits of nobody",
            epsilon=result.epsilon,
            delta=result.delta,
            accuracy=result.test_accuracy,
            trusted=_HOLDER,
            note=f"a network that learned from {result.images:,} of them alone",
        )
    ]


def _several(run: Run, result: SeveralHolders) -> list[ReleaseRow]:
    return [
        ReleaseRow(
            name=run.folder.name,
            epsilon=max(result.holder, result.coalition),
            delta=result.delta,
            accuracy=result.test_accuracy,
            trusted=f"no single holder: at most {result.colluding} of {result.holders} with the coordinator",
            note=f"{result.holders} holders, one model",
        )
    ]


def _reports(run: Run, result: Reports) -> list[ReleaseRow]:
    return [
        ReleaseRow(
            name="Records noised before they leave their owner",
            epsilon=result.epsilon,
            delta=result.delta,
            accuracy=result.test_accuracy,
            trusted="nobody",
            note=result.note,
        )
    ]


def _by_name(run: Run, result: Training | Tuning) -> list[ReleaseRow]:
    note = "settings chosen in private" if isinstance(result, Tuning) else ""
    return [
        ReleaseRow(
            name=run.folder.name,
            epsilon=result.epsilon,
            delta=result.delta,
            accuracy=result.test_accuracy,
            trusted=_HOLDER,
            note=note,
        )
    ]


def _plain(run: Run, result: PlainTraining) -> list[ReleaseRow]:
    return [
        ReleaseRow(
            name=run.folder.name, epsilon=None, delta=None, accuracy=result.test_accuracy, trusted=_EVERYBODY
        )
    ]


_ROWS: Mapping[type[Result], Callable[[Run, Any], list[ReleaseRow]]] = {
    Comparison: _comparison,
    Sweep: _sweep,
    Votes: _votes,
    SyntheticDigits: _synthetic,
    SeveralHolders: _several,
    Reports: _reports,
    Tuning: _by_name,
    Training: _by_name,
    PlainTraining: _plain,
}
KINDS = tuple(_ROWS)
