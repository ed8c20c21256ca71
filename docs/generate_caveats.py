"""Writes docs/caveats.md from the codes of caveats: python docs/generate_caveats.py"""

from __future__ import annotations

import re
from pathlib import Path

from sfumato.caveats import Code

PAGE = Path(__file__).parent / "caveats.md"
HEAD = """# Caveats of certificates

<!-- Written by docs/generate_caveats.py; change src/sfumato/caveats.py, not this page. -->

A certificate states an ε and then its limits: caveats. Each has a stable code, parameters and one sentence; a
program reads the code. `sfumato verify` prints the sentences, and [`sfumato statement checklist`](how-
to/statement.md) counts them. This page lists every caveat that Sfumato writes. `…` stands for a parameter. A
program that calls Sfumato may add sentences of its own, under the code `other`.

Read them in this order. A caveat under *the figure does not hold* is a reason not to sign. One under *what
the figure counts* or *what is assumed* narrows the statement that you sign. The others say where things came
from, or how useful they are.
"""


def page() -> str:
    """Return the whole page, in the order of the codes."""
    lines, section = [HEAD], ""
    for code in (*list(Code)[1:], Code.OTHER):
        if code.section != section:
            section = code.section
            lines += ["", f"## {section}", "", "| Code | Caveat | Meaning for who signs | Remedy |"]
            lines += ["|---|---|---|---|"]
        sentence = re.sub(r"\{[^}]*\}", "…", code.sentence)
        lines.append(f"| `{code.value}` | {sentence} | {code.meaning} | {code.remedy} |")
    return "\n".join([lines[0].rstrip(), *lines[1:], ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
