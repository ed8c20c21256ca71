"""Blocks of public shapes, so that a row's bits do not depend on who else is there.

Matrix kernels choose their order of additions by shape: a row's output can differ in its last bit between a
batch of 7 and one of 8, and behind a kink of ReLU the whole gradient with it. So rows are worked on in blocks
whose heights come from a short public list, the last one padded with public rows, and a height is used only if
public rows came out with the same bits at every place of such a block as in blocks of the reference height.
Where even the reference height fails, each unit has a block of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sfumato.training.devices import settings

REFERENCE_ROWS = 32
"""Torch's elementwise loops take so many numbers at once; the rest is computed by other code."""
POOL = 8  # public units that are compared
_MOST_BYTES = 640 << 20  # that the rows of one block should keep

_MANY = 16  # from so many times the reference on, half a reference saves less than trying it costs
_FEW = 3 * POOL  # up to so many units, each of the pool is tried at every place

# The results of each unit of a block: block(units of the pool, by place) → tensors with one entry a unit, one
# at a time, as all together are large; or None where the model does something else than with few rows.
Bits: TypeAlias = Callable[[Sequence[int]], Iterable[Tensor] | None]
Known: TypeAlias = list[dict[int, int]]  # of each tensor a digest of every unit's entry


def reference_height(rows_per_unit: int, most_rows: int = 1 << 30) -> int:
    """Units of the block that all others are compared with: the fewest that have a multiple of 32 rows.

    Where that is more than fits, as many as fit.

    >>> reference_height(1), reference_height(6), reference_height(1, most_rows=8)
    (32, 16, 8)
    """
    whole = REFERENCE_ROWS // math.gcd(REFERENCE_ROWS, rows_per_unit)
    return whole if whole * rows_per_unit <= most_rows else max(1, most_rows // rows_per_unit)


def most_rows(floats_per_row: int) -> int:
    """Rows of the largest block, of a model whose pass keeps so many numbers of each: a few, if they are many.

    >>> most_rows(7_000_000), most_rows(40_000)
    (16, 4192)
    """
    return max(POOL, _MOST_BYTES // (4 * floats_per_row) // POOL * POOL)


class Heights:
    """The heights that give every unit the same bits; a pure function of the model, found on public rows.

    Which height a block gets depends on the number of units in it and on public facts alone. A height is used
    if whole vectors hold all that is not computed exactly (`Compiled.whole`): the code for the rest of a loop,
    or of a thread's share of it, rounds otherwise. Where so many rows do not fit, a trial has every unit at
    every place. A height is tried the first time it is wanted, and anew with another number of threads or other
    settings of torch. `stamp` names the weights of the moment: the bits to compare with are those of these
    weights. No block has more than `most_rows` rows, but one unit may.
    """

    def __init__(self, most_rows: int = 1 << 30) -> None:
        self._most_rows = most_rows
        self._settings = settings()
        self._reference_agrees: dict[int, bool] = {}
        self._agrees: dict[tuple[int, int], bool] = {}
        self._expected: tuple[Any, Known] | None = None  # of which rows and weights, and the bits

    def split(self, units: int, rows_per_unit: int, bits: Bits, *, stamp: Any = 0) -> list[int]:
        """Heights of blocks that hold `units` units with as many rows each; the last one may need padding."""
        found = self._split(units, rows_per_unit, bits, stamp)
        self._expected = None  # of no use to other weights
        return found

    def find(self, sizes: Iterable[int], bits: Bits, *, stamp: Any = 0) -> None:
        """Try the heights for numbers of units with one row, and compare all with the same bits."""
        for units in sizes:
            self._split(units, 1, bits, stamp)
        self._expected = None

    def _split(self, units: int, rows_per_unit: int, bits: Bits, stamp: Any) -> list[int]:
        if self._settings != settings():  # by which the work is cut up, or kernels are chosen
            self._settings, self._expected = settings(), None
            self._reference_agrees.clear()
            self._agrees.clear()
        reference = self.reference(rows_per_unit, bits, stamp=stamp)
        if reference == 1:
            return [1] * units
        found = []
        while units > 0:
            room = min(units, max(1, self._most_rows // rows_per_unit))
            height = self._next(room, rows_per_unit, reference, bits, stamp)
            found.append(height)
            units -= height
        return found

    def reference(self, rows_per_unit: int, bits: Bits, *, stamp: Any = 0) -> int:
        """The reference height, or 1 where its own places do not agree."""
        height = self.reference_height(rows_per_unit)
        if rows_per_unit not in self._reference_agrees:
            agrees = self._refer(rows_per_unit, bits, stamp) is not None
            self._reference_agrees[rows_per_unit] = self._agrees[height, rows_per_unit] = agrees
        return height if self._reference_agrees[rows_per_unit] else 1

    def reference_height(self, rows_per_unit: int) -> int:
        """Units of the block that all others are compared with, if its own places agree."""
        return reference_height(rows_per_unit, self._most_rows)

    def few_rows(self, rows_per_unit: int) -> bool:
        """Whether blocks have few rows, so that a trial has every unit at every place."""
        return self.reference_height(rows_per_unit) * rows_per_unit % REFERENCE_ROWS != 0

    def _refer(self, rows_per_unit: int, bits: Bits, stamp: Any) -> Known | None:
        """The bits to compare with, of the weights of the moment."""
        key = rows_per_unit, stamp
        if self._expected is not None and self._expected[0] == key:
            return self._expected[1]
        self._expected = None
        height = self.reference_height(rows_per_unit)
        found = _in_turn(height, bits) if height > 1 else None
        if found is not None:
            self._expected = key, found
        return found

    def _next(self, units: int, rows_per_unit: int, reference: int, bits: Bits, stamp: Any) -> int:
        for height in self._wanted(units, rows_per_unit, reference):
            if self._fits(height, rows_per_unit, bits, stamp):
                return height
        smaller = reference
        while 2 * smaller <= units and self._fits(2 * smaller, rows_per_unit, bits, stamp):
            smaller *= 2
        return smaller

    def _wanted(self, units: int, rows_per_unit: int, reference: int) -> list[int]:
        """Heights that hold so many units with little padding, the lowest first."""
        if self.few_rows(rows_per_unit):  # dear ones, of which not even one is padded lightly
            steps = [4, 8, 16]
        else:
            step = max(reference, 1 << max(0, units.bit_length() - 6))
            steps = [-(-step // reference) * reference * times for times in (1, 2)]
            if units < _MANY * reference and reference % 2 == 0:
                steps.insert(0, reference // 2)
            if units <= reference and reference % 4 == 0:
                steps.insert(0, reference // 4)
        found = dict.fromkeys(-(-units // step) * step for step in steps)
        return [height for height in found if height * rows_per_unit <= self._most_rows]

    def _fits(self, height: int, rows_per_unit: int, bits: Bits, stamp: Any) -> bool:
        key = height, rows_per_unit
        if key not in self._agrees:
            expected = self._refer(rows_per_unit, bits, stamp)
            self._agrees[key] = expected is not None and _agrees(height, bits, expected)
        return self._agrees[key]


def _in_turn(height: int, bits: Bits) -> Known | None:
    """Return the results of all units of the pool in blocks of one height; None if places or company matter."""
    known: Known = []
    return known if _agrees(height, bits, known, [*_first_blocks(height), *_blocks(height)]) else None


def _agrees(height: int, bits: Bits, known: Known, blocks: Sequence[Sequence[int]] = ()) -> bool:
    """Whether every place of a block gives its unit the bits that are known, in other companies than there."""
    return all(_own(block, bits(block), known) for block in blocks or _blocks(height)) and bool(known)


def _first_blocks(height: int) -> list[list[int]]:
    """Two companies in which every place holds some unit of the pool.

    In the second one the last places hold one unit many times over: who is there must not matter.
    """
    if height <= _FEW:
        return []
    units = [(5 * place + 3) % POOL for place in range(height)]
    return [units, units[:POOL] + [0] * (height - POOL)]


def _blocks(height: int) -> list[list[int]]:
    """Blocks in which every place has its turn: of few units, each of the pool is at every place.

    In two more of these all places but the first hold one unit, and in one of many units the last quarter does.
    """
    if height > _FEW:
        crowd = height // 4
        return [[(3 * place + place // POOL) % POOL for place in range(height - crowd)] + [0] * crowd]
    turns = [[(start + place) % POOL for place in range(height)] for start in range(POOL)]
    return [*turns, *([start] + [0] * (height - 1) for start in (1, 5))]


def _own(block: Sequence[int], found: Iterable[Tensor] | None, known: Known) -> bool:
    """Whether each unit of a block has the entries that are known of it; notes those of units that are new."""
    if found is None:
        return False
    is_first, count = not known, 0
    for count, column in enumerate(found, 1):
        if is_first:
            known.append({})
        if count > len(known):
            return False
        mine = known[count - 1]
        pairs = zip(digests(column), block, strict=False)  # a column may have entries of the first units only
        if any(mine.setdefault(unit, digest) != digest for digest, unit in pairs):
            return False
    return count == len(known)


def digests(column: Tensor) -> list[int]:
    """For each entry of a column one number of 64 bits, which tells its bits from others.

    A keyed hash: the column is as large as all that a pass keeps, and is not held on to. One NaN is
    like another, and one zero.
    """
    plain = column.detach() + 0  # which leaves no -0.0
    if not bool(plain.sum().isfinite()):
        plain = plain.masked_fill_(plain != plain, math.nan)
    entries = plain.flatten(1) if plain.dim() > 1 else plain.unsqueeze(1)
    rows = entries.contiguous().cpu().view(torch.uint8).numpy()
    return [hash((*column.shape[1:], row.tobytes())) for row in rows]
