"""A Parquet file as a data set: the same rows as `table_dataset`, without holding them in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from sfumato.datasets import parquet as module
from sfumato.datasets import parquet_dataset, table_dataset
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput

FRAME = pd.DataFrame(
    {
        "age": [1.5, None, float("inf"), 4.0, 5.0],
        "town": ["Delft", "Ghent", None, "Paris", "Delft"],
        "ill": [0, 1, 1, 7, 0],
    }
)
TERMS = {
    "inputs": ["age", "town"],
    "target": "ill",
    "categories": (0, 1),
    "input_categories": {"town": ("Delft", "Ghent")},
    "public_size": 5,
    "missing": -1.0,
}


@pytest.fixture
def place(tmp_path):
    parquet.write_table(pa.Table.from_pandas(FRAME), tmp_path / "p.parquet", row_group_size=2)
    return tmp_path / "p.parquet"


def test_rows_are_those_of_the_table(place, monkeypatch):
    monkeypatch.setattr(module, "_NUMBERS", 6)  # two rows at a time
    whole, mapped = table_dataset(FRAME, **TERMS), parquet_dataset(place, **TERMS)
    assert mapped.inputs.tolist() == whole.inputs.tolist()
    assert mapped.targets.tolist() == whole.targets.tolist() == [0, 1, 1, 0]
    assert repr(mapped) == repr(whole)


def test_nothing_is_left_beside_the_file(place):
    rows = parquet_dataset(place, **TERMS)
    assert [path.name for path in place.parent.iterdir()] == ["p.parquet"]
    assert rows.inputs.shape == (4, 3), "the rows are there though their file has no name"


def test_a_file_without_rows_is_a_data_set_without_rows(tmp_path):
    parquet.write_table(pa.Table.from_pandas(FRAME.iloc[:0].astype({"town": str})), tmp_path / "p.parquet")
    assert parquet_dataset(tmp_path / "p.parquet", **TERMS).inputs.shape == (0, 3)


def test_a_column_that_is_no_number_is_refused_by_its_type(place):
    """Whatever its cells hold: an error that hangs on one row would tell of it."""
    with pytest.raises(InvalidInput, match="input_categories"):
        parquet_dataset(place, **{**TERMS, "input_categories": {}})
    with pytest.raises(InvalidInput, match="columns size"):
        parquet_dataset(place, **{**TERMS, "inputs": ["size"]})


@pytest.mark.parametrize(
    "terms", [{"categories": ("no", "yes")}, {"input_categories": {"town": (1, 2)}}], ids=str
)
def test_categories_are_judged_by_the_columns_type_and_not_by_its_cells(place, terms):
    if "categories" in terms:
        with pytest.raises(InvalidInput, match=r"column ill .of type int64. can hold"):
            parquet_dataset(place, **{**TERMS, **terms})
    else:
        assert len(parquet_dataset(place, **{**TERMS, **terms}).targets) == 4


def test_a_damaged_file_is_named(place, tmp_path):
    content = place.read_bytes()
    for cut in (content[:-20], content[:4] + bytes(40) + content[44:], b""):
        place.write_bytes(cut)
        with pytest.raises(DataCorrupted, match=r"p\.parquet"):
            parquet_dataset(place, **TERMS)
    with pytest.raises(DataUnavailable):
        parquet_dataset(tmp_path / "none.parquet", **TERMS)


SCRIPT = textwrap.dedent(
    """
    import resource, sys
    import pandas
    import pyarrow.parquet
    import torch
    from sfumato import PrivateTrainer, TrainingPlan
    from sfumato.datasets import parquet_dataset, read_table

    path, small, room = sys.argv[1], sys.argv[2], int(sys.argv[3])
    inputs = [f"x{place}" for place in range(250)]
    terms = {"inputs": inputs, "target": "y", "categories": (0, 1)}

    def steps(rows):
        plan = TrainingPlan(sample_rate=0.0015, expected_batch=210, steps=2, noise_multiplier=1.0)
        model = torch.nn.Linear(250, 2)
        trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
        for batch in trainer.batches(rows):
            trainer.step(batch, lambda outputs, targets: outputs.sum(1))
        return trainer.steps_done

    steps(parquet_dataset(small, public_size=2_000, **terms))  # libraries and threads that come when first used
    with open("/proc/self/status") as file:
        now = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + room, now + room))
    rows = parquet_dataset(path, public_size=140_000, **terms)
    print(len(rows), rows.inputs.nbytes > room, steps(rows))
    try:
        read_table(path)
        print("the cap is too wide")
    except MemoryError:
        pass
    """
)


def test_a_file_larger_than_memory_is_trained_on(tmp_path):
    rows, room = 140_000, 112 * 2**20
    values = (np.arange(rows * 250, dtype=np.float32) % 251).reshape(rows, 250)
    table = pa.table({**{f"x{n}": values[:, n] for n in range(250)}, "y": np.arange(rows) % 2})
    options = {"compression": "NONE", "use_dictionary": False, "row_group_size": 2_000}
    parquet.write_table(table, tmp_path / "p.parquet", **options)
    parquet.write_table(table.slice(0, 4_000), tmp_path / "small.parquet", **options)
    assert (tmp_path / "p.parquet").stat().st_size > room
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "p.parquet"), str(tmp_path / "small.parquet"), str(room)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"},
    )
    assert done.stdout.split() == ["140000", "True", "2"], done.stdout + done.stderr
