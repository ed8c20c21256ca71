"""Gradients of a chunk's examples for one parameter, in the form that is cheapest to clip.

Rules hand over a `Contribution` with one entry for each row: `Factors` (the gradient is Σₚ gₚ aₚᵀ), `Rows`
(the gradient itself) or `Lookups` (gradients of looked-up table rows). `term` merges the rows of each
privacy unit and decides how the norm will be had:

- `Gram`: ‖Σₚ gₚ aₚᵀ‖² = Σₚ_q (aₚ·a_q)(gₚ·g_q), for large layers with few positions;
- `Materialised`: the gradient of every unit, for small layers with many positions;
- `Sparse`: the touched rows of a table.

A term gives each unit's squared norm, with a bound of its rounding error (the slack) where that is not small
for sure, and the sum weighted by the coefficients (in `out`, which holds zeros, where that saves writing
zeros); `clip.rounding` bounds the rounding errors of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

Shape: TypeAlias = tuple[int, ...]

# Reading and writing an element of a materialised gradient costs about as much as this many
# multiply-adds of the small matrix products of a Gram norm (measured on AVX-512 cores).
_ELEMENT_COST = 12
# Where rounding may move a squared Gram norm by more than this share of it, the gradient itself decides.
SLACK_SHARE = 2.0**-8
_LEAST_SLACK = 2.0**-13
# Squares below this are counted as this: float32 loses them to underflow.
_TINY = 2.0**-100
_LEAST_BAND = 16  # taps of a line; narrower products are slow
_FORMED_BYTES = 1 << 20  # gradients formed before their norms are taken
_WINDOW_BYTES = 1 << 21  # windows that a thread copies at a time: they should stay in its core's own cache
_MOST_THREADS = 8  # that share out the windows of one product
UNITS_PER_SUM = 32  # units summed in one go; such sums are added in float64, which keeps rounding errors short
_FEW = 1 << 22  # multiply-adds, most of them with zero, that are quicker than more operations would be
_CACHED = 1 << 16  # values of a parameter of which a few copies stay in the cache
_SIDE_BY_SIDE = 1 << 21  # values of products that are made in one go
_TILE = 1 << 18  # values of a sum that are added up together


@dataclass(frozen=True)
class Fold:
    """How matrices (groups, outputs, inputs) become a parameter of this shape.

    `kernel` is the extent of the kernel that met data, with channels last; taps outside `offset` +
    `kernel` only ever saw padding, and their gradient is zero. `abreast` lines of a flat kernel lie side
    by side, tap by tap. `banded` matrices come as (lines of the kernel, outputs, taps of a line).
    """

    shape: Shape
    kernel: Shape = ()
    offset: Shape = ()
    abreast: int = 1
    banded: bool = False

    def __call__(self, matrices: Tensor, out: Tensor | None = None) -> Tensor:
        """(…, groups, outputs, inputs) → (…, *shape); `out`: zeros for a result that is mostly zero."""
        lead = matrices.shape[:-3]
        if self.banded:
            matrices = matrices.transpose(-3, -2)
        if not self.kernel:
            return matrices.reshape(*lead, *self.shape)
        channels = self.shape[1]
        if self.abreast > 1:
            lines, run = self.kernel
            split = (*lead, self.shape[0], lines // self.abreast, run, self.abreast, channels)
            matrices = matrices.reshape(split).transpose(-2, -3)
        taps = matrices.reshape(*lead, self.shape[0], *self.kernel, channels).movedim(-1, len(lead) + 1)
        if self.kernel == self.shape[2:]:
            return taps
        whole = matrices.new_zeros(*lead, *self.shape) if out is None else out
        inside = whole
        for dim, (offset, taps_met) in enumerate(zip(self.offset, self.kernel, strict=True), len(lead) + 2):
            inside = inside.narrow(dim, offset, taps_met)
        inside.copy_(taps)
        return whole


@dataclass(frozen=True)
class Windows:
    """Overlapping windows of a convolution's input, one for each output position, not copied yet.

    Written out, windows are many times larger than the input they come from; a product takes them a few rows
    at a time, so that the copy is still in the cache when it is read.
    """

    view: Tensor  # (rows, groups, *outputs, *taps, channels)

    @property
    def shape(self) -> Shape:
        """(rows, groups, positions, inputs), which `copied` has."""
        rows, groups, *space = self.view.shape
        half = len(space) // 2
        return rows, groups, math.prod(space[:half]), math.prod(space[half:])

    def copied(self, part: slice = slice(None)) -> Tensor:
        view = self.view[part]
        return _copied(view).view(len(view), *self.shape[1:])

    @property
    def bands(self) -> Tensor | None:
        """(rows, lines, positions of a line, taps of a line), where windows one below the other share lines.

        A line is copied once, not once for every line of the kernel; output line y sees lines y, y + 1, ….
        """
        shape, strides = self.view.shape, self.view.stride()
        half = (len(shape) - 3) // 2  # spatial dimensions
        outputs, taps = shape[2 : 2 + half], shape[2 + half :]
        meets = half > 1 and taps[0] > 1 and strides[2] == strides[2 + half]
        if not meets or shape[1] > 1 or math.prod(taps[1:]) < _LEAST_BAND:
            return None
        return self.view.as_strided(
            (shape[0], outputs[0] + taps[0] - 1, *outputs[1:], *taps[1:]),
            (strides[0], *strides[2 : 2 + half], *strides[3 + half :]),
        )


@dataclass(frozen=True)
class Factors:
    """Gradient of row n: Σₚ gₚ aₚᵀ for each group."""

    inputs: Tensor | Windows  # (rows, groups, positions, inputs)
    gradients: Tensor  # (rows, groups, positions, outputs)
    fold: Fold


@dataclass(frozen=True)
class Rows:
    """Gradient of row n, as it is."""

    gradients: Tensor  # (rows, *shape)


@dataclass(frozen=True)
class Lookups:
    """Gradient of row n: gradients[n, p] added to table row indices[n, p]."""

    indices: Tensor  # (rows, positions)
    gradients: Tensor  # (rows, positions, width)
    entries: int


Contribution: TypeAlias = Factors | Rows | Lookups


def cut(contribution: Contribution, rows: slice) -> Contribution:
    """The contribution of some rows."""
    gradients = contribution.gradients[rows]
    if isinstance(contribution, Factors):
        inputs = contribution.inputs
        part = Windows(inputs.view[rows]) if isinstance(inputs, Windows) else inputs[rows]
        return replace(contribution, inputs=part, gradients=gradients)
    if isinstance(contribution, Lookups):
        return replace(contribution, indices=contribution.indices[rows], gradients=gradients)
    return Rows(gradients)


@dataclass(frozen=True)
class Weights:
    """The weight of each unit in a sum."""

    values: Tensor  # (units,)

    @cached_property
    def blocks(self) -> Tensor:
        """(blocks, units): each line is zero but for its own UNITS_PER_SUM units, which one product sums."""
        units = len(self.values)
        count = -(-units // UNITS_PER_SUM)
        spread = self.values.new_zeros(count, count, UNITS_PER_SUM)
        missing = count * UNITS_PER_SUM - units
        padded = torch.nn.functional.pad(self.values, (0, missing)) if missing else self.values
        spread.diagonal(dim1=0, dim2=1).copy_(padded.view(count, UNITS_PER_SUM).t())
        return spread.flatten(1)[:, :units]


@dataclass(frozen=True)
class Materialised:
    """The gradient of every unit; of banded ones (see `Windows.bands`) each band lies by itself in memory."""

    gradients: Tensor  # (units, …)
    fold: Fold | None = None
    norms: Tensor | None = None  # (units,), where they were taken as gradients were formed

    @property
    def is_vector(self) -> bool:
        return self.fold is None and self.gradients.dim() == 2

    def squared_norms(self) -> tuple[Tensor, None]:
        norms = _norms(self.gradients) if self.norms is None else self.norms
        return norms.square(), None

    def weighted_sum(self, weights: Weights, out: Tensor | None = None) -> Tensor:
        if self.gradients.is_contiguous() or self.gradients.dim() < 3:
            total = _sum_rows(weights, self.gradients.unsqueeze(1).flatten(1))
        else:
            total = _sum_rows(weights, self.gradients.transpose(0, 1).flatten(2))  # each band by itself
        total = total.view(self.gradients.shape[1:])
        return total if self.fold is None else self.fold(total, out)

    def gradient(self, units: Tensor) -> Tensor:
        gradients = self.gradients[units]
        return gradients if self.fold is None else self.fold(gradients)

    def without(self, units: Tensor) -> Materialised:
        return replace(self, gradients=_zeroed(self.gradients, units))

    def first(self, units: int) -> Materialised:
        return replace(self, gradients=self.gradients[:units], norms=None)


@dataclass(frozen=True)
class Gram:
    """Σₚ gₚ aₚᵀ for every unit, never formed: norms by Gram matrices, the sum by one matrix product."""

    inputs: Tensor  # (units, groups, positions, inputs)
    gradients: Tensor  # (units, groups, positions, outputs)
    fold: Fold

    def squared_norms(self) -> tuple[Tensor, Tensor]:
        """Gram norm² and its slack κu·S², S = Σₚ ‖aₚ‖‖gₚ‖, which bounds every rounding error above."""
        if self.inputs.shape[2] == 1:
            norms = (_squares(self.inputs) * _squares(self.gradients)).sum((1, 2))  # of (units, groups, 1)
            spread = norms
        else:
            left = self.inputs @ self.inputs.transpose(2, 3)  # (units, groups, positions, positions)
            right = self.gradients @ self.gradients.transpose(2, 3)
            norms = (left * right).sum(3).sum((1, 2)).clamp_min(0.0)
            spread = (_lengths(left, self.inputs) * _lengths(right, self.gradients)).sum(2).square().sum(1)
        _, groups, positions, width = self.inputs.shape
        slack = slack_factor(groups, positions, width, self.gradients.shape[3], _unit(norms))
        return norms, slack * spread

    def weighted_sum(self, weights: Weights, out: Tensor | None = None) -> Tensor:
        _, groups, positions, width = self.inputs.shape
        shape = groups, width, self.gradients.shape[3]
        per_product = max(1, pairs_per_product(*shape) // positions)
        scaled = self.gradients * weights.values[:, None, None, None]
        if is_small(*shape):
            return self.fold(_products_side_by_side(scaled, self.inputs, per_product), out)
        sums = [
            _products_by_tiles(scaled[:, group], self.inputs[:, group], per_product * positions)
            for group in range(groups)
        ]
        return self.fold(torch.stack(sums) if groups > 1 else sums[0].unsqueeze(0), out)

    def gradient(self, units: Tensor) -> Tensor:
        return self.fold(self.gradients[units].transpose(2, 3) @ self.inputs[units])

    def without(self, units: Tensor) -> Gram:
        return replace(self, inputs=_zeroed(self.inputs, units), gradients=_zeroed(self.gradients, units))

    def first(self, units: int) -> Gram:
        return replace(self, inputs=self.inputs[:units], gradients=self.gradients[:units])


@dataclass(frozen=True)
class Sparse:
    """The table rows that each unit touched, gradients of equal rows already added."""

    unit: Tensor  # (touched,)
    index: Tensor  # (touched,)
    values: Tensor  # (touched, width)
    units: int
    entries: int

    def squared_norms(self) -> tuple[Tensor, None]:
        squares = torch.linalg.vector_norm(self.values, dim=1).square()
        return squares.new_zeros(self.units).index_add_(0, self.unit, squares), None

    def weighted_sum(self, weights: Weights, out: Tensor | None = None) -> Tensor:
        # In float64, as every unit may touch one row: a long sum in float32 would cost noise.
        table = self.values.new_zeros(self.entries, self.values.shape[1], dtype=torch.float64)
        table.index_add_(0, self.index, (self.values * weights.values[self.unit, None]).double())
        return table.to(self.values.dtype)

    def gradient(self, units: Tensor) -> Tensor:
        place = self.unit.new_full((self.units,), -1)
        place[units] = torch.arange(len(units), device=units.device)
        table = self.values.new_zeros(len(units), self.entries, self.values.shape[1])
        chosen = place[self.unit] >= 0
        table[place[self.unit[chosen]], self.index[chosen]] = self.values[chosen]
        return table

    def without(self, units: Tensor) -> Sparse:
        return replace(self, values=_zeroed(self.values, units[self.unit]))

    def first(self, units: int) -> Sparse:
        touched = int((self.unit < units).sum())
        return replace(
            self,
            unit=self.unit[:touched],
            index=self.index[:touched],
            values=self.values[:touched],
            units=units,
        )


Term: TypeAlias = Materialised | Gram | Sparse


def term(contributions: Sequence[Contribution], units: int) -> Term:
    """One parameter's uses in a chunk, rows of a unit merged, in the cheapest form.

    Rows are ordered by unit and every unit has equally many; a parameter used several times (a module
    called twice, tied weights) has the gradients of all uses added before any norm is taken.
    """
    merged = [_merge(contribution, units) for contribution in contributions]
    first = merged[0]
    if isinstance(first, Factors):
        alike = [other for other in merged if isinstance(other, Factors) and other.fold == first.fold]
        if len(alike) == len(merged):
            return _factored(alike)
    if len(merged) == 1:
        return _sparse(first, units) if isinstance(first, Lookups) else Materialised(first.gradients)
    everyone = torch.arange(units, device=first.gradients.device)
    parts = [term([part], units).gradient(everyone) for part in merged]
    return Materialised(torch.stack(parts).sum(0))


def _merge(contribution: Contribution, units: int) -> Contribution:
    """The rows of each unit become further positions of that unit (or are added)."""
    gradients = contribution.gradients
    if gradients.shape[0] == units:
        return contribution
    if isinstance(contribution, Rows):
        return Rows(gradients.reshape(units, -1, *gradients.shape[1:]).sum(1))
    if isinstance(contribution, Lookups):
        indices = contribution.indices.reshape(units, -1)
        return replace(contribution, indices=indices, gradients=gradients.reshape(units, indices.shape[1], -1))
    inputs = _as_positions(_written(contribution.inputs), units)
    return replace(contribution, inputs=inputs, gradients=_as_positions(gradients, units))


def _as_positions(factor: Tensor, units: int) -> Tensor:
    """(units · k, groups, positions, width) → (units, groups, k · positions, width)."""
    return factor.reshape(units, -1, *factor.shape[1:]).transpose(1, 2).flatten(2, 3)


def _factored(uses: Sequence[Factors]) -> Materialised | Gram:
    fold = uses[0].fold
    inputs = uses[0].inputs if len(uses) == 1 else _joined([_written(use.inputs) for use in uses])
    gradients = _joined([use.gradients for use in uses])
    if prefers_gram(inputs.shape[2], inputs.shape[3], gradients.shape[3]):
        return Gram(_written(inputs), gradients, fold)
    if isinstance(inputs, Tensor):
        formed, norms = _formed_of_matrices(inputs, gradients)
        return Materialised(formed, fold, norms)
    if (bands := inputs.bands) is not None:
        formed, norms = _formed_by_bands(bands, gradients)
        return Materialised(formed, replace(fold, banded=True), norms)
    formed, norms = _formed(inputs, gradients)
    return Materialised(formed, fold, norms)


def formed_values(uses: Sequence[Contribution]) -> int:
    """How many numbers `term` forms from factors for a unit that is alone."""
    factors = [use for use in uses if isinstance(use, Factors)]
    if not factors:
        return 0
    _, groups, _, width = factors[0].inputs.shape
    height = factors[0].gradients.shape[3]
    positions = sum(use.inputs.shape[0] * use.inputs.shape[2] for use in factors)
    alike = len(factors) == len(uses) and all(use.fold == factors[0].fold for use in factors)
    return 0 if alike and prefers_gram(positions, width, height) else groups * width * height


def prefers_gram(positions: int, width: int, height: int) -> bool:
    """Whether two Gram matrices are cheaper than writing and twice reading the gradient."""
    return positions == 1 or positions**2 * (width + height) <= _ELEMENT_COST * width * height


def slack_factor(groups: int, positions: int, width: int, height: int, unit: float) -> float:
    """κu: the number of roundings behind a Gram norm, times the unit roundoff.

    Never less than `_LEAST_SLACK`: where S exceeds the norm by more than √(SLACK_SHARE / κu) the gradient is
    formed, so that a large κu bounds the rounding error of the sum.
    """
    return max(_LEAST_SLACK, (width + height + 2 * positions + groups + 8) * unit)


def _formed_of_matrices(inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Σₚ gₚ aₚᵀ: (units, groups, outputs, inputs), in memory used before: fresh pages double the time.

    And its norms, taken while the gradients of a few units are in the cache.
    """
    out = scratch((*inputs.shape[:2], gradients.shape[3], inputs.shape[3]), gradients)
    step = max(1, _FORMED_BYTES // max(1, 4 * math.prod(out.shape[1:])))
    norms = []
    for start in range(0, max(1, len(out)), step):
        some = slice(start, start + step)
        left = gradients[some].flatten(0, 1).transpose(1, 2)
        torch.bmm(left, inputs[some].flatten(0, 1), out=out[some].flatten(0, 1))
        norms.append(_norms(out[some]))
    return out, _end_to_end(norms)


def _formed(windows: Windows, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Σₚ gₚ aₚᵀ: (units, groups, outputs, inputs); and its norms, taken while a block is in the cache."""
    units, groups, positions, width = windows.shape
    out = scratch((units, groups, gradients.shape[3], width), gradients)
    norms = []
    step = _rows_at_a_time(units, 4 * groups * positions * width)
    for start in range(0, units, step):
        some = slice(start, start + step)
        with returned():
            block = windows.copied(some).flatten(0, 1)
            left = gradients[some].flatten(0, 1).transpose(1, 2)
            torch.bmm(left, block, out=out[some].flatten(0, 1))
        norms.append(_norms(out[some]))
    return out, _end_to_end(norms)


def _formed_by_bands(bands: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """The same, each line of the kernel by itself: (units, lines of the kernel, outputs, taps of a line)."""
    units, lines = bands.shape[:2]
    flat = gradients.flatten(0, 1).transpose(1, 2)  # (units, outputs, positions)
    run = math.prod(bands.shape[bands.dim() // 2 + 1 :])
    places = bands[0, 0].numel() // run  # positions of a line
    kernel_lines = lines - flat.shape[2] // places + 1
    out = scratch((kernel_lines, units, flat.shape[1], run), gradients)
    norms = []
    step = _rows_at_a_time(units, 4 * lines * places * run)
    for start in range(0, units, step):
        some = slice(start, start + step)
        with returned():
            block = _copied(bands[some]).view(-1, lines * places, run)
            for line in range(kernel_lines):
                seen = block[:, line * places : line * places + flat.shape[2]]
                torch.bmm(flat[some], seen, out=out[line, some])
        norms.append(_norms(out[:, some].transpose(0, 1)))
    return out.transpose(0, 1), _end_to_end(norms)


def _end_to_end(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _rows_at_a_time(rows: int, bytes_of_windows: int) -> int:
    """Of so many rows, in parts about equally large."""
    bytes_at_a_time = min(_MOST_THREADS, torch.get_num_threads()) * _WINDOW_BYTES
    return -(-rows // max(1, round(rows * bytes_of_windows / bytes_at_a_time)))


def _norms(gradients: Tensor) -> Tensor:
    """Norms over all dimensions but the first, one at a time: sums stay short."""
    if gradients.dim() == 1:
        return gradients.abs()
    norms = gradients[:, 0] if gradients.dim() > 2 and gradients.shape[1] == 1 else gradients
    for _ in range(norms.dim() - 1):
        norms = torch.linalg.vector_norm(norms, dim=-1)
    return norms


def _copied(view: Tensor) -> Tensor:
    return view if view.is_contiguous() else scratch(view.shape, view).copy_(view)


def _written(inputs: Tensor | Windows) -> Tensor:
    return inputs.copied() if isinstance(inputs, Windows) else inputs


def _sparse(lookups: Lookups, units: int) -> Sparse:
    positions, width = lookups.gradients.shape[1:]
    owner = torch.arange(units, device=lookups.indices.device).repeat_interleave(positions)
    keys = owner * lookups.entries + lookups.indices.reshape(-1)
    touched, slot = torch.unique(keys, return_inverse=True)
    values = lookups.gradients.new_zeros(len(touched), width)
    values.index_add_(0, slot, lookups.gradients.reshape(-1, width))
    unit = touched.div(max(lookups.entries, 1), rounding_mode="floor")
    return Sparse(unit, touched - unit * lookups.entries, values, units, lookups.entries)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)


def _unit(like: Tensor) -> float:
    """The unit roundoff u of the tensor's type."""
    return torch.finfo(like.dtype).eps / 2


def _zeroed(values: Tensor, rows: Tensor) -> Tensor:
    return values.masked_fill(rows.view(-1, *[1] * (values.dim() - 1)), 0.0)


def _squares(factor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(factor, dim=3).square() + factor.shape[3] * _TINY


def _lengths(gram: Tensor, factor: Tensor) -> Tensor:
    return (gram.diagonal(dim1=2, dim2=3) + factor.shape[3] * _TINY).sqrt()


def _sum_rows(weights: Weights, rows: Tensor) -> Tensor:
    """Σ of weighted rows, UNITS_PER_SUM at a time: (…, units, width) → (…, width)."""
    if len(weights.values) <= UNITS_PER_SUM:
        return weights.values @ rows
    if rows.numel() * -(-len(weights.values) // UNITS_PER_SUM) <= _FEW:
        return (weights.blocks @ rows).sum(-2, dtype=torch.float64).to(rows.dtype)
    if rows.dim() > 2:
        return torch.stack([_sum_rows(weights, part) for part in rows])
    values, whole = weights.values, len(rows) // UNITS_PER_SUM * UNITS_PER_SUM
    blocks = values[:whole].view(-1, 1, UNITS_PER_SUM) @ rows[:whole].view(-1, UNITS_PER_SUM, rows.shape[1])
    total = blocks.sum((0, 1), dtype=torch.float64)
    if whole < len(rows):
        total += values[whole:] @ rows[whole:]
    return total.to(rows.dtype)


def _total(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total += part  # not inside the products: sums of sums keep rounding errors short
    return total


def is_small(groups: int, width: int, height: int) -> bool:
    """Whether products of a Gram term's sum are made side by side, and added by eights."""
    return groups == 1 and width * height <= _CACHED


def pairs_per_product(groups: int, width: int, height: int) -> int:
    """(unit, position) pairs summed in one matrix product: more where a product is dear."""
    return 32 if is_small(groups, width, height) else 64


def products_per_block(products: int) -> int:
    """How many products are added one after the other, before the sums of such blocks are."""
    return math.isqrt(max(0, products - 1)) + 1


def _products_by_tiles(gradients: Tensor, inputs: Tensor, pairs: int) -> Tensor:
    """Σ over units and positions of g aᵀ, `pairs` of a unit and a position in each product.

    A part of the matrix at a time, so that the sums stay in the cache. Each product is made by itself
    and then added: `addmm_` adds its pairs to the sum one by one on some processors, so that many more
    roundings lie behind a sum than its products have.
    """
    g, a = gradients.flatten(0, 1), inputs.flatten(0, 1)  # (units · positions, width)
    if len(g) <= pairs:
        return g.t() @ a
    parts = list(zip(torch.split(g, pairs), torch.split(a, pairs), strict=True))
    blocks = products_per_block(len(parts))
    total = g.new_empty(g.shape[1], a.shape[1])
    for rows, columns in _tiles(*total.shape):
        tile = total[rows, columns]
        block, product = torch.empty_like(tile), torch.empty_like(tile)
        for first in range(0, len(parts), blocks):
            (left, right), *more = parts[first : first + blocks]
            torch.mm(left[:, rows].t(), right[:, columns], out=block)
            for left, right in more:
                block += torch.mm(left[:, rows].t(), right[:, columns], out=product)
            tile.copy_(block) if first == 0 else tile.add_(block)
    return total


def _tiles(height: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Parts of a matrix, cut across its longer side."""
    step = max(1, _TILE // min(height, width))
    for start in range(0, max(height, width), step):
        some, all_ = slice(start, start + step), slice(None)
        yield (some, all_) if height > width else (all_, some)


def _products_side_by_side(gradients: Tensor, inputs: Tensor, per_product: int) -> Tensor:
    """The same for one group, from products that are made in one go and added by eights, and in float64."""
    g, a = gradients.flatten(0, 2), inputs.flatten(0, 2)  # (units · positions, width)
    pairs = per_product * gradients.shape[2]
    whole, step = len(g) // pairs * pairs, max(1, _SIDE_BY_SIDE // (g.shape[1] * a.shape[1])) * pairs
    sums = [(g[whole:].t() @ a[whole:]).double()] if whole < len(g) or not whole else []
    for start in range(0, whole, step):
        some = slice(start, min(start + step, whole))
        left, right = (factor[some].view(-1, pairs, factor.shape[1]) for factor in (g, a))
        sums.append(_by_eights(torch.bmm(left.transpose(1, 2), right)).double())
    return _total(sums).to(g.dtype).unsqueeze(0)


def _by_eights(values: Tensor) -> Tensor:
    """Σ over the first dimension, eight at a time, and eight of these: few roundings lie behind an element."""
    while len(values) > 1:
        whole = len(values) // 8 * 8
        sums = [values[:whole].view(-1, 8, *values.shape[1:]).sum(1)] if whole else []
        sums += [values[whole:].sum(0, keepdim=True)] if whole < len(values) else []
        values = _end_to_end(sums)
    return values[0]


def depth_by_eights(count: int) -> int:
    """Additions behind an element of a sum of so many values by `_by_eights`."""
    return 0 if count <= 1 else min(count, 8) - 1 + depth_by_eights(-(-count // 8))


_ALIGNMENT = 64
_SLAB = 64 << 20  # bytes; more than malloc keeps, so that pages are given as they are used


class Workspace:
    """Slabs of memory that hand out their parts one after the other."""

    def __init__(self) -> None:
        self.slabs: list[Tensor] = []
        self._at = 0, 0  # the slab, and the bytes of it that are taken

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Within, `scratch` takes from these slabs; afterwards everything taken is free again."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self._at = 0, 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        room = -(-size // _ALIGNMENT) * _ALIGNMENT
        slab, used = self._at
        while slab < len(self.slabs) and used + room > len(self.slabs[slab]):
            slab, used = slab + 1, 0
        if slab == len(self.slabs):
            self.slabs.append(torch.empty(max(_SLAB, room), dtype=torch.uint8))
        self._at = slab, used + room
        return self.slabs[slab][used : used + size].view(dtype).view(*shape)

    @contextmanager
    def returned(self) -> Iterator[None]:
        """Free afterwards all memory that is taken within."""
        before = self._at
        try:
            yield
        finally:
            self._at = before


_current: ContextVar[Workspace | None] = ContextVar("workspace", default=None)


def scratch(shape: Sequence[int], like: Tensor) -> Tensor:
    """An uninitialised tensor of the type of `like`."""
    workspace = _current.get()
    if workspace is None or like.device.type != "cpu":
        return like.new_empty(*shape)
    return workspace.take(shape, like.dtype)


@contextmanager
def returned() -> Iterator[None]:
    """Within, `scratch` takes memory that is free again afterwards."""
    workspace = _current.get()
    with nullcontext() if workspace is None else workspace.returned():
        yield
