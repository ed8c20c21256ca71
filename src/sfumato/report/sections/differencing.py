"""Draw an attack on two averages, exact and private."""

from __future__ import annotations

from dataclasses import replace

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both, round_ticks
from sfumato.report.context import Context
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import Differencing


def _facts(context: Context) -> Facts | None:
    for result in context.of(Differencing):
        if result.histogram.counts:
            return {"result": result, "attack": result.attack, "chart": _both(result)}
    return None


def _both(result: Differencing) -> Markup:
    return both(lambda room: _ages(room, result))


def _ages(room: Format, result: Differencing) -> Markup:
    attack, counts, edges = result.attack, result.histogram.counts, result.histogram.edges
    end = 1.3 * max(*map(abs, attack.private_95), *map(abs, attack.ages), 1.0)
    top = 1.15 * max(*counts, 1)
    ticks = round_ticks(end, most=3)
    x = Axis(
        low=-end,
        high=end,
        label="the age that the attacker computes",
        ticks=[*((-value, f"−{text}") for value, text in reversed(ticks[1:])), *ticks],
    )
    chart = Chart(replace(room, height=260, left=16), x, Axis(low=0, high=top))
    chart.box((attack.ages[0], 0), (attack.ages[1], top), "wash")
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=False):
        if -end <= left and right <= end:
            chart.box((left, 0), (right, count), "accent bar")
    chart.vertical_line(attack.averages_only, "ink strong")
    chart.text((attack.averages_only, top), f"exact averages: {attack.averages_only:g}", "ink", move=(7, 12))
    chart.text((-end, top), "private averages", "accent", move=(2, 12))
    return chart.svg("Histogram of the age an attacker computes from private averages, against the exact one")


SECTION = Section(name="differencing", title="An age from two averages", kinds=(Differencing,), facts=_facts)
