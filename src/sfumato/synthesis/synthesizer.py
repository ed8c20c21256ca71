"""Plan, charge, measure, choose, fit: the one module that knows all parts of a synthetic table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from sfumato.synthesis.plan import SynthesisPlan
from sfumato.synthesis.tree import connected, in_order, model_cells

Floats = npt.NDArray[np.float64]
Progress = Callable[[str], None]

MOST_MODEL_CELLS = 100_000
"""Of a junction tree: what a fit's time and memory grow with."""

MOST_MARGINAL_CELLS = 100_000
ROUND_BLOCKS, LAST_BLOCKS = 4, 12
"""Blocks of fifty descent steps in each round, and in the last one."""

TOO_LITTLE = "epsilon is too small to learn how columns depend on each other: they are drawn independently"
_MEAN_NOISE = math.sqrt(2 / math.pi)  # E|Z|


@dataclass(frozen=True)
class Synthesis:
    """What came out: the model, what was measured for it, and words on what was not.

    Attributes:
        model: Draws rows.
        buckets: Which cells of each column are counted together.
        measurements: What was measured.
        notes: What was not, and why.
    """

    model: SyntheticModel
    buckets: Mapping[str, Buckets]
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...] = ()


def workload(
    columns: Sequence[CellColumn], *, target: str | None = None, named: Sequence[Sequence[str]] | None = None
) -> tuple[Clique, ...]:
    """List the marginals to choose from: those named, or all pairs, except those that are measured in any case.

    Args:
        columns: The columns as cells.
        target: The column whose relation to others matters most.
        named: Marginals to choose from, each a list of columns.

    Returns:
        The marginals.

    >>> columns = [CellColumn(name=name, type="text", values=("a", "b")) for name in ("x", "y")]
    >>> workload(columns)
    (('x', 'y'),)
    """
    names = [column.name for column in columns]
    sizes = {column.name: column.size for column in columns}
    if named is not None:
        _check_named(named, names, sizes)
        found = dict.fromkeys(_named(clique, names) for clique in named)
    else:
        found = dict.fromkeys(in_order(pair, names) for pair in itertools.combinations(names, 2))
    taken = () if target is None else with_target(columns, target)
    return tuple(
        clique for clique in found if clique not in taken and _cells(sizes, clique) <= MOST_MARGINAL_CELLS
    )


def stages_of(plan: SynthesisPlan) -> int:
    """How often a run of a plan tells of its progress, at most."""
    fits = len(plan.picks) + bool(plan.fixed)
    return 1 + fits * (1 + ROUND_BLOCKS) + (LAST_BLOCKS - ROUND_BLOCKS if fits else 0)


def with_target(columns: Sequence[CellColumn], target: str) -> tuple[Clique, ...]:
    """Every other column together with the target: measured in any case where there is one."""
    names = [column.name for column in columns]
    return tuple(in_order((name, target), names) for name in names if name != target)


def tells(plan: SynthesisPlan, cells: int, total: float) -> bool:
    """Whether the noise of so many cells, all together, stays below half of the rows."""
    return cells * _MEAN_NOISE * plan.joint_sigma < total / 2


def _cells(sizes: Mapping[str, int], clique: Clique) -> int:
    return math.prod(sizes[name] for name in clique)


