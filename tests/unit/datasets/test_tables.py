from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sfumato.datasets import read_table, table_dataset
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput

PEOPLE = pd.DataFrame({"age": [30, 41, 52], "pay": [1.5, 2.5, 3.5], "town": ["Ghent", "Delft", "Ghent"]})


@pytest.mark.parametrize("ending", ["csv", "CSV", "parquet", "pq"])
def test_tables_come_back(tmp_path, ending):
    path = tmp_path / f"people.{ending}"
    PEOPLE.to_csv(path, index=False) if ending.lower() == "csv" else PEOPLE.to_parquet(path)
    assert read_table(path).to_dict("list") == PEOPLE.to_dict("list")
    assert list(read_table(str(path), columns=["pay", "age"]).columns) == ["pay", "age"]


def test_a_missing_file_or_column_is_named(tmp_path):
    with pytest.raises(DataUnavailable, match=r"nobody\.csv"):
        read_table(tmp_path / "nobody.csv")
    PEOPLE.to_csv(tmp_path / "people.csv", index=False)
    with pytest.raises(InvalidInput, match="the columns wage, got the columns age, pay, town"):
        read_table(tmp_path / "people.csv", columns=["age", "wage"])


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"one of \.csv, \.parquet, \.pq"):
        read_table(tmp_path / "people.xlsx")


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("people.csv", b""),
        ("people.csv", b'"a,b\n1,2\n'),
        ("people.parquet", b""),
        ("people.parquet", b"PAR1 and then nothing of the kind"),
    ],
)
def test_a_damaged_table_is_named(tmp_path, name, contents):
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(DataCorrupted, match=name):
        read_table(tmp_path / name)


@pytest.mark.parametrize("line", [b"1,2", b"1,2,3,4", b'"1,2,3', b"\xff\xfe,2,\xff", b'1,"2\n",3'])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_line_that_is_no_row_takes_no_other_with_it(tmp_path, line, place):
    good = b"30,1.5,Ghent\n41,2.5,NA\n"
    text = line + b"\n" + good if place == "first" else good + line
    (tmp_path / "people.csv").write_bytes(b"age,pay,town\n" + text)
    found = read_table(tmp_path / "people.csv")
    assert {"Ghent", "NA"} <= set(found["town"])
    assert len(found) in (2, 3)


def test_a_parquet_file_cut_short_is_named(tmp_path):
    path = tmp_path / "people.parquet"
    PEOPLE.to_parquet(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataCorrupted, match=r"people\.parquet is not a sound PARQUET file"):
        read_table(path)


def dataset_of(frame: pd.DataFrame, **changes: object):
    fields = {"inputs": ["age", "pay"], "target": "town", "categories": ["Delft", "Ghent"], "public_size": 3}
    return table_dataset(frame, **(fields | changes))


def test_columns_become_inputs_and_declared_categories_classes():
    data = dataset_of(PEOPLE)
    assert data.inputs.tolist() == [[30, 1.5], [41, 2.5], [52, 3.5]]
    assert data.targets.tolist() == [1, 0, 1]
    assert (data.classes, data.public_size, data.visibility) == (2, 3, "private")


@pytest.mark.keeps_out("Errors that depend on private data")
def test_no_row_can_cause_an_error_and_each_is_judged_by_itself():
    odd = pd.DataFrame(
        {
            "age": ["30", "old", None, 9e99],
            "pay": [1.5, np.inf, 2.5, 3.5],
            "town": ["Ghent", "Delft", "Delft", "Mars"],
        }
    )
    data = dataset_of(odd, missing=-1)
    assert data.inputs.tolist() == [
        [30, 1.5],
        [-1, -1],
        [-1, 2.5],
    ]  # the row from an undeclared town is left out
    assert data.targets.tolist() == [1, 0, 0]
    assert data.public_size == 3


def test_whole_number_categories_match_whatever_type_the_column_was_read_as():
    for column in ([0, 1, 1], ["0", "1.0", "1"], [0.0, 1.0, 1.0], [0, 1, "1"]):
        frame = PEOPLE.assign(town=pd.Series(column))
        assert dataset_of(frame, categories=[0, 1]).targets.tolist() == [0, 1, 1]


