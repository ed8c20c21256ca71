"""Read policies from TOML files; unknown keys are refused."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from sfumato.accounting import Budget, Relation
from sfumato.datasets.text_table import TextForm
from sfumato.errors import InvalidInput
from sfumato.policy.declared import Column, Policy, PublicTable, Unit
from sfumato.schema import Json, Model, Whole, read

_DRAFT = "sfumato query init drafts a policy"


class ColumnFile(Model):
    """A section [columns.NAME]; `Column` checks bounds and categories against the type."""

    type: Literal["integer", "real", "text", "boolean", "date"]
    lower: Json = None
    upper: Json = None
    categories: tuple[Json, ...] | None = None


class SourceFile(Model):
    """The place of a table, and its form if it is a text file."""

    source: str
    delimiter: str = ","
    header: bool = True
    fields: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ("",)

    @property
    def form(self) -> TextForm:
        return TextForm(delimiter=self.delimiter, header=self.header, fields=self.fields, missing=self.missing)


class TableFile(SourceFile):
    """The section [table]."""

    name: str | None = None
    public_size: Whole | None = None
    version: str | None = None
    owner: str | None = None


class OneOfTables(TableFile):
    """A section [tables.NAME]."""

    unit: str | None = None
    rows: int | None = None
    groups: int | None = None
    columns: Mapping[str, ColumnFile] = {}


class PublicFile(SourceFile):
    """A section [public.NAME]."""

    key: str
    columns: Mapping[str, ColumnFile] = {}


class UnitFile(Model):
    """The section [unit]."""

    column: str | None = None
    rows: int = 1
    groups: int = 1


class BudgetFile(Model):
    """The section [budget]."""

    epsilon: float
    delta: float = 0.0
    unit: str | None = None
    ledger: str | None = None
    dataset: str | None = None
    four_eyes: bool = False


class SynthesisFile(Model):
    """The section [synthesis], whose rules `synthesize` checks against the columns."""

    follows: Json = None
    impossible: Json = None


class PolicyFile(Model):
    """A policy as its file states it."""

    budget: BudgetFile
    unit: UnitFile = UnitFile()
    table: TableFile | None = None
    columns: Mapping[str, ColumnFile] = {}
    tables: Mapping[str, OneOfTables] | None = None
    public: Mapping[str, PublicFile] = {}
    synthesis: SynthesisFile = SynthesisFile()


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


def ledger_place(policy: Policy, place: Path) -> str:
    """Find the ledger of a policy: where it says, or beside its file.

    Args:
        policy: The policy.
        place: The file that it was read from.

    Returns:
        A file name, or a postgresql:// URL.

    ```python
    Ledger.open(ledger_place(policy, Path("people.toml")))
    ```
    """
    return policy.ledger or str(place.with_suffix(".ledger.db"))


def policy_from_dict(
    data: Mapping[str, Any], *, folder: Path | None = None, source: str | None = None
) -> Policy:
    """Return the policy of a parsed TOML file; unknown keys are refused.

    Args:
        data: The parsed file.
        folder: The base folder of relative sources and ledgers.
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
    if source is not None:
        given = str(Path(source).absolute()) if Path(source).suffix else source  # not beside the policy
        data = {**data, "table": {**data.get("table", {}), "source": given}}
    said: PolicyFile = read(PolicyFile, data, name="", remedy=_DRAFT)
    unit = Unit(column=said.unit.column, rows=said.unit.rows, groups=said.unit.groups)
    budget = Budget(
        epsilon=said.budget.epsilon,
        delta=said.budget.delta,
        unit=said.budget.unit or unit.column or "record",
        relation=Relation.ADD_REMOVE,
    )
    if said.tables is not None:
        one = _several(said, unit, budget, folder)
    elif said.table is not None:
        name = said.table.name or _default_name(said.table.source)
        one = _table(name, said.table, said.columns, unit=unit, budget=budget, folder=folder)
    else:
        raise InvalidInput(f"expected a section [table] in the policy, got none; {_DRAFT}")
    rules = {"follows": said.synthesis.follows, "impossible": said.synthesis.impossible}
    return replace(
        one,
        public={name: _public(name, table, folder) for name, table in said.public.items()},
        ledger=None if said.budget.ledger is None else _beside(folder, said.budget.ledger),
        dataset=said.budget.dataset,
        four_eyes=said.budget.four_eyes,
        synthesis={name: rule for name, rule in rules.items() if rule is not None},
    )


def _several(said: PolicyFile, unit: Unit, budget: Budget, folder: Path | None) -> Policy:
    """Return the first table's policy, with the policies of all, under the unit of joined tables."""
    both = [name for name, given in (("table", said.table), ("columns", said.columns)) if given]
    if both or not said.tables:
        raise InvalidInput(
            "expected either [table] with its [columns], or [tables.NAME] sections with columns of their own, "
            f"got {', '.join(['tables', *both])}"
        )
    tables = {}
    for name, table in said.tables.items():
        own = Unit(
            column=table.unit or unit.column,
            rows=unit.rows if table.rows is None else table.rows,
            groups=unit.groups if table.groups is None else table.groups,
        )
        tables[name] = _table(name, table, table.columns, unit=own, budget=budget, folder=folder)
    first = next(iter(tables.values()))
    versions = [one.version for one in tables.values() if one.version is not None]
    return replace(
        first,
        unit=replace(unit, column=first.unit.column),
        version=", ".join(versions) if len(versions) == len(tables) else None,
        tables=tables,
    )


def _table(
    name: str,
    table: TableFile,
    columns: Mapping[str, ColumnFile],
    *,
    unit: Unit,
    budget: Budget,
    folder: Path | None,
) -> Policy:
    return Policy(
        table=name,
        source=_beside(folder, table.source),
        columns=_columns(columns),
        budget=budget,
        unit=unit,
        public_size=table.public_size,
        version=table.version,
        owner=table.owner,
        **{item.name: getattr(table.form, item.name) for item in fields(TextForm)},
    )


def _public(name: str, table: PublicFile, folder: Path | None) -> PublicTable:
    return PublicTable(
        name=name,
        source=_beside(folder, table.source),
        key=table.key,
        columns=_columns(table.columns),
        form=table.form,
    )


def _columns(columns: Mapping[str, ColumnFile]) -> dict[str, Column]:
    return {
        name: Column(name=name, type=one.type, lower=one.lower, upper=one.upper, categories=one.categories)
        for name, one in columns.items()
    }


def _default_name(source: str) -> str:
    """people, of people.csv.gz and of people/*.parquet."""
    place = Path(source)
    return (place.parent.name if "*" in place.name else place.name.split(".")[0]) or "data"


def _beside(folder: Path | None, location: str) -> str:
    """A relative file beside the policy; addresses and names of database tables as they are."""
    is_file = "://" not in location and Path(location).suffix != "" and not Path(location).is_absolute()
    return str(folder / location) if folder is not None and is_file else location


def declares_study(path: str | Path) -> bool:
    """Return whether a TOML file declares a study of several holders, and not a policy."""
    try:
        with Path(path).open("rb") as file:
            return "study" in tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False  # the policy reader reports the error
