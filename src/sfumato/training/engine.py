"""Clipped sums of gradients from a compiled graph: blocks of public heights, chunks, kept graphs."""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sfumato import _validate
from sfumato.caveats import Code
from sfumato.errors import InvalidInput, UnsupportedModel
from sfumato.randomness import Sampler, SecretStream, fresh_seed, secret_torch_generator
from sfumato.training.batch import Block
from sfumato.training.blocks import POOL, REFERENCE_ROWS, Heights, digests, most_rows
from sfumato.training.checks import (
    as_written,
    check_code,
    check_constants,
    check_model,
    constant_draws,
    near,
    other_number,
    other_targets,
    other_type,
    run_row,
)
from sfumato.training.clip import (
    ChunkResult,
    Clipping,
    Flat,
    accumulate,
    adding_error,
    chunk_errors,
    clipped,
    joined,
    rounding,
    squared_norms,
)
from sfumato.training.devices import CPU, device_of, moved, plain_float32
from sfumato.training.factors import Use, uses
from sfumato.training.losses import LossFunction, Views, other_weights, random_rows, same_settings, settings_of
from sfumato.training.operations import EXACT, POINTWISE, WINDOWS
from sfumato.training.terms import Contribution, Materialised, Workspace, cut, formed_values, term
from sfumato.training.trace import Draw, Row, all_tensors, code_of, placed, trace

_GRAIN = 32768  # elements from which torch shares out a loop
_CHUNK_BYTES = 160 << 20  # that the rows of a chunk may hold
_FORMED_BYTES = 512 << 20  # of gradients that are formed together
_ROUNDED = POINTWISE - EXACT
_JOINED = 4  # sums of blocks that are added in float32


@dataclass(frozen=True)
class Compiled:
    """The graph of a block: from weights, rows and draws to losses, marks and operands.

    Attributes:
        run: The graph.
        parts: For each trainable parameter the uses that add up to its gradient.
        marked: Whether there is a mark of rows that met a value without a result.
        module: The same, for an interpreter.
        loops: How many elements those loops run over that do not round every element alike.
        floats: How many numbers are held at a time, at most.
    """

    module: fx.GraphModule
    height: int
    parts: Mapping[str, Sequence[tuple[Use, slice]]]
    marked: bool
    loops: frozenset[int]
    floats: int
    _found: list[bool] = field(default_factory=list)

    @property
    def run(self) -> Callable[..., tuple[Tensor, ...]]:
        return self.module.forward

    def whole(self, values: Sequence[Tensor]) -> bool:
        """Whether whole vectors hold all that is not rounded alike by every loop.

        Torch's loops have other code for the elements that are left over, at the end and where a thread's share
        ends: a row that comes to lie there would have other bits. A loop runs along the rows where these lie
        innermost in memory, which shows when the graph runs.
        """
        threads = torch.get_num_threads()
        sizes = [each for size in self.loops for each in (size, _share(size, threads))]
        if any(size % REFERENCE_ROWS for size in sizes):
            return False
        return self.height % REFERENCE_ROWS == 0 or not self._along_rows(values)

    def _along_rows(self, values: Sequence[Tensor]) -> bool:
        """Whether such a loop runs along the rows; found out once, by the graph itself."""
        if not self._found:
            self._found.append(False)
            _Strides(self).run(*values)
        return self._found[0]

    def contributions(self, values: Sequence[Tensor]) -> dict[str, list[Contribution]]:
        return {
            name: [use.contribution(*values[place]) for use, place in parts]
            for name, parts in self.parts.items()
        }


class _Strides(fx.Interpreter):
    """Runs a graph, and looks at where rows lie in memory."""

    def __init__(self, graph: Compiled) -> None:
        super().__init__(graph.module)
        self.block = graph

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result, height = super().call_function(target, args, kwargs), self.block.height
        if target in POINTWISE and result.shape[:1] == (height,) and result.numel() > height:
            strides = [step for size, step in zip(result.shape, result.stride(), strict=True) if size > 1]
            self.block._found[0] |= result.stride(0) < max(strides)
        return result


