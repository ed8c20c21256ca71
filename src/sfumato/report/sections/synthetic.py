"""Draw synthetic digits beside plain drawings, and beside the real digits nearest to them."""

from __future__ import annotations

from sfumato.report.context import Context, data_name
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import SyntheticDigits


def _facts(context: Context) -> Facts | None:
    for run, result in context.runs_of(SyntheticDigits):
        picture = run.picture(result.sheet)
        if picture is not None:
            return {"one": result, "picture": picture, "data": data_name(result.data)}
    return None


SECTION = Section(name="synthetic", title="Digits of nobody", kinds=(SyntheticDigits,), facts=_facts)
