"""Results: what goes into a file comes out of it, what is wrong is refused."""

import math

import numpy as np
import pytest
from msgspec import structs

from sfumato import runs as results
from sfumato.errors import InvalidInput
from sfumato.storage import RunFolder

TRAINING = results.Training(epsilon=1.0, delta=1e-5, test_accuracy=0.9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "sorcery"}, "known kind, got kind='sorcery'"),
        ({"format": 3}, "format 2, got format=3; update sfumato"),
        ({"more": 1}, "to hold only epsilon, .*, got 'more'"),
        ({"epsilon": None}, "Training.epsilon to be a number"),
        ({"epsilon": True}, "Training.epsilon to be a number at least 0, got True"),
        ({"epsilon": -1}, "Training.epsilon to be a number at least 0"),
        ({"test_accuracy": 97.5}, "Training.test_accuracy to be a number from 0 to 1, got 97.5"),
        ({"data": 7}, "Training.data to be text"),
    ],
)
def test_what_is_no_result_is_refused(change, message):
    with pytest.raises(InvalidInput, match=message):
        results.from_json({**TRAINING.to_json(), **change})


def test_a_missing_field_is_named():
    data = TRAINING.to_json()
    del data["delta"]
    with pytest.raises(InvalidInput, match=r"Training\.delta, got none"):
        results.from_json(data)


def test_a_number_that_is_not_finite_is_none_where_it_may_be_and_refused_elsewhere():
    assert structs.replace(TRAINING, test_loss=math.nan).test_loss is None
    assert structs.replace(TRAINING, test_accuracy=math.inf).test_accuracy is None
    with pytest.raises(InvalidInput, match="got a number that is not finite"):
        structs.replace(TRAINING, epsilon=math.inf)


def test_numbers_of_numpy_are_numbers():
    made = results.Reports(epsilon=np.float32(0.5), delta=0, people=np.int64(3), test_accuracy=np.float64(0.25))
    assert (made.epsilon, made.people) == (0.5, 3)
    assert type(made.people) is int


def test_a_run_is_written_whole_with_its_certificate_last(tmp_path):
    class Stopped(Exception):
        pass

    class Certificate:
        def write(self, path):
            assert results.read_run(tmp_path).result == TRAINING  # all else is there
            raise Stopped

    with pytest.raises(Stopped):
        results.write_run(RunFolder.make(tmp_path), TRAINING, certificate=Certificate(), model=b"weights")
    assert not RunFolder(tmp_path).finished


def test_a_folder_without_a_result_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="to be a run folder"):
        results.read_run(tmp_path)


def test_a_run_inside_another_is_a_part_of_it(tmp_path):
    for place in ("study", "study/first", "other"):
        results.write_run(RunFolder.make(tmp_path / place), TRAINING, certificate=None)
    parts = {run.folder.name: run.part_of for run in results.find_runs([tmp_path])}
    assert parts == {"study": None, "first": (tmp_path / "study").resolve(), "other": None}
    (alone,) = results.find_runs([tmp_path / "study" / "first"])
    assert alone.part_of is None
