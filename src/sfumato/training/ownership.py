"""Whose rows are whose: the privacy unit of each row, and the one rank that works on a unit.

Ranks compare digests of ids and rows, made with a key that rank 0 draws and that stays inside the group. The
digests are sent to the other ranks of the run and to nobody else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput
from sfumato.training.distributed import Bytes, Peers
from sfumato.training.plan import TrainingPlan
from sfumato.training.sampling import Sample
from sfumato.training.sources import columns_of

RECORD = "record"  # the unit of which every row is one
DIGEST = 16  # bytes


def check_units(plan: TrainingPlan, units: npt.ArrayLike | None) -> None:
    """Refuse a plan about people where nobody said which rows are whose."""
    if units is not None or (plan.rows_per_unit is None and plan.unit == RECORD):
        return
    raise InvalidInput(
        f"expected units=..., which names the {plan.unit} of each row, with unit={plan.unit!r} and "
        f"rows_per_unit={plan.rows_per_unit}, got none; without it each row is a unit of its own: say "
        f"unit={RECORD!r} and no rows_per_unit, or units=range(number of rows) with rows_per_unit=1"
    )


@dataclass(frozen=True)
class Ownership:
    """Which units of its data a rank samples: those that are True, or all of them (None)."""

    mine: npt.NDArray[np.bool_] | None

    def of(self, sample: Sample) -> Sample:
        if self.mine is None:
            return sample
        own = self.mine[sample.units]
        return Sample(sample.units[own], sample.places[own])


def share_out(peers: Peers, data: Any, units: npt.ArrayLike | None, *, key: bytes) -> Ownership:
    """Make sure, inside the group, that a unit is worked on by one rank only.

    *Guarantees*: where all ranks hold the same data, the owner of a unit follows from a keyed hash of its id,
    or of its row where rows have no ids, and from nothing else: no other unit that comes, goes or changes
    places moves it. Equal rows are told apart by counting them. Sharded ranks share no id, or no row.
    """
    if not peers.several:
        return Ownership(None)
    with peers.together("to tell its units apart"):
        named = None if units is None else names_of(units)
        found = _row_digests(data, key) if named is None else name_digests(named, key)
    if peers.sharded:
        with peers.together("to find units of its own"):
            _require_disjoint(peers.gather(np.unique(found, axis=0)))
        return Ownership(None)
    whole = _digest(found.tobytes(), key)
    peers.require_same(
        {"data": np.frombuffer(whole, np.uint8)},
        remedy="give every rank all of it, or say Peers.of_world(sharded=True) if each holds its own people",
    )
    return Ownership(_owners(found, peers.count) == peers.rank)


def _require_disjoint(of_ranks: list[Bytes]) -> None:
    """Each rank's own digests are told apart already, so that what is there twice is on two ranks."""
    together = np.concatenate(of_ranks)
    if len(np.unique(together, axis=0)) < len(together):
        raise InvalidInput(
            "expected ranks that share no unit with sharded=True, got the same id or row on two of them; give "
            "each rank its own people, or leave sharded out and give all ranks the same data; people whose "
            "rows are equal by chance are told apart with units=..."
        )


def _owners(digests: Bytes, ranks: int) -> npt.NDArray[np.int64]:
    """The rank of each unit; the k-th of equal rows goes k ranks further."""
    _, codes, counts = np.unique(digests, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    place = np.empty(len(digests), dtype=np.uint64)
    place[order] = np.arange(len(digests)) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = np.ascontiguousarray(digests[:, :8]).view(np.uint64)[:, 0] // np.uint64(2)
    return ((numbers + place) % np.uint64(ranks)).astype(np.int64)


def names_of(units: npt.ArrayLike) -> npt.NDArray[Any]:
    """One id for each unit, in the order in which training data number them."""
    return np.unique(np.asarray(units))


def name_digests(names: npt.NDArray[Any], key: bytes) -> Bytes:
    return _stacked([_digest(f"{names.dtype.kind} {name}".encode(), key) for name in names.tolist()])


def _row_digests(data: Any, key: bytes) -> Bytes:
    columns = columns_of(data)
    if columns is None:
        raise InvalidInput(
            "expected units=... on several ranks with a map-style data set, whose rows cannot be compared; "
            "units=range(len(data)) with rows_per_unit=1 if each row is one unit"
        )
    parts = zip(*(_rows_as_bytes(leaf) for leaf in pytree.tree_leaves(columns)), strict=True)
    return _stacked([_digest(b"".join(row), key) for row in parts])


def _rows_as_bytes(leaf: Tensor) -> list[bytes]:
    flat = leaf.detach().contiguous().view(-1).view(torch.uint8).numpy()
    width = len(flat) // max(1, len(leaf))
    return [flat[row * width : (row + 1) * width].tobytes() for row in range(len(leaf))]


def _stacked(digests: list[bytes]) -> Bytes:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), DIGEST)


def _digest(content: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(content, key=key, digest_size=DIGEST).digest()
