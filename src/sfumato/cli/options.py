"""Which options make sense together: rules that a command states, checked before anything is read or spent."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.ledger import Ledger

Allocation = Annotated[
    str | None, typer.Option(help="Spend from this share of the budget (see sfumato ledger allocate).")
]
Unit = Annotated[
    str,
    typer.Option(
        help="What one row is: a record, or the only row of a person, patient, …, as the ledger names it."
    ),
]
Purpose = Annotated[str | None, typer.Option(help="What this is for. The ledger shows it with the charge.")]
LeaveOut = Annotated[
    list[str] | None,
    typer.Option(
        "--leave-out",
        help="Column of the policy that is not used; repeat the option for several. Needed for each one that "
        "has neither categories nor bounds.",
    ),
]
TableName = Annotated[
    str | None,
    typer.Option(
        "--table",
        help="Table of a policy of several. Default: the one that has the named columns, or the first.",
    ),
]


def fraction(text: str | float) -> float:
    """A number, or one divided by another.

    >>> fraction("1/4"), fraction("0.5")
    (0.25, 0.5)
    """
    above, _, below = str(text).partition("/")
    try:
        return float(above) / (float(below) if below else 1.0)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"expected a number or a fraction such as 256/60000, got {text!r}") from None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Where `option` is given, one of `needs` must be given too, and none of `excludes`.

    Options have the names of the command's parameters; "kind=gaussian" is a value, given or by default.

    >>> Rule(option="ledger", needs=("out",), because="a model must be kept somewhere").check({"ledger"})
    Traceback (most recent call last):
        ...
    sfumato.errors.InvalidInput: expected --out with --ledger, got none; a model must be kept somewhere
    """

    option: str
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    because: str

    def check(self, given: Set[str]) -> None:
        if self.option not in given:
            return
        if self.needs and not given & set(self.needs):
            wanted = " or ".join(map(_flag, self.needs))
            raise InvalidInput(f"expected {wanted} with {_flag(self.option)}, got none; {self.because}")
        for other in self.excludes:
            if other in given:
                raise InvalidInput(
                    f"expected {_flag(self.option)} without {_flag(other)}, got both; {self.because}"
                )


def check(context: typer.Context, rules: Iterable[Rule]) -> None:
    """Raise for the first rule that the words on the command line break."""
    given = {name for name in context.params if _was_given(context, name)}
    values = {f"{name}={value}" for name, value in context.params.items() if isinstance(value, str)}
    for rule in rules:
        rule.check(given | values)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def _flag(option: str) -> str:
    name, _, value = option.partition("=")
    return f"--{name.rstrip('_').replace('_', '-')} {value}".rstrip()


PAYS = Rule(
    option="ledger",
    needs=("out",),
    because="what is paid for has to be kept somewhere",
)
SHARES = tuple(
    Rule(option=option, needs=("ledger",), because="it is about what a ledger is charged")
    for option in ("allocation", "purpose")
)


def charged(place: str | None, *, allocation: str | None, purpose: str | None) -> Ledger | None:
    """The ledger at a place, spending under the share and purpose that were given; None for no place."""
    from sfumato.ledger import Ledger

    return None if place is None else Ledger.open(place).spend_under(allocation, purpose=purpose)
