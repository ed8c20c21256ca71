"""The budget as it is spent, and the certificate of each release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from sfumato.report.charts import Axis, Chart, Format, both, round_ticks
from sfumato.report.reading import Run
from sfumato.report.sections.section import Section
from sfumato.report.story import Story


def ledger(story: Story) -> Section | None:
    run = story.first("ledger")
    if run is None or not run.result["charges"]:
        return None
    result = run.result
    return Section(
        name="ledger",
        title="The budget, spent",
        template="ledger.html",
        facts={**result, "chart": both(lambda room: _burn_down(room, result))},
    )


def _burn_down(room: Format, result: Mapping[str, Any]) -> Markup:
    """What is left after each charge, as steps downward."""
    charges, budget = result["charges"], result["epsilon"]
    count = len(charges)
    y = Axis(low=0, high=budget, ticks=round_ticks(budget))
    x = Axis(low=0, high=max(count, 8), label="releases, in the order in which they were charged")
    chart = Chart(replace(room, height=300, top=30), x, y)
    before = budget
    for number, charge in enumerate(charges):
        left = max(0.0, budget - charge["epsilon_spent"])
        chart.box((number + 0.06, 0), (number + 0.94, left), "accent bar")
        chart.box((number + 0.06, left), (number + 0.94, before), "accent faint")
        before = left
    chart.words((0, budget), "ε left", "soft", move=(-34, -12))
    return chart.svg(f"What is left of epsilon = {budget:g} after each of {count} charges")


def certificates(story: Story) -> Section | None:
    certified = [run for run in story.runs if run.certificate is not None]
    if not certified:
        return None
    return Section(
        name="certificates",
        title="Certificates",
        template="certificates.html",
        facts={"certificates": [_certificate(run) for run in certified]},
    )


def _certificate(run: Run) -> dict[str, Any]:
    assert run.certificate is not None
    stated = run.certificate
    plan = stated.get("plan") or {}
    return {
        "path": str(run.folder / "release" / "certificate.json"),
        "purpose": stated["purpose"],
        "epsilon": stated["epsilon"]["pld"],
        "epsilon_rdp": stated["epsilon"]["rdp"],
        "delta": stated["delta"],
        "unit": stated["unit"],
        "relation": stated["relation"],
        "private": stated["private"],
        "caveats": stated["caveats"],
        "entry": stated["ledger"],
        "eta": stated["eta"],
        "plan": {name: value for name, value in plan.items() if isinstance(value, int | float | str)},
        "versions": stated["versions"],
    }
