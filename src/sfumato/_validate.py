"""Checks of single values: return the value, or raise one sentence with the remedy.

>>> positive("noise_multiplier", 1.1)
1.1
>>> probability("sample_rate", 1.2, remedy="a rate is batch / size")
Traceback (most recent call last):
    ...
sfumato.errors.InvalidInput: expected sample_rate in (0, 1], got sample_rate=1.2; a rate is batch / size
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

from sfumato.display import visible
from sfumato.errors import InvalidInput

T = TypeVar("T")


def refusal(name: str, value: object, expected: str, remedy: str = "") -> InvalidInput:
    """Return the error for a value that is not as expected."""
    return InvalidInput(
        f"expected {name} {expected}, got {name}={shown(value)}" + (f"; {remedy}" if remedy else "")
    )


def shown(value: object) -> str:
    """Return a value as an error shows it: on one line, and not longer than that."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; lists inside lists
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= 100 else f"{text[:97]}…"


def real(name: str, value: SupportsFloat, *, remedy: str = "") -> float:
    """Return a finite float (booleans and text are refused)."""
    number = math.nan
    if not isinstance(value, bool | str | bytes):
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise refusal(name, value, "to be a finite number", remedy)
    return number


def _within(
    name: str, value: SupportsFloat, holds: Callable[[float], bool], expected: str, remedy: str
) -> float:
    number = real(name, value, remedy=remedy)
    if not holds(number):
        raise refusal(name, value, expected, remedy)
    return number


def positive(name: str, value: SupportsFloat, *, remedy: str = "") -> float:
    return _within(name, value, lambda number: number > 0, "> 0", remedy)


def non_negative(name: str, value: SupportsFloat, *, remedy: str = "") -> float:
    return _within(name, value, lambda number: number >= 0, ">= 0", remedy)


def probability(name: str, value: SupportsFloat, *, remedy: str = "") -> float:
    """Return a number in (0, 1]: a rate at which something happens."""
    return _within(name, value, lambda number: 0 < number <= 1, "in (0, 1]", remedy)


def delta(name: str, value: SupportsFloat) -> float:
    """Return a δ in [0, 1)."""
    remedy = "δ is a small probability, well below 1 / number of people"
    return _within(name, value, lambda number: 0 <= number < 1, "in [0, 1)", remedy)


def integer(name: str, value: SupportsIndex, *, least: int = 0, remedy: str = "") -> int:
    """Return a whole number that is at least `least` (floats and booleans are refused)."""
    number = None
    if not isinstance(value, bool):
        with suppress(TypeError):
            number = operator.index(value)
    if number is None or number < least:
        raise refusal(name, value, f"to be a whole number >= {least}", remedy)
    return number


def text(name: str, value: object, *, remedy: str = "it is shown in statements") -> str:
    """Return a few words in which every character is seen: the check of texts, when written and when read."""
    if not isinstance(value, str) or not value.strip() or visible(value) != value:
        raise refusal(name, value, "to be a few printable words", remedy)
    return value


def sentences(name: str, value: Iterable[object]) -> tuple[str, ...]:
    r"""Return sentences that may hold names from files: hidden characters become escapes.

    >>> sentences("caveats", ["left out: free\ntext"])
    ('left out: free\\x0atext',)
    """
    if isinstance(value, str):
        raise refusal(name, value, "to be a list of sentences")
    return tuple(text(name, visible(one) if isinstance(one, str) else one) for one in value)


def truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise refusal(name, value, "to be true or false")
    return value


def one_of(name: str, value: T, allowed: Collection[Any], *, remedy: str = "") -> T:
    if value not in allowed:
        names = [str(one) for one in allowed]
        told = [repr(one) for one in names] if any("," in one for one in names) else names
        raise refusal(name, value, "to be one of " + ", ".join(told), remedy)
    return value


def instance(name: str, value: object, kind: type, *, remedy: str) -> None:
    """Refuse a value of another type than `kind`; None is accepted."""
    if value is not None and not isinstance(value, kind):
        got = f"{type(value).__name__} {value!r}" if isinstance(value, str) else type(value).__name__
        raise InvalidInput(f"expected {name} to be of the class {kind.__name__}, got {got}; {remedy}")
