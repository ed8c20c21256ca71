"""Writes docs/reference/cli.md from the command line itself: python docs/generate_cli.py"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from sfumato.cli.app import whole_app

PAGE = Path(__file__).parent / "reference" / "cli.md"
HEAD = """# Command-line reference

<!-- Written by docs/generate_cli.py; change the commands, not this page. -->

Every command explains itself with `--help`. With `--json` it prints one JSON object on standard output and
nothing else there; an infinite ε is the string `"inf"`. Exit codes:

| code | meaning |
|---|---|
| 0 | done |
| 1 | failed, with one sentence on standard error that says what to do |
| 2 | wrong usage; nothing was computed or spent |
| 3 | refused by the budget; nothing was computed or spent |
| 130 | interrupted by Ctrl-C, with one sentence that says what is charged and how to go on |
"""


def page() -> str:
    """The whole page, with the commands in the order of their names."""
    root = typer.main.get_command(whole_app())
    return "\n".join([HEAD, *(part for name in sorted(root.commands) for part in _command(root, name))])


def _command(group: Any, name: str, path: tuple[str, ...] = ("sfumato",)) -> Iterator[str]:
    command, words = group.commands[name], (*path, name)
    text, _, example = (command.help or "").partition("Example:")
    yield f"{'#' * len(words)} {' '.join(words)}\n"
    yield f"{_escaped(' '.join(text.split()))}\n"
    if example:
        yield f"Example: `{' '.join(example.split())}`\n"
    shown = [parameter for parameter in command.params if not parameter.hidden]
    if shown:
        yield _table(shown)
    for inner in getattr(command, "commands", {}):
        yield from _command(command, inner, words)


def _table(parameters: list[Any]) -> str:
    rows = ["| argument | what | default |", "|---|---|---|"]
    rows += [f"| {_name(one)} | {_escaped(one.help or '')} | {_default(one)} |" for one in parameters]
    return "\n".join(rows) + "\n"


def _name(parameter: Any) -> str:
    value = parameter.name.upper().replace("_", "-")
    if parameter.param_type_name == "argument":
        return f"`{value}`"
    names = " / ".join((*parameter.opts, *parameter.secondary_opts))
    return f"`{names}`" if parameter.is_flag else f"`{names} {value}`"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "needed"
    default = parameter.default
    if default is None or default == "" or isinstance(default, bool):
        return "on" if default else ""
    return f"`{default:.7g}`" if isinstance(default, float) else f"`{default}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
