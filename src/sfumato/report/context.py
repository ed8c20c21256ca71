"""The runs of a page, found by the type of their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from sfumato.runs import (
    Comparison,
    Failure,
    Reports,
    Result,
    Run,
    Sweep,
    Training,
    Tuning,
    Votes,
)

Kind = TypeVar("Kind", bound=Result)
_NAMES = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "digits": "scikit-learn’s digits",
    "strokes": "drawn strokes",
}
_OF_DIGITS = ("mnist", "digits", "strokes")


def data_name(data: str | None) -> str | None:
    """A public data set by its usual name; None for the user's own."""
    return None if data is None else _NAMES.get(data, data)


@dataclass(frozen=True, kw_only=True)
class Context:
    """All runs that were handed over; failed ones are named, and drawn from no further."""

    runs: tuple[Run, ...]

    def runs_of(self, kind: type[Kind]) -> list[tuple[Run, Kind]]:
        """Runs of one kind; a part of a larger run is drawn by that one."""
        wholes = (run for run in self.runs if run.part_of is None)
        return [(run, run.result) for run in wholes if isinstance(run.result, kind)]

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [result for _, result in self.runs_of(kind)]

    @property
    def failures(self) -> list[Failure]:
        return self.of(Failure)

    @property
    def data(self) -> str | None:
        """The one public data set that all runs are about; None: several, or a user's own."""
        results: list[Training | Tuning | Votes | Reports | Comparison | Sweep] = [
            *self.of(Training),
            *self.of(Tuning),
            *self.of(Votes),
            *self.of(Reports),
            *self.of(Comparison),
            *self.of(Sweep),
        ]
        names = {result.data for result in results}
        return names.pop() if len(names) == 1 else None

    @property
    def examples(self) -> str:
        """Return the noun for the classified examples."""
        return "digits" if self.data in _OF_DIGITS else "examples"

    @property
    def counts(self) -> tuple[int, int] | None:
        """How many examples were learned from and tested on, where a study says it."""
        studies: list[Comparison | Sweep] = [*self.of(Comparison), *self.of(Sweep)]
        for study in studies:
            if study.rows and study.test_rows:
                return study.rows, study.test_rows
        return None
