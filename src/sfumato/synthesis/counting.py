"""Counts of cells on the engine: one GROUP BY for each marginal, and no row ever leaves it.

Each row is reduced to the numbers of its cells. Where a person may have several rows, at most `rows` of them
count, the same in every marginal: those that come first by a salted hash of the person and the cells. So adding
or removing one person changes the cells of a marginal by at most `rows` in sum.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ibis
import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput, Refused
from sfumato.mechanisms import grid as grids
from sfumato.randomness import Sampler
from sfumato.synthesis.cells import CellColumn

Integers = npt.NDArray[np.int64]
Clique = tuple[str, ...]
"""The columns of a marginal, in the order of the table's columns."""

_ROWS, _TURN, _COUNT = "synthesis_place", "synthesis_turn", "synthesis_count"


class Marginals(Protocol):
    """Counts of cells of a table, of which one person moves at most `rows`."""

    @property
    def rows(self) -> int:
        """How many rows of one person count."""
        ...

    def prepare(self) -> None:
        """Have the engine plan the counts; no row is read."""
        ...

    def marginal(self, clique: Clique) -> Integers:
        """How many rows each combination of cells has: exact, private."""
        ...


@ibis.udf.scalar.builtin(name="md5")  # type: ignore[untyped-decorator]
def _md5(text: str) -> str:
    """Every engine has its own."""
    raise AssertionError


class EngineMarginals:
    """Marginals of a table on an engine, whose columns are clean: of their declared types and bounds, or NULL.

    Args:
        table: an Ibis expression of the declared columns.
        columns: the cells of each column.
        names: the name of each column in `table`.
        unit: the name there of the column that tells people apart; None where every row is a person.
        rows: how many rows of one person count.
        salt: a secret text for the order of a person's rows.
        prepare: an expression → its SQL, once the engine has planned it.
        fetch: SQL → rows.
        keep: whether the engine keeps the cells of all rows in a temporary table of its own while it counts.

    ```python
    marginals = EngineMarginals(
        table, columns, names=names, unit="patient", rows=10, salt=salt, prepare=engine.plan, fetch=engine.rows
    )
    ```
    """

    def __init__(
        self,
        table: Any,
        columns: Sequence[CellColumn],
        *,
        names: Mapping[str, str],
        unit: str | None,
        rows: int,
        salt: str,
        prepare: Callable[[Any], str],
        fetch: Callable[[str], list[dict[str, Any]]],
        keep: bool = False,
    ) -> None:
        if unit is None and rows != 1:
            raise InvalidInput(f"expected rows=1 where every row is a person, got rows={rows}")
        self.rows = rows
        self._columns = {column.name: column for column in columns}
        self._codes = {column.name: f"code{place}" for place, column in enumerate(columns)}
        codes = {self._codes[column.name]: cell_number(table[names[column.name]], column) for column in columns}
        coded = table.select(**codes) if unit is None else table.select(**codes, **{_TURN: table[unit]})
        self._table = coded if unit is None else _bounded(coded, list(codes), rows, salt)
        self._prepare, self._fetch, self._keep = prepare, fetch, keep
        self._cells: str | None = None  # the SQL of every row's cells
        self._source: str | None = None

    def prepare(self) -> None:
        if self._cells is None:
            self._cells = self._prepare(self._table)

    def marginal(self, clique: Clique) -> Integers:
        codes = [self._codes[name] for name in clique]
        keys = ", ".join(codes)  # names of our own: nothing of the policy's is put into SQL as text
        found = self._fetch(f"SELECT {keys}, COUNT(*) AS {_COUNT} FROM {self._rows_of_cells()} GROUP BY {keys}")
        counts = np.zeros([self._columns[name].size for name in clique], dtype=np.int64)
        for row in found:
            counts[tuple(int(row[code]) for code in codes)] = int(row[_COUNT])
        return counts

    def _rows_of_cells(self) -> str:
        if self._source is None:
            self.prepare()
            self._source = f"({self._cells}) AS synthesis_cells"
            if self._keep:
                self._fetch(f"CREATE OR REPLACE TEMP TABLE synthesis_cells AS {self._cells}")
                self._source = "synthesis_cells"
        return self._source


