"""Plan, charge, measure, choose, fit: the one module that knows all parts of a synthetic table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidInput
from sfumato.synthesis.cells import CellColumn
from sfumato.synthesis.counting import Clique
from sfumato.synthesis.inference import Fitted, Measurement, fit, independent
from sfumato.synthesis.merging import Buckets, merged
from sfumato.synthesis.model import SyntheticModel, marginal, steps_of
from sfumato.synthesis.paid import PaidTable
from sfumato.synthesis.tree import connected, in_order, model_cells

Floats = npt.NDArray[np.float64]
Progress = Callable[[str], None]

MOST_MODEL_CELLS = 100_000
"""Of a junction tree: what a fit's time and memory grow with."""

MOST_MARGINAL_CELLS = 100_000
ROUND_BLOCKS, LAST_BLOCKS = 4, 8
"""Blocks of fifty descent steps in each round, and in the last one."""

TOO_LITTLE = "epsilon is too small to learn how columns depend on each other: they are drawn independently"
_MEAN_NOISE = math.sqrt(2 / math.pi)  # E|Z|


@dataclass(frozen=True)
class Synthesis:
    """What came out: the model, what was measured for it, and words on what was not."""

    model: SyntheticModel
    fitted: Fitted
    buckets: Mapping[str, Buckets]
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...] = ()


def workload(
    columns: Sequence[CellColumn], *, target: str | None = None, named: Sequence[Sequence[str]] | None = None
) -> tuple[Clique, ...]:
    """The marginals to choose from: those named, all pairs, or all pairs together with the target."""
    names = [column.name for column in columns]
    if named is not None:
        return tuple(dict.fromkeys(_named(clique, names) for clique in named))
    others = [name for name in names if name != target]
    if target is None or len(others) < 2:
        found = [in_order(pair, names) for pair in itertools.combinations(names, 2)]
    else:
        found = [in_order((*pair, target), names) for pair in itertools.combinations(others, 2)]
    sizes = {column.name: column.size for column in columns}
    return tuple(clique for clique in found if math.prod(sizes[name] for name in clique) <= MOST_MARGINAL_CELLS)


def _named(clique: Sequence[str], names: Sequence[str]) -> Clique:
    unknown = sorted(set(clique) - set(names))
    if unknown:
        raise InvalidInput(
            f"expected a workload of columns that are synthesized, got {', '.join(unknown)}; they are "
            + ", ".join(names)
        )
    if not 2 <= len(set(clique)) == len(clique) <= 3:
        raise InvalidInput(
            f"expected two or three different columns in each part of the workload, got {','.join(clique)}"
        )
    return in_order(clique, names)


