"""What is computed for the rows of a step: a model with its loss and views, prepared once, in blocks."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sfumato.errors import Refused
from sfumato.randomness import fresh_seed
from sfumato.training import probe, public_rows
from sfumato.training.blocks import POOL, REFERENCE_ROWS, Bits
from sfumato.training.capture import LayerCall, Part, Pass, Wiring, count_rows, run
from sfumato.training.clipped_sums import (
    accumulate,
    clipped_alone,
    parts_of,
    squared_norms,
    uses,
    weighted_sums,
)
from sfumato.training.clipping import Clipping
from sfumato.training.devices import CPU, device_of
from sfumato.training.following import stay_apart
from sfumato.training.memory import Memory, Tensors, keeps_nothing
from sfumato.training.moment import Moment, listens, refuse_listeners
from sfumato.training.precision import settings
from sfumato.training.probe import Survey
from sfumato.training.replaced import Standing, replaced
from sfumato.training.replay import Example, Recorded, Recordings, Unrecordable, record
from sfumato.training.rowwise import DIRECT, Identity, LossFunction, RowMap, Views
from sfumato.training.rules.rounding import Use, bounds, chunk_errors
from sfumato.training.rules.terms import Contribution, Materialised, Weights, term
from sfumato.training.rules.workspace import Workspace
from sfumato.training.steps import Steps
from sfumato.training.structure import Structure
from sfumato.training.trees import mapped_tree, taken_apart
from sfumato.training.watching import same_randomness


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


class Clipped(NamedTuple):
    """What all units of a part of a block come to, the public ones that fill it up included."""

    sums: dict[str, Tensor]
    norms: Tensor  # (units, layers)
    coefficients: Tensor  # (units, layers)
    finite: Tensor  # (units,): those that count, and add something
    losses: Tensor  # (rows,) of the whole block
    errors: Callable[[int], tuple[float, float]]  # of norms and sums, for so many real units

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.sums.values(), *self[1:-1]]


@dataclass(frozen=True)
class Prepared:
    """A model, loss and views that were surveyed: what stays the same from step to step, walked over once.

    `holds` tells, at the price of a glance, whether model, loss and views are those that were surveyed. What
    code may remember is noted anew for each `task`, since between steps its owner may change it.
    """

    model: nn.Module
    known: Survey
    structure: Structure
    tensors: Tensors
    wiring: Wiring
    device: torch.device
    keeps_nothing: bool
    same_loss: Identity
    same_views: Identity
    moment: Moment | None  # at which it was prepared, if for several steps
    standing: Standing | None  # what libraries' names stood for before the survey, likewise
    replaced: Mapping[str, Any]  # code of the user's under such names
    recordings: Recordings[Clipped] = field(default_factory=Recordings)

    @property
    def runs_own_code(self) -> bool:
        """Whether a step runs code of the user's: of the model, the loss or the views."""
        maps = [each for each in (self.known.loss, self.known.views) if each is not None]
        return not self.keeps_nothing or any(each.how != DIRECT for each in maps)

    def stands(self) -> bool:
        """Whether libraries' functions are those of the survey."""
        return self.standing is not None and self.standing.same()

    def refuse_replaced(self) -> None:
        """Refuse code of the user's that was put in the place of a library's since."""
        if self.standing is not None:
            self.standing.refuse_own()

    def holds(self, loss_fn: LossFunction, views: Views | None) -> bool:
        """Whether nothing was changed since."""
        refuse_listeners()
        if not (self.same_loss(loss_fn) and self.same_views(views) and self.structure.same()):
            return False
        weights = self.structure.tensors.values()
        beside = self.replaced.values()
        now = Moment(self.model, loss_fn, views, trusted=self.keeps_nothing, weights=weights, beside=beside)
        return self.moment is not None and now.like(self.moment)

    def task(
        self, loss_fn: LossFunction, views: Views | None, *, refresh: Callable[[], None] = lambda: None
    ) -> Task:
        """The work on the rows of one step; `refresh` keys generators anew that code of the user's may seed."""
        weights, known = self.structure.tensors.values(), self.known
        view_map = None if known.views is None or views is None else known.views.of(views, but=weights)
        if not self.runs_own_code:
            loss = known.loss.of(loss_fn, but=())
            tensors, recordings = tuple(weights), self.recordings if self._repeats else None
            return Task(self.model, loss, view_map, known, None, self.device, self.wiring, tensors, recordings)
        roots = () if self.keeps_nothing else (self.model, *self.replaced.values())
        memory = Memory(*roots, name="the model", but=weights)
        loss = known.loss.of(loss_fn, but=weights)
        return Task(self.model, loss, view_map, known, memory, self.device, self.wiring, refresh=refresh)

    @property
    def _repeats(self) -> bool:
        """Whether blocks of one shape are worked on by the same operations, whatever is in them."""
        return not (self.runs_own_code or self.known.random or self.known.alone) and self.device == CPU


