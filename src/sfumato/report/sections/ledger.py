"""The budget as it is spent."""

from __future__ import annotations

from dataclasses import replace

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both, round_ticks
from sfumato.report.context import Context
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import LedgerStatement


def _facts(context: Context) -> Facts | None:
    for result in context.of(LedgerStatement):
        return {"result": result, "chart": _both(result) if result.charges else None}
    return None


def _both(result: LedgerStatement) -> Markup:
    return both(lambda room: _burn_down(room, result))


def _burn_down(room: Format, result: LedgerStatement) -> Markup:
    budget, count = result.epsilon, len(result.charges)
    y = Axis(low=0, high=budget, ticks=round_ticks(budget), label="ε spent")
    x = Axis(low=0, high=max(count, 8), label="releases, in the order in which they were charged")
    chart = Chart(replace(room, height=300, top=30), x, y)
    before = budget
    for number, charge in enumerate(result.charges):
        left = max(0.0, budget - charge.epsilon_spent)
        chart.box((number + 0.06, 0), (number + 0.94, left), "accent bar")
        chart.box((number + 0.06, left), (number + 0.94, before), "accent faint")
        before = left
    chart.text((0, budget), "ε left", "soft", move=(-34, -12))
    return chart.svg(f"What is left of epsilon = {budget:g} after each of {count} charges")


SECTION = Section(name="ledger", title="What the budget was spent on", kinds=(LedgerStatement,), facts=_facts)
