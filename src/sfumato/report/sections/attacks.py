"""What attackers get: from averages, from finished networks, and from the private step itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both
from sfumato.report.sections.section import Section
from sfumato.report.story import Story


def differencing(story: Story) -> Section | None:
    run = story.first("differencing")
    if run is None:
        return None
    return Section(
        name="differencing",
        title="Two averages, one secret",
        template="differencing.html",
        facts={**run.result, "chart": both(lambda room: _ages(room, run.result))},
    )


def _ages(room: Format, result: Mapping[str, Any]) -> Markup:
    counts, edges = result["histogram"]["counts"], result["histogram"]["edges"]
    found = result["differencing"]
    reach = 1.3 * max(abs(found["private_95"][0]), abs(found["private_95"][1]))
    x = Axis(
        low=-reach,
        high=reach,
        label="the age, as the attacker makes it out",
        ticks=[(value, f"{value:,}") for value in range(-600, 601, 200) if abs(value) <= reach],
    )
    chart = Chart(replace(room, height=260, left=16), x, Axis(low=0, high=1.15 * max(counts)))
    chart.box((0, 0), (120, 1.15 * max(counts)), "wash")
    for number, count in enumerate(counts):
        if -reach <= edges[number] and edges[number + 1] <= reach:
            chart.box((edges[number], 0), (edges[number + 1], count), "accent bar")
    chart.upright(found["averages_only"], "ink strong")
    top = 1.15 * max(counts)
    chart.words((found["averages_only"], top), "exact averages: 97", "ink", move=(7, 12))
    chart.words((-reach, top), "private averages", "accent", move=(2, 12))
    return chart.svg("Histogram of the age an attacker computes from private averages, against the exact one")


def membership(story: Story) -> Section | None:
    run = story.first("membership")
    if run is None:
        return None
    attack = run.result["attack"]
    rows = [
        (name, found[attack], found["test_accuracy"], "ink" if found["epsilon"] is None else "accent")
        for name, found in run.result["networks"].items()
    ]
    return Section(
        name="membership",
        title="Were you in the data?",
        template="membership.html",
        facts={
            "chart": both(lambda room: _roc(room, run.result["networks"])),
            "rows": rows,
            "size": run.result["rows"] // 2,
            "attack": attack,
        },
    )


def _roc(room: Format, networks: Mapping[str, Any]) -> Markup:
    ticks = [(0.001, "0.1%"), (0.01, "1%"), (0.1, "10%"), (1.0, "100%")]
    x = Axis(low=0.001, high=1, log=True, ticks=ticks, label="accused though not in the data")
    y = Axis(low=0.001, high=1, log=True, ticks=ticks)
    chart = Chart(room, x, y)
    chart.line([(0.001, 0.001), (1, 1)], "soft dashed")
    chart.words((0.0012, 0.0012), "guessing", "soft", move=(16, 4))
    for name, found in networks.items():
        kind = "ink" if found["epsilon"] is None else "accent"
        chart.line([(x, max(y, 0.001)) for x, y in found["curve"]], f"{kind} strong")
        middle = found["curve"][len(found["curve"]) // 3]
        above = found["epsilon"] is None
        chart.words(
            (middle[0], max(middle[1], 0.001)),
            name,
            kind,
            move=(-6, -10) if above else (14, 32),
            anchor="end" if above else "start",
        )
    return chart.svg("Members found against others accused, on log axes, with and without privacy")


def audit(story: Story) -> Section | None:
    run = story.first("audit")
    if run is None:
        return None
    result = run.result
    return Section(
        name="audit",
        title="Is the claimed ε true?",
        template="audit.html",
        facts={**result, "chart": both(lambda room: _bracket(room, result))},
    )


def _bracket(room: Format, result: Mapping[str, Any]) -> Markup:
    """From the proved lower bound to the claim: the truth lies between."""
    claim, bound, sure = result["claimed_epsilon"], result["lower_bound"], result["sure_bound"]
    high = max(claim, bound) * 1.12
    ticks = [(value, f"{value:g}") for value in (0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 6, 8) if value <= high]
    chart = Chart(
        replace(room, height=150, left=16),
        Axis(low=0, high=high, ticks=ticks, label="ε"),
        Axis(low=0, high=1),
    )
    chart.box((0, 0.36), (sure, 0.5), "ink faint")
    chart.box((sure, 0.36), (bound, 0.5), "ink")
    chart.box((bound, 0.36), (claim, 0.5), "accent")
    chart.words((bound, 0.5), f"proved by attack: ε ≥ {bound:.2f}", "ink", move=(-2, -12), anchor="end")
    chart.words((claim, 0.36), f"claimed: ε ≤ {claim:.2f}", "accent", move=(2, 20), anchor="end")
    return chart.svg(f"An attack proves epsilon at least {bound:.2f}; the claim is {claim:.2f}")
