"""What the holder of a table declares in public: its columns' bounds and categories, its people, its budget.

Nothing here is ever read off the data. A policy is a TOML file:

    [table]
    name = "people"                  # what queries call it
    source = "people.csv"            # .csv, .csv.gz, .parquet, parts/*.parquet or a .duckdb file, beside the
                                     # policy; a table's name in a database
    public_size = 10000              # optional: about how many rows, if that is public; `train` needs it
    version = "2026-05"              # optional: change it with the data; an answer to the same question about
                                     # the same version can be given again for nothing
    delimiter = ","                  # of a text file, as are the next three
    header = true                    # whether the first line holds the names of the columns
    fields = ["person", "age", "city"]   # the names in order; needed without a header
    missing = ["", "NA"]             # what stands for no value; [""] unless this says otherwise

    [unit]
    column = "person"                # whose privacy is kept; leave out if every row is one person
    rows = 5                         # most rows of one person that count
    groups = 2                       # most groups of a GROUP BY in which one person counts

    [budget]
    epsilon = 3.0
    delta = 1e-6
    ledger = "people.ledger.db"      # a file, or the address of a PostgreSQL ledger
    dataset = "people-2026"          # optional: the id of the data set, which the ledger must name too
    four_eyes = true                 # optional: two officers approve what the desk sets aside

    [columns.age]
    type = "integer"                 # integer, real, text, boolean or date
    lower = 0
    upper = 120

    [columns.city]
    type = "text"
    categories = ["Delft", "Utrecht"]

    [columns.born]
    type = "date"
    lower = 1900-01-01               # optional: gives GROUP BY month or year its public groups
    upper = 2029-12-31

    [synthesis]                      # optional: what holds for every row, for `synthesize`
    impossible = [{age = {upper = 15}, married = true}]

    [synthesis.follows.region]       # looked up and not learned
    given = "city"
    values = {Delft = "south", Utrecht = "middle"}

    [public.regions]                 # optional: tables that anyone may read, for joins
    source = "regions.csv"           # .csv, .csv.gz or .parquet
    key = "city"                     # the column to join on; each of its values occurs once

    [public.regions.columns.city]
    type = "text"

    [public.regions.columns.region]
    type = "text"
    categories = ["north", "south"]

Several private tables of the same people have [tables.NAME] sections in place of [table] and [columns]:

    [tables.visits]                  # what [table] may say, but for the name
    source = "visits.csv"

    [tables.visits.columns.days]
    type = "integer"

    [tables.people]
    source = "people.csv"
    unit = "id"                      # what unit.column is called here, if it has another name
    rows = 1                         # rows and groups where this table alone is asked; else those of [unit],
    groups = 1                       # which hold for what is joined
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sfumato import _validate
from sfumato.accounting import Budget, Relation
from sfumato.datasets.text_table import FORM_KEYS, TextForm, text_form
from sfumato.errors import InvalidInput

TYPES = ("integer", "real", "text", "boolean", "date")
NUMERIC = ("integer", "real")
ENGINES = ("duckdb", "postgres", "spark")
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


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Everything public about one private table, or about several of the same people.

    `tables` holds a policy for each of several tables; what else is said here is then the first one's, but for
    the unit, which holds for what is joined. `public` holds the tables that anyone may read.

    Args:
        table: The table's name in queries.
        source: A file, or the address of a database.
        columns: What may be asked about, by name.
        budget: What all releases from it together may cost.
        unit: Whose privacy is kept.
        ledger: Where charges are recorded: a file or a postgresql:// URL.
        dataset: The declared id of the data set, which its ledger names.
        public_size: The declared number of rows.
        delimiter: What separates the values of a text file.
        header: Whether a text file begins with the names of its columns.
        fields: The names of a text file's columns, where it has no header.
        missing: Texts that stand for a missing value.
        version: A text that changes with the data. With one, answers are kept and can be given again free
            of charge.
        tables: A policy for each of several tables of the same people. What else is said here is then the
            first one's, except the unit, which holds for what is joined.
        public: Tables that anyone may read, to join with.
        four_eyes: Whether two officers must approve what is set aside of the budget at the desk.
        synthesis: What holds for every row of a synthetic table: columns that follow from others, and
            impossible combinations.

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
    def private_names(self) -> tuple[str, ...]:
        return tuple(self.tables) or (self.table,)

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


def load_policy(path: str | Path, *, source: str | None = None) -> Policy:
    """Read a policy from a TOML file. Relative sources and ledgers are beside it.

    Args:
        path: The file.
        source: The table to read in place of the file's; the file then needs no section [table].

    Returns:
        The policy.

    Raises:
        InvalidInput: If something is missing, unknown or out of its range.

    ```python
    policy = load_policy("people.toml")
    ```
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"expected a policy file at {path}: {error.strerror or error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(
            f"expected {path} to be TOML: {error}; a table is named in a policy, whose source it is"
        ) from error
    return policy_from_dict(data, folder=path.parent, source=source)


