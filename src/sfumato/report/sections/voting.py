"""How teachers vote, and what the noise leaves of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from sfumato.report.charts import DESK, Axis, Chart
from sfumato.report.sections.section import Section
from sfumato.report.story import Story

_ROOM = replace(DESK, width=360, height=200, left=8, right=8, bottom=28, top=24)


def voting(story: Story) -> Section | None:
    run = story.first("votes")
    if run is None:
        return None
    return Section(
        name="votes",
        title="Labels by private vote",
        template="votes.html",
        facts={**run.result, "charts": [_ballot(vote) for vote in run.result["votes"]]},
    )


def _ballot(vote: Mapping[str, Any]) -> Markup:
    """Counts as bars, noised counts as dots; the noised winner is the label."""
    counts, noisy, label = vote["counts"], vote["noisy"], vote["label"]
    top = max(*counts, *noisy, 1) * 1.12
    x = Axis(low=-0.5, high=len(counts) - 0.5, ticks=[(n, str(n)) for n in range(len(counts))])
    chart = Chart(_ROOM, x, Axis(low=0, high=top))
    for number, (count, noised) in enumerate(zip(counts, noisy, strict=True)):
        chart.box((number - 0.34, 0), (number + 0.34, count), "accent bar" if number == label else "soft faint")
        chart.dot((number, max(0.0, noised)), "ink", radius=3.5)
    said = "no answer" if label < 0 else f"answer {label}"
    return chart.svg(f"{max(counts)} of {sum(counts)} teachers agree; {said}").replace("chart wide", "chart")
