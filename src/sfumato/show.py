"""How results reach the reader: a table on a terminal, or one JSON object."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sfumato import interruption
from sfumato.display import visible, visible_json

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Out = Annotated[Path, typer.Option(help="Folder for figures and their numbers.")]


WIDE = 4096
"""Width in columns where the output is not a terminal: lines are not wrapped."""


class _Console(Console):
    """A console for untrusted text: only our own styles emit control codes."""

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        found = super().size
        if self.is_terminal or self._width is not None:  # a width that COLUMNS or a caller asked for
            return found
        return ConsoleDimensions(WIDE, found.height)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text, keep="\n"), style, control)


console = _Console()
errors = _Console(stderr=True)


def emit_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output; an infinite ε is the string "inf"."""
    indent = 2 if sys.stdout.isatty() else None
    print(visible_json(json.dumps(_plain(value), ensure_ascii=False, indent=indent)))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def facts(rows: Sequence[tuple[str, str]], *, title: str | None = None) -> None:
    """Names and values in two columns."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")  # paths are copied: they must not lose their end
    for name, value in rows:
        table.add_row(name, Text(value))  # a value is shown as it is: brackets are no markup
    console.print(table)


def answer(values: Mapping[str, Any], *, remedies: Mapping[str, str] | None = None) -> None:
    """Print the figures of a command by name; `remedies` has a hint for each that was not measured."""
    facts(
        [
            (name.replace("_", " "), in_words(value, remedy=(remedies or {}).get(name)))
            for name, value in values.items()
        ]
    )


def in_words(value: Any, *, remedy: str | None = None) -> str:
    """
    >>> in_words(0.98765), in_words((0.1, 0.2)), in_words(None, remedy="give some")
    ('0.9877', '0.1 to 0.2', 'not measured; give some')
    """
    if value is None:
        return "not measured" if remedy is None else f"not measured; {remedy}"
    if isinstance(value, tuple):
        return " to ".join(map(in_words, value))
    if isinstance(value, list):
        return "; ".join(map(in_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class _Progress(Progress):
    """Where a command tells how far it is, it can also be stopped."""

    def update(self, *place: Any, **values: Any) -> None:
        interruption.check()
        super().update(*place, **values)


def progress() -> Progress:
    """A bar with the time left, on standard error, only where that is a terminal."""
    return _Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=errors,
        transient=True,
        disable=not sys.stderr.isatty(),
    )


@contextmanager
def stages(count: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that starts the next of `count` stages of a progress bar, with its label."""
    with progress() as bar:
        task = bar.add_task("stage", total=count, note="")
        begun = itertools.count()
        yield lambda words: bar.update(task, completed=min(next(begun), count), note=words)
