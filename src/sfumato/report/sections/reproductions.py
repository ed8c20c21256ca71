"""Published tables that were run again: their figures, and the facts that they state first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfumato.report.context import Context
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import Reproduction, Run


def _facts(context: Context) -> Facts | None:
    found = [_one(run, result) for run, result in context.runs_of(Reproduction)]
    return {"reproductions": found} if found else None


def _one(run: Run, result: Reproduction) -> dict[str, Any]:
    names = [Path(str(name)).name for name in result.findings.get("figures", ()) if isinstance(name, str)]
    stated = {
        name.replace("_", " "): value
        for name, value in result.findings.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    }
    pictures = [(name, run.picture(name)) for name in names]
    return {"name": result.name, "stated": stated, "pictures": [one for one in pictures if one[1] is not None]}


SECTION = Section(
    name="reproductions", title="Published tables, run again", kinds=(Reproduction,), facts=_facts
)
