"""Draw the feature maps of the compared networks."""

from __future__ import annotations

from sfumato.report.context import Context
from sfumato.report.sections.section import Facts, Section
from sfumato.runs import Comparison

_LAYERS = {"conv1": "first convolution", "conv2": "second convolution"}


def _facts(context: Context) -> Facts | None:
    for run, study in context.runs_of(Comparison):
        maps = study.feature_maps
        if maps is None:
            continue
        pictures = [
            (layer, title, name, run.picture(files[layer]))
            for layer, title in _LAYERS.items()
            for name, files in (("plain", maps.plain), ("private", maps.private))
            if layer in files
        ]
        if shown := [one for one in pictures if one[-1] is not None]:
            return {"digit": run.picture(maps.digit), "pictures": shown}
    return None


SECTION = Section(name="maps", title="What the network sees", kinds=(Comparison,), facts=_facts)