def _check_named(named: Sequence[Sequence[str]], names: Sequence[str], sizes: Mapping[str, int]) -> None:
    """What a user names is a candidate, or is refused: it is not left out in silence."""
    if not named:
        raise InvalidInput('expected columns to keep related, such as "age,income", got none')
    for clique in named:
        cells = _cells(sizes, _named(clique, names))
        if cells > MOST_MARGINAL_CELLS:
            raise InvalidInput(
                f"expected at most {MOST_MARGINAL_CELLS:,} cells in each part of the workload, got {cells:,} "
                f"of {','.join(clique)}; declare coarser categories, or name fewer columns"
            )


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
    """One run of a plan: what is known so far, all of it noisy or public.

    Args:
        paid: The table behind the mechanisms of its plan.
        columns: The columns as cells.
        candidates: Marginals to choose from.
        fixed: Marginals that are measured in any case.
        progress: Called as measurements are made.

    ```python
    synthesis = Synthesizer(PaidTable(plan, marginals, sampler), columns, workload(columns)).run()
    ```
    """

    def __init__(
        self,
        paid: PaidTable,
        columns: Sequence[CellColumn],
        candidates: Sequence[Clique],
        *,
        fixed: Sequence[Clique] = (),
        progress: Progress = lambda words: None,
    ) -> None:
        if paid.plan.columns != len(columns):
            raise InvalidInput(
                f"expected a plan for columns={len(columns)}, got columns={paid.plan.columns}; plan anew"
            )
        self.paid, self.plan = paid, paid.plan
        self.columns, self.candidates, self.fixed, self.progress = columns, candidates, fixed, progress
        self.buckets: dict[str, Buckets] = {}
        self.measurements: list[Measurement] = []

    def run(self) -> Synthesis:
        """Measure single columns, then choose, measure and fit, round after round."""
        self.progress("single columns")
        total = self._measure_single()
        sizes = {column.name: self.buckets[column.name].size for column in self.columns}
        fitted = independent(sizes, _shares(self.measurements, total))
        fixed, waiting = (self._learnable(some, sizes, total) for some in (self.fixed, self.candidates))
        if fixed:
            self.progress("columns with the target")
            self._measure_joint(fixed)
            fitted = self._fitted(fitted, total, "columns with the target", last=not waiting)
        rounds = len(self.plan.picks) if waiting else 0
        for number in range(rounds):
            words = f"round {number + 1} of {rounds}"
            self.progress(words)
            chosen = self._choose(fitted, waiting, self.plan.picks[number], total)
            waiting = [clique for clique in waiting if clique not in chosen]
            self._measure_joint(chosen)
            fitted = self._fitted(fitted, total, words, last=number == rounds - 1)
        notes = (TOO_LITTLE,) if self.plan.measured and not (fixed or rounds) else ()
        shares = {name: bucket.shares for name, bucket in self.buckets.items()}
        model = SyntheticModel.of(self.columns, shares, fitted.tables, total)
        return Synthesis(model, self.buckets, tuple(self.measurements), notes)

    def _fitted(self, start: Fitted, total: float, words: str, *, last: bool) -> Fitted:
        blocks = LAST_BLOCKS if last else ROUND_BLOCKS

        def tell(block: int) -> None:
            self.progress(f"{words}: fitting, {block + 1} of {blocks}")

        return fit(self.measurements, total=total, start=start, blocks=blocks, before=tell)

    def _measure_single(self) -> float:
        """Measure every column by itself and merge what holds next to nobody; the number of rows, noisy."""
        sigma = self.plan.single_sigma
        sums, weights = [], []
        for column in self.columns:
            noisy = self.paid.single(column.name)
            bucket = merged(column, noisy, sigma)
            self.buckets[column.name] = bucket
            counts = bucket.counts(noisy)
            self.measurements.append(Measurement((column.name,), counts, bucket.mean_spread(sigma)))
            sums.append(noisy.sum())
            weights.append(1 / column.size)
        return max(1.0, float(np.average(sums, weights=weights)))

    def _learnable(self, cliques: Sequence[Clique], sizes: Mapping[str, int], total: float) -> list[Clique]:
        """Marginals whose noise, all cells together, stays below half the table."""
        return [clique for clique in cliques if tells(self.plan, _cells(sizes, clique), total)]

    def _choose(self, fitted: Fitted, candidates: Sequence[Clique], picks: int, total: float) -> list[Clique]:
        """So many marginals in which the model is farthest from the table."""
        steps = steps_of(fitted.tables)
        expected = {clique: marginal(steps, clique) * total for clique in candidates}
        penalty = _MEAN_NOISE * self.plan.joint_sigma  # what the noise of measuring would misplace
        chosen: list[Clique] = []
        for _ in range(picks):
            allowed = self._allowed(
                fitted.sizes, [clique for clique in candidates if clique not in chosen], chosen
            )
            if not allowed:
                break
            among = {clique: expected[clique] for clique in allowed}
            chosen.append(self.paid.choose(among, self.buckets, penalty))
        return chosen

    def _allowed(
        self, sizes: Mapping[str, int], candidates: Sequence[Clique], chosen: Sequence[Clique]
    ) -> list[Clique]:
        """Candidates that keep the model small: those that connect, as long as there are any, or else all."""
        known = [*(item.clique for item in self.measurements), *chosen]
        now = model_cells(sizes, known)
        connecting = _connecting(candidates, known, sizes)
        # A pair between parts that nothing connects closes no cycle: the model grows by its own cells.
        found = [clique for clique in connecting if now + _cells(sizes, clique) <= MOST_MODEL_CELLS]
        return found or [
            clique for clique in candidates if model_cells(sizes, [*known, clique]) <= MOST_MODEL_CELLS
        ]

    def _measure_joint(self, cliques: Sequence[Clique]) -> None:
        for clique in cliques:
            noisy = self.paid.joint(clique, self.buckets)
            self.measurements.append(Measurement(clique, noisy, self.plan.joint_sigma))


def _connecting(candidates: Sequence[Clique], known: Sequence[Clique], names: Iterable[str]) -> list[Clique]:
    """Candidates whose columns all lie in different parts of what is known."""
    part = connected(known, names)
    return [clique for clique in candidates if len({part[name] for name in clique}) == len(clique)]


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
