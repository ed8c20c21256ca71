"""Plan, charge, measure, choose, fit: the one module that knows all parts of a synthetic table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidInput
from sfumato.mechanisms import DiscreteGaussian
from sfumato.randomness import Sampler
from sfumato.synthesis.cells import CellColumn
from sfumato.synthesis.counting import Clique, Marginals
from sfumato.synthesis.inference import Fitted, Measurement, fit, independent
from sfumato.synthesis.merging import Buckets, merge_table, merged
from sfumato.synthesis.model import Step, SyntheticModel, marginal, steps_of
from sfumato.synthesis.plan import SynthesisPlan
from sfumato.synthesis.tree import connected, in_order, model_cells

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Progress = Callable[[str], None]

MOST_MODEL_CELLS = 100_000
"""Of a junction tree: what a fit's time and memory grow with."""

MOST_MARGINAL_CELLS = 100_000
ROUND_BLOCKS, LAST_BLOCKS = 4, 8
"""Blocks of fifty descent steps in each round, and in the last one."""

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


@dataclass
class Synthesizer:
    """One run of a plan: what is known so far, all of it noisy.

    `plan.event()` must have been charged. Exact counts stay inside, and leave through a mechanism only.
    """

    plan: SynthesisPlan
    columns: Sequence[CellColumn]
    candidates: Sequence[Clique]
    table: Marginals
    sampler: Sampler
    progress: Progress = lambda words: None
    buckets: dict[str, Buckets] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _counts: dict[Clique, Integers] = field(default_factory=dict, repr=False)

    def run(self) -> Synthesis:
        self._check()
        self.progress("single columns")
        total = self._measure_single()
        sizes = {column.name: self.buckets[column.name].size for column in self.columns}
        fitted = independent(sizes, _shares(self.measurements, total))
        open_candidates = self._learnable(sizes, total)
        if self.plan.picks and not open_candidates:
            self.notes.append(
                "epsilon is too small to learn how columns depend on each other: they were drawn independently"
            )
        for place, picks in enumerate(self.plan.picks if open_candidates else ()):
            last = place == len(self.plan.picks) - 1
            self.progress(f"round {place + 1} of {len(self.plan.picks)}")
            chosen = self._choose(fitted, open_candidates, picks, total, spanning=place == 0)
            open_candidates = [clique for clique in open_candidates if clique not in chosen]
            self._measure_joint(chosen)
            if chosen or last:
                blocks = LAST_BLOCKS if last else ROUND_BLOCKS
                fitted = fit(self.measurements, total=total, start=fitted, blocks=blocks)
        shares = {name: bucket.shares for name, bucket in self.buckets.items()}
        model = SyntheticModel.of(self.columns, shares, fitted.tables, total)
        return Synthesis(model, fitted, self.buckets, tuple(self.measurements), tuple(self.notes))

    def _check(self) -> None:
        if self.plan.rows != self.table.rows or self.plan.columns != len(self.columns):
            raise InvalidInput(
                f"expected a plan for rows={self.table.rows} and columns={len(self.columns)}, got "
                f"rows={self.plan.rows} and columns={self.plan.columns}; count what was charged"
            )

    def _measure_single(self) -> float:
        """Measure every column by itself and merge what holds next to nobody; the number of rows, noisy."""
        noise, sigma = self.plan.single_noise, self.plan.single_sigma
        sums, weights = [], []
        for column in self.columns:
            noisy = _released(noise, self.table.marginal((column.name,)), self.sampler)
            bucket = merged(column, noisy, sigma)
            self.buckets[column.name] = bucket
            counts = bucket.counts(noisy)
            spread = np.sqrt(bucket.counts(np.ones(column.size)))
            self.measurements.append(Measurement((column.name,), counts, float(sigma * spread.mean())))
            sums.append(noisy.sum())
            weights.append(1 / column.size)
        return max(1.0, float(np.average(sums, weights=weights)))

    def _exact(self, clique: Clique) -> Integers:
        """Counted once on the engine, however many rounds look at it."""
        if clique not in self._counts:
            counts = self.table.marginal(clique)
            self._counts[clique] = merge_table(counts, [self.buckets[name] for name in clique])
        return self._counts[clique]

    def exact_shares(self) -> dict[Clique, Floats]:
        """What was counted, without noise: PRIVATE, for the holder's own report."""
        return {clique: counts / max(1, counts.sum()) for clique, counts in self._counts.items()}

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
        """So many marginals in which the model is farthest from the table, by the exponential mechanism."""
        steps = steps_of(fitted.tables)
        scores = {clique: self._distance(steps, clique, total) for clique in candidates}
        chosen: list[Clique] = []
        for _ in range(picks):
            allowed = self._allowed(fitted.sizes, candidates, chosen, spanning=spanning)
            if not allowed:
                break
            values = np.array([scores[clique] for clique in allowed])
            chosen.append(allowed[self.plan.choice(len(allowed)).release(values, self.sampler)])
        return chosen

    def _distance(self, steps: Sequence[Step], clique: Clique, total: float) -> float:
        """How many rows the model has in the wrong place, less what the noise of measuring would misplace."""
        expected = marginal(steps, clique) * total
        penalty = _MEAN_NOISE * self.plan.joint_sigma * expected.size
        return float(np.abs(self._exact(clique) - expected).sum() - penalty)

    def _allowed(
        self,
        sizes: Mapping[str, int],
        candidates: Sequence[Clique],
        chosen: Sequence[Clique],
        *,
        spanning: bool,
    ) -> list[Clique]:
        """Candidates that keep the model small and, in the first round, connect what is not yet connected."""
        measured = [item.clique for item in self.measurements if len(item.clique) > 1]
        found = [clique for clique in candidates if clique not in chosen]
        if spanning:
            part = connected([self._edge(clique) for clique in chosen], sizes)
            found = [clique for clique in found if len({part[name] for name in self._edge(clique)}) > 1]
        known = [*measured, *chosen]
        return [clique for clique in found if model_cells(sizes, [*known, clique]) <= MOST_MODEL_CELLS]

    def _edge(self, clique: Clique) -> Clique:
        return tuple(name for name in clique if name != self.plan.target) if len(clique) > 2 else clique

    def _measure_joint(self, cliques: Sequence[Clique]) -> None:
        for clique in cliques:
            noisy = _released(self.plan.joint_noise, self._exact(clique), self.sampler)
            self.measurements.append(Measurement(clique, noisy, self.plan.joint_sigma))


def _released(noise: DiscreteGaussian, counts: Integers, sampler: Sampler) -> Floats:
    return noise.release(counts, sampler).astype(np.float64)


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
