"""The result of a dry run: the expected error, and the budget left. Nothing is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table as Grid
from rich.text import Text

from sfumato.cli import show

if TYPE_CHECKING:
    from sfumato.accounting import DpEvent, Relation
    from sfumato.ledger import Ledger
    from sfumato.query import ExpectedError, Table
    from sfumato.query.dry_run import Trial


def room(ledger: Ledger, events: Sequence[DpEvent], *, relation: Relation, unit: str) -> dict[str, float]:
    """Return the budget left now and after `events`; BudgetExceeded if they do not fit."""
    after = ledger.check(events, relation=relation, unit=unit)
    return {"epsilon_left": ledger.epsilon_left, "epsilon_left_after": after.left(ledger.allocation)}


def show_room(answer: Mapping[str, Any]) -> None:
    """Print the result of `room` in one sentence."""
    left, after = answer["epsilon_left"], answer["epsilon_left_after"]
    show.console.print(f"It fits. Nothing was spent; ε left {left:.4g}, and {after:.4g} after it.", style="dim")


@dataclass(frozen=True)
class Expected:
    """The expected errors of a query at one ε, and those of other rows and groups where they are tried."""

    epsilon: float
    errors: tuple[ExpectedError, ...]
    tries: tuple[Trial, ...]

    @classmethod
    def of(cls, table: Table, sql: str, epsilon: float, *, tries: bool, **asked: Any) -> Expected:
        errors = table.dry_run(sql, epsilon=epsilon, **asked)
        return cls(epsilon, errors, table.tries(sql, epsilon=epsilon, **asked) if tries else ())


def show_expected(expected: Expected, ledger: Ledger, *, json: bool) -> None:
    """Print one line for each column, and a table of the trials."""
    if json:
        _emit(expected, ledger)
        return
    for item in expected.errors:
        size = "" if item.rows is None else f", for a group of {item.rows:,.0f} rows"
        show.console.print(f"{item.column}: {_error(item)} (95%){size}", markup=False)
    if expected.tries:
        _show_tries(expected.tries)
    show.console.print(f"Nothing was spent; ε left {ledger.epsilon_left:.4g}.", style="dim")


def _emit(expected: Expected, ledger: Ledger) -> None:
    rows = [
        {"column": item.column, "half_width": item.half_width, "unit": item.in_units_of, "rows": item.rows}
        for item in expected.errors
    ]
    left = {"epsilon_spent": ledger.epsilon_spent, "epsilon_left": ledger.epsilon_left}
    tried = {"tries": [item.to_json() for item in expected.tries]} if expected.tries else {}
    show.emit_json({"dry_run": True, "epsilon": expected.epsilon, "expected_errors": rows, **tried, **left})


def _show_tries(tries: tuple[Trial, ...]) -> None:
    grid = Grid(box=None, pad_edge=False)
    for name in ("rows", "groups", *(item.column for item in tries[0].errors), "left out", ""):
        grid.add_column(Text(name), justify="right")
    for item in tries:
        errors = [Text(_error(error)) for error in item.errors]
        mark = "best" if item.best else ""
        grid.add_row(str(item.rows), str(item.groups), *errors, f"{item.left_out:.0%}", mark)
    show.console.print(grid)
    show.console.print(
        "Left out: at most this share of the rows, if everybody had as many as the policy allows.", style="dim"
    )


def _error(item: ExpectedError) -> str:
    unit = "" if item.in_units_of == "value" else f" {item.in_units_of}"
    return f"± {item.half_width:,.4g}{unit}"
