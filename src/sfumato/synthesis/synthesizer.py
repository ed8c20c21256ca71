"""Plan, charge, measure, choose, fit: the one module that knows all parts of a synthetic table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato.caveats import Code
from sfumato.errors import InvalidInput
from sfumato.synthesis.cells import Buckets, CellColumn, coarser, merged
from sfumato.synthesis.counting import Clique
from sfumato.synthesis.inference import Fitted, Measurement, connected, fit, in_order, independent, model_cells
from sfumato.synthesis.model import Step, SyntheticModel, marginal, steps_of
from sfumato.synthesis.plan import PaidTable, SynthesisPlan

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Progress = Callable[[str], None]

MOST_MODEL_CELLS = 100_000
"""Of a junction tree; time and memory of a fit grow with them."""

MOST_MARGINAL_CELLS = 100_000
ROUND_BLOCKS, LAST_BLOCKS = 4, 12
"""Blocks of fifty descent steps in each round, and in the last one."""

TOO_LITTLE = Code.INDEPENDENT()
_MEAN_NOISE = math.sqrt(2 / math.pi)  # E|Z|
_CLEARER = 4  # how much less noise columns in fewer buckets must have than those that are as they are
_WEAK = 1e3  # the noise of figures that are known already, so that they do not count twice
_NEVER = -60.0  # the logarithm of the chance of an impossible combination


@dataclass(frozen=True)
class Synthesis:
    """The result: the model, its measurements, and notes on marginals that were not measured."""

    model: SyntheticModel
    buckets: Mapping[str, Buckets]
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...] = ()

    def marginal(self, clique: Clique) -> Floats:
        """Return the model's probabilities of columns and views."""
        return marginal(_with_views(self.model.steps, self.buckets, clique), clique)

    def columns_of(self, clique: Clique) -> Clique:
        return tuple(self.buckets[name].column for name in clique)

    @property
    def measured(self) -> set[Clique]:
        """The columns that were measured together, by their values and not only by whether they have one."""
        joint = [item.clique for item in self.measurements if len(item.clique) > 1]
        return {self.columns_of(clique) for clique in joint if all(map(self._tells_values, clique))}

    def _tells_values(self, name: str) -> bool:
        bucket = self.buckets[name]
        return name == bucket.column or int((bucket.shares[:, :-1].sum(axis=1) > 0).sum()) > 1


def workload(
    columns: Sequence[CellColumn], *, target: str | None = None, named: Sequence[Sequence[str]] | None = None
) -> tuple[Clique, ...]:
    """List the marginals to choose from: those named, or all pairs, except those that are measured in any case.

    >>> columns = [CellColumn(name=name, type="text", values=("a", "b")) for name in ("x", "y")]
    >>> workload(columns)
    (('x', 'y'),)
    """
    sizes = {column.name: column.size for column in columns}
    taken = () if target is None else with_target(columns, target)
    return tuple(
        clique
        for clique in wanted(columns, named=named)
        if clique not in taken and _cells(sizes, clique) <= MOST_MARGINAL_CELLS
    )


def wanted(
    columns: Sequence[CellColumn], *, named: Sequence[Sequence[str]] | None = None
) -> tuple[Clique, ...]:
    """The marginals that are named, or all pairs, also those with too many cells to be counted."""
    names = [column.name for column in columns]
    if named is None:
        return tuple(itertools.combinations(names, 2))
    _check_named(named, names, {column.name: column.size for column in columns})
    return tuple(dict.fromkeys(_named(clique, names) for clique in named))


def stages_of(plan: SynthesisPlan) -> int:
    """How often a run of a plan tells of its progress, at most."""
    fits = len(plan.picks) + bool(plan.fixed)
    return 1 + fits * (1 + ROUND_BLOCKS) + (LAST_BLOCKS - ROUND_BLOCKS if fits else 0)


def with_target(columns: Sequence[CellColumn], target: str) -> tuple[Clique, ...]:
    """Every other column together with the target: measured in any case where there is one."""
    names = [column.name for column in columns]
    return tuple(in_order((name, target), names) for name in names if name != target)


def most_cells(plan: SynthesisPlan, total: float) -> int:
    """How many cells' noise, all together, stays below half of the rows."""
    return math.ceil(total / 2 / (_MEAN_NOISE * plan.joint_sigma)) - 1


def _cells(sizes: Mapping[str, int], clique: Clique) -> int:
    return math.prod(sizes[name] for name in clique)


