"""Options that commands share, rules about them, and the data that they read."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.datasets import Dataset
    from sfumato.ledger import Ledger

SPEND = "How it is paid for"
"""The heading of options about a ledger, in help pages."""
Allocation = Annotated[
    str | None,
    typer.Option(
        help="Spend from this share of the budget (see sfumato ledger allocate).", rich_help_panel=SPEND
    ),
]
Unit = Annotated[
    str,
    typer.Option(
        help="Unit of one row: a record, or the only row of a person, patient, …, as the ledger names it.",
        rich_help_panel=SPEND,
    ),
]
Purpose = Annotated[
    str | None,
    typer.Option(help="Purpose of the release. The ledger shows it with the charge.", rich_help_panel=SPEND),
]
ROWS = "Which rows"
"""The heading of options about the rows that are used."""
Delta = Annotated[
    float, typer.Option(help="The δ of the guarantee; choose it well below 1 / number of people.")
]
TrainSize = Annotated[
    int | None,
    typer.Option(help="Train on about this many records, each chosen by a secret coin.", rich_help_panel=ROWS),
]
PublicSize = Annotated[
    int | None,
    typer.Option(help="With your own images: how many people they are from.", rich_help_panel=ROWS),
]
Classes = Annotated[
    str | None,
    typer.Option(
        help="With your own images: how many classes, or their names (cat,dog).", rich_help_panel=ROWS
    ),
]
LeaveOut = Annotated[
    list[str] | None,
    typer.Option(
        "--leave-out",
        help="Column of the policy that is not used; repeat the option for several. Needed for each one that "
        "has neither categories nor bounds.",
        rich_help_panel=ROWS,
    ),
]
TableName = Annotated[
    str | None,
    typer.Option(
        "--table",
        help="Table of a policy of several. Default: the one that has the named columns, or the first.",
        rich_help_panel=ROWS,
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
    given = {name for name in context.params if was_given(context, name)}
    values = {f"{name}={value}" for name, value in context.params.items() if isinstance(value, str)}
    for rule in rules:
        rule.check(given | values)


def was_given(context: typer.Context, name: str) -> bool:
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


_HELP_WORDS = ("--help", "-h")


def by_default(name: str) -> type[TyperGroup]:
    """A group in which words that begin with none of its commands are for the command `name`."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in self.commands and args[0] not in _HELP_WORDS:
                args = [name, *args]
            return super().parse_args(ctx, args)

    return Group


_TABLES = (".csv", ".csv.gz", ".tsv", ".parquet", ".duckdb")


def read_data(
    data: str,
    *,
    side: int | None,
    public_size: int | None,
    classes: str | None,
    test_data: str | None,
) -> tuple[Dataset, Dataset | None]:
    """Private rows, and public images to measure on, if there are any; `side` is for data sets by name."""
    from sfumato import datasets

    if data in datasets.DATASETS or not Path(data).expanduser().exists():
        rows = datasets.load(data, "train", side=side)
        if (public_size, classes, test_data) != (None, None, None):
            raise InvalidInput(
                f"expected --public-size, --classes and --test-data with your own images only, got one of them "
                f"with {data}, which declares its own; leave them out"
            )
        return rows, datasets.load(data, "test", side=side)
    if data.lower().endswith(_TABLES):
        raise InvalidInput(
            f"expected images with --data, got the table {data}; declare it in a policy (sfumato query init), "
            "then: sfumato train people.toml --target COLUMN"
        )
    if public_size is None or classes is None:
        raise InvalidInput(
            "expected --public-size and --classes with your own images; they are declared, not counted"
        )
    names = [str(number) for number in range(int(classes))] if classes.isdigit() else classes.split(",")
    rows = datasets.read_images(data, classes=names, public_size=public_size)
    if test_data is None:
        return rows, None
    return rows, datasets.read_images(test_data, classes=names, public_size=None, visibility="public")


def take_some(rows: Dataset, count: int | None, out: Path | None) -> Dataset:
    """As many records as were asked for, each by its own coin; the folder keeps the coins."""
    from sfumato.storage import RunFolder
    from sfumato.training import keep_some

    if count is None:
        return rows
    return keep_some(rows, count, folder=None if out is None else RunFolder.make(out))