def prepared(
    model: nn.Module,
    loss_fn: LossFunction,
    views: Views | None,
    known: Survey,
    *,
    standing: Standing | None = None,
) -> Prepared:
    """Walk over a model of which all is known; for several steps, note what the user's code could read.

    `standing` is given for several steps: what stood under libraries' names before the survey.
    """
    structure = Structure(model)
    return Prepared(
        model=model,
        known=known,
        structure=structure,
        tensors=Tensors(structure),
        wiring=Wiring.of(model, known.layout),
        device=device_of(model),
        keeps_nothing=keeps_nothing(model),
        same_loss=Identity(loss_fn),
        same_views=Identity(views),
        moment=None if standing is None else Moment(model, loss_fn, views),
        standing=standing,
        replaced=replaced(model),
    )


@dataclass(frozen=True)
class Task:
    """A model with its loss and views mapped over rows: what is computed for each row, and nothing across."""

    model: nn.Module
    loss: RowMap
    views: RowMap | None
    known: Survey
    memory: Memory | None  # none where all code that runs is of packages that keep nothing
    device: torch.device
    wiring: Wiring
    weights: Sequence[Tensor] = ()  # all tensors of the model
    recordings: Recordings[Clipped] | None = None  # of blocks that were worked on, where that repeats itself
    refresh: Callable[[], None] = lambda: None
    trial: int = field(default_factory=fresh_seed)  # of the weights that heights are tried with

    def run(self, inputs: Any, targets: Any) -> Pass:
        """One pass, of which model, loss and views remember nothing."""
        try:
            seen, targets = self._seen(inputs, targets)
            return run(self.model, self._averaged, seen, targets, self.wiring)
        finally:
            self._forget()

    def _seen(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """All views of the rows, and a target for each."""
        copies = self.known.copies
        seen = probe.seen_by_model(self.views, inputs, copies)
        self.refresh()  # views may have seeded what the model draws from
        if self.known.channels_last:
            seen = probe.channels_last(seen)
        if copies > 1:
            targets = pytree.tree_map(lambda leaf: leaf.repeat_interleave(copies, 0), targets)
        return seen, targets

    def _forget(self) -> None:
        if self.memory is not None:
            self.memory.put_back()
            self.loss.forget()  # again: a backward pass may run code of its own
            self.refresh()

    @property
    def _averaged(self) -> LossFunction:
        """The loss with each of K views counting 1/K, so that their gradients are averaged."""
        copies = self.known.copies
        return self.loss if copies == 1 else lambda outputs, targets: self.loss(outputs, targets) / copies

    def noted(self, inputs: Any, targets: Any, *, rows: int | None = None) -> tuple[Steps, Pass]:
        """A pass over public rows (the first `rows` of their views), and what was done in it."""
        try:
            with self._repeatable() as draws, draws:  # views may draw, too
                seen, targets = self._seen(inputs, targets)
                if rows is not None:
                    seen, targets = public_rows.first(seen, rows), public_rows.first(targets, rows)
                steps = Steps(count_rows(seen))
                with steps:
                    return steps, run(self.model, steps.until(self._averaged), seen, targets, self.wiring)
        finally:
            self._forget()

    def _repeatable(self) -> AbstractContextManager[AbstractContextManager[Any]]:
        return same_randomness(self.device) if self.known.random else nullcontext(nullcontext())

    def does_as_few(self, steps: Steps) -> bool:
        """Whether a pass did what the survey saw with few rows."""
        if not self.known.few_steps:
            counts = probe.FEW, probe.FEW_MORE
            self.known.few_steps.extend(self.noted(*self.known.public_rows, rows=n)[0] for n in counts)
        return all(map(steps.like, self.known.few_steps))

    def keeps_apart(self, inputs: Any, targets: Any) -> bool:
        """Whether rows stay apart in a block like this one, where that does not follow from a few rows."""
        if not self.known.moves:
            return True
        try:
            with self._repeatable() as draws, draws:
                return stay_apart(self.model, self.loss, self.wiring, *self._seen(inputs, targets))
        finally:
            self._forget()

    def public(self, units: Sequence[int], rows_per_unit: int) -> tuple[Any, Any]:
        """Rows of public units by their numbers."""
        inputs, targets = self.known.public_rows
        chosen = torch.as_tensor([(unit + row) % POOL for unit in units for row in range(rows_per_unit)])
        return take(inputs, chosen), take(targets, chosen)

    def split(self, units: int, rows_per_unit: int) -> list[int]:
        """Heights of blocks that hold so many units."""
        with self.bits(rows_per_unit) as bits:
            return self.known.heights.split(units, rows_per_unit, bits, stamp=self.stamp)

    def try_heights(self, sizes: Sequence[int]) -> None:
        """Find the heights of blocks of so many units with one row each."""
        with self.bits(1) as bits:
            self.known.heights.find(sizes, bits, stamp=self.stamp)

    @property
    def stamp(self) -> Any:
        """Tells the weights of one moment from those of another."""
        return [self.trial, *(parameter._version for parameter in self.wiring.parameters.values())]

    @contextmanager
    def bits(self, rows_per_unit: int) -> Iterator[Bits]:
        """What public units come to in a block, with other weights, for `blocks.Heights` to compare."""
        with ExitStack() as within:
            begin = cache(lambda: within.enter_context(public_rows.other_weights(self.model, self.trial)))

            def of(units: Sequence[int]) -> Iterator[Tensor] | None:
                begin()
                block = Block(self, *self.public(units, rows_per_unit), len(units), len(units), rows_per_unit)
                return block.bits()

            yield of


def blocks_of(task: Task, inputs: Any, targets: Any, units: int, rows_per_unit: int) -> Iterator[Block]:
    """Rows ordered by unit, as many for each, in blocks of public heights."""
    start = 0
    heights = [1] * units if task.known.alone else task.split(units, rows_per_unit)
    for height in heights:
        stop = min(start + height, units)
        part = slice(start * rows_per_unit, stop * rows_per_unit)
        data = take(inputs, part), take(targets, part)
        if stop - start < height:
            padding = task.public([0] * (height - stop + start), rows_per_unit)
            data = stacked(data[0], padding[0]), stacked(data[1], padding[1])
        yield Block(task, *data, stop - start, height, rows_per_unit)
        start = stop


@dataclass(frozen=True)
class Block:
    """Rows ordered by unit, equally many for each; the first `units` of `height` units are real."""

    task: Task
    inputs: Any
    targets: Any
    units: int
    height: int
    rows_per_unit: int

    def clipped(self, clipping: Clipping, into: Mapping[str, Tensor]) -> Iterator[ChunkResult]:
        """What the real units add, part by part: gradients of all may be too large to form at once.

        `into`: zeros that the sums of the first part may be written to.
        """
        replayed = self._replayed(clipping, into)
        if replayed is not None:
            yield replayed
            return
        passed, raised = self._passed()
        for part in self._parts(passed):
            if part.start < self.units:
                counted = self._counted(raised)[part.start : part.stop]
                yield self._result(self._clipped(clipping, passed, part, counted, into), part, raised)
                into = {}

    def _replayed(self, clipping: Clipping, into: Mapping[str, Tensor]) -> ChunkResult | None:
        """The same by a recording, if blocks like this one have one and it comes to its end."""
        recordings, kind = self.task.recordings, taken_apart((self.inputs, self.targets))[1]
        if recordings is None or kind is None or listens():
            return None
        key = self.height, self.rows_per_unit, clipping, tuple(into), kind, settings()
        given = self._given(self._counted())
        found = recordings.play(key, given, [*into.values()], lambda: self._recorded(clipping, into))
        nobody = torch.zeros(self.units, dtype=torch.bool)
        return None if found is None else self._result(found, Part(0, self.height, self.height), nobody)

    def _recorded(self, clipping: Clipping, into: Mapping[str, Tensor]) -> Recorded[Clipped] | None:
        """How blocks like this one are worked on, noted on public rows."""
        seen: dict[str, Any] = {}

        def example(first: int, units: int) -> Example:
            numbers = [(first + 3 * place) % POOL for place in range(self.height)]
            rows = self.task.public(numbers, self.rows_per_unit)
            block = Block(self.task, *rows, units, self.height, self.rows_per_unit)
            counted = block._counted()

            def compute() -> list[Tensor]:
                found = block._in_one_part(clipping, counted, into)
                seen.update(names=tuple(found.sums), errors=found.errors)
                return found.tensors

            return Example(compute, block._given(counted))

        examples = example(0, self.height), example(5, self.height // 2)
        scratch = workspace_of(self.task.model).slabs
        recording = record(examples, into=[*into.values()], scratch=scratch)
        if recording is None:
            return None
        names, errors = seen["names"], cache(seen["errors"])

        def read(tensors: Sequence[Tensor]) -> Clipped:
            sums = dict(zip(names, tensors, strict=False))
            norms, coefficients, finite, losses = tensors[len(sums) :]
            return Clipped(sums, norms, coefficients, finite, losses, errors)

        return Recorded(recording, read)

    def _in_one_part(self, clipping: Clipping, counted: Tensor, into: Mapping[str, Tensor]) -> Clipped:
        passed = self.task.run(self.inputs, self.targets)
        parts = self._parts(passed)
        if len(parts) > 1:
            raise Unrecordable("gradients of all are too large to form at once")
        return self._clipped(clipping, passed, parts[0], counted, into)

    def _given(self, counted: Tensor) -> list[Tensor]:
        """What a recording is played with: the rows, which units count, and all weights."""
        rows, _ = taken_apart((self.inputs, self.targets))
        rows = [each.clone() if each.storage_offset() else each for each in rows]  # of a later block
        return [*rows, counted, *self.task.weights]

    def _parts(self, passed: Pass) -> list[Part]:
        return parts_of(passed, self.height, self.task.wiring.part_sizes)

    def _counted(self, raised: Tensor | None = None) -> Tensor:
        """(height,): the units that add something."""
        counted = torch.arange(self.height, device=self.task.device) < self.units
        if raised is not None:
            counted[: self.units] &= ~raised
        return counted

    def _clipped(
        self, clipping: Clipping, passed: Pass, part: Part, counted: Tensor, into: Mapping[str, Tensor]
    ) -> Clipped:
        """What the units of one part add to all parameters; those that do not count add nothing."""
        height = part.stop - part.start
        layers = clipping.layers(list(passed.names.values()))
        nobody = torch.zeros(height, device=self.task.device)
        with workspace_of(self.task.model).lend():
            used = uses(passed, part)
            terms = {name: term(contributions, height) for name, contributions in used.items()}
            squares, doubtful = squared_norms(terms, layers, clipping.floors(len(layers)), nobody)
            norms, hidden = squares.sqrt(), doubtful & counted
            alone: dict[str, Tensor] = {}
            if bool(hidden.any()):
                exact, alone = clipped_alone(terms, layers, hidden.nonzero().flatten(), clipping)
                norms[hidden] = exact.to(norms)
            finite = (norms < math.inf).all(1)
            adds = finite & counted
            coefficients = torch.where(adds[:, None], clipping.coefficients(norms), 0.0)
            each = [Weights(coefficients[:, layer]) for layer in range(len(layers))]
            weights = {name: each[layer] for layer, names in enumerate(layers) for name in names}
            sums = weighted_sums(terms, weights, doubtful | ~finite, into)
            accumulate(sums, {name: added.to(sums[name]) for name, added in alone.items()})
        seen = len(passed.losses) // self.height  # rows of a unit, views included
        sums = {name: sums[name] if name in sums else zero(self.task.model, name) for name in weights}
        losses = passed.losses.view(self.height * self.rows_per_unit, -1).sum(1)
        errors = partial(_errors, [tuple(map(Use.of, use)) for use in used.values()], height, seen)
        return Clipped(sums, norms, coefficients, adds, losses, errors)

    def _result(self, found: Clipped, part: Part, raised: Tensor) -> ChunkResult:
        """What is known of the real units of a part."""
        units = min(part.stop, self.units) - part.start
        rows = slice(part.start * self.rows_per_unit, (part.start + units) * self.rows_per_unit)
        return ChunkResult(
            found.sums,
            found.norms[:units],
            found.coefficients[:units],
            found.finite[:units],
            raised[part.start : part.stop],
            found.losses[rows],
            *found.errors(units),
        )

    def bits(self) -> Iterator[Tensor] | None:
        """Everything that a unit's clipped gradient is made of: layer inputs, gradients, norms, what is formed.

        One entry for each unit. What is formed of a unit alone has the same shapes in every block. None if the
        model does something else in such a block than with few rows, or brings rows together there.
        """
        steps, passed = self.task.noted(self.inputs, self.targets)
        if not self.task.does_as_few(steps) or not self.task.keeps_apart(self.inputs, self.targets):
            return None
        few = self.task.known.heights.few_rows(self.rows_per_unit)
        if not few and not steps.in_whole_vectors(REFERENCE_ROWS, torch.get_num_threads()):
            return None
        return self._bits(passed)

    def _bits(self, passed: Pass) -> Iterator[Tensor]:
        """One after the other: what a parameter's gradients need is free again when the next is formed."""
        yield passed.losses.view(self.height, -1)
        for call, gradients in passed.by_call():
            kept = (
                [call.inputs, *gradients] if isinstance(call, LayerCall) else call.stacked(gradients).values()
            )
            yield from (t.detach().reshape(self.height, -1) for t in kept if t is not None)
        parts = [(part, uses(passed, part)) for part in self._parts(passed)]
        for name in parts[0][1]:
            columns = zip(*(self._term_bits(name, used, part) for part, used in parts), strict=True)
            yield from (column[0] if len(column) == 1 else torch.cat(column) for column in columns)

    def _term_bits(self, name: str, used: Mapping[str, Sequence[Contribution]], where: Part) -> list[Tensor]:
        """What the units of one part come to in one parameter."""
        height = where.stop - where.start
        part = term(used[name], height)
        found = [part.gradients] if isinstance(part, Materialised) else []
        nobody = torch.zeros(height, device=self.task.device)
        return [*found, *squared_norms({name: part}, [[name]], [1.0], nobody)]

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
        except KeyboardInterrupt:  # somebody wants to stop
            raise
        except BaseException:  # its text may quote a private row, so nobody sees it
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

    def _with_public(self, units: Iterable[int]) -> Block:
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


def _errors(uses: Sequence[tuple[Use, ...]], height: int, rows: int, units: int) -> tuple[float, float]:
    """Of norms and sums of so many units with so many rows each, in a block of such a height."""
    return chunk_errors([bounds(use, height * rows, units, rows) for use in uses], units)


def workspace_of(model: nn.Module) -> Workspace:
    return _workspaces.setdefault(model, Workspace())


_workspaces: weakref.WeakKeyDictionary[nn.Module, Workspace] = weakref.WeakKeyDictionary()


def take(data: Any, part: Any) -> Any:
    return mapped_tree(lambda leaf: leaf[part] if isinstance(leaf, Tensor) and leaf.dim() else leaf, data)


def stacked(rows: Any, more: Any) -> Any:
    def join(leaf: Any, other: Any) -> Any:
        return torch.cat([leaf, other]) if isinstance(leaf, Tensor) and leaf.dim() else leaf

    return mapped_tree(join, rows, more)


def zero(model: nn.Module, name: str) -> Tensor:
    return torch.zeros_like(model.get_parameter(name), requires_grad=False)
