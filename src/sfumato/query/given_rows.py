"""Rows that are handed over in Python → an Arrow table whose types no row decides.

A column's type is the one that its frame declares. A pandas column of objects has none, so that the policy says
what it holds: each value is read by itself, and what does not fit is NULL.
"""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from sfumato.datasets.clean import Tally, plain
from sfumato.errors import DataError, InvalidInput
from sfumato.policy import FALSE_WORDS, TRUE_WORDS, Policy
from sfumato.query.sanitizing import DAY_PATTERN, NUMBER_PATTERN

if TYPE_CHECKING:
    import pyarrow as pa

_private_log = logging.getLogger("sfumato.private.query")
_UNIT = "unit"


def given_rows(data: Any, policy: Policy) -> pa.Table:
    """The columns that a policy needs of a DataFrame or Arrow table, in types that no row decides.

    Raises:
        InvalidInput: `data` is no table, or a column is not there.
        DataError: a column's type is none that Arrow has; the reason may quote a row and is not shown.
    """
    import pandas as pd

    kinds = {column.name: column.type for column in policy.columns.values()}
    if policy.unit.column is not None:
        kinds.setdefault(policy.unit.column, _UNIT)
    try:
        found = _of_pandas(data, kinds) if isinstance(data, pd.DataFrame) else _of_arrow(data, kinds)
    except InvalidInput:
        raise
    except Exception as error:
        _private_log.error("the table could not be loaded", exc_info=error)
    else:
        return plain(found, Tally())
    raise DataError(
        "expected a DataFrame or Arrow table whose columns have one type each; the reason may quote private "
        "rows and goes to the log 'sfumato.private.query' only"
    )


def _of_arrow(data: Any, kinds: dict[str, str]) -> pa.Table:
    import pyarrow as pa

    try:
        table = pa.table(data)  # also of whatever has Arrow's C interface, such as Polars' frames
    except TypeError:
        raise InvalidInput(
            f"expected data to be a DataFrame or an Arrow table, got {type(data).__name__}"
        ) from None
    return table.select(_places(table.column_names, kinds))


def _of_pandas(frame: Any, kinds: dict[str, str]) -> pa.Table:
    import pyarrow as pa

    labels = [str(label) for label in frame.columns]
    columns = {labels[place]: frame.iloc[:, place] for place in _places(labels, kinds)}
    of_lower = {name.lower(): kind for name, kind in kinds.items()}
    return pa.table({name: _typed(column, of_lower[name.lower()]) for name, column in columns.items()})


def _places(names: Sequence[str], wanted: Iterable[str]) -> list[int]:
    """Where each wanted column stands: under its own letters, or else under any."""
    places: list[int] = []
    for name in wanted:
        found = [place for place, stored in enumerate(names) if stored == name]
        found = found or [place for place, stored in enumerate(names) if stored.lower() == name.lower()]
        if not found:
            raise InvalidInput(
                f"expected a column {name} in the table, got {', '.join(names)}; correct the policy's [columns]"
            )
        if len(found) > 1:
            raise InvalidInput(f"expected one column {name} in the table, got {len(found)}; rename the others")
        places += [place for place in found if place not in places]
    return places


def _typed(column: Any, kind: str) -> pa.Array:
    """A pandas column in the type of its own, or, of objects and texts, in that of its kind."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.dtype.categories.dtype)
    if isinstance(column.dtype, pd.StringDtype):
        read: Callable[[Any], Any] = _text
        stored = pa.string()
    elif column.dtype == object:
        read, stored = _READERS[kind], _stored(kind)
    else:
        return pa.array(column, from_pandas=True)
    return pa.array([read(value) for value in column], stored)


def _stored(kind: str) -> pa.DataType:
    import pyarrow as pa

    types = {"text": pa.string(), _UNIT: pa.string(), "boolean": pa.bool_(), "date": pa.date32()}
    return types.get(kind, pa.float64())


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.encode(errors="replace").decode() if isinstance(value, str) else None


def _person(value: Any) -> str | None:
    """What tells people apart, as text: of mixed values, 7 and "7" are one person."""
    if isinstance(value, (bool, np.bool_)):
        return None
    if isinstance(value, (int, np.integer, UUID)):
        return str(value) if isinstance(value, UUID) or abs(int(value)) < 10**100 else None
    if isinstance(value, (float, np.floating)):
        return str(int(value)) if float(value).is_integer() else None
    return _text(value)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value) else None
    if not isinstance(value, (bool, int, float, Decimal, np.bool_, np.integer, np.floating)):
        return None
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf
    except ValueError:  # a signaling NaN
        return None


def _truth(value: Any) -> bool | None:
    if isinstance(value, str):
        word = value[:1000].strip(" ").lower()
        return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None
    number = _number(value)
    return bool(number) if number in (0.0, 1.0) else None


def _day(value: Any) -> datetime.date | None:
    if isinstance(value, str):
        return _day_of_text(value)
    if isinstance(value, np.datetime64):
        return _day_of_numpy(value)
    if isinstance(value, datetime.datetime):
        return None if value != value else value.date()  # NaT is a datetime, and not equal to itself
    return value if isinstance(value, datetime.date) else None


def _day_of_text(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text) if DAY.fullmatch(text) else None
    except ValueError:
        return None


def _day_of_numpy(value: np.datetime64) -> datetime.date | None:
    found = value.astype("datetime64[D]").item()
    if isinstance(found, int):  # a day that Python's calendar does not have
        return datetime.date.max if found > 0 else datetime.date.min
    return found if isinstance(found, datetime.date) else None


NUMBER, DAY = re.compile(NUMBER_PATTERN), re.compile(DAY_PATTERN)
_READERS: dict[str, Callable[[Any], Any]] = {
    "integer": _number,
    "real": _number,
    "text": _text,
    "boolean": _truth,
    "date": _day,
    _UNIT: _person,
}
