"""Accuracy against ε: ours as lines and points with error bars, and published results where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from sfumato.report.charts import Chart, Format, accuracy_axis, both, epsilon_axis
from sfumato.report.context import Context, data_name
from sfumato.report.measured import Curve, curves
from sfumato.report.numbers import power
from sfumato.report.published import PUBLISHED, Published
from sfumato.report.releases import releases
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import Comparison, Reports, Sweep, Training, Tuning, Votes

_STYLES = ("accent", "ink", "ink dashed", "accent dashed")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, kw_only=True)
class _Frontier:
    """All that the chart shows."""

    curves: Sequence[tuple[Curve, str]]
    single: Sequence[tuple[str, float, float]]  # name, ε, accuracy of other methods
    plain: float | None
    published: Sequence[tuple[str, Published]]
    label: str
    title: str

    @property
    def epsilons(self) -> list[float]:
        ours = [point.epsilon for curve, _ in self.curves for point in curve.points]
        others = [epsilon for _, method in self.published for epsilon, _ in method.points]
        return [*ours, *others, *(epsilon for _, epsilon, _ in self.single)]

    @property
    def accuracies(self) -> list[float]:
        ours = [point.low for curve, _ in self.curves for point in curve.points]
        others = [accuracy for _, method in self.published for _, accuracy in method.points]
        return [*ours, *others, *(accuracy for _, _, accuracy in self.single)]


def _facts(context: Context) -> Facts | None:
    single = _single(context)
    ours = list(zip(curves(context), _STYLES, strict=False))
    if not ours and not single:
        return None
    found = _Frontier(
        curves=ours,
        single=single,
        plain=_plain(context),
        published=list(zip(_LETTERS, PUBLISHED.get(context.data or "", ()), strict=False)),
        label=_axis_label(ours),
        title=f"Accuracy on {data_name(context.data) or 'public test data'} against epsilon",
    )
    return {
        "chart": both(lambda room: _chart(room, found)),
        "ours": ours,
        "single": single,
        "published": found.published,
        "data": data_name(context.data),
        "epochs": _epochs(context),
        "repetitions": max((point.repetitions for curve, _ in ours for point in curve.points), default=1),
    }


def _plain(context: Context) -> float | None:
    """The best accuracy without privacy."""
    rows = [row for row in releases(context) if row.epsilon is None]
    return max((row.accuracy for row in rows if row.accuracy is not None), default=None)


def _single(context: Context) -> list[tuple[str, float, float]]:
    """Methods that were run at one ε."""
    votes = [("private vote", one.epsilon, one.student_accuracy) for one in context.of(Votes)]
    reports = [
        ("noised records", one.epsilon, one.test_accuracy)
        for one in context.of(Reports)
        if one.test_accuracy is not None
    ]
    return [*votes, *reports]


def _axis_label(ours: Sequence[tuple[Curve, str]]) -> str:
    deltas = {curve.delta for curve, _ in ours}
    delta = deltas.pop() if len(deltas) == 1 else None
    return f"ε (at δ = {power(delta)})" if delta else "ε"


def _epochs(context: Context) -> tuple[int, int] | None:
    """For how long the network learned in the sweep, and in the table; None where they are alike."""
    few = next((one.epochs for one in context.of(Sweep) if one.epochs), None)
    many = next((one.private_epochs for one in context.of(Comparison) if one.private_epochs), None)
    return (few, many) if few and many and few != many else None


def _chart(room: Format, found: _Frontier) -> Markup:
    x, y = (
        epsilon_axis(found.epsilons, label=found.label),
        replace(accuracy_axis(found.accuracies), label="accuracy on public test data"),
    )
    chart = Chart(replace(room, height=room.height + 60), x, y)
    if found.plain is not None:
        chart.horizontal_line(found.plain, "soft dashed")
        chart.text((x.low, found.plain), "without privacy", "soft", move=(2, -7))
    for letter, method in found.published:
        _draw_published(chart, letter, method)
    for curve, style in reversed(found.curves):
        _draw_curve(chart, curve, style)
    for name, epsilon, accuracy in found.single:
        chart.dot((epsilon, accuracy), "accent", label=f"{name}: {accuracy:.1%} at ε = {epsilon:.2g}", radius=5)
        _name_beside(chart, (epsilon, accuracy), name, "accent small")
    return chart.svg(found.title)


def _name_beside(chart: Chart, point: tuple[float, float], name: str, style: str) -> None:
    """To the right of a point, or to the left where the chart ends soon."""
    left = chart.x.share(point[0]) > 0.6
    chart.text(point, name, style, move=(-9, 4) if left else (9, 4), anchor="end" if left else "start")


def _draw_published(chart: Chart, letter: str, method: Published) -> None:
    style = "soft hollow" if method.data_dependent else "soft"
    if len(method.points) > 1:
        chart.line(method.points, "soft thin")
    for epsilon, accuracy in method.points:
        chart.dot((epsilon, accuracy), style, label=f"{method.name}: {accuracy:.1%} at ε = {epsilon:g}")
    text = letter if chart.format.narrow else method.name
    chart.text(method.points[method.label_at], text, "soft small", move=method.label_move, anchor=method.anchor)


def _draw_curve(chart: Chart, curve: Curve, style: str) -> None:
    if curve.connected:
        chart.line([(point.epsilon, point.mean) for point in curve.points], f"{style} strong")
    for point in curve.points:
        if point.repetitions > 1:
            chart.error_bar(point.epsilon, point.low, point.high, style)
        label = f"{curve.name}: {point.mean:.2%} at ε = {point.epsilon:.2g}"
        chart.dot((point.epsilon, point.mean), style, label=label, radius=5)
        if point.name:
            _name_beside(chart, (point.epsilon, point.mean), point.name, f"{style} small")


SECTION = Section(
    name="frontier",
    title="What privacy costs",
    kinds=(Sweep, Training, Tuning, Votes, Reports),
    facts=_facts,
)
