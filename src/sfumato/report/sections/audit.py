"""Draw the lower bounds that attacks prove for a claimed ε."""

from __future__ import annotations

from dataclasses import replace

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both, round_ticks
from sfumato.report.context import Context
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import Audit


def _facts(context: Context) -> Facts | None:
    audits = [(result, _both(result)) for result in context.of(Audit)]
    return {"audits": audits} if audits else None


def _both(result: Audit) -> Markup:
    return both(lambda room: _bracket(room, result))


def _bracket(room: Format, result: Audit) -> Markup:
    """From the proved lower bound to the claim: the truth lies between."""
    claim, bound, sure = result.claimed_epsilon, result.lower_bound, result.sure_bound
    high = 1.12 * max(claim, bound, sure) or 1.0
    chart = Chart(
        replace(room, height=150, left=16),
        Axis(low=0, high=high, ticks=round_ticks(high), label="ε"),
        Axis(low=0, high=1),
    )
    chart.box((0, 0.36), (sure, 0.5), "ink faint")
    chart.box((sure, 0.36), (max(bound, sure), 0.5), "ink")
    chart.box((bound, 0.36), (max(claim, bound), 0.5), "accent")
    proved, left = f"proved by attack: ε ≥ {bound:.2f}", bound < high / 2
    chart.text((bound, 0.5), proved, "ink", move=(2 if left else -2, -12), anchor="start" if left else "end")
    stated, left = f"claimed: ε ≤ {claim:.2f}", claim < high / 2
    chart.text((claim, 0.36), stated, "accent", move=(2, 20), anchor="start" if left else "end")
    return chart.svg(f"An attack proves epsilon at least {bound:.2f}; the claim is {claim:.2f}")


SECTION = Section(name="audit", title="Is the claimed ε true?", kinds=(Audit,), facts=_facts)
