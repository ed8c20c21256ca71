"""Draw the votes of the teachers, before and after noise."""

from __future__ import annotations

from dataclasses import replace

from markupsafe import Markup

from sfumato.report.charts import WIDE, Axis, Chart
from sfumato.report.context import Context, data_name
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import Ballot, Votes

_ROOM = replace(WIDE, width=360, height=200, left=8, right=8, bottom=28, top=24)


def _facts(context: Context) -> Facts | None:
    runs = [
        {
            "votes": result,
            "charts": [_ballot(ballot) for ballot in result.ballots if ballot.counts],
            "sigma": result.plan.get("sigma"),
            "data": data_name(result.data),
        }
        for result in context.of(Votes)
    ]
    return {"runs": runs, "examples": context.examples} if runs else None


def _ballot(ballot: Ballot) -> Markup:
    """Counts as bars, noised counts as dots; the noised winner is the label."""
    counts, noisy = ballot.counts, ballot.noisy
    top = max(*counts, *noisy, 1) * 1.12
    x = Axis(low=-0.5, high=len(counts) - 0.5, ticks=[(n, str(n)) for n in range(len(counts))])
    chart = Chart(_ROOM, x, Axis(low=0, high=top))
    for number, count in enumerate(counts):
        style = "accent bar" if number == ballot.label else "soft faint"
        chart.box((number - 0.34, 0), (number + 0.34, count), style)
    for number, noised in enumerate(noisy):
        chart.dot((number, max(0.0, noised)), "ink", radius=3.5)
    answer = "no answer" if ballot.label < 0 else f"answer {ballot.label}"
    label = f"{max(counts)} of {sum(counts)} teachers agree; {answer}"
    return chart.svg(label).replace("chart wide", "chart")


SECTION = Section(name="votes", title="Labels by private vote", kinds=(Votes,), facts=_facts)
