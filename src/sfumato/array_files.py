"""Files of arrays that anybody may have written: read without running code, in memory that their length bounds.

No number in such a file decides how much is allocated before it was held against the bytes that are there. All
that can be wrong with one is `DataCorrupted`, in one sentence.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from sfumato.errors import DataCorrupted, DataError

LARGEST_TEXT = 4 * 2**20
"""Bytes of a description in JSON; read, it takes some twenty times as much."""

_LARGEST_HEADER = 16 * 2**20  # bytes of a safetensors file's header
_LARGEST_ARCHIVE = 512 * 2**20  # bytes of all arrays of an archive, unpacked
_MOST_MEMBERS = 1000
_EMPTY_WIDTH = 4096  # elements of a row of an array that has no rows
_VERSIONS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@contextmanager
def damaged_unless_read(sentence: str) -> Iterator[None]:
    """Whatever goes wrong in the block, the file is at fault, and `sentence` says so."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataCorrupted(sentence) from error


def read_tensors(path: Path, framework: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and tensors of a safetensors file, as arrays ("numpy") or tensors ("pt"); ValueError if unsound.

    Tensors lie one after the other in the file, so that they are no larger than it. An axis beside an empty one
    would be free: it is kept short.
    """
    _check_header(path)
    with safe_open(path, framework=framework) as file:
        for name in file.keys():  # noqa: SIM118
            _check_shape(file.get_slice(name).get_shape())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return dict(file.metadata() or {}), tensors


def read_metadata(path: Path) -> dict[str, str]:
    """What a safetensors file says of itself."""
    _check_header(path)
    with safe_open(path, framework="numpy") as file:
        return dict(file.metadata() or {})


def parsed(text: str | bytes) -> Any:
    """The JSON value of a description: short, every number finite, every text one that can be written."""
    if len(text) > LARGEST_TEXT:
        raise ValueError("expected a shorter description")
    value = json.loads(text, parse_constant=_not_a_number)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


def read_archive(
    path: Path, *, largest: int = _LARGEST_ARCHIVE, empty_width: int = _EMPTY_WIDTH
) -> dict[str, npt.NDArray[Any]]:
    """The plain arrays of an .npz file; what they take unpacked is known before one is.

    `largest`: bytes of them all; `empty_width`: elements of a row of an array that has no rows.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS or sum(one.file_size for one in members) > largest:
            raise ValueError("expected a smaller archive")
        return {one.filename.removesuffix(".npy"): _array(archive.read(one), empty_width) for one in members}


def _array(content: bytes, empty_width: int) -> npt.NDArray[Any]:
    """A .npy file whose header asks for as many bytes as follow it."""
    file = io.BytesIO(content)
    shape, _, kind = _VERSIONS[np.lib.format.read_magic(file)](file)
    if kind.hasobject or math.prod(shape) * kind.itemsize != len(content) - file.tell():
        raise ValueError("expected an array as long as its header says")
    _check_shape(shape, empty_width)
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _check_header(path: Path) -> None:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > _LARGEST_HEADER:
        raise ValueError("expected a shorter header")


def _check_shape(shape: tuple[int, ...] | list[int], empty_width: int = _EMPTY_WIDTH) -> None:
    if 0 in shape and math.prod(axis for axis in shape if axis) > empty_width:
        raise ValueError("expected a short axis beside an empty one")


def _not_a_number(name: str) -> Any:
    raise ValueError(f"expected a number, got {name}")
