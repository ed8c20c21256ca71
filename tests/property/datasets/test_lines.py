"""One line of a file is one row or none, whatever the others hold."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sfumato.datasets import lines
from sfumato.datasets.clean import REPAIRED, Tally, plain
from sfumato.datasets.lines import Fault, judge, split
from sfumato.datasets.text_table import TextForm, rows_of

FIELDS = ("a", "b", "c")
COLUMNS = ("c", "a")
MARK = b"\xef\xbb\xbf"
FORM = TextForm(header=False, fields=FIELDS)
QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Bytes that mean something to somebody, good rows, and anything at all; never a line end.
_odd = st.sampled_from([b'"', b'""', b",", b"\0", b"\xff", b"\xc3", b"\xc3\xa9", b"x", b" ", MARK, b"'", b"\\"])
_anything = st.binary(max_size=12).map(lambda text: text.replace(b"\r", b"").replace(b"\n", b""))
one_line = st.one_of(
    st.lists(_odd, max_size=9).map(b"".join),
    st.sampled_from([b"1,2,3", b'"1","2, 3","4"', b'"a""b",,', b"", b"NA,,nan", b'"",,""', b'"']),
    _anything,
)
line_end = st.sampled_from([b"\n", b"\r\n", b"\r"])


def rows(folder: Path, text: bytes, *, block: int = lines.BLOCK, keep_faulty: bool = False) -> Counter:
    place = folder / "people.csv"
    place.write_bytes(text)
    found: Counter = Counter()
    for part in rows_of(place, FORM, COLUMNS, block=block, keep_faulty=keep_faulty):
        found.update(tuple(row.values()) for row in part.table.to_pylist())
    return found


def expected(line: bytes) -> tuple | None:
    """The row of a line, read letter by letter."""
    values = split(line, ",")
    if values is None or len(values) != len(FIELDS) or b"\0" in line or not line:
        return None
    return tuple(values[FIELDS.index(name)] or None for name in COLUMNS)


@QUICK
@given(text=st.lists(one_line, max_size=8), end=line_end, block=st.integers(1, 40), last=st.booleans())
@example(text=[b'"', b"1,2,3", b"4,5,6"], end=b"\n", block=40, last=True)
@example(text=[b'a"b,"c', b"1,2,3"], end=b"\r\n", block=3, last=False)
def test_the_rows_are_those_of_the_lines_one_by_one(text, end, block, last, tmp_path):
    """The array operations agree with the plain reader, wherever blocks begin."""
    whole = end.join(text) + (end if last else b"")
    text = [line.removeprefix(MARK) for line in text]
    wanted = Counter(row for line in text if (row := expected(line)) is not None)
    assert rows(tmp_path, whole, block=block) == wanted
    kept = rows(tmp_path, whole, block=block, keep_faulty=True)
    assert kept.total() == sum(line != b"" for line in text)


@pytest.mark.keeps_out(
    "An unclosed quote, a line break or an odd byte of one row swallows others, or stops every query"
)
@QUICK
@given(text=st.lists(one_line, max_size=8), changed=one_line, place=st.integers(0, 8), end=line_end)
@example(text=[MARK + b"1,2,3"], changed=b"", place=0, end=b"\n")
@example(text=[b"4,5,6", b"1,2,3"], changed=b'1,2,"', place=0, end=b"\r")
def test_one_line_changes_one_row(text, changed, place, end, tmp_path):
    """Added, removed or replaced: neighbouring files give neighbouring tables, and both are read."""
    place = min(place, len(text))
    before = rows(tmp_path, end.join(text))
    added = rows(tmp_path, end.join([*text[:place], changed, *text[place:]]))
    assert not before - added
    assert (added - before).total() <= 1
    if place < len(text):
        replaced = rows(tmp_path, end.join([*text[:place], changed, *text[place + 1 :]]))
        assert (before - replaced).total() <= 1
        assert (replaced - before).total() <= 1


@QUICK
@given(text=st.binary(max_size=60), line=one_line, block=st.integers(1, 20))
def test_any_bytes_are_read(text, line, block, tmp_path):
    before = rows(tmp_path, text, block=block)
    after = rows(tmp_path, text + b"\n" + line, block=block)
    assert not before - after
    assert (after - before).total() <= 1


@pytest.mark.parametrize("block", [1 << 10, 1 << 23])
def test_a_line_without_end_is_left_out_and_takes_little_memory(monkeypatch, block):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1000)
    text = b"1,2,3\n" + b"x," * 100_000 + b"\n4,5,6\n"
    pieces = list(lines.blocks(io.BytesIO(text), size=block))
    found = [judge(piece, fields=3, delimiter=",") for piece in pieces]
    assert [fault for part in found for fault in part.faults] == [Fault.NONE, Fault.TOO_LONG, Fault.NONE]
    if block == 1 << 10:
        assert max(map(len, pieces)) <= 1000 + 2 * block


@QUICK
@given(texts=st.lists(st.one_of(st.none(), st.binary(max_size=6)), max_size=8), large=st.booleans())
def test_each_text_of_a_column_is_repaired_by_itself(texts, large):
    """Bytes that Arrow calls text come out as UTF-8, and only those that were not are touched."""
    binary, text = (pa.large_binary(), pa.large_string()) if large else (pa.binary(), pa.string())
    table, tally = pa.table({"a": pa.array(texts, type=binary).view(text)}), Tally()
    found = plain(table, tally)
    found.validate(full=True)
    assert found["a"].to_pylist() == [None if one is None else one.decode(errors="replace") for one in texts]
    assert tally.rows == len(texts)
    assert tally.faults.get(REPAIRED, 0) == sum(one is not None and not _is_utf8(one) for one in texts)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