class Synthesizer:
    """One run of a plan: what is known so far, all of it noisy or public."""

    def __init__(
        self,
        paid: PaidTable,
        columns: Sequence[CellColumn],
        candidates: Sequence[Clique],
        *,
        progress: Progress = lambda words: None,
    ) -> None:
        if paid.plan.columns != len(columns):
            raise InvalidInput(
                f"expected a plan for columns={len(columns)}, got columns={paid.plan.columns}; plan anew"
            )
        self.paid, self.plan = paid, paid.plan
        self.columns, self.candidates, self.progress = columns, candidates, progress
        self.buckets: dict[str, Buckets] = {}
        self.measurements: list[Measurement] = []

    def run(self) -> Synthesis:
        """Measure single columns, then choose, measure and fit, round after round."""
        self.progress("single columns")
        total = self._measure_single()
        sizes = {column.name: self.buckets[column.name].size for column in self.columns}
        fitted = independent(sizes, _shares(self.measurements, total))
        waiting = self._learnable(sizes, total)
        notes = (TOO_LITTLE,) if self.plan.picks and not waiting else ()
        rounds = len(self.plan.picks)
        for number, picks in enumerate(self.plan.picks if waiting else (), start=1):
            self.progress(f"round {number} of {rounds}")
            chosen = self._choose(fitted, waiting, picks, total, spanning=number == 1)
            waiting = [clique for clique in waiting if clique not in chosen]
            self._measure_joint(chosen)
            blocks = LAST_BLOCKS if number == rounds else ROUND_BLOCKS
            fitted = fit(self.measurements, total=total, start=fitted, blocks=blocks)
        shares = {name: bucket.shares for name, bucket in self.buckets.items()}
        model = SyntheticModel.of(self.columns, shares, fitted.tables, total)
        return Synthesis(model, fitted, self.buckets, tuple(self.measurements), notes)

    def _measure_single(self) -> float:
        """Measure every column by itself and merge what holds next to nobody; the number of rows, noisy."""
        sigma = self.plan.single_sigma
        sums, weights = [], []
        for column in self.columns:
            noisy = self.paid.single(column.name)
            bucket = merged(column, noisy, sigma)
            spread = np.sqrt(bucket.counts(np.ones(column.size))).mean()
            self.buckets[column.name] = bucket
            self.measurements.append(Measurement((column.name,), bucket.counts(noisy), float(sigma * spread)))
            sums.append(noisy.sum())
            weights.append(1 / column.size)
        return max(1.0, float(np.average(sums, weights=weights)))

    def _learnable(self, sizes: Mapping[str, int], total: float) -> list[Clique]:
        """Candidates whose noise, all cells together, stays below half the table."""
        noise = _MEAN_NOISE * self.plan.joint_sigma
        return [
            clique
            for clique in self.candidates
            if math.prod(sizes[name] for name in clique) * noise < total / 2
        ]

    def _choose(
        self, fitted: Fitted, candidates: Sequence[Clique], picks: int, total: float, *, spanning: bool
    ) -> list[Clique]:
        """So many marginals in which the model is farthest from the table."""
        steps = steps_of(fitted.tables)
        expected = {clique: marginal(steps, clique) * total for clique in candidates}
        penalty = _MEAN_NOISE * self.plan.joint_sigma  # what the noise of measuring would misplace
        chosen: list[Clique] = []
        for _ in range(picks):
            allowed = self._allowed(fitted.sizes, candidates, chosen, spanning=spanning)
            if not allowed:
                break
            among = {clique: expected[clique] for clique in allowed}
            chosen.append(self.paid.choose(among, self.buckets, penalty))
        return chosen

    def _allowed(
        self,
        sizes: Mapping[str, int],
        candidates: Sequence[Clique],
        chosen: Sequence[Clique],
        *,
        spanning: bool,
    ) -> list[Clique]:
        """Candidates that keep the model small and, in the first round, connect what is not yet connected."""
        found = [clique for clique in candidates if clique not in chosen]
        if spanning:
            part = connected([self._edge(clique) for clique in chosen], sizes)
            found = [clique for clique in found if len({part[name] for name in self._edge(clique)}) > 1]
        known = [*(item.clique for item in self.measurements if len(item.clique) > 1), *chosen]
        return [clique for clique in found if model_cells(sizes, [*known, clique]) <= MOST_MODEL_CELLS]

    def _edge(self, clique: Clique) -> Clique:
        """What a marginal connects: with a target, which is part of all of them, the other columns."""
        return tuple(name for name in clique if name != self.plan.target) if len(clique) > 2 else clique

    def _measure_joint(self, cliques: Sequence[Clique]) -> None:
        for clique in cliques:
            noisy = self.paid.joint(clique, self.buckets)
            self.measurements.append(Measurement(clique, noisy, self.plan.joint_sigma))


def _shares(measurements: Sequence[Measurement], total: float) -> dict[str, Floats]:
    """Distributions of single columns: noisy counts, shifted and cut off so that they add up to the total."""
    return {item.clique[0]: _simplex(item.counts / total) for item in measurements}


def _simplex(values: Floats) -> Floats:
    """The nearest distribution (Euclidean projection; Duchi et al. 2008, figure 1)."""
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(values) + 1)
    shift = excess[np.nonzero(ordered > excess)[0][-1]]
    found = np.maximum(values - shift, 1e-9)
    return np.asarray(found / found.sum())
