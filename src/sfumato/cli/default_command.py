"""Groups of commands of which one needs no name."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

_HELP_WORDS = ("--help", "-h")


def by_default(name: str) -> type[TyperGroup]:
    """A group in which words that begin with none of its commands are for the command `name`."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in self.commands and args[0] not in _HELP_WORDS:
                args = [name, *args]
            return super().parse_args(ctx, args)

    return Group