def policy_from_dict(
    data: Mapping[str, Any], *, folder: Path | None = None, source: str | None = None
) -> Policy:
    """Make a policy from what a TOML file holds; anything unknown in it is refused.

    Args:
        data: The parsed file.
        folder: What relative sources and ledgers are beside.
        source: The table to read in place of the file's.

    Returns:
        The policy.

    Raises:
        InvalidInput: If something is missing, unknown or out of its range.

    >>> columns = {"age": {"type": "integer", "lower": 0, "upper": 120}}
    >>> budget = {"epsilon": 3.0, "delta": 1e-6}
    >>> policy_from_dict({"columns": columns, "budget": budget}, source="people.csv").table
    'people'
    """
    _known("the policy", data, ("table", "tables", "public", "unit", "budget", "columns", "synthesis"))
    if source is not None:
        given = str(Path(source).absolute()) if Path(source).suffix else source  # not beside the policy
        data = {**data, "table": {**data.get("table", {}), "source": given}}
    budget = _section(data, "budget")
    _known("[budget]", budget, ("epsilon", "delta", "ledger", "dataset", "unit", "four_eyes"))
    unit = Unit(**_known("[unit]", data.get("unit", {}), [item.name for item in fields(Unit)]))
    amount = _budget(budget, unit)
    one = _several(data, unit, amount, folder) if "tables" in data else _single(data, unit, amount, folder)
    public = _mapping("public", data.get("public", {}))
    return replace(
        one,
        public={name: _public(name, _mapping(f"public.{name}", public[name]), folder) for name in public},
        ledger=_beside(folder, str(budget["ledger"])) if "ledger" in budget else None,
        dataset=str(budget["dataset"]) if "dataset" in budget else None,
        four_eyes=_validate.truth("budget.four_eyes", budget.get("four_eyes", False)),
        synthesis=_known("[synthesis]", data.get("synthesis", {}), ("follows", "impossible")),
    )


def _single(data: Mapping[str, Any], unit: Unit, budget: Budget, folder: Path | None) -> Policy:
    table = _section(data, "table")
    _known("[table]", table, ("name", *_TABLE_KEYS))
    source = str(_needed(table, "table", "source"))
    name = str(table.get("name", _default_name(source)))
    return _table(name, table, data.get("columns", {}), unit=unit, budget=budget, folder=folder)


def _several(data: Mapping[str, Any], unit: Unit, budget: Budget, folder: Path | None) -> Policy:
    """The first table's policy, with the policies of all, under the unit of what is joined."""
    both = [name for name in ("table", "columns") if name in data]
    if both or not data["tables"]:
        raise InvalidInput(
            "expected either [table] with its [columns], or [tables.NAME] sections with columns of their own, "
            f"got {', '.join(['tables', *both])}"
        )
    tables = {}
    for name, section in _mapping("tables", data["tables"]).items():
        table = _mapping(f"tables.{name}", section)
        _known(f"[tables.{name}]", table, (*_TABLE_KEYS, "unit", "rows", "groups", "columns"))
        _needed(table, f"tables.{name}", "source")
        own = Unit(
            column=table.get("unit", unit.column),
            rows=table.get("rows", unit.rows),
            groups=table.get("groups", unit.groups),
        )
        columns = table.get("columns", {})
        tables[name] = _table(name, table, columns, unit=own, budget=budget, folder=folder)
    first = next(iter(tables.values()))
    versions = [one.version for one in tables.values() if one.version is not None]
    return replace(
        first,
        unit=replace(unit, column=first.unit.column),
        version=", ".join(versions) if len(versions) == len(tables) else None,
        tables=tables,
    )


