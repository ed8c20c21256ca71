"""The answer to a query: noisy values with their intervals, their cost, and the place where answers are kept.

A kept answer is found again by its declared facts: the question's words, the policy (its data version with
it), ε and δ. Nothing of the data takes part, and no digest of it: a change of the data changes `version`.
"""

from __future__ import annotations

import hashlib
import html
import io
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlglot

from sfumato import _validate
from sfumato.accounting import warn_of_little_protection
from sfumato.caveats import Code
from sfumato.display import csv_bytes
from sfumato.errors import InvalidInput
from sfumato.ledger import Head, Ledger
from sfumato.policy import Policy, PublicTable, ledger_place
from sfumato.query.names import private_table, rows_policy
from sfumato.query.noise import Family
from sfumato.query.plan import ADDED_UP, Query, columns_used, scope, ungrouped_rows
from sfumato.schema import plain, read
from sfumato.storage import write_whole

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Cell = str | int | float | bool | None
Interval = tuple[float, float] | None
FORMATS = (".csv", ".parquet", ".json")
_MOST_SHOWN = 200  # rows in a notebook


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Rows of noisy values; beside each its 95% interval (None for a group's key).

    An interval is about the noise: about the answer of the bounded table, in which values are clipped and no
    unit has more rows and groups than the policy lets it have.

    Attributes:
        columns: The name of each column.
        rows: The noisy values.
        intervals: (low, high) beside each value; None beside the key of a group.
        epsilon: The ε of this answer.
        delta: Its δ.
        epsilon_spent: The ε of the ledger after it.
        epsilon_left: The largest further ε that the ledger would accept.
        notes: Effects that the intervals leave out, in words, from the policy alone.
        entry: Its charge in the ledger.
        again: True if it was paid for before.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    intervals: tuple[tuple[Interval, ...], ...]
    epsilon: float
    delta: float
    epsilon_spent: float
    epsilon_left: float
    notes: tuple[str, ...] = ()
    entry: Head | None = None
    again: bool = False

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, as `sfumato query --json` prints it."""
        return {**plain(vars(self)), "notes": list(map(str, self.notes))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """Return the answer that `to_json` wrote."""
        return read(cls, data, name="the answer")

    def to_arrow(self) -> pa.Table:
        """An Arrow table: after each value its interval, as NAME_low and NAME_high."""
        import pyarrow as pa

        found = self._columns()
        return pa.Table.from_arrays(
            [pa.array(values) for _, values in found], names=[name for name, _ in found]
        )

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame: after each value its interval, as NAME_low and NAME_high."""
        return self.to_arrow().to_pandas()

    def write(self, path: str | Path) -> None:
        """Write it whole, as the ending says: .csv and .parquet with columns of intervals, or .json."""
        place = refuse_place(path)
        if place.suffix.lower() == ".json":
            text = json.dumps(self.to_json(), ensure_ascii=False, indent=2, default=str) + "\n"
            contents = text.encode()
        elif place.suffix.lower() == ".csv":
            names, values = zip(*self._columns(), strict=True)
            contents = csv_bytes([names, *zip(*values, strict=True)])
        else:
            from pyarrow import parquet

            buffer = io.BytesIO()
            parquet.write_table(self.to_arrow(), buffer)
            contents = buffer.getvalue()
        write_whole(place, contents, readable=True)

    def _columns(self) -> list[tuple[str, list[Any]]]:
        """Names and values of the answer as a plain table."""
        found: list[tuple[str, list[Any]]] = []
        taken = list(self.columns)
        for place, name in enumerate(self.columns):
            found.append((name, [row[place] for row in self.rows]))
            intervals = [row[place] for row in self.intervals]
            if any(one is not None for one in intervals):
                for end, side in enumerate(("low", "high")):
                    label = f"{name}_{side}"
                    while label in taken:
                        label += "_"
                    taken.append(label)
                    found.append((label, [None if one is None else one[end] for one in intervals]))
        return found

    def _repr_html_(self) -> str:
        """Show the answer in a notebook; its texts are escaped and never run."""
        names, values = zip(*self._columns(), strict=True)
        head = "".join(f"<th>{html.escape(str(name))}</th>" for name in names)
        shown = list(zip(*values, strict=True))[:_MOST_SHOWN]
        body = "".join("<tr>" + "".join(f"<td>{_shown(cell)}</td>" for cell in row) + "</tr>" for row in shown)
        said = [f"{len(self.rows) - len(shown):,} more rows"] if len(shown) < len(self.rows) else []
        said += [*self.notes, self.cost_in_words()]
        foot = "".join(f"<p>{html.escape(line)}</p>" for line in said)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"

    def cost_in_words(self) -> str:
        """The cost of the answer, and the ε that is left."""
        cost = f"ε {self.epsilon:g}" + (f" and δ {self.delta:g}" if self.delta else "")
        paid = "paid for before, for nothing now" if self.again else "for this answer"
        spent, left = f"{self.epsilon_spent:.4g}", f"{self.epsilon_left:.4g}"
        return f"{cost} {paid}; {spent} is spent so far, and a further answer may cost up to {left}."


def notes_for(plan: Query, policy: Policy, *, family: Family = Family.LAPLACE) -> tuple[str, ...]:
    """The rows that an answer may leave out, from the query and the policy alone; the data may have none."""
    rows = rows_policy(plan.joined, policy)
    notes = [] if rows.unit.column is None else [*_unit_notes(plan, rows, policy)]
    notes += [Code.IN_NO_GROUP(values=words) for words in ungrouped_rows(plan, policy)]
    if family is Family.GAUSSIAN:
        notes.append(Code.GAUSSIAN_NOISE())
    return tuple(notes)


def _unit_notes(plan: Query, rows: Policy, policy: Policy) -> Iterator[str]:
    """How much of one unit counts: of its rows, or of the one row that a sub-query makes of all of them."""
    unit = rows.unit
    if plan.per_person is not None:
        yield Code.ONE_MADE_ROW(unit=str(unit.column))
        for join in () if plan.joined is None else plan.joined.joins:
            if join.column is None:
                most = _several(private_table(join.table, policy).unit.rows, "row")
                yield Code.JOINED_ROWS(table=join.table, most=most, unit=str(unit.column))
        used = columns_used(replace(plan, per_person=None))
        columns = scope(plan, policy).columns.values()
        for value, column in zip(plan.per_person.values, columns, strict=True):
            if value.name in used and value.function in ADDED_UP and column.lower is not None:
                ends = f"{column.lower:g} to {column.upper:g}"
                yield Code.CUT_OFF(value=value.name, ends=ends)
    elif not plan.keys and all(one.function == "count_units" for one in plan.aggregates):
        yield Code.UNITS_COUNTED(unit=str(unit.column))
    else:
        groups = f", in at most {_several(unit.groups, 'group')}" if plan.keys else ""
        most = _several(unit.rows, "row")
        yield Code.ROWS_LEFT_OUT(unit=str(unit.column), most=f"{most}{groups}")


def refuse_place(path: str | Path) -> Path:
    """The place of a file that is not there yet, with a known ending: asked before anything is spent."""
    place = Path(path)
    _validate.one_of("the file's ending", place.suffix.lower(), FORMATS)
    return refuse_existing(place)


def refuse_existing(place: Path) -> Path:
    """The place of a new file in a folder that exists."""
    if place.exists() or not place.parent.is_dir():
        raise InvalidInput(f"expected a new file in a folder that exists, got {place}; choose another place")
    return place


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _shown(cell: object) -> str:
    text = f"{cell:,.6g}" if isinstance(cell, float) else "" if cell is None else str(cell)
    return html.escape(text)


__all__ = ["ledger_place", "make_ledger", "open_ledger"]


def open_ledger(policy: Policy, place: Path) -> Ledger:
    """That ledger; where there is none, the first charge makes it with the policy's budget, and nothing else.

    A query that is refused, a dry run and a prompt that is closed again leave no ledger behind: a draft of a
    policy settles no budget.
    """
    return make_ledger(policy, place, when_charged=True)


def make_ledger(policy: Policy, place: Path, *, when_charged: bool = False) -> Ledger:
    """That ledger, made now if there is none: for a desk, which writes more than charges into it."""
    budget, where = policy.budget, ledger_place(policy, place)
    warn_of_little_protection("this budget", budget.epsilon, budget.delta, people=policy.least_people)
    return Ledger.open(where, budget=budget, dataset=policy.dataset, when_charged=when_charged)


Declared = TypeVar("Declared", Policy, PublicTable)
_private_log = logging.getLogger("sfumato.private.query")


class KeptAnswers:
    """A folder of answers that its owner alone may read; all of them were released before.

    Args:
        folder: Where answers are kept; made when the first is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     KeptAnswers(folder).find("never asked") is None
    True
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.has_kept = False  # whether this object wrote one down

    @classmethod
    def of(cls, policy: Policy, place: Path) -> KeptAnswers:
        """Beside the ledger's file, or beside the policy's where the ledger is on a server."""
        ledger = ledger_place(policy, place)
        return cls(f"{place if '://' in ledger else ledger}.answers")

    def find(self, name: str) -> Answer | None:
        """The answer under a name, as it was given."""
        try:
            data = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            return replace(Answer.from_json(data), again=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"expected an answer in {self.folder / name}.json, got something else; remove the file"
            ) from error

    def keep(self, name: str, answer: Answer) -> None:
        """Write an answer down; it has been paid for, so that a full disk must not lose it to the asker."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.folder.is_symlink():
                raise NotADirectoryError(f"expected a folder of its own at {self.folder}, got a link")
            self.folder.chmod(0o700)
            text = json.dumps(answer.to_json(), ensure_ascii=False, default=str)
            write_whole(self.folder / f"{name}.json", text.encode())
            self.has_kept = True
        except OSError as error:
            _private_log.error("an answer could not be kept", exc_info=error)


def name_of(
    sql: str,
    policy: Policy,
    *,
    epsilon: float,
    delta: float | None,
    split: tuple[float, ...] | None = None,
    noise: str | None = None,
) -> str:
    """The name of a kept answer: a hash of its words, without comments, and of all declared facts."""
    declared = replace(
        _from_anywhere(policy),
        tables={name: _from_anywhere(one) for name, one in policy.tables.items()},
        public={name: _from_anywhere(one) for name, one in policy.public.items()},
        ledger=None,
    )
    asked = (words_of(sql), declared, float(epsilon), delta, split, noise)
    return hashlib.sha256(repr(asked).encode()).hexdigest()


def _from_anywhere(table: Declared) -> Declared:
    """The same from every folder."""
    return replace(table, source=table.source if "://" in table.source else os.path.abspath(table.source))


def words_of(sql: str) -> str:
    """A question in one spelling.

    >>> words_of("select  count( * ) -- of all\\n from people;") == words_of("SELECT COUNT(*) FROM people")
    True
    """
    return sqlglot.parse_one(sql, read="duckdb").sql(dialect="duckdb", comments=False)


def check_version(policy: Policy) -> None:
    if policy.version is None:
        raise InvalidInput(
            "expected version in the policy's [table] to give an answer again, got none; declare one and "
            "change it whenever the data change"
        )