def _check_named(named: Sequence[Sequence[str]], names: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Check that marginals named by the user are candidates: none is left out in silence."""
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
    """One run of a plan: its state is noisy or public.

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
        self.views: dict[str, tuple[str, ...]] = {}  # of each column: itself, and itself in fewer buckets
        self.seen_as: dict[Clique, Clique] = {}  # the views in which columns are counted together
        self.measurements: list[Measurement] = []
        self.joined: list[Clique] = []  # columns that were measured together

    def run(self) -> Synthesis:
        """Measure single columns, then choose, measure and fit, round after round."""
        self.progress("single columns")
        total = self._measure_single()
        for column in self.columns:
            self._look_at(column, total)
        sizes = {name: self.buckets[name].size for views in self.views.values() for name in views}
        fitted = independent({name: sizes[name] for name in self.views}, _shares(self.measurements, total))
        fixed, waiting = (self._learnable(some, sizes, total) for some in (self.fixed, self.candidates))
        if fixed:
            self.progress("columns with the target")
            self._measure_joint(fixed)
            fitted = self._fitted(fitted, total, "columns with the target", last=not waiting)
        rounds = len(self.plan.picks) if waiting else 0
        for number in range(rounds):
            words = f"round {number + 1} of {rounds}"
            self.progress(words)
            chosen = self._choose(fitted, sizes, waiting, self.plan.picks[number], total)
            waiting = [clique for clique in waiting if clique not in chosen]
            self._measure_joint(chosen)
            fitted = self._fitted(fitted, total, words, last=number == rounds - 1)
        notes = (TOO_LITTLE,) if self.plan.measured and not (fixed or rounds) else ()
        shares = {name: self.buckets[name].shares for name in self.views}
        model = SyntheticModel.of(self.columns, shares, fitted.tables, total, groups=self._groups(fitted.sizes))
        return Synthesis(model, self.buckets, tuple(self.measurements), notes)

    def _groups(self, names: Iterable[str]) -> dict[str, tuple[str, Integers]]:
        """Of each view in a model its column, and where the column's buckets are in it."""
        views = [(name, self.buckets[name].column) for name in names if name not in self.views]
        return {name: (column, _group(self.buckets[column], self.buckets[name])) for name, column in views}

    def _fitted(self, start: Fitted, total: float, words: str, *, last: bool) -> Fitted:
        blocks = LAST_BLOCKS if last else ROUND_BLOCKS

        def tell(block: int) -> None:
            self.progress(f"{words}: fitting, {block + 1} of {blocks}")

        names = [name for views in self.views.values() for name in views]
        used = {name for item in self.measurements for name in item.clique}
        sizes = {name: self.buckets[name].size for name in names if name in used}
        ties = [self._tie(name) for name in sizes if name not in self.views]
        new = {
            item.clique: np.where(_indicator(self.buckets, item.clique[1]), 0.0, _NEVER)
            for item in ties
            if item.clique not in start.potentials
        }
        start = Fitted(sizes, {**start.potentials, **new}, start.tables)
        return fit([*self.measurements, *ties], total=total, start=start, blocks=blocks, before=tell)

    def _tie(self, name: str) -> Measurement:
        """That a view follows from its column: each bucket of the column is in one of its buckets."""
        column = self.buckets[name].column
        both = self._counts(column)[:, None] * _indicator(self.buckets, name)
        return Measurement((column, name), both, _WEAK * self.plan.single_sigma)

    def _measure_single(self) -> float:
        """Measure every column by itself and merge nearly empty cells; return the noisy number of rows."""
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

    def _look_at(self, column: CellColumn, total: float) -> None:
        """Have a view of a column that has too many buckets for two such columns together."""
        fine, counts = self.buckets[column.name], self._counts(column.name)
        most = min(math.isqrt(most_cells(self.plan, total) // _CLEARER), MOST_MODEL_CELLS // 4 // fine.size)
        self.views[column.name] = (column.name,)
        if 2 <= most < fine.size:
            name = f"{column.name} in fewer"
            while name in self.buckets:
                name += " "
            self.buckets[name] = coarser(column, fine, counts, most)
            self.views[column.name] = (column.name, name)

    def _counts(self, name: str) -> Floats:
        return next(item.counts for item in self.measurements if item.clique == (name,))

    def _learnable(self, cliques: Sequence[Clique], sizes: Mapping[str, int], total: float) -> list[Clique]:
        """Marginals that are counted in some view without more noise than they can bear."""
        for clique in cliques:
            ways = itertools.product(*(self.views[name] for name in clique))
            fitting = [way for way in ways if self._fits(way, clique, sizes, total)]
            if fitting:
                self.seen_as[clique] = max(fitting, key=lambda way: _cells(sizes, way))
        return [clique for clique in cliques if clique in self.seen_as]

    def _fits(self, way: Clique, clique: Clique, sizes: Mapping[str, int], total: float) -> bool:
        """Whether all cells' noise stays below half the table as the columns are, or far below in views."""
        cells = _cells(sizes, way) * (1 if way == clique else _CLEARER)
        return cells <= most_cells(self.plan, total)

    def _graph(self, cliques: Iterable[Clique]) -> list[Clique]:
        """The marginals in the views in which they are counted, and the ties of these to their columns."""
        seen = [self.seen_as.get(clique, clique) for clique in cliques]
        views = dict.fromkeys(name for way in seen for name in way if name not in self.views)
        return [*seen, *((self.buckets[name].column, name) for name in views if name in self.buckets)]

    def _choose(
        self, fitted: Fitted, sizes: Mapping[str, int], candidates: Sequence[Clique], picks: int, total: float
    ) -> list[Clique]:
        """So many marginals in which the model is farthest from the table."""
        steps = steps_of(fitted.tables)
        expected = {
            clique: marginal(_with_views(steps, self.buckets, way), way) * total
            for clique in candidates
            for way in [self.seen_as[clique]]
        }
        penalty = _MEAN_NOISE * self.plan.joint_sigma  # misplaced by the noise of measuring
        chosen: list[Clique] = []
        for _ in range(picks):
            allowed = self._allowed(sizes, [clique for clique in candidates if clique not in chosen], chosen)
            if not allowed:
                break
            among = {self.seen_as[clique]: expected[clique] for clique in allowed}
            picked = self.paid.choose(among, self.buckets, penalty)
            chosen.append(tuple(self.buckets[name].column for name in picked))
        return chosen

    def _allowed(
        self, sizes: Mapping[str, int], candidates: Sequence[Clique], chosen: Sequence[Clique]
    ) -> list[Clique]:
        """Candidates that keep the model small: those that connect, as long as there are any, or else all."""
        known = [*self.joined, *chosen]
        now = self._model_cells(sizes, known)
        connecting = _connecting(candidates, known, sizes)
        # A pair between parts that nothing connects closes no cycle: the model grows by its own cells.
        found = [
            clique
            for clique in connecting
            if now + sum(_cells(sizes, each) for each in self._graph([clique])) <= MOST_MODEL_CELLS
        ]
        return found or [
            clique for clique in candidates if self._model_cells(sizes, [*known, clique]) <= MOST_MODEL_CELLS
        ]

    def _model_cells(self, sizes: Mapping[str, int], cliques: Sequence[Clique]) -> int:
        graph = self._graph(cliques)
        names = {*self.views, *(name for clique in graph for name in clique)}
        return model_cells({name: size for name, size in sizes.items() if name in names}, graph)

    def _measure_joint(self, cliques: Sequence[Clique]) -> None:
        for clique in cliques:
            way = self.seen_as[clique]
            noisy = self.paid.joint(way, self.buckets)
            self.joined.append(clique)
            self.measurements.append(Measurement(way, noisy, self.plan.joint_sigma))


def _group(fine: Buckets, view: Buckets) -> Integers:
    """Where each bucket of a column is in a view of it."""
    found = np.zeros(fine.size, dtype=np.int64)
    found[fine.place] = view.place
    return found


def _with_views(steps: Sequence[Step], buckets: Mapping[str, Buckets], clique: Clique) -> list[Step]:
    """The steps of a model, and those that look up the views it does not have."""
    drawn = {name for step in steps for name in step.new}
    looked_up = []
    for name in set(clique) - drawn:
        looked_up.append(Step((buckets[name].column,), (name,), _indicator(buckets, name)))
    return [*steps, *looked_up]


def _indicator(buckets: Mapping[str, Buckets], name: str) -> Floats:
    """1 where a column's bucket (down) is in a bucket of the view (across)."""
    return np.eye(buckets[name].size)[_group(buckets[buckets[name].column], buckets[name])]


def _connecting(candidates: Sequence[Clique], known: Sequence[Clique], names: Iterable[str]) -> list[Clique]:
    """Candidates whose columns all lie in different parts of the model."""
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
