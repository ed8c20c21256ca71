"""Define the values of a policy: columns, units, public tables, and the policy itself."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from sfumato import _validate
from sfumato.accounting import Budget
from sfumato.caveats import Caveat, Code
from sfumato.datasets.text_table import TextForm
from sfumato.errors import InvalidInput

TYPES = ("integer", "real", "text", "boolean", "date")
NUMERIC = ("integer", "real")
ENGINES = ("duckdb", "postgres", "spark")
TRUE_WORDS, FALSE_WORDS = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
"""How true and false may be written in a text, in any case."""
Key = str | int | bool
"""The value of a group: a category, a whole number, or true and false."""

_LARGEST_BOUND = 2.0**52  # beyond it doubles skip whole numbers
_SMALLEST_BOUND = 2.0**-40  # below it a number counts as 0, so that no product of numbers underflows
_MOST_ROWS = 1 << 20  # with it no product of whole numbers in a query can overflow


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its type, and its public bounds or categories where they are known.

    Args:
        name: As queries name it.
        type: "integer", "real", "text", "boolean" or "date".
        lower: The least value, known without looking at the data. Values below it count as this.
        upper: The largest value.
        categories: All values that count, known without looking at the data; others count as missing.

    >>> Column(name="age", type="integer", lower=0, upper=120).upper
    120
    """

    name: str
    type: str
    lower: float | datetime.date | None = None
    upper: float | datetime.date | None = None
    categories: tuple[Key, ...] | None = None

    def __post_init__(self) -> None:
        where = f"columns.{self.name}"
        _validate.one_of(f"{where}.type", self.type, TYPES)
        if (self.lower is None) != (self.upper is None):
            raise InvalidInput(f"expected both lower and upper in {where}, got one; give both or neither")
        if self.lower is not None and self.upper is not None:
            check = _check_days if self.type == "date" else _check_bounds
            check(where, self.type, self.lower, self.upper)
        if self.categories is not None:
            object.__setattr__(self, "categories", _check_categories(where, self.type, self.categories))

    @property
    def numeric(self) -> bool:
        return self.type in NUMERIC

    @property
    def lacks(self) -> str | None:
        """Return the missing declarations for learning, drawing or reporting the column; None if complete."""
        if self.categories is not None or self.type == "boolean":
            return None
        if self.type == "text":
            return "categories"
        return "lower and upper" if self.lower is None else None

    @property
    def trimmed(self) -> bool:
        """Whether blanks around a value do not count: of categories, none of which has any itself."""
        return (
            self.type == "text"
            and self.categories is not None
            and all(str(value).strip(" ") == value for value in self.categories)
        )

    @property
    def bounds(self) -> tuple[float, float] | None:
        if self.lower is None or self.upper is None or self.type not in NUMERIC:
            return None
        return float(self.lower), float(self.upper)  # type: ignore[arg-type]

    @property
    def days(self) -> tuple[datetime.date, datetime.date] | None:
        """The bounds of a date column."""
        if not isinstance(self.lower, datetime.date) or not isinstance(self.upper, datetime.date):
            return None
        return self.lower, self.upper


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Whose privacy is kept, and how much of one of them counts.

    Args:
        column: The column that tells people apart; None if each row is a person.
        rows: How many rows of one person count.
        groups: In how many groups of an answer one person counts.

    >>> Unit(column="patient", rows=10, groups=3).rows
    10
    """

    column: str | None = None
    rows: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        _validate.integer("unit.rows", self.rows, least=1)
        _validate.integer("unit.groups", self.groups, least=1)
        if self.column is not None and not isinstance(self.column, str):
            raise InvalidInput(f"expected unit.column to be the name of a column, got {self.column!r}")
        if self.rows > _MOST_ROWS:
            raise InvalidInput(
                f"expected unit.rows <= {_MOST_ROWS}, got unit.rows={self.rows}; noise grows with it"
            )
        if self.column is None and (self.rows, self.groups) != (1, 1):
            raise InvalidInput(
                f"expected unit.rows=1 and unit.groups=1 where every row is one person, got "
                f"unit.rows={self.rows} and unit.groups={self.groups}; "
                "name the column that tells people apart as unit.column"
            )

    @property
    def touched_groups(self) -> int:
        """In how many groups one unit can count at all."""
        return min(self.rows, self.groups)


@dataclass(frozen=True, kw_only=True)
class PublicTable:
    """A table that anyone may read, to join with; every value of its key occurs once.

    Args:
        name: The table's name in queries.
        source: Its file.
        key: The column to join by.
        columns: Its columns, by name.
        form: How a text file is written: delimiter, header, missing values.

    >>> columns = {name: Column(name=name, type="text") for name in ("city", "region")}
    >>> PublicTable(name="cities", source="cities.csv", key="city", columns=columns).key
    'city'
    """

    name: str
    source: str
    key: str
    columns: Mapping[str, Column]
    form: TextForm = field(default_factory=TextForm)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        _check_names(self.columns)
        if self.key not in self.columns or self.columns[self.key].type == "real":
            raise InvalidInput(
                f"expected public.{self.name}.key to be one of its columns that is not real, got {self.key!r}; "
                f"declare its type in [public.{self.name}.columns.{self.key}]"
            )


def left_out_on_purpose(names: Collection[str]) -> tuple[Caveat, ...]:
    """The caveat that names the columns which a release does not use; none if there are none."""
    return (Code.LEFT_OUT(columns=", ".join(names)),) if names else ()


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Everything public about one private table, or about several of the same people.

    Args:
        table: The table's name in queries.
        source: A file, or the address of a database.
        columns: The columns that may be queried, by name.
        budget: The total budget of all releases.
        unit: Whose privacy is kept.
        ledger: Where charges are recorded: a file or a postgresql:// URL.
        dataset: The declared id of the data set, which its ledger names.
        public_size: The declared number of rows.
        delimiter: The separator of values in a text file.
        header: Whether a text file begins with the names of its columns.
        fields: The names of a text file's columns, where it has no header.
        missing: Texts that stand for a missing value.
        version: A text that changes with the data. With one, answers are kept and can be given again free
            of charge.
        owner: A role that is trusted with the table in PostgreSQL, besides our own and the administrators.
        tables: A policy for each of several tables of the same people. The other fields are then those of
            the first table, except `unit`, which applies to joins.
        public: Tables that anyone may read, to join with.
        four_eyes: Whether two officers must approve spending, closing or handing over the budget at the desk.
        synthesis: Constraints on every synthetic row: columns derived from others, and impossible combinations.

    >>> from sfumato.accounting import Budget
    >>> age = Column(name="age", type="integer", lower=0, upper=120)
    >>> Policy(table="people", source="people.csv", columns={"age": age}, budget=Budget(epsilon=3)).table
    'people'
    """

    table: str
    source: str
    columns: Mapping[str, Column]
    budget: Budget
    unit: Unit = field(default_factory=Unit)
    ledger: str | None = None
    dataset: str | None = None
    public_size: int | None = None
    delimiter: str = ","
    header: bool = True
    fields: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ("",)
    version: str | None = None
    owner: str | None = field(default=None, repr=False)  # answers are kept by the repr
    tables: Mapping[str, Policy] = field(default_factory=dict)
    public: Mapping[str, PublicTable] = field(default_factory=dict)
    four_eyes: bool = field(default=False, repr=False)  # nothing about the data: answers are kept by the repr
    synthesis: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("columns", "tables", "public", "synthesis"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        if not self.columns:
            raise InvalidInput(
                "expected at least one column in the policy, got none; add [columns.NAME] sections"
            )
        if self.public_size is not None:
            _validate.integer("table.public_size", self.public_size, least=1)
        if self.version is not None and not (isinstance(self.version, str) and self.version):
            raise InvalidInput(
                f"expected table.version to be a text that changes with the data, got {self.version!r}"
            )
        if self.owner is not None and not (
            isinstance(self.owner, str) and self.source.startswith(("postgres://", "postgresql://"))
        ):
            raise InvalidInput(
                f"expected table.owner to be the name of a role in a PostgreSQL source, got {self.owner!r}; "
                "drop it, or give the address of the database as table.source"
            )
        self._check_form()
        self._check_tables()
        _check_names(self.columns)
        if self.unit.column is not None and self.column(self.unit.column) is not None:
            raise InvalidInput(
                f"expected unit.column={self.unit.column!r} not to be among the columns; what tells people "
                "apart is neither filtered nor averaged, so drop its [columns] section"
            )

    def _check_form(self) -> None:
        fields = None if self.form.fields is None else [name.lower() for name in self.form.fields]
        stored = [*self.columns, *([] if self.unit.column is None else [self.unit.column])]
        absent = [] if fields is None else [name for name in stored if name.lower() not in fields]
        if absent:
            raise InvalidInput(
                f"expected table.fields to name {', '.join(absent)} too, which the policy declares"
            )

    def _check_tables(self) -> None:
        names = [*(self.tables or [self.table]), *self.public]
        if len({name.lower() for name in names}) < len(names):
            raise InvalidInput(
                f"expected tables whose names differ in more than upper and lower case, got {', '.join(names)}"
            )
        if len(self.tables) > 1 and any(one.unit.column is None for one in self.tables.values()):
            raise InvalidInput(
                "expected unit.column in a policy of several private tables, got none; it tells whose rows "
                "belong together"
            )
        if any(one.budget != self.budget or one.tables or one.public for one in self.tables.values()):
            raise InvalidInput("expected tables of one level under one budget; give each its own columns alone")

    def private(self, name: str) -> Policy | None:
        """The policy of one private table; names are compared without regard to case."""
        if not self.tables:
            return self if name.lower() == self.table.lower() else None
        return next((one for known, one in self.tables.items() if known.lower() == name.lower()), None)

    @property
    def least_people(self) -> float | None:
        """Return the least number of people for the declared number of rows; None if it is not declared."""
        return None if self.public_size is None else self.public_size / self.unit.rows

    @property
    def private_names(self) -> tuple[str, ...]:
        return tuple(self.tables) or (self.table,)

    def one_table(self, name: str | None = None, *, having: Collection[str] = ()) -> Policy:
        """Return the policy for queries of one table: its columns, its format, and its own bound of rows.

        Budget, ledger and data set stay those of all tables.

        Args:
            name: The table; None for the only one that has the columns `having`, or without these the first.
            having: Columns that are asked for.

        Returns:
            The same policy with that table in the first place.

        Raises:
            InvalidInput: If there is no such table, or if none of several, or more than one, has the columns.

        >>> from sfumato.accounting import Budget
        >>> age = Column(name="age", type="integer", lower=0, upper=120)
        >>> policy = Policy(table="people", source="people.csv", columns={"age": age}, budget=Budget(epsilon=3))
        >>> policy.one_table("people").table
        'people'
        """
        one = self._having(having) if name is None else self.private(name)
        if one is None:
            raise InvalidInput(
                f"expected a table of the policy, got {name!r}; it has {', '.join(self.private_names)}"
            )
        if not self.tables:
            return self
        own = ("table", "source", "columns", "unit", "public_size", "version", "owner")
        found = replace(self, **{item: getattr(one, item) for item in (*own, *map(_name, fields(TextForm)))})
        return replace(found, synthesis=self._synthesis_of(one))

    def used_columns(
        self, *, leave_out: Collection[str] = (), only: Collection[str] | None = None
    ) -> tuple[tuple[Column, ...], tuple[str, ...]]:
        """Decide which columns a release of the table uses, before anything is spent.

        Args:
            leave_out: Columns that are left out on purpose.
            only: The columns wanted; None for all.

        Returns:
            The columns that are used, each with categories or bounds, and the names of those left out.

        Raises:
            InvalidInput: If a name is not the policy's, or a column that is used has neither categories nor
                bounds.

        >>> from sfumato.accounting import Budget
        >>> columns = {"ill": Column(name="ill", type="boolean"), "note": Column(name="note", type="text")}
        >>> policy = Policy(table="people", source="people.csv", columns=columns, budget=Budget(epsilon=3))
        >>> policy.used_columns(leave_out=["note"])[1]
        ('note',)
        """
        names = list(self.columns) if only is None else [self._known(name) for name in only]
        left_out = tuple(dict.fromkeys(map(self._known, leave_out)))
        used = tuple(self.columns[name] for name in names if name not in left_out)
        lacking = [column for column in used if column.lacks is not None]
        if lacking:
            options = " ".join(f"--leave-out {shlex.quote(column.name)}" for column in lacking)
            wanted = "; ".join(f"{column.lacks} for {column.name} ({column.type})" for column in lacking)
            raise InvalidInput(
                f"expected the policy to declare {wanted}, got none; declare what is publicly known in "
                f"[columns], drop these columns from the policy, or leave them out on purpose with {options} "
                "(leave_out= in Python)"
            )
        return used, left_out

    def _known(self, name: str) -> str:
        column = self.column(name)
        if column is None:
            raise InvalidInput(
                f"expected a column of the policy, got {name!r}; it has {', '.join(self.columns)}"
            )
        return column.name

    def _having(self, names: Collection[str]) -> Policy:
        every = list(self.tables.values()) or [self]
        found = [one for one in every if all(one.column(name) is not None for name in names)] if names else []
        if len(found) > 1:
            raise InvalidInput(
                f"expected --table to say which table is meant, got none; {', '.join(names)} is in "
                + " and in ".join(one.table for one in found)
            )
        if names and self.tables and not found:
            telling = [one for one in every if (one.unit.column or "").lower() in map(str.lower, names)]
            if telling:  # a unit column is not in `columns`; the caller reports it
                return telling[0]
            held = "; ".join(f"{one.table} has {', '.join(one.columns)}" for one in every)
            raise InvalidInput(
                f"expected {', '.join(names)} to be in one table of the policy, got none that has "
                f"{'it' if len(names) == 1 else 'all of them'}; {held}"
            )
        return found[0] if found else every[0]

    def _synthesis_of(self, one: Policy) -> dict[str, Any]:
        """The rules of [synthesis], without those that speak of the columns of another table."""
        others = [set(other.columns) for other in self.tables.values() if other.table != one.table]

        def stays(names: set[str]) -> bool:
            return names <= set(one.columns) or not any(names <= other for other in others)

        follows, impossible = self.synthesis.get("follows"), self.synthesis.get("impossible")
        found = dict(self.synthesis)
        if isinstance(follows, Mapping):
            found["follows"] = {
                name: each
                for name, each in follows.items()
                if stays({name, str(each.get("given"))} if isinstance(each, Mapping) else {name})
            }
        if isinstance(impossible, list):
            found["impossible"] = [
                each for each in impossible if not isinstance(each, Mapping) or stays(set(each))
            ]
        return found

    @property
    def form(self) -> TextForm:
        """How the source is written, if it is a text file."""
        return TextForm(delimiter=self.delimiter, header=self.header, fields=self.fields, missing=self.missing)

    def column(self, name: str) -> Column | None:
        """The column a query means; names are compared without regard to case."""
        for known, column in self.columns.items():
            if known.lower() == name.lower():
                return column
        return None


def _name(item: Any) -> str:
    return str(item.name)


def _check_names(columns: Collection[str]) -> None:
    if len({name.lower() for name in columns}) < len(columns):
        raise InvalidInput(
            "expected column names that differ in more than upper and lower case, which SQL does not tell "
            f"apart; got {', '.join(columns)}"
        )


def _check_days(where: str, kind: str, lower: Any, upper: Any) -> None:
    days = [type(value) is datetime.date for value in (lower, upper)]
    if not all(days) or not lower < upper:
        raise InvalidInput(
            f"expected {where}.lower and {where}.upper to be days such as 2024-01-31, one before the other, "
            f"got {lower} and {upper}"
        )


def _check_bounds(where: str, kind: str, lower: Any, upper: Any) -> None:
    if kind not in NUMERIC:
        raise InvalidInput(
            f"expected no bounds for {where}, whose type is {kind}; only numbers and dates have bounds"
        )
    _validate.real(f"{where}.lower", lower)
    _validate.real(f"{where}.upper", upper)
    if not lower < upper:
        raise InvalidInput(f"expected {where}.lower < {where}.upper, got {lower} and {upper}")
    sizes = [abs(bound) for bound in (lower, upper, upper - lower) if bound]
    if not _SMALLEST_BOUND <= min(sizes) <= max(sizes) <= _LARGEST_BOUND:
        raise InvalidInput(
            f"expected the bounds of {where} and their distance to be 0 or between 2**-40 and 2**52 in size; "
            "rescale them"
        )
    if kind == "integer" and (lower != int(lower) or upper != int(upper)):
        raise InvalidInput(
            f"expected whole bounds for {where}, got {lower} and {upper}; or declare its type real"
        )


def _check_categories(where: str, kind: str, categories: Collection[Any]) -> tuple[Key, ...]:
    wanted: dict[str, type] = {"text": str, "integer": int, "boolean": bool, "date": str}
    if kind not in wanted:
        raise InvalidInput(
            f"expected no categories for {where}, whose type is {kind}; give bounds, group by BIN"
        )
    values = [value.isoformat() if hasattr(value, "isoformat") else value for value in categories]
    if not values or any(type(value) is not wanted[kind] for value in values) or len(set(values)) < len(values):
        raise InvalidInput(f"expected {where}.categories to be different values of type {kind}, got {values}")
    return tuple(values)
