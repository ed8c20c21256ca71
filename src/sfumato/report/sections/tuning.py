"""Settings that were chosen on the private rows, and paid for."""

from __future__ import annotations

from sfumato.report.context import Context
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import Tuning


def _facts(context: Context) -> Facts | None:
    """Version 0.1 did not write the settings down."""
    runs = [(run.folder.name, result) for run, result in context.runs_of(Tuning)]
    known = [(name, result) for name, result in runs if result.learning_rate is not None]
    return {"runs": known} if runs else None


SECTION = Section(name="tuning", title="Settings chosen privately", kinds=(Tuning,), facts=_facts)