@pytest.mark.parametrize("cell", ["", "unknown", "TRUE"])
@pytest.mark.parametrize("good", [["1.0", "2.5"], ["TRUE", "False"], ["7", "8"]])
def test_one_persons_cell_does_not_change_how_the_others_are_read(tmp_path, cell, good):
    rows = [f"{number},1.5,{value}" for number, value in enumerate(good)]
    (tmp_path / "without.csv").write_text("\n".join(["age,pay,town", *rows]))
    (tmp_path / "with.csv").write_text("\n".join(["age,pay,town", *rows, f"x,{cell},{cell}"]))
    without = dataset_of(read_table(tmp_path / "without.csv"), categories=good)
    with_one = dataset_of(read_table(tmp_path / "with.csv"), categories=good)
    assert len(without) == 2
    assert np.array_equal(with_one.inputs[:2], without.inputs)
    assert np.array_equal(with_one.targets[:2], without.targets)


def test_undeclared_columns_and_doubled_categories_are_refused():
    with pytest.raises(InvalidInput, match="the columns wage"):
        dataset_of(PEOPLE, inputs=["wage"])
    with pytest.raises(InvalidInput, match="differ from each other"):
        dataset_of(PEOPLE, categories=["Ghent", "Ghent"])


STRANGE = {
    "truths-as-numbers": ([True, False, True], [0, 1]),
    "truths-as-texts": ([True, False, True], ["yes", "no"]),
    "numbers-as-truths": ([0, 1, 1], [False, True]),
    "numbers-as-texts": ([0.0, 1.0, 1.0], ["no", "yes"]),
    "other-texts": (["n", "y", "y"], ["no", "yes"]),
    "mixed": (["True", "False", "secret"], [0, 1]),
}


@pytest.mark.parametrize(("cells", "categories"), STRANGE.values(), ids=list(STRANGE))
@pytest.mark.parametrize("column", ["target", "input"])
def test_categories_that_no_cell_is_are_refused_and_no_cell_is_named(cells, categories, column):
    """All rows were left out without a word, and the whole of the budget was spent on noise."""
    people = pd.DataFrame({"age": [1.0, 2.0, 3.0], "ill": cells, "well": ["a", "b", "a"]})
    terms = {"inputs": ["age"], "target": "ill", "categories": categories}
    if column == "input":
        terms = {
            "inputs": ["age", "ill"],
            "target": "well",
            "categories": ["a", "b"],
            "input_categories": {"ill": categories},
        }
    with pytest.raises(InvalidInput, match=r"categories that column ill .* can hold") as refused:
        table_dataset(people, public_size=3, **terms)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("cells", "categories"),
    [
        ([True, False, True], ["False", "True"]),
        (["1", "0", "x"], [0, 1]),
        ([1, 0, 7], [0, 1, "unknown"]),
        ([None, None, "n"], ["no", "yes"]),
    ],
    ids=["truths", "some", "wider", "mostly-empty"],
)
def test_categories_that_a_cell_may_be_are_taken(cells, categories):
    people = pd.DataFrame({"age": [1.0, 2.0, 3.0], "ill": pd.Series(cells)})
    table_dataset(people, inputs=["age"], target="ill", categories=categories, public_size=3)


@pytest.mark.keeps_out("A column of texts that silently becomes zeros")
def test_a_column_of_texts_is_refused_unless_its_categories_are_declared():
    with pytest.raises(InvalidInput, match=r"numbers in column town, got texts; .*input_categories"):
        dataset_of(PEOPLE.assign(ill=[0, 1, 0]), inputs=["age", "town"], target="ill", categories=[0, 1])
    data = dataset_of(
        PEOPLE.assign(ill=[0, 1, 0]),
        inputs=["town", "age"],
        target="ill",
        categories=[0, 1],
        input_categories={"town": ["Delft", "Ghent", "Mons"]},
    )
    assert data.inputs.tolist() == [[0, 1, 0, 30], [1, 0, 0, 41], [0, 1, 0, 52]]
