"""A stored column → a value that nothing can go wrong with: the only place that looks at raw columns.

Each declared column is read once, in the innermost SELECT, and comes out as

    integer    int64 within its bounds, rounded down
    real       float64 within its bounds, never NaN, 0 where it was smaller than 2⁻⁴⁰
    text       its first 1,000 characters; where categories are declared, without blanks around it, and
               NULL if it is longer than that with them
    boolean    boolean
    date       a date within its bounds, never infinite

or NULL. Bounds are the policy's, or ±2⁵² and the years 1 to 9999. A row that holds something else (a text that
is no number, NaN, an infinity, a decimal that no double can hold) is clipped, or NULL, and never an error: text
becomes a number by a pattern first and a cast that cannot fail, and PostgreSQL's decimals, which may be NaN,
infinite, or as small as 1e-16383, are compared as decimals before they are cast.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import ibis

from sfumato.datasets.clean import MOST_CHARACTERS
from sfumato.errors import InvalidInput
from sfumato.policy import FALSE_WORDS, TRUE_WORDS, Column
from sfumato.query.expressions import LARGEST, SMALLEST, Value, built_in, clip, double

NUMBER_PATTERN = r"^[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,2})?$"
DAY_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
FEW_CATEGORIES = 16  # so many are compared faster than blanks are looked for
_SMALL_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def sanitized(engine: str, value: Value, column: Column) -> Value:
    """The value of a declared column, for every stored type and value."""
    return _READERS[column.type](engine, value, column)


def sanitized_unit(engine: str, value: Value, name: str) -> Value:
    """The person of a row: a whole number, or a text that is not too long to be a name."""
    kind = value.type()
    if _is_small_integer(kind):
        return value.cast("int64")
    if kind.is_string():
        return _short(value)
    if kind.is_integer() or kind.is_decimal() or kind.is_uuid():
        return value  # compared in its own type: as text, the decimals 1.0 and 1.00 would be two people
    raise InvalidInput(f"expected unit.column={name!r} to be text or a whole number, got {kind}")


def _read_number(engine: str, value: Value, column: Column) -> Value:
    if column.type == "real" and value.type().is_floating():
        return _real(value.cast("float64"), column, maybe_nan=True)
    number = _as_number(engine, value, column)
    if column.type == "real":
        return _real(number.cast("float64"), column, maybe_nan=False)
    low, high = map(int, column.bounds or (-LARGEST, LARGEST))
    if number.type().is_floating():  # whole bounds up to 2⁵² are doubles: numbers between them stay there
        return clip(number, double(low), double(high)).floor().cast("int64")
    return clip(number, ibis.literal(low, "int64"), ibis.literal(high, "int64"))


def _real(number: Value, column: Column, *, maybe_nan: bool) -> Value:
    """Within the bounds, or NULL. The usual case is asked first; NaN is above all, and asked before `>`."""
    low, high = column.bounds or (-LARGEST, LARGEST)
    # 0 is clipped to where it is a bound, and snapped to where it lies between them.
    floor = SMALLEST if low == 0 else low
    ceiling = -SMALLEST if high == 0 else high
    tiny = [((number > double(-SMALLEST)) & (number < double(SMALLEST)), double(0.0))] if low < 0 < high else []
    return ibis.cases(
        *tiny,
        (number.between(double(floor), double(ceiling)), number),
        *([(number.isnan(), ibis.null("float64"))] if maybe_nan else []),
        (number < double(floor), double(low)),
        (number > double(ceiling), double(high)),
    )


def _as_number(engine: str, value: Value, column: Column) -> Value:
    """int64, or float64 without NaN."""
    kind = value.type()
    if kind.is_string():
        return _text_as(engine, value, NUMBER_PATTERN, "float64")
    if kind.is_boolean():
        return ibis.cases((value, 1), (~value, 0), else_=ibis.null("int64")).cast("int64")
    if _is_small_integer(kind):
        return value.cast("int64")
    if kind.is_decimal():
        return _decimal(engine, value)
    if kind.is_floating():
        number = value.cast("float64")
        return number.isnan().ifelse(ibis.null("float64"), number)
    if kind.is_integer():
        return value.cast("float64")
    raise _unreadable(column, kind)


def _decimal(engine: str, value: Value) -> Value:
    """A decimal as a double; PostgreSQL's may be NaN, infinite, or too large or too small for one."""
    if engine != "postgres":
        return value.cast("float64")
    largest, smallest = (ibis.literal(Decimal(bound)) for bound in (LARGEST, SMALLEST))
    return ibis.cases(
        (value.cast("string") == "NaN", ibis.null("float64")),
        (value >= largest, double(LARGEST)),
        (value <= -largest, double(-LARGEST)),
        ((value > -smallest) & (value < smallest), double(0.0)),
        else_=value.cast("float64"),
    )


