"""The runs of a page, found by what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sfumato.report.reading import Run


@dataclass(frozen=True, kw_only=True)
class Story:
    """All runs that were handed over; failed ones are told of, and drawn from no further."""

    runs: tuple[Run, ...]

    def of(self, kind: str) -> Iterator[Run]:
        return (run for run in self.runs if run.kind == kind and not run.failed)

    def first(self, kind: str) -> Run | None:
        return next(self.of(kind), None)

    @property
    def counts(self) -> tuple[int, int] | None:
        """How many digits were learned from and tried on, where a stage of the demo says it."""
        said = (run.result for kind in ("plain-and-private", "best-recipe") for run in self.of(kind))
        return next(((one["rows"], one["test_rows"]) for one in said if "test_rows" in one), None)

    @property
    def failures(self) -> list[Mapping[str, Any]]:
        return [run.result for run in self.runs if run.failed]


_EVERYBODY = "everybody who sees the model"


@dataclass(frozen=True, kw_only=True)
class Release:
    """A row of the headline table."""

    name: str
    epsilon: float | None  # None: no privacy at all
    delta: float | None
    accuracy: float
    who: str  # who has to be trusted
    note: str = ""
    method: str = ""  # a release is held against the one without privacy of the same method


def releases(story: Story) -> list[Release]:
    """What was released, and how good it is: the plain network first, then by kind."""
    rows: list[Release] = []
    for run in story.of("plain-and-private"):
        rows += [_network(run.result, one) for one in run.result["runs"]]
    for run in story.of("best-recipe"):
        rows += _best(run.result)
    for run in story.of("votes"):
        rows.append(_stated(run.result, "Labels by private vote", "a keeper for each teacher"))
    for run in story.of("reports"):
        rows += [_local(run.result, one) for one in run.result["runs"]]
    return rows or [_by_hand(run) for run in story.of("training") if run.result.get("test_accuracy")]


def _network(result: Mapping[str, Any], one: Mapping[str, Any]) -> Release:
    plain = one["epsilon"] is None
    return Release(
        name="A small network, without privacy" if plain else "The same network, with privacy",
        epsilon=one["epsilon"],
        delta=None if plain else result["delta"],
        accuracy=one["test_accuracy"],
        who=_EVERYBODY if plain else "the keeper of the data",
        method="network",
    )


def _best(result: Mapping[str, Any]) -> list[Release]:
    """The recipe at the ε nearest to 1, averaged over its repetitions, and its twin without privacy."""
    if not result["runs"]:
        return []
    nearest = min((run["epsilon"] for run in result["runs"]), key=lambda epsilon: abs(epsilon - 1))
    same = [run for run in result["runs"] if abs(run["epsilon"] - nearest) < 0.05 * nearest]
    private = Release(
        name="The best recipe, with privacy",
        epsilon=nearest,
        delta=result["delta"],
        accuracy=sum(run["test_accuracy"] for run in same) / len(same),
        who="the keeper of the data",
        note=result.get("note", ""),
        method="recipe",
    )
    if result.get("plain_accuracy") is None:
        return [private]
    plain = replace(
        private,
        name="The best recipe, without privacy",
        epsilon=None,
        delta=None,
        accuracy=result["plain_accuracy"],
        who=_EVERYBODY,
    )
    return [plain, private]


def _stated(result: Mapping[str, Any], name: str, who: str) -> Release:
    return Release(
        name=name,
        epsilon=result["epsilon"],
        delta=result["delta"],
        accuracy=result["test_accuracy"],
        who=who,
        note=result.get("note", ""),
    )


def _local(result: Mapping[str, Any], one: Mapping[str, Any]) -> Release:
    return Release(
        name="Digits noised before they leave",
        epsilon=one["epsilon"],
        delta=result["delta"],
        accuracy=one["test_accuracy"],
        who="nobody",
        note=result.get("note", ""),
    )


def _by_hand(run: Run) -> Release:
    return Release(
        name=run.folder.name,
        epsilon=run.result["epsilon"],
        delta=run.result["delta"],
        accuracy=run.result["test_accuracy"],
        who="the keeper of the data",
    )
