"""Blocks of public shapes, so that a row's bits do not depend on who else is there.

Matrix kernels choose their order of additions by shape: a row's output can differ in its last bit between a
batch of 7 and one of 8, and behind a kink of ReLU the whole gradient with it. So rows are worked on in blocks
whose heights come from a short public list, the last one padded with public rows, and a height is used only if
public rows came out with the same bits at every place of such a block as in blocks of the reference height.
Where even the reference height fails, blocks hold one unit, which nobody else can be in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

REFERENCE_ROWS = 32
POOL = 8  # public units that are compared

# What each unit of a block came to: block(units of the pool, by place) → tensors with one entry a unit, or None
# where the model does something else in such a block than with few rows.
Bits: TypeAlias = Callable[[Sequence[int]], Sequence[Tensor] | None]


def reference_height(rows_per_unit: int) -> int:
    """Units of the block that all others are compared with."""
    return max(1, REFERENCE_ROWS // rows_per_unit)


class Heights:
    """The heights that give every unit the same bits; a pure function of the model, found on public rows.

    Each height is tried the first time it is wanted. What is found depends on no data, so it does not matter
    when that is.
    """

    def __init__(self) -> None:
        self._reference: dict[int, Sequence[Tensor] | None] = {}
        self._agrees: dict[tuple[int, int], bool] = {}

    def split(self, units: int, rows_per_unit: int, bits: Bits) -> list[int]:
        """Heights of blocks that hold `units` units with as many rows each; the last one may need padding."""
        reference = self.reference(rows_per_unit, bits)
        if reference == 1:
            return [1] * units
        found = []
        while units > 0:
            height = self._next(units, rows_per_unit, reference, bits)
            found.append(height)
            units -= height
        return found

    def reference(self, rows_per_unit: int, bits: Bits) -> int:
        """The reference height, or 1 where its own places do not agree."""
        height = reference_height(rows_per_unit)
        if rows_per_unit not in self._reference:
            self._reference[rows_per_unit] = _in_turn(height, bits) if height > 1 else None
        return height if self._reference[rows_per_unit] is not None else 1

    def _next(self, units: int, rows_per_unit: int, reference: int, bits: Bits) -> int:
        for step in _steps(units):
            height = -(-units // step) * step
            if height - units <= max(step, units // 8) and self._fits(height, rows_per_unit, bits):
                return height
        smaller = reference
        while 2 * smaller <= units and self._fits(2 * smaller, rows_per_unit, bits):
            smaller *= 2
        return smaller

    def _fits(self, height: int, rows_per_unit: int, bits: Bits) -> bool:
        key = height, rows_per_unit
        if key not in self._agrees:
            expected = self._reference[rows_per_unit]
            found = _at_every_place(height, bits)
            self._agrees[key] = expected is not None and found is not None and _equal(found, expected)
        return self._agrees[key]


def _steps(units: int) -> list[int]:
    """Heights are multiples of one of these: about a thirtieth of the block, or more."""
    fine = max(4, 1 << max(0, units.bit_length() - 6))
    return [fine, 2 * fine, 4 * fine]


def _in_turn(height: int, bits: Bits) -> Sequence[Tensor] | None:
    """The bits of all units of the pool, from blocks of one height; None if places do not agree."""
    if height >= POOL:
        return _at_every_place(height, bits)
    blocks = [[(start + place) % POOL for place in range(height)] for start in range(POOL)]
    found = [came for block in blocks if (came := bits(block)) is not None]
    if len(found) < len(blocks):
        return None
    columns = zip(*found, strict=True)
    first = [torch.stack([column[start][0] for start in range(POOL)]) for column in columns]
    agree = all(
        _equal([column[units] for column in first], result) for units, result in zip(blocks, found, strict=True)
    )
    return first if agree else None


def _at_every_place(height: int, bits: Bits) -> Sequence[Tensor] | None:
    """The same from blocks in which every place holds some unit of the pool, in two companies.

    In the second one the last places hold one unit many times over: who is there must not matter either.
    """
    if height < POOL:
        return None
    units = [(5 * place + 3) % POOL for place in range(height)]
    crowd = units[:POOL] + [0] * (height - POOL)
    first = None
    for block in (units, crowd):
        found = bits(block)
        if found is None:
            return None
        mine = [column[[block.index(unit) for unit in range(POOL)]] for column in found]
        if not _equal([column[block] for column in mine], found) or not _equal(first or mine, mine):
            return None
        first = mine
    return first


def _equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Bit for bit, but that every NaN is like another."""
    return len(some) == len(others) and all(
        a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in zip(some, others, strict=True)
    )