def compiled(row: Row, height: int, device: torch.device = CPU) -> Compiled:
    """The graph of a block of so many rows."""
    block = Block(row, height)
    losses, bad, gradients = row.outputs
    outputs = [block.reshaped(block.rows(losses), (height,))]
    if bad is not None:
        outputs.append(block.rows(bad))
    parts: dict[str, list[tuple[Use, slice]]] = {}
    for name, gradient in zip(row.trainable, gradients, strict=True):
        for use in [] if gradient is None else uses(gradient):
            operands = use.operands(block)
            parts.setdefault(name, []).append((use, slice(len(outputs), len(outputs) + len(operands))))
            outputs += operands
    block.graph.output(tuple(outputs))
    block.graph.eliminate_dead_code()
    placed(block.graph, device)
    module = fx.GraphModule(row.graph, block.graph).to(device)
    loops = frozenset(
        math.prod(node.meta["shape"]) for node in block.graph.nodes
        if _is_rounded(node) and node.meta["shape"][:1] == (height,)
    )  # fmt: skip
    return Compiled(module, height, parts, bad is not None, loops, _floats(block.graph, len(row.weights)))


def _is_rounded(node: Any) -> bool:
    """Whether loops may round elements after the last whole vector otherwise."""
    return node.target in _ROUNDED or (node.target in POINTWISE and node.meta["dtype"].is_complex)


def _floats(graph: fx.Graph, weights: int) -> int:
    """How many numbers that depend on rows are computed and still needed at a time, at most."""
    private = set(graph.find_nodes(op="placeholder")[weights:])
    last = {arg: node for node in graph.nodes for arg in node.all_input_nodes}
    ends: dict[fx.Node, int] = {}
    held = most = 0
    for node in graph.nodes:
        if node not in private and private.isdisjoint(node.all_input_nodes):
            continue
        private.add(node)
        if node.target not in WINDOWS and node in last:
            size = math.prod(node.meta.get("shape", (0,)))
            held += size
            ends[last[node]] = ends.get(last[node], 0) + size
        most = max(most, held)
        held -= ends.get(node, 0)
    return most


