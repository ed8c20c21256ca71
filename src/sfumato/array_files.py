"""Files of arrays that may come from strangers: read without running code, in memory that their length bounds.

No number in such a file decides how much is allocated before it was held against the bytes that are there. Each
fault of one is `DataCorrupted`, in one sentence.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import DataCorrupted, DataError, MissingExtra

LARGEST_TEXT = 4 * 2**20
"""Bytes of a description in JSON; read, it takes some twenty times as much."""

_LARGEST_HEADER = 16 * 2**20  # bytes of a safetensors file's header
_LARGEST_ARCHIVE = 512 * 2**20  # bytes of all arrays of an archive, unpacked
_MOST_MEMBERS = 1000
_EMPTY_WIDTH = 4096  # elements of a row of an array that has no rows
_VERSIONS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@contextmanager
def damaged_unless_read(sentence: str) -> Iterator[None]:
    """Turn every error of the block into DataCorrupted with this sentence: the file is at fault."""
    try:
        yield
    except (DataError, MissingExtra):
        raise
    except Exception as error:
        raise DataCorrupted(sentence) from error


def read_tensors(path: Path, framework: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return metadata and tensors of a safetensors file, as arrays ("numpy") or tensors ("pt").

    ValueError if it is unsound. Tensors lie one after the other in the file, so that they are no larger than
    it. An axis beside an empty one would be free: it is kept short.
    """
    with _opened(path, framework) as file:
        for name in file.keys():  # noqa: SIM118
            _check_shape(file.get_slice(name).get_shape())
        return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file."""
    with _opened(path, "numpy") as file:
        return dict(file.metadata() or {})


def _opened(path: Path, framework: str) -> Any:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise MissingExtra(package="safetensors", extra="train") from error
    with path.open("rb") as file:
        if int.from_bytes(file.read(8), "little") > _LARGEST_HEADER:
            raise ValueError("expected a shorter header")
    return safe_open(path, framework=framework)


def parsed(text: str | bytes) -> Any:
    """Return the JSON value of a description: short, with finite numbers and writable texts."""
    if len(text) > LARGEST_TEXT:
        raise ValueError("expected a shorter description")
    value = json.loads(text)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # raises for NaN and halves of characters
    return value


def read_archive(
    path: Path, *, largest: int = _LARGEST_ARCHIVE, empty_width: int = _EMPTY_WIDTH
) -> dict[str, npt.NDArray[Any]]:
    """Return the plain arrays of an .npz file; their unpacked size is known before one is unpacked.

    `largest`: bytes of them all; `empty_width`: elements of a row of an array that has no rows.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS or sum(one.file_size for one in members) > largest:
            raise ValueError("expected a smaller archive")
        return {one.filename.removesuffix(".npy"): _array(archive.read(one), empty_width) for one in members}


def _array(content: bytes, empty_width: int) -> npt.NDArray[Any]:
    """Read a .npy file whose header asks for as many bytes as follow it."""
    file = io.BytesIO(content)
    shape, _, kind = _VERSIONS[np.lib.format.read_magic(file)](file)
    if kind.hasobject or math.prod(shape) * kind.itemsize != len(content) - file.tell():
        raise ValueError("expected an array as long as its header says")
    _check_shape(shape, empty_width)
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _check_shape(shape: Sequence[int], empty_width: int = _EMPTY_WIDTH) -> None:
    if 0 in shape and math.prod(axis for axis in shape if axis) > empty_width:
        raise ValueError("expected a short axis beside an empty one")
