"""How networks learned, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, Point, accuracy_axis, both, round_ticks
from sfumato.report.context import Context
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import Comparison, Epoch, Training

_STYLES = ("ink", "accent", "soft", "ink dashed", "accent dashed", "soft dashed")
_DOTS = 12  # more epochs than these are a line without dots


@dataclass(frozen=True, kw_only=True)
class _Learner:
    name: str
    style: str
    accuracy: list[Point]
    loss: list[Point]

    @classmethod
    def of(cls, name: str, style: str, history: Sequence[Epoch]) -> _Learner:
        return cls(
            name=name,
            style=style,
            accuracy=[(one.epoch, one.test_accuracy) for one in history if one.test_accuracy is not None],
            loss=[(one.epoch, one.test_loss) for one in history if one.test_loss is not None],
        )


def _facts(context: Context) -> Facts | None:
    learners = [one for one in _learners(context) if one.accuracy]
    if not learners:
        return None
    return {
        "accuracy": both(lambda room: _accuracy(room, learners)),
        "loss": both(lambda room: _loss(room, learners)) if any(one.loss for one in learners) else None,
        "learners": learners,
        "compared": bool(context.of(Comparison)),
    }


def _learners(context: Context) -> list[_Learner]:
    """The networks of a comparison; the runs that were handed over, where there is none."""
    compared = [(one.name, one.history) for study in context.of(Comparison) for one in study.networks]
    single = [(run.folder.name, run.history) for run, _ in context.runs_of(Training)]
    chosen = compared or single
    return [_Learner.of(name, style, history) for (name, history), style in zip(chosen, _STYLES, strict=False)]


def _accuracy(room: Format, learners: Sequence[_Learner]) -> Markup:
    values = [value for one in learners for _, value in one.accuracy]
    curves = [(one.style, one.accuracy) for one in learners]
    return _chart(room, curves, accuracy_axis(values), "test accuracy by epoch")


def _loss(room: Format, learners: Sequence[_Learner]) -> Markup:
    high = 1.05 * max(value for one in learners for _, value in one.loss)
    y = Axis(low=0, high=max(high, 0.01), ticks=round_ticks(high))
    return _chart(room, [(one.style, one.loss) for one in learners], y, "test loss by epoch")


def _chart(room: Format, curves: Sequence[tuple[str, list[Point]]], y: Axis, label: str) -> Markup:
    last = max(epoch for _, points in curves for epoch, _ in points)
    ticks = [(value, text) for value, text in round_ticks(last) if value.is_integer() and value > 0]
    x = Axis(low=0.7, high=last + 0.3, label="epoch", ticks=ticks)
    chart = Chart(replace(room, width=room.width if room.narrow else 370, height=260), x, y)
    for style, points in curves:
        chart.line(points, f"{style} strong")
        for point in points if len(points) <= _DOTS else ():
            chart.dot(point, style, radius=3)
    return chart.svg(label)


SECTION = Section(
    name="learning", title="Accuracy and loss after each epoch", kinds=(Comparison, Training), facts=_facts
)
