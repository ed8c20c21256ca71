"""Shows the examples in docstrings, which are tests, as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

# A blank line, then lines that begin with >>>, and their output, up to the next blank line.
_EXAMPLE = re.compile(r"(?:^|(?<=\n))(>>> .*(?:\n(?!\s*$).+)*)", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts a fence around each example, which Markdown would take for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every class, function and attribute that griffe has read."""
        _fence(obj)

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Called for every module when it has its docstring."""
        _fence(mod)


def _fence(found: griffe.Object) -> None:
    if found.docstring is not None and "```pycon" not in found.docstring.value:
        found.docstring.value = _EXAMPLE.sub(r"```pycon\n\1\n```", found.docstring.value)
