from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput


def make(rows: int = 6, **changes: object) -> Dataset:
    inputs = np.arange(rows * 4, dtype=np.float32).reshape(rows, 1, 2, 2)
    fields = {
        "inputs": inputs,
        "targets": np.arange(rows),
        "name": "toy",
        "visibility": "private",
        "public_size": 6,
    }
    return Dataset(**(fields | changes))


def test_it_is_frozen_and_measured_by_rows():
    data = make()
    assert len(data) == 6
    assert data.shape == (1, 2, 2)
    assert data.unit == "record"
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"


def test_printing_shows_declared_facts_and_no_rows():
    assert "public_size=6" in repr(make(rows=5))
    assert "5" not in repr(make(rows=5)).replace("public_size=6", "")


def test_an_excerpt_gives_rows_by_place_without_copying_and_declares_their_number():
    data = make()
    some = data.excerpt(2, start=1)
    assert some.targets.tolist() == [1, 2]
    assert some.public_size == 2
    assert np.shares_memory(some.inputs, data.inputs)


def test_an_excerpt_is_judged_by_the_declared_size_alone():
    assert len(make(rows=5).excerpt(6)) == 5  # one row fewer than declared is nobody's business
    with pytest.raises(InvalidInput, match="start \\+ count <= 6"):
        make(rows=9).excerpt(7)
    with pytest.raises(InvalidInput, match="count"):
        make().excerpt(0)


def test_select_takes_positions_and_masks():
    data = make()
    assert data.select(np.array([4, 0])).targets.tolist() == [4, 0]
    chosen = data.select(data.targets % 2 == 1, public_size=3)
    assert chosen.targets.tolist() == [1, 3, 5]
    assert (chosen.public_size, data.select(np.array([0])).public_size) == (3, None)


def test_tensors_share_memory():
    data = make()
    inputs, targets = data.tensors()
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
    data.inputs[0, 0, 0, 0] = 42
    assert inputs[0, 0, 0, 0] == 42


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"visibility": "secret"}, "visibility to be one of public, private"),
        ({"inputs": np.zeros((6, 2))}, "inputs to be a NumPy array of float32, got an array of float64"),
        ({"targets": [0] * 6}, "targets to be a NumPy array of int64, got list"),
        ({"targets": np.arange(5)}, "one target for each input"),
        ({"classes": 0}, "classes"),
        ({"public_size": 1.5}, "public_size"),
    ],
)
def test_nonsense_is_refused(changes, message):
    with pytest.raises(InvalidInput, match=message):
        make(**changes)
