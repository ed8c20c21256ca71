"""The IDX format: a magic number, the sizes as big-endian words, then one byte a value."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

from sfumato.errors import DataCorrupted

_UNSIGNED_BYTE = 0x08


def decode(contents: bytes, *, name: str) -> npt.NDArray[np.uint8]:
    """The array inside an IDX file of unsigned bytes, as a read-only view of `contents`.

    >>> decode(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), name="labels").tolist()
    [7, 8, 9]
    """
    if len(contents) < 4 or contents[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
        raise DataCorrupted(
            f"{name} is not an IDX file of unsigned bytes: expected it to begin with 00 00 08, "
            f"got {contents[:3].hex(' ')}; put a good copy in its place"
        )
    dimensions = contents[3]
    header = 4 + 4 * dimensions
    if len(contents) < header:
        raise DataCorrupted(f"{name} ends inside its header of {header} bytes; put a whole copy in its place")
    sizes = struct.unpack(f">{dimensions}I", contents[4:header])
    if len(contents) - header != math.prod(sizes):
        raise DataCorrupted(
            f"{name} declares {math.prod(sizes)} values but holds {len(contents) - header}; "
            "put a whole copy in its place"
        )
    return np.frombuffer(contents, dtype=np.uint8, offset=header).reshape(sizes)
