"""Writes docs/reference/cli.md from the command line itself: python docs/generate_cli.py"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
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
    inner = getattr(command, "commands", {})
    yield f"{'#' * len(words)} {' '.join(words)}\n"
    yield f"```text\n{_help(command, words, inner)}```\n"
    for each in inner:
        yield from _command(command, each, words)


def _help(command: Any, words: tuple[str, ...], inner: Mapping[str, Any]) -> str:
    """Return the help of a command in plain text: usage, purpose, arguments, options, example."""
    formatter = click.HelpFormatter(width=108)
    shown = [parameter for parameter in command.params if not parameter.hidden]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name != "argument"]
    usage = (
        [_metavar(one) for one in arguments]
        + (["[OPTIONS]"] if options else [])
        + (["COMMAND"] if inner else [])
    )
    formatter.write_usage(" ".join(words), " ".join(usage))
    text, _, example = (command.help or "").partition("Example:")
    formatter.write_paragraph()
    formatter.write_text(" ".join(text.split()))
    for title, parameters in (("Arguments", arguments), ("Options", options)):
        if parameters:
            with formatter.section(title):
                formatter.write_dl([(_name(one), _described(one)) for one in parameters], col_max=34)
    if example:
        with formatter.section("Example"):
            formatter.write(f"  {' '.join(example.split())}\n")
    return formatter.getvalue()


def _metavar(parameter: Any) -> str:
    return str(parameter.name).upper().replace("_", "-")


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _metavar(parameter)
    names = " / ".join((*parameter.opts, *parameter.secondary_opts))
    return names if parameter.is_flag else f"{names} {_metavar(parameter)}"


def _described(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        note = "  [required]" if parameter.param_type_name != "argument" else ""
    elif default is None or default == "" or isinstance(default, bool):
        note = "  [default: on]" if default is True else ""
    else:
        note = f"  [default: {default:.7g}]" if isinstance(default, float) else f"  [default: {default}]"
    return (parameter.help or "") + note


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
