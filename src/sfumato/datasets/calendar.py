"""Days and times within the years 1 to 9999: engines stop at others, or read them as something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, counted from 1970-01-01
_TICKS = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}  # in a day; nanoseconds reach the year 2262


def limits(kind: pa.DataType) -> tuple[int, int] | None:
    """The first and the last moment of the calendar, as a type stores them; None where it holds no others."""
    import pyarrow as pa

    if pa.types.is_date32(kind):
        return _FIRST_DAY, _LAST_DAY
    ticks = _TICKS["ms"] if pa.types.is_date64(kind) else None
    if pa.types.is_timestamp(kind):
        ticks = _TICKS.get(kind.unit)
    return None if ticks is None else (_FIRST_DAY * ticks, (_LAST_DAY + 1) * ticks - 1)


def is_in_calendar(column: pa.Array | pa.ChunkedArray) -> bool:
    import pyarrow.compute as pc

    ends = limits(column.type)
    if ends is None:
        return True
    found = pc.min_max(_whole(column)).as_py()
    return found["min"] is None or (ends[0] <= found["min"] and found["max"] <= ends[1])


def in_calendar(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with what lies before the calendar or after it moved to its first or last moment."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = limits(column.type)
    if ends is None:
        return column
    whole = _whole(column)
    low, high = (pa.scalar(end, whole.type) for end in ends)
    within = pc.min_element_wise(pc.max_element_wise(whole, low, skip_nulls=False), high, skip_nulls=False)
    return within.cast(column.type)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    return column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
