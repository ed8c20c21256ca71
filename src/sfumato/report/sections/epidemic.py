"""How many are infected, day by day, by how tests are given out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both, percent_ticks
from sfumato.report.sections.section import Section
from sfumato.report.story import Story

_KINDS = {
    ("none", True): "soft",
    ("traditional", False): "ink dashed",
    ("dpfn", True): "ink",
    ("dpfn", False): "accent",
}


def epidemic(story: Story) -> Section | None:
    run = story.first("epidemic")
    if run is None:
        return None
    shown = _shown(run.result["curves"])
    return Section(
        name="epidemic",
        title="An epidemic, held down in private",
        template="epidemic.html",
        facts={
            **run.result,
            "chart": both(lambda room: _prevalence(room, shown)),
            "shown": shown,
            "person": max((curve.get("epsilon_person") or 0.0 for curve in shown), default=0.0),
        },
    )


def _shown(curves: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """No tests; traditional tracing at ε; scores without noise; scores at ε."""
    found = []
    for curve in curves:
        exact = curve["epsilon"] is None
        kind = _KINDS.get((curve["method"], exact))
        if kind is None:
            continue
        name = curve["name"] if exact and curve["method"] == "none" else f"{curve['name']}, {_price(curve)}"
        found.append({**curve, "kind": kind, "label": name})
    return sorted(found, key=lambda curve: -curve["peak"])


def _price(curve: Mapping[str, Any]) -> str:
    return "no privacy" if curve["epsilon"] is None else f"ε = {curve['epsilon']:g}"


def _prevalence(room: Format, curves: Sequence[Mapping[str, Any]]) -> Markup:
    days = max(len(curve["prevalence"]) for curve in curves)
    top = min(1.0, 1.15 * max(curve["peak"] for curve in curves))
    x = Axis(low=0, high=days - 1, label="day", ticks=[(day, str(day)) for day in range(0, days, 10)])
    chart = Chart(room, x, Axis(low=0, high=top, ticks=percent_ticks(0, top)))
    for curve in curves:
        points = list(enumerate(curve["prevalence"]))
        if curve["kind"] == "soft":
            chart.area(points, "soft")
        chart.line(points, f"{curve['kind']} strong")
    return chart.svg("Share of the town that is infected, by day and by how tests are given out")
