"""Draw digits that dissolve as ε gets smaller, beside the accuracy of a data holder's network at that ε."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both, epsilon_axis, percent_ticks
from sfumato.report.context import Context
from sfumato.report.measured import Curve, holder_curve
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import NoisedDigits, NoiseLevel

_STATIC = (1.0, 8.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)  # rows where nothing moves: print, or no script
_START = 1000.0  # the ε that the slider begins at, or the nearest


@dataclass(frozen=True, kw_only=True)
class Level:
    """One place of the slider; the script reads it."""

    epsilon: float | None
    label: str
    readable: float
    holder: float | None  # accuracy of a data holder's network at this ε
    measured: bool  # whether that was measured, and not taken from a smaller ε
    position: float  # of its row in the picture, in percent


@dataclass(frozen=True, kw_only=True)
class DigitSheet:
    """The picture of noised digits, a row for each ε; `cells` go along the diagonal, from clear to noise."""

    picture: str
    rows: int
    columns: int
    cells: tuple[tuple[float, float], ...]


def digit_sheet(context: Context) -> DigitSheet | None:
    found = _drawn(context)
    if found is None:
        return None
    picture, result = found
    rows, columns = len(result.levels), result.digits
    last = min(rows - 1, rows * 2 // 3)  # where nothing can be read any more
    cells = [
        (100 * n / (columns - 1), 100 * round(last * n / (columns - 1)) / (rows - 1)) for n in range(columns)
    ]
    return DigitSheet(
        picture=picture, rows=rows, columns=columns, cells=tuple((round(x, 3), round(y, 3)) for x, y in cells)
    )


def _drawn(context: Context) -> tuple[str, NoisedDigits] | None:
    """The first study whose picture is there, with something to slide over."""
    for run, result in context.runs_of(NoisedDigits):
        picture = run.picture(result.sheet)
        noised = [level for level in result.levels if level.epsilon]
        if picture is not None and result.digits > 1 and len(noised) > 1:
            return picture, result
    return None


def _facts(context: Context) -> Facts | None:
    found = _drawn(context)
    if found is None:
        return None
    _, result = found
    levels = _levels(result.levels, holder_curve(context))
    start = min(range(len(levels)), key=lambda n: abs(math.log((levels[n].epsilon or 1e9) / _START)))
    return {
        "levels": levels,
        "data": [asdict(level) for level in levels],
        "start": start,
        "static": [level for level in levels if level.epsilon in (*_STATIC, None)],
        "chart": both(lambda room: _chart(room, levels, start)),
        "delta": result.delta,
    }


def _levels(found: Sequence[NoiseLevel], holder: Curve | None) -> list[Level]:
    """From most noise to none; the clear row is at the top of the picture."""
    return [
        Level(
            epsilon=level.epsilon,
            label="∞" if level.epsilon is None else f"{level.epsilon:,g}",
            readable=level.readable,
            holder=None if holder is None else holder.at(level.epsilon),
            measured=holder is not None and holder.reaches(level.epsilon),
            position=round(100 * number / (len(found) - 1), 3),
        )
        for number, level in reversed(list(enumerate(found)))
    ]


def _chart(room: Format, levels: Sequence[Level], start: int) -> Markup:
    shown = [(level.epsilon, level) for level in levels if level.epsilon]
    x = epsilon_axis([epsilon for epsilon, _ in shown])
    chart = Chart(replace(room, height=250), x, Axis(low=0, high=1, ticks=percent_ticks(0, 1)))
    chart.line([(epsilon, level.readable) for epsilon, level in shown], "ink")
    _draw_holder(chart, shown)
    chart.text((x.high, 0.5), "noised one by one", "ink", move=(-4, 0), anchor="end")
    epsilon, first = shown[min(start, len(shown) - 1)]
    chart.dot((epsilon, first.readable), "ink marker readable", radius=6)
    if first.holder is not None:
        chart.dot((epsilon, first.holder), "accent marker holder", radius=6)
    places = [
        [*chart.at(epsilon, level.readable), _holder_height(chart, epsilon, level)] for epsilon, level in shown
    ]
    return Markup('<div class="follow" data-places="{}">{}</div>').format(
        str(places).replace("None", "null"),
        chart.svg("Share of digits read right against ε: trained by a data holder, and noised one by one"),
    )


def _draw_holder(chart: Chart, shown: Sequence[tuple[float, Level]]) -> None:
    """Measured accuracies as a line, and dashed where that of the largest ε is taken."""
    known = [(epsilon, level.holder, level.measured) for epsilon, level in shown if level.holder is not None]
    measured = [(epsilon, holder) for epsilon, holder, was_measured in known if was_measured]
    if not measured:
        return
    beyond = [(epsilon, holder) for epsilon, holder, _ in known if epsilon >= measured[-1][0]]
    chart.line(beyond, "accent dashed")
    chart.line(measured, "accent")
    chart.text((chart.x.low, measured[0][1]), "trained by a data holder", "accent", move=(2, 26))


def _holder_height(chart: Chart, epsilon: float, level: Level) -> Any:
    return None if level.holder is None else chart.at(epsilon, level.holder)[1]


SECTION = Section(name="dissolve", title="Digits with more and more noise", kinds=(NoisedDigits,), facts=_facts)
