"""How many are infected, day by day, by how tests are given out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both, percent_ticks, round_ticks
from sfumato.report.context import Context
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import EpidemicCurve, Tracing

_STYLES = {
    ("none", True): "soft",
    ("traditional", False): "ink dashed",
    ("dpfn", True): "ink",
    ("dpfn", False): "accent",
}
_OTHERS = ("accent", "ink", "accent dashed", "soft dashed")


@dataclass(frozen=True, kw_only=True)
class _Shown:
    curve: EpidemicCurve
    style: str
    label: str


def _facts(context: Context) -> Facts | None:
    """One figure for each town."""
    towns = [_town(result) for result in context.of(Tracing)]
    found = [town for town in towns if town is not None]
    return {"towns": found} if found else None


def _town(result: Tracing) -> Facts | None:
    shown = _shown([curve for curve in result.curves if curve.prevalence])
    if not shown:
        return None
    person = max((one.curve.epsilon_person or 0.0 for one in shown), default=0.0)
    return {
        "result": result,
        "shown": shown,
        "person": person,
        "chart": both(lambda room: _prevalence(room, shown)),
    }


def _shown(curves: Sequence[EpidemicCurve]) -> list[_Shown]:
    """Each with a style; the highest first."""
    found = []
    for number, curve in enumerate(curves):
        exact = curve.epsilon is None
        style = _STYLES.get((curve.method, exact), _OTHERS[number % len(_OTHERS)])
        label = curve.name if curve.method == "none" else f"{curve.name}, {_price(curve)}"
        found.append(_Shown(curve=curve, style=style, label=label))
    return sorted(found, key=lambda one: -one.curve.peak)


def _price(curve: EpidemicCurve) -> str:
    return "no privacy" if curve.epsilon is None else f"ε = {curve.epsilon:g}"


def _prevalence(room: Format, shown: Sequence[_Shown]) -> Markup:
    last = max(len(one.curve.prevalence) for one in shown) - 1
    top = min(1.0, 1.15 * max(*(value for one in shown for value in one.curve.prevalence), 0.001))
    ticks = [(day, text) for day, text in round_ticks(last) if day.is_integer()]
    x = Axis(low=0, high=max(last, 1), label="day", ticks=ticks)
    chart = Chart(room, x, Axis(low=0, high=top, ticks=_share_ticks(top), label="share of people infected"))
    for one in shown:
        points = list(enumerate(one.curve.prevalence))
        if one.style == "soft":
            chart.area(points, "soft")
        chart.line(points, f"{one.style} strong")
    return chart.svg("Share of the town that is infected, by day and by how tests are given out")


def _share_ticks(top: float) -> list[tuple[float, str]]:
    """Whole percentages, or parts of one in a town with few infections."""
    if top > 0.03:
        return percent_ticks(0, top)
    return [(value / 100, f"{text}%") for value, text in round_ticks(100 * top)]


SECTION = Section(name="epidemic", title="Private contact tracing", kinds=(Tracing,), facts=_facts)
