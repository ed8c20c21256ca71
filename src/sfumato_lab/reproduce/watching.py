"""What recipes of several runs have in common on the command line: their options and a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from sfumato import show

Quick = Annotated[
    bool, typer.Option("--quick", help="Run everything at a small size. The numbers are not comparable.")
]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, help="Number of initial weights to train from. The noise cannot be seeded."),
]


@contextmanager
def watching() -> Iterator[Callable[[str, float], None]]:
    """A bar for the run under way: told its name and how much of it is done."""
    with show.progress() as bar:
        task = bar.add_task("getting data", total=100, note="")
        current = ""

        def watch(name: str, share: float) -> None:
            nonlocal current
            if name != current:
                bar.reset(task)
                current = name
            bar.update(task, description=name, completed=100 * share)

        yield watch
