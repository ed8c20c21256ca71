"""How the networks learned, epoch by epoch, and what their convolutions see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both, percent_ticks, round_ticks
from sfumato.report.sections.section import Section
from sfumato.report.story import Story

_KINDS = ("ink", "accent", "soft", "ink dashed", "accent dashed", "soft dashed")


def learning(story: Story) -> Section | None:
    runs = _histories(story)
    if not runs:
        return None
    return Section(
        name="learning",
        title="Epoch by epoch",
        template="learning.html",
        facts={
            "accuracy": both(lambda room: _curve(room, runs, "test_accuracy")),
            "loss": both(lambda room: _curve(room, runs, "test_loss")),
            "runs": [(run, kind) for run, kind in zip(runs, _KINDS, strict=False)],
        },
    )


def feature_maps(story: Story) -> Section | None:
    run = story.first("plain-and-private")
    maps = run.result.get("feature_maps") if run is not None else None
    if run is None or not maps:
        return None
    layers = [
        (
            layer,
            says,
            [
                (name, run.picture(maps[side][layer]))
                for side, name in (("plain", "plain"), ("private", "private"))
            ],
        )
        for layer, says in (("conv1", "first convolution"), ("conv2", "second convolution"))
    ]
    return Section(
        name="maps",
        title="What the network sees",
        template="maps.html",
        facts={"digit": run.picture(maps["digit"]), "layers": layers},
    )


def _histories(story: Story) -> list[dict[str, Any]]:
    """The twins of the demo; or the runs that were handed over, where there is no demo."""
    twins = [one for run in story.of("plain-and-private") for one in run.result["runs"]]
    if twins:
        return [{"name": one["name"], "history": one["history"]} for one in twins]
    by_hand = [run for run in story.of("training") if any(line.get("test_accuracy") for line in run.history)]
    return [{"name": run.folder.name, "history": run.history} for run in by_hand[: len(_KINDS)]]


def _curve(room: Format, runs: Sequence[Mapping[str, Any]], field: str) -> Markup:
    values = [line[field] for run in runs for line in run["history"] if line.get(field) is not None]
    epochs = max(len(run["history"]) for run in runs)
    if field == "test_accuracy":
        low = max(0.0, int(min(values) * 20) / 20)
        y = Axis(low=low, high=1.0, ticks=percent_ticks(low, 1.0))
    else:
        ticks = round_ticks(max(values) * 1.05)
        y = Axis(low=0, high=max(max(values) * 1.05, ticks[-1][0]), ticks=ticks)
    x = Axis(low=0.7, high=epochs + 0.3, label="epoch", ticks=[(n, str(n)) for n in range(1, epochs + 1)])
    half = replace(room, width=370 if not room.narrow else room.width, height=260)
    chart = Chart(half, x, y)
    for run, kind in zip(runs, _KINDS, strict=False):
        points = [
            (number, line[field])
            for number, line in enumerate(run["history"], start=1)
            if line.get(field) is not None
        ]
        chart.line(points, f"{kind} strong")
        for point in points:
            chart.dot(point, kind, radius=3)
    return chart.svg(f"{field.replace('_', ' ')} by epoch")
