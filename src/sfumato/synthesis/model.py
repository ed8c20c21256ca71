"""A synthetic table's model: probabilities on a junction tree, from which any number of rows can be drawn.

The file is a NumPy archive of plain arrays beside one JSON text; reading it runs no code.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.array_files import damaged_unless_read, parsed, read_archive
from sfumato.errors import InvalidInput
from sfumato.randomness import Sampler, SecretStream
from sfumato.storage import write_whole
from sfumato.synthesis.cells import CellColumn, to_table
from sfumato.synthesis.counting import Clique
from sfumato.synthesis.rules import Rules

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FORMAT = 1
MOST_ROWS = 100_000_000
_TRIES = 100  # draws of a row until it has no impossible combination
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Step:
    """One clique of the tree: its new columns given those that were drawn before."""

    given: Clique
    new: Clique
    chances: Floats  # (sizes of given…, sizes of new…); sums to 1 over the new ones


@dataclass(frozen=True)
class SyntheticModel:
    """A model that draws rows: columns, how their cells share buckets, and the steps of a draw.

    Attributes:
        columns: The columns as cells.
        shares: How the cells of a bucket share its probability.
        steps: The steps of a draw, in order.
        total: The noisy number of rows.
        rules: The rules that hold for every row.
        order: The names of the table's columns in order; of older files empty.
        groups: Of each view of a column that the steps speak of, its column, and where the column's buckets
            are in it. A view follows from its column, and is no part of the table.

    ```python
    model = SyntheticModel.read(Path("people.model.npz"))
    more = model.table(1000).to_pandas()
    ```
    """

    columns: tuple[CellColumn, ...]
    shares: Mapping[str, Floats]  # (buckets, cells) of each column
    steps: tuple[Step, ...]
    total: float
    rules: Rules = field(default_factory=Rules)
    order: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, Integers]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        columns: Sequence[CellColumn],
        shares: Mapping[str, Floats],
        tables: Mapping[Clique, Floats],
        total: float,
        *,
        groups: Mapping[str, tuple[str, Integers]] | None = None,
    ) -> SyntheticModel:
        """From the probabilities of each clique of a junction tree."""
        return cls(tuple(columns), dict(shares), steps_of(tables), total, groups=groups or {})

    def table(self, rows: int, *, sampler: Sampler | None = None) -> pa.Table:
        """So many rows as a table with values, as the released file has them; it costs nothing.

        Args:
            rows: How many rows to draw. Fewer come out where the model gives hardly anything but impossible
                combinations.
            sampler: The secret stream; a new one by default.

        Returns:
            An Arrow table; `to_pandas()` makes a DataFrame of it.
        """
        sampler = SecretStream() if sampler is None else sampler
        return to_table(self.drawn, self.draw(rows, sampler=sampler), sampler)

    @property
    def drawn(self) -> tuple[CellColumn, ...]:
        """The columns of the table, also those that follow from others, in its order."""
        every = (*self.columns, *self.rules.looked_up)
        place = {name: number for number, name in enumerate(self.order)}
        return tuple(sorted(every, key=lambda column: place.get(column.name, len(place))))

    def draw(self, rows: int, *, sampler: Sampler | None = None) -> dict[str, Integers]:
        """So many rows, as the number of each column's cell; `table` has the values.

        Chances are met as closely as whole rows allow: draws are spread evenly over each group's chances. Rows
        with an impossible combination are drawn again; those that still have one in the end are left out.
        """
        rows = _validate.integer("rows", rows, least=1)
        if rows > MOST_ROWS:
            raise InvalidInput(f"expected rows <= {MOST_ROWS}, got rows={rows}; draw in parts from the model")
        sampler = SecretStream() if sampler is None else sampler
        cells = self._once(rows, sampler)
        for _ in range(_TRIES):
            wrong = np.flatnonzero(~self.rules.possible(cells))
            if not wrong.size:
                return cells
            for name, values in self._once(wrong.size, sampler).items():
                cells[name][wrong] = values
        possible = self.rules.possible(cells)
        return {name: values[possible] for name, values in cells.items()}

    def _once(self, rows: int, sampler: Sampler) -> dict[str, Integers]:
        buckets: dict[str, Integers] = {}
        for step in self.steps:
            buckets |= _drawn(step, buckets, rows, sampler)
        cells = {
            column.name: _spread(buckets[column.name], self.shares[column.name], sampler)
            for column in self.columns
        }
        return self.rules.complete(cells)

    def marginal(self, clique: Clique) -> Floats:
        """The probabilities of combinations of buckets, exactly."""
        return marginal(self.steps, clique)

    def cells(self, clique: Clique) -> Floats:
        """The probabilities of combinations of cells."""
        found = self.marginal(clique)
        for axis, name in enumerate(clique):
            found = np.moveaxis(np.tensordot(found, self.shares[name], axes=(axis, 0)), -1, axis)
        return found

    def log_chances(self, cells: Mapping[str, Integers]) -> Floats:
        """The logarithm of each row's probability; a factor of 0 counts as 10⁻¹²."""
        # A cell has a share in one bucket only.
        buckets = {name: np.argmax(self.shares[name], axis=0)[codes] for name, codes in cells.items()}
        total = np.zeros(len(next(iter(cells.values()))))
        for name, codes in cells.items():
            total += np.log(self.shares[name][buckets[name], codes] + 1e-12)
        buckets |= {name: group[buckets[column]] for name, (column, group) in self.groups.items()}
        for step in self.steps:
            total += np.log(step.chances[tuple(buckets[name] for name in (*step.given, *step.new))] + 1e-12)
        return total

    def write(self, place: Path) -> None:
        described = {
            "format": FORMAT,
            "columns": [column.to_json() for column in self.columns],
            "steps": [{"given": list(step.given), "new": list(step.new)} for step in self.steps],
            "total": self.total,
            "rules": self.rules.to_json(),
            "order": list(self.order),
            "groups": [
                {"name": name, "column": column, "places": group.tolist()}
                for name, (column, group) in self.groups.items()
            ],
        }
        arrays = {f"shares{place}": self.shares[column.name] for place, column in enumerate(self.columns)}
        arrays |= {f"chances{place}": step.chances for place, step in enumerate(self.steps)}
        content = io.BytesIO()
        text = np.frombuffer(json.dumps(described).encode(), dtype=np.uint8)
        np.savez_compressed(content, description=text, **arrays)  # type: ignore[arg-type]
        write_whole(place, content.getvalue(), readable=True)

    @classmethod
    def read(cls, place: Path) -> SyntheticModel:
        with damaged_unless_read(f"expected the model of a synthetic table at {place}, got something else"):
            arrays = read_archive(place)
            return cls._parsed(parsed(arrays["description"].tobytes()), arrays)

    @classmethod
    def _parsed(cls, described: dict[str, Any], arrays: Mapping[str, Floats]) -> SyntheticModel:
        if described["format"] != FORMAT:
            raise ValueError("format")
        columns = tuple(CellColumn.from_json(item) for item in described["columns"])
        shares = {column.name: arrays[f"shares{place}"] for place, column in enumerate(columns)}
        steps = tuple(
            Step(tuple(item["given"]), tuple(item["new"]), arrays[f"chances{place}"])
            for place, item in enumerate(described["steps"])
        )
        groups = {
            item["name"]: (item["column"], np.array(_places(item["places"]), dtype=np.int64))
            for item in described.get("groups", ())
        }
        _check_shapes(shares, steps, columns, groups)
        _check_chances(shares, steps)
        rules = Rules.from_json(described["rules"], columns) if "rules" in described else Rules()
        order = tuple(str(name) for name in described.get("order", ()))
        return cls(
            columns, shares, steps, _validate.positive("total", described["total"]), rules, order, groups
        )