_TABLE_KEYS = ("source", "public_size", "version", *FORM_KEYS)


def _table(
    name: str,
    section: Mapping[str, Any],
    columns: Mapping[str, Any],
    *,
    unit: Unit,
    budget: Budget,
    folder: Path | None,
) -> Policy:
    form = text_form(section)
    return Policy(
        table=name,
        source=_beside(folder, str(section["source"])),
        columns={name: _column(name, spec) for name, spec in _mapping("columns", columns).items()},
        budget=budget,
        unit=unit,
        public_size=section.get("public_size"),
        version=section.get("version"),
        **{item.name: getattr(form, item.name) for item in fields(form)},
    )


def _public(name: str, section: Mapping[str, Any], folder: Path | None) -> PublicTable:
    where = f"public.{name}"
    columns = _mapping(f"{where}.columns", section.get("columns", {}))
    _known(f"[{where}]", section, ("source", "key", "columns", *FORM_KEYS))
    return PublicTable(
        name=name,
        source=_beside(folder, str(_needed(section, where, "source"))),
        key=str(_needed(section, where, "key")),
        columns={item: _column(item, spec) for item, spec in columns.items()},
        form=text_form(section),
    )


def _default_name(source: str) -> str:
    """people, of people.csv.gz and of people/*.parquet."""
    place = Path(source)
    return (place.parent.name if "*" in place.name else place.name.split(".")[0]) or "data"


def _budget(section: Mapping[str, Any], unit: Unit) -> Budget:
    return Budget(
        epsilon=_needed(section, "budget", "epsilon"),
        delta=section.get("delta", 0.0),
        unit=str(section.get("unit", unit.column or "record")),
        relation=Relation.ADD_REMOVE,
    )


def _check_names(columns: Collection[str]) -> None:
    if len({name.lower() for name in columns}) < len(columns):
        raise InvalidInput(
            "expected column names that differ in more than upper and lower case, which SQL does not tell "
            f"apart; got {', '.join(columns)}"
        )


def _column(name: str, spec: Mapping[str, Any]) -> Column:
    known = _known(f"[columns.{name}]", spec, ("type", "lower", "upper", "categories"))
    categories = known.pop("categories", None)
    if categories is not None and not isinstance(categories, list | tuple):
        raise InvalidInput(f"expected columns.{name}.categories to be a list, got {categories!r}")
    kind = known.pop("type", None)
    if kind is None:
        raise InvalidInput(f"expected columns.{name}.type, got none; it is one of {', '.join(TYPES)}")
    return Column(name=name, type=kind, categories=None if categories is None else tuple(categories), **known)


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


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name)
    if not isinstance(section, Mapping):
        raise InvalidInput(
            f"expected a section [{name}] in the policy, got none; sfumato query init drafts one"
        )
    return section


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"expected a section [{where}] in the policy, got {value!r}")
    return value


def _needed(section: Mapping[str, Any], name: str, key: str) -> Any:
    if key not in section:
        raise InvalidInput(f"expected {name}.{key} in the policy, got none; sfumato query init drafts one")
    return section[key]


def _known(where: str, section: Any, allowed: Collection[str]) -> dict[str, Any]:
    unknown = sorted(map(str, set(_mapping(where.strip("[]"), section)) - set(allowed)))
    if unknown:
        raise InvalidInput(f"expected {where} to hold only {', '.join(allowed)}, got {', '.join(unknown)}")
    return dict(section)


def _beside(folder: Path | None, location: str) -> str:
    """A relative file beside the policy; addresses and names of database tables as they are."""
    is_file = "://" not in location and Path(location).suffix != "" and not Path(location).is_absolute()
    return str(folder / location) if folder is not None and is_file else location


def declares_study(path: str | Path) -> bool:
    """Whether a TOML file says what several holders compute together, and not what one of them has."""
    try:
        with Path(path).open("rb") as file:
            return "study" in tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False  # whoever reads it as a policy says what is wrong
