"""Small pictures, drawn as SVG on the server: colours and sizes come from the style sheet."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from sfumato.query import Answer

MOST_BARS = 40
_WIDTH, _LINE, _LABEL, _RIGHT = 640, 26, 150, 90


def answer_chart(answer: Answer) -> Markup | None:
    """Bars with their intervals, where an answer has groups and a first value that is a number."""
    measured = [
        place for place in range(len(answer.columns)) if any(row[place] is not None for row in answer.intervals)
    ]
    if not measured or not 1 < len(answer.rows) <= MOST_BARS:
        return None
    place = measured[0]
    keys = [at for at in range(len(answer.columns)) if at not in measured]
    bars = [
        (
            ", ".join(str(row[at]) for at in keys) or f"row {line + 1}",
            float(value),
            answer.intervals[line][place],
        )
        for line, row in enumerate(answer.rows)
        if isinstance(value := row[place], int | float)
    ]
    return _bars(bars, title=f"{answer.columns[place]}, with 95% intervals") if bars else None


def _bars(bars: Sequence[tuple[str, float, tuple[float, float] | None]], *, title: str) -> Markup:
    ends = [end for _, value, interval in bars for end in (value, *(interval or ()))]
    low, high = min(0.0, *ends), max(0.0, *ends)
    scale = (_WIDTH - _LABEL - _RIGHT) / ((high - low) or 1.0)

    def at(value: float) -> float:
        return _LABEL + (value - low) * scale

    lines = []
    for row, (label, value, interval) in enumerate(bars):
        middle = row * _LINE + _LINE / 2
        left, right = sorted((at(0.0), at(value)))
        lines.append(
            Markup('<text class="label" x="{}" y="{}" text-anchor="end">{}</text>').format(
                _LABEL - 8, middle + 4, _short(label)
            )
        )
        lines.append(
            Markup('<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}"/>').format(
                left, middle - 7, max(right - left, 0.5), 14
            )
        )
        if interval is not None:
            first, last = at(interval[0]), at(interval[1])
            lines.append(
                Markup('<path class="whisker" d="M{0:.1f} {2}v8m0 -4H{1:.1f}m0 -4v8"/>').format(
                    first, last, middle - 4
                )
            )
        end = max(right, at(interval[1]) if interval else right)
        lines.append(Markup('<text x="{:.1f}" y="{}">{:,.5g}</text>').format(end + 6, middle + 4, value))
    return _svg(lines, _WIDTH, len(bars) * _LINE, title)


def _short(text: str) -> str:
    return text if len(text) <= 22 else text[:21] + "…"


def share_bar(spent: float, size: float, *, title: str) -> Markup:
    """How much of something is spent."""
    part = 0.0 if size <= 0 else min(1.0, spent / size)
    lines = [
        Markup('<rect class="rest" x="0" y="0" width="200" height="12"/>'),
        Markup('<rect class="bar" x="0" y="0" width="{:.1f}" height="12"/>').format(200 * part),
    ]
    return _svg(lines, 200, 12, title, kind="share")


def spent_over_time(points: Sequence[tuple[float, float]], size: float, *, title: str) -> Markup | None:
    """Steps of what was spent, under the line of the budget."""
    if not points:
        return None
    width, height, top = 640, 170, 14
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1.0)

    def place(when: float, spent: float) -> tuple[float, float]:
        return 46 + (when - first) / (last - first) * (width - 60), top + (1 - spent / size) * (
            height - top - 8
        )

    path = "M{:.1f} {:.1f}".format(*place(first, 0.0))
    for when, spent in points:
        x, y = place(when, spent)
        path += f"H{x:.1f}V{y:.1f}"
    lines = [
        Markup('<path class="limit" d="M46 {0:.1f}H{1}"/>').format(place(first, size)[1], width - 14),
        Markup('<text x="40" y="{:.1f}" text-anchor="end">ε {:g}</text>').format(top + 5, size),
        Markup('<text x="40" y="{:.1f}" text-anchor="end">0</text>').format(height - 4),
        Markup('<path class="line" d="{}H{}"/>').format(path, width - 14),
    ]
    return _svg(lines, width, height, title)


def _svg(lines: Sequence[Markup], width: float, height: float, title: str, kind: str = "chart") -> Markup:
    return Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        kind, width, height, title, Markup("").join(lines)
    )