def _places(places: Any) -> Any:
    if not isinstance(places, list) or any(
        type(place) is not int or not 0 <= place < len(places) for place in places
    ):
        raise ValueError("places")
    return places


def _check_shapes(
    shares: Mapping[str, Floats],
    steps: Sequence[Step],
    columns: Sequence[CellColumn],
    groups: Mapping[str, tuple[str, Integers]],
) -> None:
    for column in columns:
        if shares[column.name].ndim != 2 or shares[column.name].shape[1] != column.size:
            raise ValueError("shares")
    sizes = {name: len(each) for name, each in shares.items()}
    for name, (column_name, group) in groups.items():
        if name in shares or not isinstance(name, str) or group.shape != (sizes[column_name],):
            raise ValueError("groups")
        sizes[name] = int(group.max()) + 1
    known: set[str] = set()
    for step in steps:
        shape = tuple(sizes[name] for name in (*step.given, *step.new))
        if step.chances.shape != shape or not set(step.given) <= known or known & set(step.new):
            raise ValueError("steps")
        known |= set(step.new)
    if known != set(sizes) or len(shares) < len(columns):
        raise ValueError("columns")


def _check_chances(shares: Mapping[str, Floats], steps: Sequence[Step]) -> None:
    """None below 0, and every line adds up to 1."""
    lines = [*shares.values(), *(step.chances.reshape(*_rows_and_line(step)) for step in steps)]
    for found in lines:
        sound = found.dtype == np.float64 and found.size and (found >= 0).all()
        if not sound or not np.allclose(found.sum(axis=1), 1.0, rtol=0, atol=1e-6):
            raise ValueError("chances")


def _rows_and_line(step: Step) -> tuple[int, int]:
    sizes = step.chances.shape
    return math.prod(sizes[: len(step.given)]), math.prod(sizes[len(step.given) :])


