"""What the holder of a table declares in public: its columns' bounds and categories, its people, its budget.

Nothing here is ever read off the data. A policy is a TOML file:

    [table]
    name = "people"                  # what queries call it
    source = "people.csv"            # .csv, .csv.gz, .parquet, parts/*.parquet or a .duckdb file, beside the
                                     # policy; a table's name in a database
    public_size = 10000              # optional: about how many rows, if that is public; only for --dry-run
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
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
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
    """One column: its type, and its public bounds or categories where they are known."""

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
    """Whose privacy is kept, and how much of one of them counts."""

    column: str | None = None
    rows: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        _validate.integer("unit.rows", self.rows, least=1)
        _validate.integer("unit.groups", self.groups, least=1)
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
class Policy:
    """Everything public about one private table."""

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
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
        lowered = [name.lower() for name in self.columns]
        if len(set(lowered)) < len(lowered):
            raise InvalidInput(
                "expected column names that differ in more than upper and lower case, which SQL does not tell "
                f"apart; got {', '.join(self.columns)}"
            )
        if self.unit.column is not None and self.unit.column.lower() in lowered:
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
    """The policy in a TOML file; relative sources and ledgers are beside it.

    With a `source`, which takes the place of the file's, the file needs no section [table].
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"expected a policy file at {path}: {error.strerror or error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"expected {path} to be TOML: {error}") from error
    return policy_from_dict(data, folder=path.parent, source=source)


def policy_from_dict(
    data: Mapping[str, Any], *, folder: Path | None = None, source: str | None = None
) -> Policy:
    """The policy that a parsed TOML file describes; anything unknown in it is refused."""
    _known("the policy", data, ("table", "unit", "budget", "columns"))
    table = _section(data, "table") if source is None else data.get("table", {})
    budget = _section(data, "budget")
    _known("[table]", table, ("name", "source", "public_size", "version", *FORM_KEYS))
    _known("[budget]", budget, ("epsilon", "delta", "ledger", "dataset", "unit"))
    unit = Unit(**_known("[unit]", data.get("unit", {}), [item.name for item in fields(Unit)]))
    form = text_form(table)
    place = _beside(folder, str(_needed(table, "table", "source"))) if source is None else source
    return Policy(
        table=str(table.get("name", _default_name(place))),
        source=place,
        columns={name: _column(name, spec) for name, spec in data.get("columns", {}).items()},
        budget=_budget(budget, unit),
        unit=unit,
        ledger=_beside(folder, str(budget["ledger"])) if "ledger" in budget else None,
        dataset=str(budget["dataset"]) if "dataset" in budget else None,
        public_size=table.get("public_size"),
        version=table.get("version"),
        **{item.name: getattr(form, item.name) for item in fields(form)},
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


def _column(name: str, spec: Mapping[str, Any]) -> Column:
    known = _known(f"[columns.{name}]", spec, ("type", "lower", "upper", "categories"))
    categories = known.pop("categories", None)
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


def _needed(section: Mapping[str, Any], name: str, key: str) -> Any:
    if key not in section:
        raise InvalidInput(f"expected {name}.{key} in the policy, got none; sfumato query init drafts one")
    return section[key]


def _known(where: str, section: Mapping[str, Any], allowed: Collection[str]) -> dict[str, Any]:
    unknown = sorted(set(section) - set(allowed))
    if unknown:
        raise InvalidInput(f"expected {where} to hold only {', '.join(allowed)}, got {', '.join(unknown)}")
    return dict(section)


def _beside(folder: Path | None, location: str) -> str:
    """A relative file beside the policy; addresses and names of database tables as they are."""
    is_file = "://" not in location and Path(location).suffix != "" and not Path(location).is_absolute()
    return str(folder / location) if folder is not None and is_file else location