def _text_as(engine: str, value: Value, pattern: str, kind: str) -> Value:
    if engine == "postgres":
        raise InvalidInput(
            f"expected column {value.get_name()} to be stored as {kind}, got text; PostgreSQL cannot convert "
            "text without stopping at odd rows: make a materialized view that converts it"
        )
    return value.re_search(pattern).ifelse(value, ibis.null("string")).try_cast(kind)


def _read_text(engine: str, value: Value, column: Column) -> Value:
    if not value.type().is_string():
        raise _unreadable(column, value.type())
    if column.categories is None:
        return value.substr(0, MOST_CHARACTERS)
    return _without_blanks(engine, value, column.categories) if column.trimmed else _short(value)


def _short(value: Value) -> Value:
    """A text, or NULL for one that is too long: a long one costs memory wherever rows are sorted or trimmed."""
    return (value.length() <= MOST_CHARACTERS).ifelse(value, ibis.null("string"))


def _without_blanks(engine: str, value: Value, categories: tuple[Any, ...]) -> Value:
    """A text without the spaces around it; most rows have none, which is asked first."""
    if len(categories) <= FEW_CATEGORIES:
        return value.isin(categories).ifelse(value, trimmed(engine, _short(value)))
    value = _short(value)
    blank = value.startswith(" ") | value.endswith(" ")
    return blank.ifelse(trimmed(engine, value), value)


def trimmed(engine: str, value: Value) -> Value:
    """The space U+0020 and nothing else goes, on every engine: Ibis's own strip takes more on some."""
    if engine == "spark":
        return built_in("trim", "string", value)
    return built_in("btrim" if engine == "postgres" else "trim", "string", value, ibis.literal(" "))


def _read_boolean(engine: str, value: Value, column: Column) -> Value:
    if value.type().is_boolean():
        return value
    if value.type().is_integer():
        return ibis.cases((value == 0, False), (value == 1, True), else_=ibis.null("boolean"))
    if value.type().is_string():
        lowered = trimmed(engine, value.substr(0, MOST_CHARACTERS)).lower()
        yes, no = lowered.isin(TRUE_WORDS), lowered.isin(FALSE_WORDS)
        return ibis.cases((yes, True), (no, False), else_=ibis.null("boolean"))
    raise _unreadable(column, value.type())


def _read_date(engine: str, value: Value, column: Column) -> Value:
    first, last = column.days or (datetime.date.min, datetime.date.max)
    return clip(_as_date(engine, value, column), _day(first), _day(last))


def _as_date(engine: str, value: Value, column: Column) -> Value:
    kind = value.type()
    if kind.is_date():
        return value
    if kind.is_timestamp():  # DuckDB's seconds and milliseconds reach further than its dates
        return value.try_cast("date") if engine == "duckdb" else value.cast("date")
    if kind.is_string():
        return _text_as(engine, value, DAY_PATTERN, "date")
    raise _unreadable(column, kind)


def _day(day: Any) -> Value:
    return ibis.literal(day.isoformat()).cast("date")


def _is_small_integer(kind: Any) -> bool:
    return str(kind).removeprefix("!") in _SMALL_INTEGERS


_READERS: dict[str, Callable[[str, Value, Column], Value]] = {
    "integer": _read_number, "real": _read_number, "text": _read_text, "boolean": _read_boolean,
    "date": _read_date,
}  # fmt: skip


def _unreadable(column: Column, kind: object) -> InvalidInput:
    return InvalidInput(
        f"expected column {column.name} to be readable as {column.type}, got {kind}; "
        f"correct columns.{column.name}.type or the table"
    )