def cell_number(value: Any, column: CellColumn) -> Any:
    """The cell of a clean value, as int64; never NULL, never outside the column's cells."""
    missing = ibis.literal(column.missing, "int64")
    if column.values is not None:
        return _listed_number(value, column, missing)
    if column.type == "date":
        value = value.delta(_day(column.lower), unit="day").cast("int64")
    else:
        value = value - (
            ibis.literal(int(column.lower), "int64") if column.type == "integer" else _double(column.lower)
        )
    number = (value.cast("float64") / _double(column.width)).floor().cast("int64")
    last = ibis.literal(column.missing - 1, "int64")
    zero = ibis.literal(0, "int64")
    return ibis.cases((number.isnull(), missing), (number < zero, zero), (number > last, last), else_=number)


def _listed_number(value: Any, column: CellColumn, missing: Any) -> Any:
    assert column.values is not None
    if column.type == "boolean":
        places = {bool(item): place for place, item in enumerate(column.values)}
        tests = [(value if item else ~value, place) for item, place in places.items()]
    elif column.type == "date":
        tests = [(value == _day(item.toordinal()), place) for place, item in enumerate(column.values)]
    else:
        tests = [(value == ibis.literal(item), place) for place, item in enumerate(column.values)]
    return ibis.cases(*((test, ibis.literal(place, "int64")) for test, place in tests), else_=missing)


def _double(value: float) -> Any:
    """A constant that is exactly this double on every engine."""
    return ibis.literal(repr(float(value))).cast("float64")


def _day(ordinal: float) -> Any:
    return ibis.literal(datetime.date.fromordinal(int(ordinal)).isoformat()).cast("date")


def _bounded(coded: Any, codes: Sequence[str], rows: int, salt: str) -> Any:
    """At most `rows` rows of each person: which, depends on that person's rows and the salt alone.

    Rows of equal hash have equal cells, so that it does not matter which of them come first.
    """
    label = ibis.literal(salt)
    for name in (_TURN, *codes):
        label = label + ibis.literal("|") + coded[name].cast("string")
    known = coded.filter(coded[_TURN].notnull()).mutate(**{_ROWS + "_hash": _md5(label)})
    order = ibis.window(group_by=_TURN, order_by=_ROWS + "_hash")
    placed = known.mutate(**{_ROWS: ibis.row_number().over(order)})
    return placed.filter(placed[_ROWS] < rows).select(*codes)


# Gaussian noise on whole counts

_CERTAIN = 64  # draws that cannot all be zero where σ ≥ 1: each is with a chance below 0.4


@dataclass(frozen=True, kw_only=True)
class CountNoise:
    """Whole counts plus ⌊σZ + ½⌋ with Z standard normal, on each.

    *Guarantees*: the cost of a Gaussian mechanism of noise multiplier σ / `sensitivity`, where one person moves
    the counts by at most `sensitivity` in L2. As counts x are whole, x + ⌊σZ + ½⌋ = ⌊x + σZ + ½⌋ is
    post-processing of the ideal Gaussian mechanism, and outputs are whole for all data. The float64 normal
    sampler is taken as ideal. Anything but whole numbers is refused before any noise is drawn. Public: all
    fields. Secret: the counts, the noise.

    Balle & Wang 2018, "Improving the Gaussian mechanism for differential privacy", theorem 8; Mironov 2012 for
    why on whole numbers.

    >>> from sfumato.randomness import SecretStream
    >>> CountNoise(sensitivity=1, sigma=3.0).release(np.array([1000, 0]), SecretStream()).dtype
    dtype('int64')
    """

    sensitivity: int
    sigma: float

    def __post_init__(self) -> None:
        _validate.integer("sensitivity", self.sensitivity, least=1)
        grids.check_noise("sigma", self.sigma, self.sensitivity, grid=1.0)

    def event(self) -> accounting.DpEvent:
        return accounting.GaussianEvent(self.sigma / self.sensitivity)

    def release(self, counts: Integers, sampler: Sampler) -> Integers:
        whole = grids.check_whole_numbers("counts", counts)
        noise = sampler.rounded_normal(self.sigma, whole.size)
        if self.sigma >= 1 and noise.size >= _CERTAIN and not noise.any():
            raise Refused("the sampler drew no noise; nothing was released")
        return whole + noise.reshape(whole.shape)
