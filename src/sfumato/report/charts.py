"""Charts as inline SVG: no script, and colours from the page, so that light, dark and print need no redrawing.

A chart is drawn twice by its function, once for a wide screen and once for a phone, and the page shows the one
that fits. The style sheet colours the classes on the shapes (`accent`, `ink`, `soft`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from sfumato.report.numbers import SMALLEST

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of values with its ticks; `log` needs positive ends."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = ()
    label: str = ""
    log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value between the ends, in [0, 1]; values outside are clipped."""
        value = min(max(value, self.low), self.high)
        if self.low >= self.high:  # one value only
            return 0.5
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, kw_only=True)
class Format:
    """The room for a chart: on a wide screen or on a phone."""

    width: int
    height: int
    left: int = 46
    right: int = 16
    top: int = 14
    bottom: int = 42
    narrow: bool = False


WIDE = Format(width=760, height=400)
PHONE = Format(width=360, height=320, left=40, right=10, narrow=True)
_LABEL_ROOM = 18  # above the chart, for the label of the upward axis


@dataclass
class Chart:
    """Shapes in the order in which they are added, over a grid."""

    format: Format
    x: Axis
    y: Axis
    _shapes: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> Point:
        """Where a point of the axes lies on the drawing."""
        room = self.format
        across = room.left + self.x.share(x) * (room.width - room.left - room.right)
        down = room.height - room.bottom - self.y.share(y) * (room.height - room.top - room.bottom)
        return round(across, 1), round(down, 1)

    def line(self, points: Iterable[Point], kind: str) -> None:
        path = " ".join("{},{}".format(*self.at(*point)) for point in points)
        self._shapes.append(f'<polyline class="line {kind}" points="{path}"/>')

    def area(self, points: Sequence[Point], kind: str) -> None:
        """From the points down to the lower end of the axis."""
        if not points:
            return
        around = [(points[0][0], self.y.low), *points, (points[-1][0], self.y.low)]
        path = " ".join("{},{}".format(*self.at(*point)) for point in around)
        self._shapes.append(f'<polygon class="area {kind}" points="{path}"/>')

    def box(self, low: Point, high: Point, kind: str) -> None:
        (left, bottom), (right, top) = self.at(*low), self.at(*high)
        self._shapes.append(
            f'<rect class="box {kind}" x="{left}" y="{top}" width="{max(right - left, 0.5):.1f}" '
            f'height="{max(bottom - top, 0.0):.1f}"/>'
        )

    def dot(self, point: Point, kind: str, *, label: str = "", radius: float = 4.0) -> None:
        across, down = self.at(*point)
        title = f"<title>{escape(label)}</title>" if label else ""
        self._shapes.append(
            f'<circle class="dot {kind}" cx="{across}" cy="{down}" r="{radius}">{title}</circle>'
        )

    def error_bar(self, x: float, low: float, high: float, kind: str) -> None:
        (across, bottom), (_, top) = self.at(x, low), self.at(x, high)
        path = f"M{across} {bottom}V{top}M{across - 4} {bottom}h8M{across - 4} {top}h8"
        self._shapes.append(f'<path class="error-bar {kind}" d="{path}"/>')

    def horizontal_line(self, y: float, kind: str) -> None:
        self.line([(self.x.low, y), (self.x.high, y)], kind)

    def vertical_line(self, x: float, kind: str) -> None:
        self.line([(x, self.y.low), (x, self.y.high)], kind)

    def text(
        self, point: Point, text: str, kind: str = "", *, move: Point = (0, 0), anchor: str = "start"
    ) -> None:
        across, down = self.at(*point)
        self._shapes.append(_text(f"text {kind}", across + move[0], down + move[1], text, anchor))

    def svg(self, label: str) -> Markup:
        room = self.format
        inside = "".join([*self._grid(), *self._shapes])
        kind = "narrow" if room.narrow else "wide"
        above = _LABEL_ROOM if self.y.label else 0
        return Markup(
            f'<svg class="chart {kind}" viewBox="0 {-above} {room.width} {room.height + above}" role="img" '
            f'aria-label="{escape(label)}">{inside}</svg>'
        )

    def _grid(self) -> Iterable[str]:
        room = self.format
        bottom, right = room.height - room.bottom, room.width - room.right
        for value, label in self.y.ticks:
            down = self.at(self.x.low, value)[1]
            yield _stroke("grid", room.left, down, right, down)
            yield _text("tick", room.left - 8, down + 4, label, "end")
        for value, label in self.x.ticks:
            across = self.at(value, self.y.low)[0]
            yield _stroke("grid", across, bottom, across, bottom + 5)
            yield _text("tick", across, bottom + 19, label, "middle")
        yield _stroke("base", room.left, bottom, right, bottom)
        yield _text("name", (room.left + right) / 2, room.height - 4, self.x.label, "middle")
        if self.y.label:
            yield _text("name", 0, -6, self.y.label, "start")


def _stroke(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(kind: str, x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def both(draw: Callable[[Format], Markup]) -> Markup:
    """The chart for a wide screen and the one for a phone."""
    return draw(WIDE) + draw(PHONE)


def percent_ticks(low: float, high: float, *, most: int = 6) -> list[tuple[float, str]]:
    """Round percentages between two shares.

    >>> percent_ticks(0.9, 1.0)
    [(0.9, '90%'), (0.92, '92%'), (0.94, '94%'), (0.96, '96%'), (0.98, '98%'), (1.0, '100%')]
    """
    step = next(step for step in (1, 2, 5, 10, 20, 25, 50) if (high - low) * 100 / step <= most)
    first, last = math.ceil(round(low * 100 / step, 9)), math.floor(round(high * 100 / step, 9))
    return [(round(number * step / 100, 4), f"{number * step}%") for number in range(first, last + 1)]


def epsilon_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """
    >>> [label for _, label in epsilon_ticks(0.4, 10)]
    ['0.5', '1', '2', '4', '8']
    """
    values = (0.1, 0.25, 0.5, 1, 2, 4, 8, 16) if high <= 20 else (0.25, 1, 4, 10, 100, 1e3, 1e4, 1e5)
    found = [(value, f"{value:,g}".replace("100,000", "10⁵")) for value in values if low <= value <= high]
    return found or [(high, f"{high:.2g}")]


def epsilon_axis(epsilons: Iterable[float], *, label: str = "ε") -> Axis:
    """A log axis with room around the given values; an ε of 0 stands at its left end."""
    positive = sorted(value for value in epsilons if value > SMALLEST) or [1.0]
    low, high = positive[0] / 1.3, positive[-1] * 1.3
    return Axis(low=low, high=high, log=True, ticks=epsilon_ticks(low, high), label=label)


def accuracy_axis(shares: Iterable[float]) -> Axis:
    """From just below the smallest share, in steps of 5%, to 100%."""
    low = max(0.0, min(0.95, math.floor(20 * min(shares, default=0.0)) / 20))
    return Axis(low=low, high=1.0, ticks=percent_ticks(low, 1.0))


def round_ticks(high: float, *, most: int = 6) -> list[tuple[float, str]]:
    """Round numbers from 0 to at most `high`.

    >>> [label for _, label in round_ticks(0.91)], [label for _, label in round_ticks(12)]
    (['0', '0.2', '0.4', '0.6', '0.8'], ['0', '2', '4', '6', '8', '10', '12'])
    """
    if high < SMALLEST:
        return [(0.0, "0")]
    unit = 10.0 ** math.floor(math.log10(high / most))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if high / (unit * factor) <= most)
    return [(step * n, f"{step * n:.6g}") for n in range(int(high / step + 1e-9) + 1)]
