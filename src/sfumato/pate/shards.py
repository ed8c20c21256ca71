"""Who teaches whom: each record's teacher follows from its own unit id and a secret key, and nothing else."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.randomness import Sampler

Integers = npt.NDArray[np.int64]
NO_ROW = -1
_KEY_BYTES = 32
_DEVIATIONS = 6.0  # of a shard's size above its mean, for which there is room


def draw_key(sampler: Sampler) -> bytes:
    """A key for `assign`, from the secret stream.

    Args:
        sampler: The secret stream.

    Returns:
        32 bytes.

    >>> from sfumato.randomness import SecretStream
    >>> len(draw_key(SecretStream()))
    32
    """
    return sampler.integers(256, _KEY_BYTES).astype(np.uint8).tobytes()


def assign(unit_ids: npt.ArrayLike, *, teachers: int, key: bytes) -> Integers:
    """The teacher of each record: BLAKE2b(key, id) modulo `teachers`.

    *Guarantees*: a record's teacher depends on its own id and the key alone. No other record that comes, goes
    or changes places moves it; records of one unit have one teacher. So shards are disjoint, and one unit's
    records reach one teacher only. Public: the number of teachers. Secret: the key (who knows it knows which
    teacher saw whom, which breaks no guarantee).

    Args:
        unit_ids: The id of each record's unit.
        teachers: How many teachers there are.
        key: 32 secret bytes, from `draw_key`.

    Returns:
        The number of each record's teacher.

    >>> key = bytes(32)
    >>> bool(assign(["ann", "bob"], teachers=5, key=key)[1] == assign(["bob"], teachers=5, key=key)[0])
    True
    """
    teachers = _validate.integer("teachers", teachers, least=1)
    if len(key) != _KEY_BYTES:
        raise InvalidInput(f"expected a key of {_KEY_BYTES} bytes, got {len(key)}; draw one with draw_key")
    ids = np.asarray(unit_ids)
    if ids.ndim != 1:
        raise InvalidInput(f"expected one unit id a record, got an array of shape {ids.shape}")
    digests = (hashlib.blake2b(str(unit).encode(), key=key, digest_size=8).digest() for unit in ids.tolist())
    return np.array([int.from_bytes(digest, "big") % teachers for digest in digests], dtype=np.int64)


def capacity_for(public_size: int, teachers: int) -> int:
    """Tell how many rows fit a shard: six standard deviations above the average of the declared size.

    Args:
        public_size: The declared number of rows.
        teachers: How many teachers there are.

    Returns:
        The number of rows.

    >>> capacity_for(60000, 100) >= 600
    True
    """
    mean = _validate.integer("public_size", public_size, least=1) / _validate.integer(
        "teachers", teachers, least=1
    )
    return min(public_size, math.ceil(mean + _DEVIATIONS * math.sqrt(mean)) + 1)


def shard_table(teacher_of: Integers, *, teachers: int, capacity: int) -> Integers:
    """Rows of each teacher, (teachers, capacity), −1 where there is none; what does not fit is left out.

    Capacity is public: were it the largest shard, one record could change the shapes, and so the rounding, of
    every teacher's sums.

    Args:
        teacher_of: The number of each record's teacher.
        teachers: How many teachers there are.
        capacity: Rows that fit a shard, from `capacity_for`.

    Returns:
        (teachers, capacity).

    >>> shard_table(np.array([1, 0, 1]), teachers=2, capacity=2).tolist()
    [[1, -1], [0, 2]]
    """
    order = np.argsort(teacher_of, kind="stable")
    owner = teacher_of[order]
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    fits = place < capacity
    table = np.full((teachers, capacity), NO_ROW, dtype=np.int64)
    table[owner[fits], place[fits]] = order[fits]
    return table
