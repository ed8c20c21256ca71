"""What is said of an option that a command does not have: the one that was probably meant.

click offers names that are spelt alike. Other tools have other words for the same things, and short ones:
`--lr`, `--eps`, `--batch-size`. Those are looked up here, once for all commands.
"""

from __future__ import annotations

from typing import Any

import click
from typer.core import TyperGroup

_OTHER_WORDS = {
    "batch": ("batch",),
    "budget": ("ledger", "epsilon"),
    "clip": ("clip-norm",),
    "column": ("target", "columns"),
    "cuda": ("device",),
    "dataset": ("data",),
    "dir": ("out",),
    "epoch": ("epochs",),
    "folder": ("out",),
    "gpu": ("device",),
    "grad": ("clip-norm",),
    "label": ("target",),
    "n": ("public-size", "agents", "rows", "images"),
    "noise": ("noise-multiplier",),
    "output": ("out",),
    "people": ("agents", "public-size"),
    "population": ("agents", "public-size"),
    "q": ("sample-rate",),
    "rate": ("learning-rate", "sample-rate"),
    "sampling": ("sample-rate",),
    "sigma": ("noise-multiplier",),
    "size": ("public-size", "train-size"),
    "y": ("target",),
}
"""Words of others, and ours for them."""


def meant_by(word: str, options: list[str]) -> list[str]:
    """Options that a word stands for: by its beginning, its initials, or as others call them.

    >>> meant_by("--lr", ["--ledger", "--learning-rate"]), meant_by("--batch-size", ["--batch", "--epochs"])
    (['--learning-rate'], ['--batch'])
    """
    given = word.lstrip("-").replace("_", "-").lower()
    names = {option.lstrip("-"): option for option in options if option.startswith("--")}
    alike = [name for name in names if name.startswith(given) or given.startswith(f"{name}-")]
    alike += [name for name in names if "-" in name and "".join(part[0] for part in name.split("-")) == given]
    called = [name for part in given.split("-") for name in _OTHER_WORDS.get(part, ()) if name in names]
    return [names[name] for name in dict.fromkeys(alike or called)]


class Suggesting(TyperGroup):
    """The root of all commands."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise _with_suggestion(error) from error


def _with_suggestion(error: click.NoSuchOption) -> click.UsageError:
    if error.ctx is None:
        return error
    options = [name for each in error.ctx.command.get_params(error.ctx) for name in each.opts]
    found = meant_by(error.option_name, options)
    if not found:
        return error
    return click.UsageError(
        f"No such option '{error.option_name}'. Did you mean {' or '.join(found)}?", error.ctx
    )
