"""Draw a model of several holders: the ε against each adversary, and the message that leaves a holder."""

from __future__ import annotations

from sfumato.report.context import Context, data_name
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import Run, SeveralHolders

_WHO = {
    "recipient": ("Whoever receives the model", "the sums of all rounds"),
    "holder": ("Any single holder", "the sums, its own rows and its own noise"),
    "coordinator": ("The coordinator", "the sums, and messages that look like noise"),
    "coalition": ("The coordinator with colluding holders", "the sums, and all that those holders know"),
}
_CAPTIONS = (
    "what one holder adds, its noise included",
    "what leaves that holder",
    "what everybody learns: the sum",
)


def _facts(context: Context) -> Facts | None:
    runs = [_one(run, result) for run, result in context.runs_of(SeveralHolders)]
    return {"runs": runs} if runs else None


def _one(run: Run, result: SeveralHolders) -> Facts:
    pictures = [run.picture(name) for name in result.pictures]
    shown = list(zip(_CAPTIONS, pictures, strict=False)) if len(pictures) == 3 and all(pictures) else []
    return {
        "result": result,
        "data": data_name(result.data),
        "rows": [(*words, getattr(result, name)) for name, words in _WHO.items()],
        "pictures": shown,
    }


SECTION = Section(name="holders", title="Several holders, one model", kinds=(SeveralHolders,), facts=_facts)