def steps_of(tables: Mapping[Clique, Floats]) -> tuple[Step, ...]:
    """Cliques in an order in which each shares with one earlier clique all that it shares with any of them."""
    waiting, steps = list(tables), []
    earlier: list[Clique] = []
    while waiting:
        # Prim's algorithm on the overlaps of cliques: of a triangulated graph this is a junction tree.
        clique = max(waiting, key=lambda item: max((len({*item} & {*old}) for old in earlier), default=0))
        waiting.remove(clique)
        drawn = {name for old in earlier for name in old}
        given = tuple(name for name in clique if name in drawn)
        new = tuple(name for name in clique if name not in drawn)
        if new:
            steps.append(Step(given, new, _conditional(tables[clique], clique, given, new)))
        earlier.append(clique)
    return tuple(steps)


def _conditional(table: Floats, clique: Clique, given: Clique, new: Clique) -> Floats:
    order = [clique.index(name) for name in (*given, *new)]
    ordered = np.transpose(np.asarray(table, dtype=np.float64), order)
    axes = tuple(range(len(given), len(clique)))
    sums = ordered.sum(axis=axes, keepdims=True)
    alone = ordered.sum(axis=tuple(range(len(given))), keepdims=True)
    # A combination that the model never gives is drawn, should it come up, as if it said nothing.
    return np.where(sums > 1e-30, ordered / np.maximum(sums, 1e-30), alone / alone.sum())


def marginal(steps: Sequence[Step], clique: Clique) -> Floats:
    """The probabilities of some columns together, from the steps that they depend on."""
    needed, wanted = [], set(clique)
    for step in reversed(steps):
        if wanted & set(step.new):
            needed.append(step)
            wanted |= set(step.given)
    factors = [Factor((*step.given, *step.new), step.chances) for step in needed]
    while len({name for names, _ in factors for name in names}) > len(_LETTERS):
        factors = _with_one_less(factors, keep=clique)
    return _product(factors, clique)


class Factor(NamedTuple):
    """A table over some columns."""

    names: Clique
    table: Floats


def _with_one_less(factors: Sequence[Factor], *, keep: Clique) -> list[Factor]:
    """The same product with one column summed out: the one whose factors make the smallest table together."""
    sizes = {name: size for names, table in factors for name, size in zip(names, table.shape, strict=True)}
    around = {
        name: {other for names, _ in factors if name in names for other in names}
        for name in sizes
        if name not in keep
    }
    gone = min(around, key=lambda name: math.prod(sizes[other] for other in around[name]))
    left = tuple(sorted(around[gone] - {gone}))
    joined = [factor for factor in factors if gone in factor.names]
    rest = [factor for factor in factors if gone not in factor.names]
    return [*rest, Factor(left, _product(joined, left))]


def _product(factors: Sequence[Factor], wanted: Clique) -> Floats:
    """The product of the factors, summed over all columns but the wanted ones."""
    letter = dict(zip(sorted({name for names, _ in factors for name in names}), _LETTERS, strict=False))
    terms = ",".join("".join(letter[name] for name in names) for names, _ in factors)
    result = "".join(letter[name] for name in wanted)
    tables = [table for _, table in factors]
    return np.asarray(np.einsum(f"{terms}->{result}", *tables, optimize="greedy"))


def _drawn(step: Step, drawn: Mapping[str, Integers], rows: int, sampler: Sampler) -> dict[str, Integers]:
    sizes = step.chances.shape
    outer, inner = sizes[: len(step.given)], sizes[len(step.given) :]
    group = np.zeros(rows, dtype=np.int64)
    if step.given:
        group = np.ravel_multi_index([drawn[name] for name in step.given], outer).astype(np.int64)
    found = _spread(group, step.chances.reshape(-1, int(np.prod(inner))), sampler)
    return dict(zip(step.new, (part.astype(np.int64) for part in np.unravel_index(found, inner)), strict=True))


def _spread(group: Integers, chances: Floats, sampler: Sampler) -> Integers:
    """For each row a place on its group's line of chances; the rows of a group are spread evenly over it."""
    rows = len(group)
    order = np.argsort(group + sampler.uniform(rows))  # group after group, in a random order
    placed = group[order]
    sizes = np.bincount(group, minlength=len(chances))
    rank = np.arange(rows) - (np.cumsum(sizes) - sizes)[placed]
    point = placed + (rank + sampler.uniform(rows)) / sizes[placed]
    lines = np.cumsum(chances, axis=1)
    lines = lines / lines[:, -1:] + np.arange(len(chances))[:, None]
    found = np.empty(rows, dtype=np.int64)
    found[order] = np.searchsorted(lines.reshape(-1), point, side="right") - placed * chances.shape[1]
    return np.clip(found, 0, chances.shape[1] - 1)
