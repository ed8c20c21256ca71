"""How a text file is written is declared, and what is declared is held to."""

from __future__ import annotations

import gzip

import pytest

from sfumato.datasets.clean import read_rows
from sfumato.datasets.lines import split
from sfumato.datasets.text_table import TextForm, header_of, rows_of
from sfumato.errors import DataUnavailable, InvalidInput


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"delimiter": ";;"}, "delimiter"),
        ({"delimiter": '"'}, "delimiter"),
        ({"delimiter": "é"}, "delimiter"),
        ({"header": "yes"}, "header"),
        ({"header": False}, "fields"),
        ({"fields": []}, "fields"),
        ({"fields": ["a", "A"]}, "letter case"),
        ({"missing": [0]}, "missing"),
    ],
)
def test_a_form_that_makes_no_sense_is_refused(section, message):
    with pytest.raises(InvalidInput, match=message):
        TextForm(**{name: tuple(one) if isinstance(one, list) else one for name, one in section.items()})


def read(path, form, columns):
    return [row for part in rows_of(path, form, columns) for row in part.table.to_pylist()]


def test_declared_names_take_the_place_of_a_header(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("1;x;-\n2;;y\n")
    form = TextForm(delimiter=";", header=False, fields=("a", "b", "c"), missing=("-",))
    assert read(path, form, ["c", "b"]) == [{"c": None, "b": "x"}, {"c": "y", "b": ""}]


def test_a_header_must_be_the_declared_one(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("\ufeffA, b\n1,2\n", encoding="utf-8")
    assert read(path, TextForm(fields=("a", "b")), ["b"]) == [{"b": "2"}]  # in any letter case, with spaces
    for fields in (("b", "a"), ("a", "c"), ("a",)):
        with pytest.raises(InvalidInput, match=r"table\.fields") as caught:
            read(path, TextForm(fields=fields), ["a"])
        assert "A, b" not in str(caught.value)


@pytest.mark.keeps_out("Byte order marks at the start of a line that are one less in the first line of a block")
def test_no_line_is_the_first_one_to_lose_a_mark(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("w\n" + "\ufeff\ufeffheart\n" * 3 + '\ufeff\ufeff\n\ufeff"a"\n', encoding="utf-8")
    for block in (1, 20, 1 << 20):
        parts = rows_of(path, TextForm(), ["w"], block=block)
        values = [value for part in parts for value in part.table["w"].to_pylist()]
        assert values == ["\ufeffheart"] * 3 + ["\ufeff", "a"]


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "a,a\n1,2\n", "", "\n", '"a,c\n1,2\n'])
def test_a_column_must_be_there_once(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    wanted = "c" if text.startswith("a,b") else "a"
    with pytest.raises(InvalidInput, match=f"column {wanted} once"):
        read(path, TextForm(), [wanted])


def test_a_file_of_a_header_has_no_rows(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"a,b"))
    assert list(header_of(path, TextForm())) == ["a", "b"]
    (only,) = rows_of(path, TextForm(), ["b"])
    assert (only.table.num_rows, only.table.schema.names) == (0, ["b"])
    assert read_rows(path, TextForm(), ["b"]).num_rows == 0
    with pytest.raises(DataUnavailable):
        read_rows(tmp_path / "none.csv", TextForm(), ["b"])


def test_line_numbers_are_those_of_the_file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b'a,b\r\n1,2\r\n\r\n"3,4\r\n5,6\r\n')
    parts = list(rows_of(path, TextForm(), ["a"], block=7))
    assert [number for part in parts for number in part.numbers] == [2, 5]
    assert [number for part in parts for faults in part.faults.values() for number in faults] == [4]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (b"", [""]),
        (b",", ["", ""]),
        (b'"",""', ["", ""]),
        (b'"a,b",c', ["a,b", "c"]),
        (b'"a""b"', ['a"b']),
        (b'"""a"', ['"a']),
        (b'"a" ,b', None),
        (b'a"b"', None),
        (b'"a', None),
        (b'a, "b"', None),
    ],
)
def test_what_one_line_means(line, values):
    assert split(line, ",") == values
