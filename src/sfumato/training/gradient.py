"""The sum of clipped per-example gradients, at the price of ordinary training.

One forward pass, one backward pass to the layers' outputs, and for each layer a rule: norms first, then the
sum weighted by the clipping coefficients. See `rules.terms` for the two ways of having a norm, and
*Clipping and float32* in `clip_chunk` for what is guaranteed.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sfumato import _validate
from sfumato.errors import InvalidInput, Refused
from sfumato.training import probe
from sfumato.training.blocks import POOL, Bits
from sfumato.training.capture import LayerCall, Pass, count_rows, run
from sfumato.training.clipping import Clipping, Flat
from sfumato.training.compiled import as_written
from sfumato.training.devices import device_of, moved
from sfumato.training.memory import Memory, tensors_of
from sfumato.training.precision import plain_float32
from sfumato.training.probe import Survey
from sfumato.training.rowwise import LossFunction, RowMap, Views
from sfumato.training.rules.rounding import chunk_errors, rounding
from sfumato.training.rules.terms import SLACK_SHARE, Contribution, Term, Weights, term
from sfumato.training.rules.workspace import Workspace
from sfumato.training.steps import Steps
from sfumato.training.watching import same_randomness

_CHUNK_BYTES = 72 << 20  # what a chunk may hold: it should stay in the cache
_DIRECT_BYTES = 64 << 20  # gradients formed at a time for units that need them
_PORTION = 8  # units whose gradients are formed at a time


@dataclass(frozen=True)
class ChunkResult:
    """What one chunk adds.

    `norms` are upper bounds, one for each unit (ordered by unit index) and clipping layer; `finite` is False
    for units whose gradient had NaN or Inf, or whose rows raised: they contribute exactly zero. `rounding` is
    η: one unit changes `sums` by at most sensitivity · (1 + η). All but η is private.

    Attributes:
        sums: The clipped sum for each parameter, by name.
        norms: Upper bounds of the gradient norms.
        coefficients: What each unit's gradient was multiplied by.
        finite: False for units that contribute nothing.
        raised: True for units whose rows raised.
        losses: The loss of each row.
        norm_error: Bound of the rounding error of a norm.
        sum_error: Bound of the rounding error of the sums.
    """

    sums: dict[str, Tensor]
    norms: Tensor  # (units, layers)
    coefficients: Tensor  # (units, layers)
    finite: Tensor  # (units,)
    raised: Tensor  # (units,)
    losses: Tensor  # (rows,)
    norm_error: float
    sum_error: float

    @property
    def rounding(self) -> float:
        return self.norm_error + self.sum_error


def clipped_gradient_sum(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    clip_norm: float | Clipping,
    *,
    units: Tensor | None = None,
    chunk: int | None = None,
) -> dict[str, Tensor]:
    """Σ over units of clip(Σ over the unit's rows of ∇loss), for every trainable parameter by name.

    *Guarantees*: every unit adds at most its clipping bound in norm, whoever else is there; NaN, Inf and rows
    that raise add zero; the model, its `.grad`s, hooks and buffers are as before, whatever happens.

    Args:
        model: Any module without batch normalisation.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row. It is shown one row at a time.
        inputs: (rows, …).
        targets: (rows, …).
        clip_norm: C, ∞ for plain sums, or a value such as `Automatic`.
        units: The index of the person behind each row; each row its own by default.
        chunk: How many rows are worked on at a time; chosen by memory and cache by default.

    Returns:
        {parameter name: sum}.

    Raises:
        UnsupportedModel: If gradients of single rows cannot be told apart.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> sums = clipped_gradient_sum(model, lambda out, _: out[:, 0], rows, torch.zeros(2), 1.0)
    >>> [round(value, 4) for value in sums["weight"][0].tolist()]
    [0.9, 1.2]
    """
    model = as_written(model)
    clipping = clip_norm if isinstance(clip_norm, Clipping) else Flat(norm=clip_norm)
    rows = count_rows(inputs)
    _check_units(units, rows)
    if rows == 0:
        return _zeros(model)
    known = probe.survey(model, loss_fn, *_take((inputs, targets), slice(1)))
    size = chunk_rows(known) if chunk is None else _validate.integer("chunk", chunk, least=1)
    totals: dict[str, Tensor] = {}
    for part in _slices(rows, units, size):
        part_units = None if units is None else units[part]
        data = _take(inputs, part), _take(targets, part)
        result = clip_chunk(model, loss_fn, *data, clipping, units=part_units, known=known)
        _accumulate(totals, result.sums)
    return totals


def clip_chunk(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    clipping: Clipping,
    *,
    units: Tensor | None = None,
    views: Views | None = None,
    known: Survey | None = None,
) -> ChunkResult:
    """One physical chunk: clipped sums, norms, coefficients, and a bound η of the rounding error.

    Rows are worked on in blocks of public heights, padded with public rows (see `blocks`), so that a unit's
    gradient and coefficient are the same bits whoever else is in the chunk. `views(inputs)` returns K views of
    each row, (rows, K, …), whose gradients are averaged; like `loss_fn` it is shown one row at a time.

    *Clipping and float32.* The coefficient of a unit uses an upper bound of its norm, rounding included: a
    Gram norm gets the slack κu·S², S = Σₚ ‖aₚ‖‖gₚ‖; where that slack is not small (the output gradients
    cancel, or squares overflow) the gradient itself is formed and its norm taken in float64. What remains is
    the rounding of the sum over the chunk, bounded by η (see `rounding_bound`), so that adding or removing
    one unit moves the computed sums by at most sensitivity · (1 + η).

    Args:
        model: The model.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        inputs: (rows, …).
        targets: (rows, …).
        clipping: The clipping rule.
        units: The index of the unit behind each row; each row its own by default.
        views: K random views of each row.
        known: What `survey` found out; looked up by default.

    Returns:
        The sums, and what is known about each unit; private.

    >>> rows = torch.tensor([[3.0, 4.0]])
    >>> result = clip_chunk(nn.Linear(2, 1), lambda out, _: out[:, 0], rows, torch.zeros(1), Flat(norm=1.0))
    >>> result.finite.tolist()
    [True]
    """
    rows = count_rows(inputs)
    _check_units(units, rows)
    if rows == 0:
        return _nothing(model, clipping)
    known = known or probe.survey(model, loss_fn, inputs, targets, views=views)
    task = _Task.of(model, loss_fn, views, known)
    inputs, targets = moved((inputs, targets), task.device)
    with plain_float32():
        if units is None:
            return _joined([block.clipped(clipping) for block in _blocks(task, inputs, targets, rows, 1)])
        strata = _strata(units)
        results = [
            block.clipped(clipping)
            for stratum in strata
            for block in _blocks(
                task, _take(inputs, stratum.rows), _take(targets, stratum.rows), *stratum.shape
            )
        ]
    return _reordered(_joined(results), strata)


@dataclass(frozen=True)
class _Task:
    """A model with its loss and views mapped over rows: what is computed for each row, and nothing across."""

    model: nn.Module
    loss: RowMap
    views: RowMap | None
    known: Survey
    memory: Memory
    device: torch.device

    @classmethod
    def of(cls, model: nn.Module, loss_fn: LossFunction, views: Views | None, known: Survey) -> _Task:
        weights = list(tensors_of(model).values())
        view_map = None if known.views is None or views is None else known.views.of(views, but=weights)
        loss, memory = known.loss.of(loss_fn, but=weights), probe.model_memory(model)
        return cls(model, loss, view_map, known, memory, device_of(model))

    def run(self, inputs: Any, targets: Any) -> Pass:
        """One pass, of which model, loss and views remember nothing."""
        try:
            seen, targets = self._seen(inputs, targets)
            return run(self.model, self._averaged, seen, targets, self.known.layout)
        finally:
            self._forget()

    def _seen(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """All views of the rows, and a target for each."""
        seen, copies = probe.seen_by_model(self.views, inputs), self.known.copies
        if self.known.channels_last:
            seen = probe.channels_last(seen)
        if copies > 1:
            targets = pytree.tree_map(lambda leaf: leaf.repeat_interleave(copies, 0), targets)
        return seen, targets

    def _forget(self) -> None:
        self.memory.put_back()
        self.loss.forget()  # again: a backward pass may run code of its own

    @property
    def _averaged(self) -> LossFunction:
        """The loss with each of K views counting 1/K, so that their gradients are averaged."""
        copies = self.known.copies
        return self.loss if copies == 1 else lambda outputs, targets: self.loss(outputs, targets) / copies

    def noted(self, inputs: Any, targets: Any, *, rows: int | None = None) -> tuple[Steps, Pass]:
        """A pass over public rows (the first `rows` of their views), and what was done in it."""
        try:
            seen, targets = self._seen(inputs, targets)
            if rows is not None:
                seen, targets = probe.first(seen, rows), probe.first(targets, rows)
            steps = Steps(count_rows(seen))
            with steps:
                return steps, run(self.model, steps.until(self._averaged), seen, targets, self.known.layout)
        finally:
            self._forget()

    def does_as_few(self, steps: Steps) -> bool:
        """Whether a pass did what the survey saw with few rows."""
        if not self.known.few_steps:
            self.known.few_steps.append(self.noted(*self.known.public_rows, rows=probe.FEW)[0])
        return steps.like(self.known.few_steps[0])

    def public(self, units: Sequence[int], rows_per_unit: int) -> tuple[Any, Any]:
        """Rows of public units by their numbers."""
        inputs, targets = self.known.public_rows
        chosen = torch.as_tensor([(unit + row) % POOL for unit in units for row in range(rows_per_unit)])
        return _take(inputs, chosen), _take(targets, chosen)

    def split(self, units: int, rows_per_unit: int) -> list[int]:
        return self.known.heights.split(units, rows_per_unit, self.bits(rows_per_unit))

    def bits(self, rows_per_unit: int) -> Bits:
        """What public units come to in a block, for `blocks.Heights` to compare."""

        def of(units: Sequence[int]) -> Sequence[Tensor] | None:
            block = _Block(self, *self.public(units, rows_per_unit), len(units), len(units), rows_per_unit)
            repeatable = same_randomness(self.device) if self.known.random else nullcontext()
            with repeatable, probe.other_weights(self.model):
                return block.bits()

        return of


def _blocks(task: _Task, inputs: Any, targets: Any, units: int, rows_per_unit: int) -> Iterator[_Block]:
    """Rows ordered by unit, as many for each, in blocks of public heights."""
    start = 0
    heights = [1] * units if task.known.alone else task.split(units, rows_per_unit)
    for height in heights:
        stop = min(start + height, units)
        part = slice(start * rows_per_unit, stop * rows_per_unit)
        data = _take(inputs, part), _take(targets, part)
        if stop - start < height:
            padding = task.public([0] * (height - stop + start), rows_per_unit)
            data = _stacked(data[0], padding[0]), _stacked(data[1], padding[1])
        yield _Block(task, *data, stop - start, height, rows_per_unit)
        start = stop


@dataclass(frozen=True)
class _Block:
    """Rows ordered by unit, equally many for each; the first `units` of `height` units are real."""

    task: _Task
    inputs: Any
    targets: Any
    units: int
    height: int
    rows_per_unit: int

    def clipped(self, clipping: Clipping) -> ChunkResult:
        passed, raised = self._passed()
        layers = clipping.layers(list(passed.names.values()))
        with _workspaces.setdefault(self.task.model, Workspace()).lend():
            uses = _uses(passed)
            terms = {name: term(contributions, self.height) for name, contributions in uses.items()}
            squares, doubtful = _squared_norms(terms, layers, clipping.floors(len(layers)), self._nobody)
            norms, doubtful = squares[: self.units].sqrt(), doubtful[: self.units]
            finite = norms.isfinite().all(1) & ~raised
            coefficients = torch.where(finite[:, None], clipping.coefficients(norms), 0.0)
            each = [Weights(coefficients[:, layer]) for layer in range(len(layers))]
            weights = {name: each[layer] for layer, names in enumerate(layers) for name in names}
            real = {name: part.first(self.units) for name, part in terms.items()}
            sums = _weighted_sums(real, weights, finite, doubtful)
        seen = len(passed.losses)
        parts = [
            rounding(use, seen, units=self.units, rows_per_unit=seen // self.height) for use in uses.values()
        ]
        sums = {name: sums[name] if name in sums else _zero(self.task.model, name) for name in weights}
        losses = passed.losses.view(self.height * self.rows_per_unit, -1).sum(1)
        losses = losses[: self.units * self.rows_per_unit]
        return ChunkResult(sums, norms, coefficients, finite, raised, losses, *chunk_errors(parts, self.units))

    @property
    def _nobody(self) -> Tensor:
        return torch.zeros(self.height, device=self.task.device)

    def bits(self) -> list[Tensor] | None:
        """Everything that a unit's clipped gradient is made of: layer inputs, gradients, and both norms.

        None if the model does something else in a block of this height than with few rows.
        """
        steps, passed = self.task.noted(self.inputs, self.targets)
        if not self.task.does_as_few(steps):
            return None
        found = [passed.losses.view(self.height, -1)]
        for call, gradients in passed.by_call():
            kept = (
                [call.inputs, *gradients] if isinstance(call, LayerCall) else call.stacked(gradients).values()
            )
            found += [t.detach().reshape(self.height, -1) for t in kept if t is not None]
        terms = {name: term(contributions, self.height) for name, contributions in _uses(passed).items()}
        each = [[name] for name in terms]
        squares, doubtful = _squared_norms(terms, each, [1.0] * len(each), self._nobody)
        portions = _portions(terms, torch.ones(self.height, dtype=torch.bool, device=self.task.device))
        if len(portions) == self.height:  # gradients so large that each is formed alone
            return [*found, squares, doubtful]
        exact = torch.cat([_exact_squares(terms, each, some) for some in portions])
        return [*found, squares, doubtful, exact[: self.height]]

    def _passed(self) -> tuple[Pass, Tensor]:
        """The pass, and which units' rows raised: public rows took their places."""
        raised = torch.zeros(self.units, dtype=torch.bool, device=self.task.device)
        passed = self._attempt()
        if passed is None:
            found = self._raising()
            raised[found] = True
            passed = self._with_public(found)._attempt()
        if passed is None:
            raise Refused(
                "expected model and loss to raise for a row by itself or not at all, but rows that run alone "
                "raise together; remove what mixes examples"
            )
        return passed, raised

    def _attempt(self) -> Pass | None:
        try:
            return self.task.run(self.inputs, self.targets)
        except Exception:  # its text may quote a private row, so nobody sees it
            return None

    def _raising(self) -> list[int]:
        """Units that raise when all others are public, found by halving."""
        public = self._with_public(range(self.height))
        self.task.run(public.inputs, public.targets)  # what this raises does not depend on private rows
        found, ways = [], [list(range(self.units))]
        while ways:
            some = ways.pop()
            others = set(range(self.height)).difference(some)
            if self._with_public(sorted(others))._attempt() is not None:
                continue
            half = len(some) // 2
            if half:
                ways += [some[:half], some[half:]]
            else:
                found += some
        return found

    def _with_public(self, units: Iterable[int]) -> _Block:
        """The block with a public unit in the place of each given one."""
        inputs, targets = self.task.public([0], self.rows_per_unit)
        span = self.rows_per_unit
        numbers = [unit * span + row for unit in units for row in range(span)]
        places = torch.as_tensor(numbers, dtype=torch.int64, device=self.task.device)

        def put(leaf: Any, public: Any) -> Any:
            if not isinstance(leaf, Tensor) or not len(places):
                return leaf
            return leaf.index_copy(0, places, public.repeat(len(places) // span, *[1] * (public.dim() - 1)))

        replaced = pytree.tree_map(put, self.inputs, inputs), pytree.tree_map(put, self.targets, targets)
        return replace(self, inputs=replaced[0], targets=replaced[1])


_workspaces: weakref.WeakKeyDictionary[nn.Module, Workspace] = weakref.WeakKeyDictionary()


def chunk_rows(known: Survey) -> int:
    """Rows of a chunk: what stays in the cache, but enough to pay for walking over all parameters.

    Args:
        known: What `survey` found out.

    Returns:
        The number of rows.

    >>> from sfumato.training import cross_entropy, survey
    >>> found = survey(nn.Linear(2, 2), cross_entropy, torch.rand(4, 2), torch.zeros(4, dtype=torch.long))
    >>> chunk_rows(found) >= 1
    True
    """
    budget = max(_CHUNK_BYTES, 28 * known.parameters) // 4
    return min(4096, max(32, budget // known.floats_per_row // 32 * 32))


def prepare_blocks(
    model: nn.Module, loss_fn: LossFunction, known: Survey, expected: float, *, views: Views | None = None
) -> None:
    """Try the heights of blocks that are likely where `expected` units of one row are, before any is needed."""
    task = _Task.of(model, loss_fn, views, known)
    spread = math.sqrt(expected)
    if known.alone:
        return
    with plain_float32():
        for units in range(max(1, int(expected - spread)), int(expected + spread) + 2):
            task.split(units, 1)


def rounding_bound(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    *,
    units: int,
    rows_per_unit: int = 1,
    views: Views | None = None,
) -> float:
    """η for chunks of up to `units` units with up to `rows_per_unit` rows shaped like the given ones.

    Depends on shapes alone: the model sees random public rows. A unit's clipped gradient exceeds its bound by
    at most the error of its norm; the computed sum of a chunk differs from the exact one by at most
    units · e · C, with e from `rules.rounding`. Two neighbouring chunks differ by the unit and by both
    errors: η = norm error + 2 · units · e. Other units' gradients and coefficients are the same bits in both.

    Args:
        model: The model.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        inputs: Rows of the right shape.
        targets: Targets of the right shape.
        units: The most units in a chunk.
        rows_per_unit: The most rows of one unit.
        views: K random views of each row.

    Returns:
        η.

    >>> from sfumato.training import cross_entropy
    >>> rows = torch.rand(4, 2), torch.zeros(4, dtype=torch.long)
    >>> 0 < rounding_bound(nn.Linear(2, 2), cross_entropy, *rows, units=4) < 1e-3
    True
    """
    known = probe.survey(model, loss_fn, inputs, targets, views=views)
    task = _Task.of(model, loss_fn, views, known)
    with plain_float32():
        passed = task.run(*task.public([0, 1], 1))
        # A block holds one unit at least; where all units have one row, all blocks but one are full.
        plain = rows_per_unit == 1 and not known.alone
        full = known.heights.reference(1, task.bits(1)) if plain else 1
        blocks = units // full + 1
    seen = len(passed.losses)
    parts = [
        rounding(use, seen, units=units, rows_per_unit=rows_per_unit * seen // 2)
        for use in _uses(passed).values()
    ]
    return sum(chunk_errors(parts, units)) + _joining_error(units, blocks)


def _joining_error(units: int, blocks: int) -> float:
    """Of adding the sums of several blocks in float64 and rounding once, for both of two neighbours."""
    return 0.0 if blocks <= 1 else 2 * units * 2.0**-23


class _Stratum(NamedTuple):
    """Units with equally many rows: their numbers (units,), and their rows, unit by unit."""

    members: Tensor
    rows: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Units, and rows of each."""
        return len(self.members), len(self.rows) // len(self.members)


def _strata(units: Tensor) -> list[_Stratum]:
    """Units with equally many rows go together: a unit's rows are then just more positions."""
    owner, counts = _tally(units)
    order = torch.argsort(owner, stable=True)
    return [
        _Stratum((counts == count).nonzero().flatten(), order[(counts == count)[owner[order]]])
        for count in sorted(set(counts.tolist()))
    ]


def _joined(parts: Sequence[ChunkResult]) -> ChunkResult:
    """What blocks add up to, one after the other."""
    if len(parts) == 1:
        return parts[0]
    totals = {name: value.double() for name, value in parts[0].sums.items()}
    for part in parts[1:]:
        _accumulate(totals, part.sums)
    sums = {name: total.to(parts[0].sums[name].dtype) for name, total in totals.items()}
    norms = torch.cat([part.norms for part in parts])
    return ChunkResult(
        sums=sums,
        norms=norms,
        coefficients=torch.cat([part.coefficients for part in parts]),
        finite=torch.cat([part.finite for part in parts]),
        raised=torch.cat([part.raised for part in parts]),
        losses=torch.cat([part.losses for part in parts]),
        norm_error=max(part.norm_error for part in parts),
        sum_error=sum(part.sum_error for part in parts) + _joining_error(len(norms), len(parts)),
    )


def _reordered(result: ChunkResult, strata: Sequence[_Stratum]) -> ChunkResult:
    """The same with units and rows in the order of the chunk."""
    units = torch.argsort(torch.cat([stratum.members for stratum in strata]))
    rows = torch.argsort(torch.cat([stratum.rows for stratum in strata]))
    return replace(
        result,
        norms=result.norms[units],
        coefficients=result.coefficients[units],
        finite=result.finite[units],
        raised=result.raised[units],
        losses=result.losses[rows],
    )


def _weighted_sums(
    terms: Mapping[str, Term], weights: Mapping[str, Weights], finite: Tensor, doubtful: Tensor
) -> dict[str, Tensor]:
    """Σ cᵢgᵢ; units that are not finite take no part, doubtful ones do with their formed gradients."""
    special = doubtful | ~finite
    if not bool(special.any()):
        return {name: part.weighted_sum(weights[name]) for name, part in terms.items()}
    sums = {name: part.without(special).weighted_sum(weights[name]) for name, part in terms.items()}
    _accumulate(sums, _direct_sums(terms, weights, doubtful & finite))
    return sums


def _uses(passed: Pass) -> dict[str, list[Contribution]]:
    """What the rows add to each parameter that was used, for all its uses."""
    rows = len(passed.losses)
    uses: dict[str, list[Contribution]] = {}
    for call, gradients in passed.by_call():
        for parameter, contribution in call.contributions(gradients, rows).items():
            uses.setdefault(passed.names[parameter], []).append(contribution)
    return uses


def _squared_norms(
    terms: Mapping[str, Term], layers: Sequence[Sequence[str]], floors: Sequence[float], nobody: Tensor
) -> tuple[Tensor, Tensor]:
    """Squared norms (units, layers), and which units needed their gradient formed; `nobody`: zeros (units,)."""
    pairs = {name: part.squared_norms() for name, part in terms.items()}
    like = next(iter(pairs.values()))[0] if pairs else nobody
    columns = [[pairs[name] for name in names if name in pairs] for names in layers]
    squares = torch.stack([_added([square for square, _ in column], like) for column in columns], 1)
    slacks = torch.stack(
        [_added([slack for _, slack in column if slack is not None], like) for column in columns], 1
    )
    floor = squares.new_tensor(floors).square()
    sure = (slacks <= SLACK_SHARE * torch.maximum(squares, floor)) & squares.isfinite()
    doubtful = ~sure.all(1)
    for some in _portions(terms, doubtful):
        squares[some] = _exact_squares(terms, layers, some).to(squares)
    return squares, doubtful


def _added(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return sum(parts[1:], parts[0]) if parts else torch.zeros_like(like)


def _exact_squares(terms: Mapping[str, Term], layers: Sequence[Sequence[str]], some: Tensor) -> Tensor:
    """Squared norms of formed gradients, in float64, where no float32 square overflows."""
    gradients = {name: part.gradient(some).flatten(1).double() for name, part in terms.items()}
    zero = torch.zeros(len(some), dtype=torch.float64, device=some.device)
    columns = [
        sum((gradients[name].square().sum(1) for name in names if name in gradients), zero) for names in layers
    ]
    return torch.stack(columns, dim=1) * (1 + 2.0**-20)


def _direct_sums(terms: Mapping[str, Term], weights: Mapping[str, Weights], units: Tensor) -> dict[str, Tensor]:
    """Weighted sums over few units whose gradients are formed, in float64."""
    sums: dict[str, Tensor] = {}
    for some in torch.split(units.nonzero().flatten(), _PORTION):
        for name, part in terms.items():
            gradient = part.gradient(some)
            added = weights[name].values[some].double() @ gradient.flatten(1).double()
            sums[name] = sums.get(name, 0.0) + added.view(gradient.shape[1:])
    return {name: value.to(weights[name].values.dtype) for name, value in sums.items()}


def _portions(terms: Mapping[str, Term], chosen: Tensor) -> Sequence[Tensor]:
    """Indices of the chosen units in portions of one size, the last one filled up with the first index.

    The size depends on shapes alone, so that a unit's formed gradient is the same bits whoever else was chosen.
    """
    units = chosen.nonzero().flatten()
    if not len(units):
        return ()
    size = sum(part.gradient(units[:1]).numel() for part in terms.values())
    portion = max(1, min(_PORTION, _DIRECT_BYTES // (4 * size)))
    missing = -len(units) % portion
    return torch.split(torch.cat([units, units[:1].expand(missing)]), portion)


def _trainable(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _nothing(model: nn.Module, clipping: Clipping) -> ChunkResult:
    none = torch.zeros(0, len(clipping.layers(_trainable(model))), device=device_of(model))
    nobody = torch.zeros(0, dtype=torch.bool, device=none.device)
    return ChunkResult(_zeros(model), none, none, nobody, nobody, none.flatten(), 0.0, 0.0)


def _zeros(model: nn.Module) -> dict[str, Tensor]:
    return {name: _zero(model, name) for name in _trainable(model)}


def _zero(model: nn.Module, name: str) -> Tensor:
    return torch.zeros_like(model.get_parameter(name), requires_grad=False)


def _accumulate(totals: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        totals[name] = totals[name].add_(value) if name in totals else value


def _slices(rows: int, units: Tensor | None, chunk: int) -> list[Any]:
    """Parts of at most `chunk` rows (a unit's rows stay together), about equally large."""
    if units is None:
        parts = math.ceil(rows / chunk)
        return [slice(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]
    owner, counts = _tally(units)
    by_count = torch.argsort(counts, stable=True)
    place = torch.empty_like(by_count)
    place[by_count] = (counts[by_count].cumsum(0) - 1) // chunk
    return [(place[owner] == part).nonzero().flatten() for part in sorted(set(place.tolist()))]


def _check_units(units: Tensor | None, rows: int) -> None:
    if units is not None and (units.shape != (rows,) or units.is_floating_point()):
        raise InvalidInput(
            f"expected units to hold a whole number for each of the {rows} rows, got {tuple(units.shape)} of "
            f"{units.dtype}"
        )


def _tally(units: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's unit, numbered from 0, and each unit's number of rows."""
    numbered: Any = torch.unique(units, return_inverse=True, return_counts=True)
    return numbered[1], numbered[2]


def _take(data: Any, part: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf[part] if isinstance(leaf, Tensor) and leaf.dim() else leaf, data)


def _stacked(rows: Any, more: Any) -> Any:
    def join(leaf: Any, other: Any) -> Any:
        return torch.cat([leaf, other]) if isinstance(leaf, Tensor) and leaf.dim() else leaf

    return pytree.tree_map(join, rows, more)
