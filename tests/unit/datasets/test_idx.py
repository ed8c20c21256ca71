from __future__ import annotations

import struct

import numpy as np
import pytest

from sfumato.datasets import idx
from sfumato.errors import DataCorrupted


def encoded(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("shape", [(5,), (0, 3, 3), (2, 3, 4)])
def test_arrays_come_back(shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    assert np.array_equal(idx.decode(encoded(array), name="file"), array)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "begin with 00 00 08"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "got 00 00 0d"),
        (b"\x00\x00\x08\x03\x00\x00", "ends inside its header of 16 bytes"),
        (encoded(np.arange(9, dtype=np.uint8))[:-1], "declares 9 values but holds 8"),
        (encoded(np.arange(9, dtype=np.uint8)) + b"x", "declares 9 values but holds 10"),
    ],
)
def test_damage_is_named(contents, message):
    with pytest.raises(DataCorrupted, match=f"labels.*{message}"):
        idx.decode(contents, name="labels")
