"""All commands under one name, and the sentence and exit code of one that fails."""

from __future__ import annotations

import errno
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import cache
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup
from typer.main import get_command_name
from typer.models import CommandInfo, TyperInfo

from sfumato import __version__, interruption, plugins
from sfumato.cli import (
    audit,
    calculators,
    data,
    desk,
    holders,
    key,
    ledger,
    local,
    opinion,
    pate,
    plan,
    predict,
    query,
    report,
    statement,
    synthesize,
    train,
    tune,
    verify,
)
from sfumato.display import visible
from sfumato.errors import (
    BudgetExceeded,
    InvalidInput,
    LittleProtection,
    SettingsChanged,
    SfumatoError,
    TooMuchNoise,
    UnitMismatch,
    missing_extra,
)

_REMEDIES = {
    errno.ENOSPC: "make room, and run the same command again: it goes on where it stopped",
    errno.EDQUOT: "make room, and run the same command again: it goes on where it stopped",
    errno.EACCES: "choose a place that you may read and write",
    errno.EPERM: "choose a place that you may read and write",
    errno.EROFS: "choose a place that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name a file in it",
}


def as_an_option(name: str, value: str, options: Collection[str]) -> str | None:
    """How a value is given to a command that has these options; None if it takes it from elsewhere.

    >>> as_an_option("unit", "patient", ["--unit"]), as_an_option("unit", "patient", ["--set", "--ledger"])
    ('--unit patient', '--set unit=patient')
    """
    if f"--{name}" in options:
        return f"--{name} {shlex.quote(value)}"
    return f"--set {shlex.quote(f'{name}={value}')}" if "--set" in options else None


def in_a_sentence(error: OSError) -> str:
    """
    >>> in_a_sentence(OSError(errno.ENOSPC, "No space left on device", "/disk/run"))
    'No space left on device: /disk/run; make room, and run the same command again: it goes on where it stopped'
    """
    said = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    remedy = _REMEDIES.get(error.errno or 0)
    return said if remedy is None else f"{said}; {remedy}"


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


app = typer.Typer(
    name="sfumato",
    cls=Suggesting,
    help="Publish the useful part of private data under one privacy budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    train,
    predict,
    pate,
    local,
    tune,
    query,
    synthesize,
    holders,
    desk,
    audit,
    report,
    calculators,
    ledger,
    verify,
    plan,
    statement,
    opinion,
    key,
    data,
)
for module in COMMANDS:
    module.register(app)

DONE, FAILED, WRONG_USAGE, REFUSED = 0, 1, 2, 3
INTERRUPTED = interruption.EXIT_CODE  # also the code that Typer gives to Ctrl-C, silently


def main() -> None:
    """Run the command; an expected error is one sentence on standard error and an exit code."""
    try:
        with interruption.noted(), warnings.catch_warnings():
            _check_environment()
            for kind in (LittleProtection, SettingsChanged, TooMuchNoise):
                warnings.simplefilter("always", kind)
            warnings.showwarning = _shown(warnings.showwarning)
            _asked_for(sys.argv[1:])()
    except BudgetExceeded as error:
        _stop(str(error), REFUSED)
    except InvalidInput as error:
        _stop(str(error), WRONG_USAGE)
    except UnitMismatch as error:
        how = as_an_option("unit", error.wanted, _options(sys.argv[1:]))
        _stop(str(error) if how is None else error.sentence(how), FAILED)
    except SfumatoError as error:
        _stop(str(error), FAILED)
    except KeyboardInterrupt:
        _stop(interruption.in_words(), INTERRUPTED)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            _stop(interruption.in_words(), INTERRUPTED)
        raise
    except ModuleNotFoundError as error:
        extra = missing_extra(error)
        if extra is None:
            raise
        _stop(str(extra), FAILED)
    except BrokenPipeError:
        sys.exit(DONE)
    except OSError as error:
        _stop(in_a_sentence(error), FAILED)


def _asked_for(words: Sequence[str]) -> typer.Typer:
    """The program with the one command that is asked for: the options of all take long to prepare."""
    commands, groups = _named(words[:1])
    if not commands and not groups:
        whole_app()
        commands, groups = _named(words[:1])
    if not commands and not groups:
        return app
    alone = copy(app)
    alone.registered_commands, alone.registered_groups = commands, groups
    return alone


def _named(word: Sequence[str]) -> tuple[list[CommandInfo], list[TyperInfo]]:
    commands = [each for each in app.registered_commands if [_name(each)] == word]
    return commands, [each for each in app.registered_groups if [each.name] == word]


@cache
def whole_app() -> typer.Typer:
    """Return the program with the commands of other packages; most commands need not wait for them."""
    for found in plugins.registered(plugins.COMMANDS).values():
        found.load()(app)
    return app


def _options(words: Sequence[str]) -> set[str]:
    """The options of the command that the words name."""
    found: Any = typer.main.get_command(_asked_for(words))
    for word in words:
        found = getattr(found, "commands", {}).get(word, found)
    return {name for each in found.params for name in each.opts}


def _name(command: CommandInfo) -> str:
    return command.name or get_command_name(command.callback.__name__)  # type: ignore[union-attr]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sfumato {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself; the version is printed before any command is looked for."""


def _check_environment() -> None:
    """A key that cannot be used is found before anything is spent on a release that it should sign."""
    if os.environ.get("SFUMATO_KEY"):
        from sfumato.ledger.signing import environment_key

        environment_key()


def _shown(others: Callable[..., None]) -> Callable[..., None]:
    """Shows the first warning of each kind of ours as a sentence on standard error, `others` as they were.

    Of queries in one conversation each may have noise of its own to be warned of.
    """
    said: set[tuple[type[Warning], str]] = set()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, LittleProtection | SettingsChanged | TooMuchNoise):
            others(message, category, *where, **more)
            return
        kind = (category, str(message) if category is TooMuchNoise else "")
        if kind not in said:
            said.add(kind)
            print(f"sfumato: {visible(str(message))}", file=sys.stderr)

    return show


def _stop(sentence: str, code: int) -> None:
    print(f"sfumato: {visible(sentence)}", file=sys.stderr)
    sys.exit(code)