def _share(elements: int, threads: int) -> int:
    """How many elements the first of torch's threads works on, where a loop is shared out at all."""
    return -(-elements // max(1, min(threads, -(-elements // _GRAIN))))


class Engine:
    """A model, its loss and views as a graph, and the clipped sums of rows that are put through it.

    Args:
        model: The model, in the mode that it is trained in.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        example: Inputs and targets of one public row, (1, …).
        views: K random views of each row.
        public: Tensors that the code may bring along though they are large: public data.
        data: The private rows, to tell whether code brings a part of them along; nothing is read.

    >>> from sfumato.training import Flat, cross_entropy
    >>> rows = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    >>> engine = Engine(nn.Linear(2, 2), cross_entropy, rows)
    >>> engine.clipped(*rows, Flat(norm=1.0)).finite.tolist()
    [True]
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        example: tuple[Any, Any],
        *,
        views: Views | None = None,
        public: Sequence[Tensor] = (),
        data: Any = None,
    ) -> None:
        model = as_written(model)
        self.model, self.loss_fn, self.views = model, loss_fn, views
        self.device = device_of(model)
        _check_tensors(model)
        check_model(model)
        like = pytree.tree_map_only(Tensor, lambda leaf: leaf[:1], example)
        self._like = moved(like, CPU)
        with plain_float32(), _explained(model, *like):
            here = self._on_cpu()
            self.row = trace(here, loss_fn, *self._like, views=views)
            check_constants(self.row, model, public, data)
            check_code(self.row, here, loss_fn, self._like, views)
        self._places = _places(model)
        self._graphs: dict[int, Compiled] = {}
        self._pool = [leaf for leaf in pytree.tree_leaves(random_rows(like, POOL)) if isinstance(leaf, Tensor)]
        self._pool = moved(self._pool, self.device)
        self._heights, self._trial = Heights(most_rows(self.floats_per_row)), fresh_seed()
        self._compared: set[int] = set()
        self._kinds = [(tuple(leaf.shape[1:]), leaf.dtype) for leaf in self._pool]
        self._workspace = Workspace()
        self._generator: torch.Generator | None = None  # of the chunk

    def clipped(
        self,
        inputs: Any,
        targets: Any,
        clipping: Clipping,
        *,
        units: Tensor | None = None,
        into: Mapping[str, Tensor] | None = None,
        sampler: Sampler | None = None,
    ) -> ChunkResult:
        """The clipped sum of a chunk of rows.

        *Guarantees*: every unit adds at most its clipping bound in norm; one that does not count adds exactly
        zero; the others have the same bits with and without it.

        Args:
            inputs: (rows, …).
            targets: (rows, …).
            clipping: The clipping rule.
            units: The index of the unit behind each row; each row its own by default.
            into: Zeros that sums may be written to, by parameter.
            sampler: Where dropout and the like draw from; a secret stream of its own by default.

        Returns:
            The sums, norms and coefficients; private.
        """
        rows = [
            leaf.as_subclass(Tensor).to(self.device)
            for leaf in pytree.tree_leaves((inputs, targets))
            if isinstance(leaf, Tensor)
        ]
        count = _count(rows)
        kinds = [(tuple(leaf.shape[1:]), leaf.dtype) for leaf in rows]
        if kinds != self._kinds:
            raise InvalidInput(
                f"expected rows of the shapes and types of the example, {self._kinds}, got {kinds}; pad rows "
                "to one shape, or make another engine"
            )
        if units is not None and (units.shape != (count,) or units.is_floating_point()):
            raise InvalidInput(
                f"expected units to hold a whole number for each of the {count} rows, got "
                f"{tuple(units.shape)} of {units.dtype}"
            )
        if self.row.draws:
            self._generator = secret_torch_generator(SecretStream() if sampler is None else sampler)
        with torch.no_grad(), plain_float32(), self._on_device():
            if count == 0:
                return self._nothing(clipping)
            if units is None:
                return _joined(self._blocks(rows, count, 1, clipping, into or {}))
            strata = _strata(units)
            found = [
                part
                for some in strata
                for part in self._blocks([leaf[some.rows] for leaf in rows], *some.shape, clipping, {})
            ]
            return _reordered(_joined(iter(found)), strata)

    def _blocks(
        self, rows: Sequence[Tensor], units: int, span: int, clipping: Clipping, into: Mapping[str, Tensor]
    ) -> Iterator[ChunkResult]:
        """Blocks of units with `span` rows each, the last one filled up with public rows."""
        start = 0
        for height in self.split(units, span):
            stop = min(start + height, units)
            missing = (height - (stop - start)) * span
            data = [leaf[start * span : stop * span] for leaf in rows]
            if missing:
                data = [torch.cat([leaf, leaf.new_zeros(missing, *leaf.shape[1:])]) for leaf in data]
            yield from self._block(data, stop - start, height, clipping, into)
            start, into = stop, {}

    def _block(
        self, rows: Sequence[Tensor], units: int, height: int, clipping: Clipping, into: Mapping[str, Tensor]
    ) -> Iterator[ChunkResult]:
        """The units of a block, part by part: gradients of all may be too large to form at once."""
        graph = self.graph(len(rows[0]))
        tensors = self._weights()
        draws = [self._draw(draw, len(rows[0])) for draw in self.row.draws]
        values = graph.run(*[tensors[name] for name in self.row.weights], *rows, *draws)
        found = graph.contributions(values)
        for part, some in self._parts(height, len(rows[0]) // height):
            if part.start >= units:
                return
            with self._workspace.lend():
                yield clipped(
                    {name: [cut(each, some) for each in used] for name, used in found.items()},
                    values[0][some],
                    values[1][some] if graph.marked else None,
                    clipping,
                    names={name: tensors[name] for name in self.row.trainable},
                    units=min(units, part.stop) - part.start,
                    height=part.stop - part.start,
                    into=into,
                )
            into = {}

    def _parts(self, height: int, span: int) -> Iterator[tuple[slice, slice]]:
        """Units, and rows, whose gradients are formed together; by shapes alone."""
        formed = sum(map(formed_values, self._of_public_rows.values()))
        size = max(1, _FORMED_BYTES // (4 * max(1, formed)))
        size = size // POOL * POOL if size >= POOL else size
        for start in range(0, height, size):
            stop = min(start + size, height)
            yield slice(start, stop), slice(start * span, stop * span)

    def rounding_bound(self, *, units: int, rows_per_unit: int = 1) -> float:
        """η for chunks of up to `units` units with up to `rows_per_unit` rows each, from shapes alone.

        A unit's clipped gradient exceeds its bound by at most the error of its norm; the computed sum of a
        chunk differs from the exact one by at most units · e · C, with e from `bounds`. Two
        neighbouring chunks differ by the unit and by both errors: η = norm error + 2 · units · e. Other units'
        gradients and coefficients are the same bits in both.

        Args:
            units: The most units in a chunk.
            rows_per_unit: The most rows of one unit.

        Returns:
            η.
        """
        parts = [
            rounding(used, 2, units=units, rows_per_unit=rows_per_unit)
            for used in joined(self._of_public_rows, [self.row.trainable]).values()
        ]
        count = len(self._of_public_rows)
        return sum(chunk_errors(parts, units)) + adding_error(count) + _joining_error(units)

    @cached_property
    def floats_per_row(self) -> int:
        """How many numbers a pass and the tail hold for each row, at most."""
        formed = sum(map(formed_values, self._of_public_rows.values())) // 2
        return max(1, self.graph(2).floats // 2 + min(formed, _FORMED_BYTES // (4 * POOL)))

    @cached_property
    def _of_public_rows(self) -> dict[str, list[Contribution]]:
        """The contributions of two public rows, for their shapes."""
        with torch.no_grad(), plain_float32(), self._on_device():
            data = [leaf[:2] for leaf in self._pool]
            values = self.graph(2).run(
                *self._in_order(), *data, *moved(constant_draws(self.row, 2), self.device)
            )
            return self.graph(2).contributions(values)

    def chunk_rows(self) -> int:
        """Rows of a chunk: few enough for its memory, enough to pay for a pass and for all parameters."""
        parameters = sum(tensor.numel() for tensor in self._weights().values())
        floats = max(_CHUNK_BYTES, 28 * parameters) // 4
        return min(4096, max(32, floats // self.floats_per_row // 32 * 32))

    @property
    def caveats(self) -> list[str]:
        """A sentence for each tensor that the traced code brought along."""
        found = [(tuple(value.shape), os.path.basename(where)) for value, where in self.row.constants.values()]
        return [
            Code.PUBLIC_CONSTANT(shape=str(shape), place=where or "a module of torch")
            for shape, where in found
            if math.prod(shape) > 1
        ]

    @property
    def digest(self) -> str:
        """Digest of the graph and its constants, by code and values, not by places of files."""
        return _digest(self.row)

    def digest_now(self) -> str:
        """Return the digest of a fresh trace; another one: the code reads values that have changed."""
        with plain_float32(), _explained(self.model, *self._like):
            return _digest(trace(self._on_cpu(), self.loss_fn, *self._like, views=self.views))

    def _on_cpu(self) -> nn.Module:
        """Return the model, or a copy on the CPU: graphs know no device."""
        return self.model if self.device == CPU else copy.deepcopy(self.model).cpu()

    def prepare(self, expected: float, *, spread: float = 0.0) -> None:
        """Try the blocks of as many units of one row as are expected, `spread` more and fewer included."""
        with torch.no_grad(), plain_float32(), self._on_device(), self._trials(1) as bits:
            sizes = [max(1, round(size)) for size in (expected, expected + spread, expected - spread)]
            self._heights.find(sizes, bits, stamp=self._stamp)

    def graph(self, height: int) -> Compiled:
        """The graph of a block of so many rows, made once."""
        if height not in self._graphs:
            self._graphs[height] = compiled(self.row, height, self.device)
        return self._graphs[height]

    def split(self, units: int, span: int) -> list[int]:
        """Heights of blocks that hold so many units with `span` rows each, by public facts alone.

        A height is used if public rows came out with the same bits at every place of such a block.
        """
        with self._trials(span) as bits:
            return self._heights.split(units, span, bits, stamp=self._stamp)

    @contextmanager
    def _trials(self, span: int) -> Iterator[Callable[[Sequence[int]], Iterator[Tensor] | None]]:
        """All that public units come to in a block, with other weights, for `Heights` to compare."""
        with ExitStack() as within:
            begin = cache(lambda: within.enter_context(other_weights(self.model, self._trial)))

            def bits(numbers: Sequence[int]) -> Iterator[Tensor] | None:
                begin()
                return self._bits(numbers, span)

            yield bits

    def _on_device(self) -> AbstractContextManager[Any]:
        """Within, tensors that are made lie on the model's device."""
        return nullcontext() if self.device == CPU else self.device

    @property
    def _stamp(self) -> list[int]:
        """Tells the weights of one moment from those of another."""
        return [self._trial, *(held[key]._version for _, held, key in self._places)]

    def _bits(self, numbers: Sequence[int], span: int) -> Iterator[Tensor] | None:
        """All that public units come to in a block, one entry for each; None where loops have ends inside."""
        height, graph = len(numbers), self.graph(len(numbers) * span)
        chosen = torch.as_tensor([(unit + row) % POOL for unit in numbers for row in range(span)])
        given = [
            *self._in_order(),
            *[leaf[chosen] for leaf in self._pool],
            *moved(constant_draws(self.row, len(chosen)), self.device),
        ]
        if not self._heights.few_rows(span) and not graph.whole(given):
            return None
        values = graph.run(*given)
        if height not in self._compared:
            self._compared.add(height)
            self._compare(graph, values, chosen)
        return self._entries(graph, values, height)

    def _entries(self, graph: Compiled, values: Sequence[Tensor], height: int) -> Iterator[Tensor]:
        yield from (value.reshape(height, -1) for value in values)
        parts = list(self._parts(height, len(values[0]) // height))
        together = joined(graph.contributions(values), [self.row.trainable])
        for key, used in together.items():
            found: list[list[Tensor]] = []
            for part, rows in parts:
                units = part.stop - part.start
                with self._workspace.lend():
                    formed = term([cut(each, rows) for each in used], units)
                    columns = squared_norms({key: formed}, [[key]], [1.0], torch.zeros(units))
                    kept = formed.gradients if isinstance(formed, Materialised) else columns[0]
                    found.append([*map(torch.clone, columns), torch.tensor(digests(kept))])
            yield from (torch.cat(column) for column in zip(*found, strict=True))

    def _compare(self, graph: Compiled, values: Sequence[Tensor], chosen: Tensor) -> None:
        """Refuse a block whose first row has other gradients than the graph of that row."""
        data = [leaf[chosen[:1]] for leaf in self._pool]
        losses, expected = run_row(self.row, self.model, data)
        zero, tensors = torch.zeros(1, dtype=torch.int64), self._weights()
        with self._workspace.lend():
            formed = {
                name: term([cut(each, slice(1)) for each in used], 1).gradient(zero)[0]
                for name, used in graph.contributions(values).items()
            }
            found = torch.cat(
                [formed.get(name, torch.zeros_like(tensors[name])).flatten() for name in self.row.trainable]
            ).cpu()
        if not near(values[0][:1].cpu(), losses) or not near(found, expected):
            raise UnsupportedModel(
                f"expected a block of {len(chosen)} rows to compute the numbers of the graph of one row, got "
                f"others, by {code_of(self.model)}; an operation in it is batched wrongly: please report it"
            )

    def _in_order(self) -> list[Tensor]:
        """Parameters and buffers as the graph takes them."""
        tensors = self._weights()
        return [tensors[name] for name in self.row.weights]

    def _weights(self) -> dict[str, Tensor]:
        return {name: held[key].detach() for name, held, key in self._places}

    def _draw(self, draw: Draw, rows: int) -> Tensor:
        make = torch.rand if draw.kind == "uniform" else torch.randn
        drawn = make((rows, *draw.shape), dtype=draw.dtype, generator=self._generator, device=CPU)
        return drawn.to(self.device)

    def _nothing(self, clipping: Clipping) -> ChunkResult:
        tensors = all_tensors(self.model)
        none = torch.zeros(0, len(clipping.layers(self.row.trainable)))
        zeros = {name: torch.zeros_like(tensors[name], requires_grad=False) for name in self.row.trainable}
        return ChunkResult(zeros, none, none, torch.zeros(0, dtype=torch.bool), none.flatten(), 0.0, 0.0)


def _places(model: nn.Module) -> list[tuple[str, dict[str, Any], str]]:
    """Where the modules hold their parameters and buffers, by name."""
    modules = dict(model.named_modules(remove_duplicate=False))
    found = []
    for name in all_tensors(model):
        prefix, _, key = name.rpartition(".")
        module = modules[prefix]
        found.append((name, module._parameters if key in module._parameters else module._buffers, key))
    return found


_kept: deque[tuple[list[Any], Engine]] = deque(maxlen=2)  # they keep models alive, so few are kept


def engine_for(
    model: nn.Module,
    loss_fn: LossFunction,
    example: tuple[Any, Any],
    *,
    views: Views | None = None,
    public: Sequence[Tensor] = (),
    data: Any = None,
) -> Engine:
    """The engine for these arguments; one that was made for the same settings before is used again."""
    model, key = as_written(model), settings_for(model, loss_fn, example, views)
    for settings, engine in _kept:
        if same_settings(settings, key):
            check_constants(engine.row, model, public, data)
            return engine
    engine = Engine(model, loss_fn, example, views=views, public=public, data=data)
    _kept.appendleft((key, engine))
    return engine


def settings_for(
    model: nn.Module, loss_fn: LossFunction, example: tuple[Any, Any], views: Views | None
) -> list[Any]:
    """All that a graph depends on: code, modes, shapes, types and precision."""
    model = as_written(model)
    leaves, spec = pytree.tree_flatten(example)
    kinds = [(leaf.dtype, tuple(leaf.shape[1:])) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return [
        *settings_of(model, loss_fn, views),
        *(part for kind in kinds for part in (kind if isinstance(kind, tuple) else (kind,))),
        str(spec),
        str(torch.get_default_dtype()),
    ]


def _digest(row: Row) -> str:
    found = hashlib.blake2b(str(row.graph.graph).encode())
    for constant in row.constants.values():
        found.update(constant.value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _check_tensors(model: nn.Module) -> None:
    """Refuse tensors whose class runs code of its own, or that are not dense."""
    for name, tensor in all_tensors(model).items():
        if type(tensor).__module__.partition(".")[0] != "torch" or tensor.layout != torch.strided:
            raise UnsupportedModel(
                f"expected dense parameters and buffers of torch's own classes, got {name} of "
                f"{type(tensor).__name__} with layout {tensor.layout}; use nn.Parameter(tensor.to_dense())"
            )


@contextmanager
def _explained(model: nn.Module, inputs: Any, targets: Any) -> Iterator[None]:
    """Explain why code does not run on made-up rows, and the likely mistake."""
    remedy = other_number(model, inputs) or other_type(model, inputs) or other_targets(targets)
    try:
        yield
    except InvalidInput:
        raise
    except UnsupportedModel as error:
        text = _written_down(str(error))
        if "_pack_padded_sequence" in text:
            remedy = ", or padded sequences and a mask, by which the outputs of each position are weighted"
        elif error.__cause__ is None:
            remedy = ""
        if text + remedy == str(error):
            raise
        raise UnsupportedModel(text + remedy) from error.__cause__
    except Exception as error:
        text = _written_down(str(error).partition("\n")[0])
        raise UnsupportedModel(
            "expected model and loss to run on made-up rows like those of the data, got "
            f"{type(error).__name__}: {text}{remedy}"
        ) from error


def _written_down(text: str) -> str:
    """Put torch's message about a write to a tensor outside into words."""
    before, found, _ = text.partition("false INTERNAL ASSERT")
    return (
        before + "a write to a tensor outside of the model; compute new values, and keep no state"
        if found
        else text
    )


def _count(rows: Sequence[Tensor]) -> int:
    if not rows or any(leaf.dim() == 0 or len(leaf) != len(rows[0]) for leaf in rows):
        raise InvalidInput(
            f"expected tensors with the same number of rows, got shapes {[tuple(leaf.shape) for leaf in rows]}"
        )
    return len(rows[0])


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
    _, owner, counts = torch.unique(units, return_inverse=True, return_counts=True)
    order = torch.argsort(owner, stable=True)
    return [
        _Stratum((counts == count).nonzero().flatten(), order[(counts == count)[owner[order]]])
        for count in sorted(set(counts.tolist()))
    ]


def _joined(parts: Iterator[ChunkResult]) -> ChunkResult:
    """Add up blocks: a few sums in float32, and these in float64."""
    seen: list[ChunkResult] = []
    sums: dict[str, Tensor] = {}  # of the last few
    totals: dict[str, Tensor] = {}  # of those before
    for part in parts:
        if seen and len(seen) % _JOINED == 0:
            totals, sums = _added(totals, sums), {}
        sums = part.sums if not sums else {name: value.add_(part.sums[name]) for name, value in sums.items()}
        seen.append(replace(part, sums={}))
    if totals:
        sums = {name: total.to(sums[name].dtype) for name, total in _added(totals, sums).items()}
    norms = torch.cat([part.norms for part in seen])
    return ChunkResult(
        sums=sums,
        norms=norms,
        coefficients=torch.cat([part.coefficients for part in seen]),
        finite=torch.cat([part.finite for part in seen]),
        losses=torch.cat([part.losses for part in seen]),
        norm_error=max(part.norm_error for part in seen),
        sum_error=sum(part.sum_error for part in seen) + _joining_error(len(norms)),
    )


def _added(totals: dict[str, Tensor], sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not totals:
        return {name: value.double() for name, value in sums.items()}
    return {name: total.add_(sums[name]) for name, total in totals.items()}


def _joining_error(units: int) -> float:
    """Of adding the sums of blocks, a few in float32 and these in float64, for both of two neighbours.

    The sums of all blocks have norm at most units · C; each is rounded in _JOINED - 1 additions at most, and
    once more at the end.
    """
    return 1.02 * 2 * units * _JOINED * 2.0**-24  # 1.02: second-order terms


def _reordered(result: ChunkResult, strata: Sequence[_Stratum]) -> ChunkResult:
    """The same with units and rows in the order of the chunk."""
    units = torch.argsort(torch.cat([stratum.members for stratum in strata]))
    rows = torch.argsort(torch.cat([stratum.rows for stratum in strata]))
    return replace(
        result,
        norms=result.norms[units],
        coefficients=result.coefficients[units],
        finite=result.finite[units],
        losses=result.losses[rows],
    )


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

    *Guarantees*: every unit adds at most its clipping bound in norm, in any company; rows whose loss or
    gradient is not finite add zero; model, loss and views see tensors without values and made-up rows only.

    Args:
        model: Any module that `PrivateTrainer` takes.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        inputs: (rows, …).
        targets: (rows, …).
        clip_norm: C, ∞ for plain sums, or a value such as `Automatic`.
        units: The index of the person behind each row; each row its own by default.
        chunk: How many rows are worked on at a time; chosen by memory by default.

    Returns:
        {parameter name: sum}.

    Raises:
        UnsupportedModel: If the code is no graph of pure operations, or mixes rows.

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
        return {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}
    engine = _engine(model, loss_fn, inputs, targets)
    size = engine.chunk_rows() if chunk is None else _validate.integer("chunk", chunk, least=1)
    totals: dict[str, Tensor] = {}
    for part in _slices(rows, units, size):
        some, wanted = (pytree.tree_map_only(Tensor, itemgetter(part), each) for each in (inputs, targets))
        found = engine.clipped(some, wanted, clipping, units=None if units is None else units[part])
        accumulate(totals, found.sums)
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
) -> ChunkResult:
    """One physical chunk: clipped sums, norms, coefficients, and a bound η of the rounding error.

    Rows are worked on in blocks of public heights, padded with public rows (see `blocks`), so that a unit's
    gradient and coefficient are the same bits in any company.

    *Clipping and float32.* The coefficient of a unit uses an upper bound of its norm, rounding included: a
    Gram norm gets the slack κu·S², S = Σₚ ‖aₚ‖‖gₚ‖; where that slack is not small (the output gradients
    cancel, or squares overflow) the gradient itself is formed and its norm taken in float64. There remains
    the rounding of the sum over the chunk, bounded by η (see `Engine.rounding_bound`), so that adding or
    removing one unit moves the computed sums by at most sensitivity · (1 + η).

    Args:
        model: The model.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        inputs: (rows, …).
        targets: (rows, …).
        clipping: The clipping rule.
        units: The index of the unit behind each row; each row its own by default.
        views: `views(inputs)` returns K views of each row, (rows, K, …), whose gradients are averaged.

    Returns:
        The sums, norms and coefficients; private.

    >>> rows = torch.tensor([[3.0, 4.0]])
    >>> result = clip_chunk(nn.Linear(2, 1), lambda out, _: out[:, 0], rows, torch.zeros(1), Flat(norm=1.0))
    >>> result.finite.tolist()
    [True]
    """
    return _engine(model, loss_fn, inputs, targets, views).clipped(inputs, targets, clipping, units=units)


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
    """η for chunks of up to `units` units with up to `rows_per_unit` rows, from the shapes of given rows alone.

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
    engine = _engine(model, loss_fn, inputs, targets, views)
    return engine.rounding_bound(units=units, rows_per_unit=rows_per_unit)


def _engine(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, views: Views | None = None
) -> Engine:
    """The engine for rows like these, which it does not see: their shapes and types on made-up rows."""
    made_up = random_rows(inputs, 1), random_rows(targets, 1)
    return engine_for(model, loss_fn, made_up, views=views, data=(inputs, targets))


def count_rows(data: Any) -> int:
    """The number of rows in a tree of tensors.

    >>> count_rows({"tokens": torch.zeros(3, 2)})
    3
    """
    for leaf in pytree.tree_leaves(data):
        if isinstance(leaf, Tensor) and leaf.dim():
            return len(leaf)
    raise InvalidInput("expected inputs that are or hold a tensor with one entry a row, got none")


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
