"""A text file as rows that cannot affect each other.

Bytes are cut at line ends first, and each line is then judged alone: no quote, byte or missing field of one
line can change the values of another. A line is a row of `fields` values if each value is either free of
quotes, or in quotes from end to end with inner quotes doubled; otherwise that line is left out, and no other.

The work is done on blocks of lines with array operations; the checks look at bytes and their neighbours
within the line, so that where a block begins makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

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
    """Clamp the moments of a column to the first and last moment of the calendar."""
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


LONGEST_LINE = 1 << 20  # bytes; a longer line is left out by itself
BLOCK = 1 << 23  # bytes read at a time
MARK = b"\xef\xbb\xbf"  # which some programs put before UTF-8
_NEWLINE, _QUOTE = 10, 34

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Fault(IntEnum):
    """The faults of a line; BLANK lines are no rows and are not counted."""

    NONE = 0
    BLANK = 1
    QUOTES = 2
    FIELDS = 3
    TOO_LONG = 4
    ZERO_BYTE = 5


IN_WORDS = {
    Fault.QUOTES: "a quote is not closed on its line, or stands inside a value",
    Fault.FIELDS: "not as many values as there are columns",
    Fault.TOO_LONG: f"longer than {LONGEST_LINE:,} bytes",
    Fault.ZERO_BYTE: "a zero byte",
}


@dataclass(frozen=True)
class Lines:
    """Some lines of a file: their bytes in UTF-8, where each ends, and its fault."""

    text: bytes
    ends: Integers
    faults: npt.NDArray[np.uint8]
    repaired: Integers
    """Which of them had bytes that are no UTF-8, now U+FFFD."""

    def good(self) -> bytes:
        """The lines without fault."""
        kept = self.faults == Fault.NONE
        if kept.all():
            return self.text
        lengths = np.diff(self.ends, prepend=-1)
        return np.frombuffer(self.text, np.uint8)[np.repeat(kept, lengths)].tobytes()

    def emptied(self, fields: int, delimiter: str) -> bytes:
        """Every line that is not blank; those with a fault as a row without values."""
        if not (self.faults > Fault.BLANK).any():
            return self.good()
        nothing = (delimiter * (fields - 1) or '""').encode()
        pairs = zip(self.text.split(b"\n"), self.faults.tolist(), strict=False)  # text ends with a line end
        kept = [line if fault == Fault.NONE else nothing for line, fault in pairs if fault != Fault.BLANK]
        return b"\n".join([*kept, b""])


def blocks(file: BinaryIO, *, size: int = BLOCK) -> Iterator[bytes]:
    r"""The file in pieces of whole lines, each ended by \n; \r\n and \r end lines too.

    Memory is bounded: of a line that is too long only both ends are kept, which is too long still.
    """
    rest = b""
    while piece := file.read(size):
        text = rest + piece
        half = text.endswith(b"\r")  # of \r\n, perhaps
        if b"\r" in text:
            text = text[: len(text) - half].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = text.rfind(b"\n") + 1
        if end:
            yield _without_marks(text[:end])
        rest = text[end : end + LONGEST_LINE + 1] + b"\r" * half
    if rest:
        yield _without_marks(rest.removesuffix(b"\r") + b"\n")


def _without_marks(text: bytes) -> bytes:
    """Without the mark before any line: after the first line alone it would matter which line is the first."""
    return text.replace(b"\n" + MARK, b"\n").removeprefix(MARK) if MARK in text else text


def judge(text: bytes, *, fields: int, delimiter: str) -> Lines:
    """Find the fault of each line of a block."""
    text, repaired = _as_utf8(text)
    buffer = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(buffer == _NEWLINE)
    starts = np.concatenate([[0], ends[:-1] + 1]) if ends.size else ends
    found, misplaced = _fields(buffer, starts, ends, ord(delimiter))
    faults = np.zeros(ends.size, dtype=np.uint8)
    faults[found != fields] = Fault.FIELDS
    faults[misplaced] = Fault.QUOTES
    zeros = np.flatnonzero(buffer == 0)
    faults[np.searchsorted(ends, zeros)] = Fault.ZERO_BYTE
    faults[ends - starts > LONGEST_LINE] = Fault.TOO_LONG
    faults[ends == starts] = Fault.BLANK
    return Lines(text, ends, faults, repaired)


def _as_utf8(text: bytes) -> tuple[bytes, Integers]:
    try:
        text.decode()
    except UnicodeDecodeError:
        lines = text.split(b"\n")
        whole = [line if line.isascii() else line.decode(errors="replace").encode() for line in lines]
        changed = [
            place for place, line in enumerate(lines) if line is not whole[place] and line != whole[place]
        ]
        return b"\n".join(whole), np.array(changed, dtype=np.int64)
    return text, np.zeros(0, dtype=np.int64)


def _fields(buffer: Bytes, starts: Integers, ends: Integers, delimiter: int) -> tuple[Integers, Integers]:
    """How many values each line has, and which lines have a quote out of place.

    Quotes of a line take turns: the first opens, the second closes, and so on. An opening one must follow a
    delimiter or the line's start, or double the quote before it; a closing one must precede a delimiter or the
    line's end, or be doubled by the next. A delimiter separates if the quotes before it in its line are closed.
    """
    delimiters = np.flatnonzero(buffer == delimiter)
    counts = _in_each(delimiters, ends)
    quotes = np.flatnonzero(buffer == _QUOTE)
    if not quotes.size:
        return counts + 1, quotes
    quote_counts = _in_each(quotes, ends)
    first = np.searchsorted(quotes, starts)
    line = np.repeat(np.arange(ends.size), quote_counts)
    closing = (np.arange(quotes.size) - first[line]) % 2 == 1
    beside = buffer[quotes + np.where(closing, 1, -1)]  # of the very first byte: the last one, a line end
    misplaced = ~np.isin(beside, (delimiter, _NEWLINE, _QUOTE))
    bad = np.concatenate([line[misplaced], np.flatnonzero(quote_counts % 2)])
    holders = np.repeat(np.arange(ends.size), counts)
    separates = (np.searchsorted(quotes, delimiters) - first[holders]) % 2 == 0
    return np.bincount(holders[separates], minlength=ends.size) + 1, bad


def _in_each(places: Integers, ends: Integers) -> Integers:
    """How many of the places are in each line."""
    return np.diff(np.searchsorted(places, ends), prepend=0)


def split(line: bytes, delimiter: str) -> Sequence[str] | None:
    """The values of one line, read letter by letter; None if a quote is out of place. For headers, and as the
    plain definition of a line.

    >>> split(b'a,"b ""c"", d",', ",")
    ['a', 'b "c", d', '']
    >>> split(b'5" pipe,1', ",") is None
    True
    """
    text = line.decode(errors="replace")
    values, rest = [], text
    while True:
        if rest.startswith('"'):
            end = _closing(rest)
            if end is None:
                return None
            values.append(rest[1:end].replace('""', '"'))
            rest = rest[end + 1 :]
        else:
            value = rest.split(delimiter, 1)[0]
            if '"' in value:
                return None
            values.append(value)
            rest = rest[len(value) :]
        if not rest:
            return values
        if rest[0] != delimiter:
            return None
        rest = rest[1:]


def _closing(text: str) -> int | None:
    """Where the quote that opens `text` is closed."""
    place = 1
    while (place := text.find('"', place)) != -1:
        if text[place + 1 : place + 2] != '"':
            return place
        place += 2
    return None
