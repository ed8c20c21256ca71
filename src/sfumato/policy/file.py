"""Policies from TOML files; what a file says that no policy knows is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from sfumato import _validate
from sfumato.accounting import Budget, Relation
from sfumato.datasets.text_table import FORM_KEYS, text_form
from sfumato.errors import InvalidInput
from sfumato.policy.declared import TYPES, Column, Policy, PublicTable, Unit

_TABLE_KEYS = ("source", "public_size", "version", "owner", *FORM_KEYS)


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
        owner=section.get("owner"),
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


def _column(name: str, spec: Mapping[str, Any]) -> Column:
    known = _known(f"[columns.{name}]", spec, ("type", "lower", "upper", "categories"))
    categories = known.pop("categories", None)
    if categories is not None and not isinstance(categories, list | tuple):
        raise InvalidInput(f"expected columns.{name}.categories to be a list, got {categories!r}")
    kind = known.pop("type", None)
    if kind is None:
        raise InvalidInput(f"expected columns.{name}.type, got none; it is one of {', '.join(TYPES)}")
    return Column(name=name, type=kind, categories=None if categories is None else tuple(categories), **known)


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
