"""Accuracy against ε: ours as lines with error bars, published results as points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both, epsilon_ticks, percent_ticks
from sfumato.report.measured import Measured, curves
from sfumato.report.published import MNIST, Published
from sfumato.report.sections.section import Section
from sfumato.report.story import Release, Story, releases

_KINDS = ("accent", "ink")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def frontier(story: Story) -> Section | None:
    ours = curves(story)
    if not ours:
        return None
    rows = [row for row in releases(story) if row.epsilon is not None]
    plain = max((row.accuracy for row in releases(story) if row.epsilon is None), default=None)
    lone = [row for row in rows if row.name.startswith("Labels")]
    named = list(zip(_LETTERS, MNIST, strict=False))
    return Section(
        name="frontier",
        title="What privacy costs",
        template="frontier.html",
        facts={
            "chart": both(lambda room: _chart(room, ours, plain, lone)),
            "ours": list(zip(ours, _KINDS, strict=False)),
            "published": named,
            "plain": plain,
            "epochs": _epochs(story),
            "repetitions": max(spot.repetitions for curve in ours for spot in curve.spots),
        },
    )


def _epochs(story: Story) -> tuple[int, int] | None:
    """For how long the network learned in the sweep, and in the table; None where it is not told."""
    told = (("sweep", "sweep_epochs"), ("plain-and-private", "private_epochs"))
    runs = [(story.first(kind), name) for kind, name in told]
    few, many = (None if run is None else run.result.get("settings", {}).get(name) for run, name in runs)
    return (few, many) if few and many and few != many else None


def _chart(room: Format, ours: Sequence[Measured], plain: float | None, lone: Sequence[Release]) -> Markup:
    low = min(0.94, *(spot.low for curve in ours for spot in curve.spots))
    low = int(low * 50) / 50  # down to the next even percentage
    x = Axis(low=0.2, high=12, log=True, ticks=epsilon_ticks(0.2, 12), label="ε (at δ = 10⁻⁵)")
    y = Axis(low=low, high=1.0, ticks=percent_ticks(low, 1.0))
    chart = Chart(replace(room, height=room.height + 60), x, y)
    if plain is not None:
        chart.level(plain, "soft dashed")
        chart.words((x.low, plain), "without privacy", "soft", move=(2, -7))
    for letter, method in zip(_LETTERS, MNIST, strict=False):
        _published(chart, letter, method)
    for curve, kind in reversed(list(zip(ours, _KINDS, strict=False))):
        _ours(chart, curve, kind)
    for row in lone:
        if row.epsilon:
            chart.dot((row.epsilon, row.accuracy), "accent", says=f"Sfumato, {row.name}", radius=5)
            text = "vote" if room.narrow else "Sfumato, private vote"
            chart.words((row.epsilon, row.accuracy), text, "accent small", move=(9, 4))
    return chart.svg(
        "Accuracy on MNIST against epsilon: this page's runs as lines, published results as points"
    )


def _published(chart: Chart, letter: str, method: Published) -> None:
    kind = "soft hollow" if method.data_dependent else "soft"
    if len(method.points) > 1:
        chart.line(method.points, "soft thin")
    for epsilon, accuracy in method.points:
        chart.dot((epsilon, accuracy), kind, says=f"{method.name}: {accuracy:.1%} at ε = {epsilon:g}")
    text = letter if chart.format.narrow else method.name
    chart.words(
        method.points[method.label_at], text, "soft small", move=method.label_move, anchor=method.anchor
    )


def _ours(chart: Chart, curve: Measured, kind: str) -> None:
    chart.line([(spot.epsilon, spot.mean) for spot in curve.spots], f"{kind} strong")
    for spot in curve.spots:
        if spot.repetitions > 1:
            chart.reach(spot.epsilon, spot.low, spot.high, kind)
        says = f"{curve.name}: {spot.mean:.2%} at ε = {spot.epsilon:.2g}"
        chart.dot((spot.epsilon, spot.mean), kind, says=says, radius=5)
