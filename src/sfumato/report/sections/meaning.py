"""ε in plain words, beside systems in use; and digits that dissolve as it gets smaller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both, epsilon_ticks, percent_ticks
from sfumato.report.measured import Measured, keepers_curve
from sfumato.report.published import IN_USE
from sfumato.report.sections.section import Section
from sfumato.report.story import Story

_SHOWN = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
_STATIC = (1.0, 8.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)  # rows where nothing moves: print, or no script


def meaning(story: Story) -> Section:
    """How far an even guess can be moved, e^ε / (1 + e^ε), and what others spend."""
    twin = story.first("plain-and-private")
    largest = max(epsilon for _, epsilon in IN_USE)
    return Section(
        name="meaning",
        title="What ε means",
        template="meaning.html",
        facts={
            "guesses": [(epsilon, 1 / (1 + math.exp(-epsilon))) for epsilon in _SHOWN],
            "in_use": [(name, epsilon, epsilon / largest) for name, epsilon in IN_USE],
            "attacker": None if twin is None else twin.result.get("attacker_true_positive_rate"),
        },
    )


@dataclass(frozen=True, kw_only=True)
class DigitSheet:
    """The picture of noised digits, a row for each ε; `cells` go along the diagonal, from clear to noise."""

    picture: str
    rows: int
    columns: int
    cells: tuple[tuple[float, float], ...]


def digit_sheet(story: Story) -> DigitSheet | None:
    run = story.first("digits")
    picture = None if run is None else run.picture(str(run.result["sheet"]))
    if run is None or picture is None:
        return None
    rows, columns = len(run.result["levels"]), int(run.result["digits"])
    reach = min(rows - 1, rows * 2 // 3)  # where nothing can be read any more
    cells = [
        (100 * n / (columns - 1), 100 * round(reach * n / (columns - 1)) / (rows - 1)) for n in range(columns)
    ]
    return DigitSheet(
        picture=picture, rows=rows, columns=columns, cells=tuple((round(x, 3), round(y, 3)) for x, y in cells)
    )


def dissolving(story: Story) -> Section | None:
    run = story.first("digits")
    if run is None or digit_sheet(story) is None:
        return None
    levels = _levels(list(reversed(run.result["levels"])), keepers_curve(story))
    count = len(levels)
    for number, level in enumerate(levels):
        level["position"] = round(100 * (count - 1 - number) / (count - 1), 3)  # the clear row is at the top
    start = min(range(count), key=lambda n: abs(math.log((levels[n]["epsilon"] or 1e9) / 1000)))
    return Section(
        name="dissolve",
        title="Watch a digit dissolve",
        template="dissolve.html",
        facts={
            "levels": levels,
            "start": start,
            "static": [level for level in levels if level["epsilon"] in (*_STATIC, None)],
            "chart": both(lambda room: _chart(room, levels, start)),
            "delta": run.result["delta"],
        },
    )


def _levels(found: Sequence[Any], keeper: Measured | None) -> list[dict[str, Any]]:
    return [
        {
            "epsilon": level["epsilon"],
            "label": "∞" if level["epsilon"] is None else f"{level['epsilon']:,g}",
            "readable": level["readable"],
            "keeper": None if keeper is None else keeper.at(level["epsilon"]),
            "measured": keeper is not None and keeper.reaches(level["epsilon"]),
        }
        for level in found
    ]


def _chart(room: Format, levels: Sequence[Any], start: int) -> Markup:
    shown = [level for level in levels if level["epsilon"] is not None]
    low, high = shown[0]["epsilon"], shown[-1]["epsilon"]
    ticks = epsilon_ticks(low, high)
    x = Axis(low=low, high=high, log=True, ticks=ticks, label="ε")
    y = Axis(low=0, high=1, ticks=percent_ticks(0, 1))
    chart = Chart(replace(room, height=250), x, y)
    chart.line([(one["epsilon"], one["readable"]) for one in shown], "ink")
    keeper = [(one["epsilon"], one["keeper"]) for one in shown if one["measured"]]
    beyond = [(one["epsilon"], one["keeper"]) for one in shown if one["keeper"] is not None]
    if keeper:
        chart.line([point for point in beyond if point[0] >= keeper[-1][0]], "accent dashed")
        chart.line(keeper, "accent")
        chart.words((low, keeper[0][1]), "trained by a keeper", "accent", move=(2, 26))
    chart.words((high, 0.5), "noised one by one", "ink", move=(-4, 0), anchor="end")
    first = shown[min(start, len(shown) - 1)]
    chart.dot((first["epsilon"], first["readable"]), "ink marker readable", radius=6)
    if first["keeper"] is not None:
        chart.dot((first["epsilon"], first["keeper"]), "accent marker keeper", radius=6)
    places = [[*chart.at(one["epsilon"], one["readable"]), *_place(chart, one)] for one in shown]
    return Markup('<div class="follow" data-places="{}">{}</div>').format(
        str(places).replace("None", "null"),
        chart.svg("Share of digits read right against ε: trained by a keeper, and noised one by one"),
    )


def _place(chart: Chart, level: Any) -> list[float | None]:
    return [None] if level["keeper"] is None else [chart.at(level["epsilon"], level["keeper"])[1]]
