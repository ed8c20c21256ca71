"""The loss and the gradients of one row as a graph of pure tensor operations.

Model, loss and views run once, on tensors that have shapes and no values. They cannot see a row, another row,
or the number of rows. They leave a graph whose inputs are the weights, one row and the random draws; no node in
it writes to memory, asks for a value or is missing on the closed list of `operations`.
"""

from __future__ import annotations

import inspect
import operator
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.distributions import Distribution
from torch.fx.experimental.proxy_tensor import disable_autocast_cache
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sfumato.errors import InvalidInput, UnsupportedModel
from sfumato.randomness import public_global_generators
from sfumato.training.hugging_face import completed
from sfumato.training.losses import check_views, random_rows
from sfumato.training.operations import LISTED, PUBLIC, decomposed, is_allowed, made_total

aten = torch.ops.aten

MOST_OF_A_CONSTANT = 1024  # elements of a tensor in the code that need not be declared as public
_OURS = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)


class Draw(NamedTuple):
    """Random numbers that one row takes: uniform in [0, 1) or standard normal."""

    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Constant(NamedTuple):
    """A tensor that the traced code brought along: neither parameter nor buffer nor input."""

    value: Tensor
    where: str


@dataclass(frozen=True)
class Row:
    """One row's graph.

    Placeholders: the weights, the leaves of the row, the draws. Outputs: the losses of the row's views, whether
    an operation met a value that it has no result for, and the gradient of each trainable parameter, or None
    where the loss does not depend on it.

    Attributes:
        graph: The operations.
        weights: Names of the parameters and buffers, in the order of their placeholders.
        trainable: Names of the parameters that learn, in the order of the gradients.
        leaves: How many tensors a row has.
        draws: The random numbers it takes.
        constants: Tensors that the code brought along, by their names in the graph.
    """

    graph: fx.GraphModule
    weights: tuple[str, ...]
    trainable: tuple[str, ...]
    leaves: int
    draws: tuple[Draw, ...]
    constants: Mapping[str, Constant]

    @property
    def placeholders(self) -> list[fx.Node]:
        return [node for node in self.graph.graph.nodes if node.op == "placeholder"]

    @property
    def outputs(self) -> tuple[fx.Node, fx.Node | None, list[fx.Node | None]]:
        """The losses, the mark of a row that does not count, and the gradients."""
        results: Any = self.graph.graph.output_node().args[0]
        losses, bad, *gradients = results
        return losses, bad, gradients


def trace(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    inputs: Any,
    targets: Any,
    *,
    views: Callable[[Any], Any] | None = None,
) -> Row:
    """Trace the loss and gradients of one row; of the example only shapes and types are used.

    Args:
        model: The model, in the mode that it is trained in.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        inputs: The inputs of one row, (1, …).
        targets: Its targets, (1, …).
        views: `views(inputs)` returns (1, K, …): K views of the row, whose gradients are averaged.

    Returns:
        The graph.

    Raises:
        UnsupportedModel: If the code asks for values, writes to weights, or calls an unlisted operation.

    >>> row = trace(nn.Linear(2, 1), lambda out, _: out[:, 0], torch.zeros(1, 2), torch.zeros(1))
    >>> row.trainable
    ('weight', 'bias')
    """
    named = {name: tensor.detach() for name, tensor in all_tensors(model).items()}
    learning = [name for name, p in model.named_parameters() if p.requires_grad]
    leaves, spec = pytree.tree_flatten((inputs, targets))
    rows = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    _run_once(model, loss_fn, (inputs, targets), views)
    watch = Recorder(decomposed())
    with kept_as_it_was(model), pinned(), _explained(watch), watch.fake:
        given = [tensor.requires_grad_(name in learning) for name, tensor in named.items()]
        tensors = dict(zip(named, map(watch.placeholder, given), strict=True))
        filled = iter([watch.placeholder(row) for row in rows])
        data = [next(filled) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        swapped = nn.utils.stateless._reparametrize_module(model, tensors, tie_weights=True)
        with disable_autocast_cache(), watch, swapped:  # layers may run again in the backward pass
            row_inputs, row_targets = pytree.tree_unflatten(data, spec)
            losses = losses_of(model, loss_fn, row_inputs, row_targets, views)
            if not losses.requires_grad:
                raise UnsupportedModel(
                    f"expected a loss that learns, got one that depends on no weight, by {code_of(loss_fn)}; "
                    "leave out detach(), argmax and no_grad() between the weights and the loss"
                )
            found: Any = torch.autograd.grad(
                losses.sum(), [tensors[name] for name in learning], allow_unused=True
            )
        traced = watch.recorded([losses, *found])
        _check_constants(traced.graph, watch.constants, model)
    with pinned(), watch.fake:
        graph = _without_writes(traced, watch, list(named))
    _simplify(graph)
    _check(graph)
    row = Row(graph, tuple(named), tuple(learning), len(rows), tuple(watch.draws), watch.constants)
    made_total(graph.graph, private_nodes(row))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return row


def placed(graph: fx.Graph, device: torch.device) -> None:
    """Create the constants of a graph on a device."""
    for node in graph.nodes if device.type != "cpu" else ():
        schema = getattr(node.target, "_schema", None)
        if schema is not None and any(argument.name == "device" for argument in schema.arguments):
            node.kwargs = {**node.kwargs, "device": device}


def _run_once(model: nn.Module, loss_fn: Any, example: tuple[Any, Any], views: Any) -> None:
    """Run the code on a made-up row, so that caches for later calls have values."""
    copies = {name: tensor.detach().clone() for name, tensor in all_tensors(model).items()}
    swapped = nn.utils.stateless._reparametrize_module(model, copies, tie_weights=True)
    row_inputs, row_targets = random_rows(example, 1)
    with suppress(Exception), kept_as_it_was(model), pinned(traced=False), swapped, torch.no_grad(), _Inside():
        losses_of(model, loss_fn, row_inputs, row_targets, views)


def private_nodes(row: Row) -> set[fx.Node]:
    """The nodes that depend on the row or on a draw; the others depend on weights and constants alone."""
    found: set[fx.Node] = set(row.placeholders[len(row.weights) :])
    for node in row.graph.graph.nodes:
        made = node.op == "call_function" and node.target not in PUBLIC
        if made and any(arg in found for arg in node.all_input_nodes):
            found.add(node)
    return found


def all_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def call(model: nn.Module, inputs: Any) -> Any:
    """model(x), model(*tuple) or model(**dict)."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def losses_of(model: nn.Module, loss_fn: Any, inputs: Any, targets: Any, views: Any) -> Tensor:
    """(rows,): the loss of each row, averaged over its views."""
    rows = len(next(leaf for leaf in pytree.tree_leaves((inputs, targets)) if isinstance(leaf, Tensor)))
    copies = 1
    if views is not None:
        seen = views(inputs)
        copies = check_views(seen, rows)
        inputs = pytree.tree_map_only(Tensor, lambda leaf: leaf.flatten(0, 1), seen)
        targets = pytree.tree_map_only(Tensor, lambda leaf: leaf.repeat_interleave(copies, 0), targets)
    losses = loss_fn(call(model, completed(model, inputs, targets)), targets)
    if not isinstance(losses, Tensor) or losses.shape != (rows * copies,):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        several = isinstance(losses, Tensor) and losses.ndim > 1
        remedy = "losses.flatten(1).mean(1)" if several else "reduction='none'"
        if losses is None:  # the loss of a model of transformers, which gets no labels here
            remedy = "sfumato.training.default_loss(model), or compute it from the outputs"
        raise InvalidInput(
            f"expected loss_fn to return one loss for each row, {(rows * copies,)}, got {got}; use {remedy}"
        )
    return losses if copies == 1 else losses.view(rows, copies).mean(1)


# Operations that code may not call


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operation as it is called: notes the line, and puts plain draws in the place of random ones."""

    supports_higher_order_operators = True
    line = ""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):
            raise UnsupportedModel(
                f"expected one straight list of operations, got {func} at {_line()}; use torch.where"
            )
        if func.namespace == "prim":
            return func(*args, **kwargs)
        self.line = _line() or self.line
        if func not in decomposed() and _asks(func, args) and not _is_constant(args):
            raise UnsupportedModel(
                f"expected code whose steps do not depend on values, got {_asked(func)} at {self.line}; use "
                "torch.where, padded sequences and a mask, or shapes"
            )
        if torch.Tag.nondeterministic_seeded in func.tags:
            with self:
                return self._drawn(func, arguments_of(func, args, kwargs))
        return self._called(func, args, kwargs)

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def _drawn(self, func: Any, given: dict[str, Any]) -> Any:
        if given.get("generator") is not None:
            raise UnsupportedModel(
                "expected random draws from torch's own generator, got a generator of your own at "
                f"{self.line}; leave the generator out: draws are made from the secret stream"
            )
        name = func._schema.name.removeprefix("aten::").removesuffix("_functional")
        make = _RANDOM.get(name.removesuffix("_"))
        if make is None:
            raise UnsupportedModel(
                f"expected random draws that can be inputs of a graph, got {_name(func)} at {self.line}; use "
                "torch.rand, torch.randn or dropout, and F.gumbel_softmax(scores, hard=True) for a class"
            )
        drawn = make(self, **given)
        return given["self"].copy_(drawn) if name.endswith("_") else drawn

    def uniform(self, like: Tensor | Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        return self._draw(torch.rand, like, dtype)

    def normal(self, like: Tensor | Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        return self._draw(torch.randn, like, dtype)

    def _draw(self, make: Any, like: Tensor | Sequence[int], dtype: torch.dtype | None) -> Tensor:
        shape = tuple(like.shape if isinstance(like, Tensor) else like)
        dtype = dtype or (like.dtype if isinstance(like, Tensor) else torch.get_default_dtype())
        return self._numbers(make, shape, dtype if dtype.is_floating_point else torch.get_default_dtype())

    @abstractmethod
    def _numbers(self, make: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a draw of `make`, uniform or normal."""


class _Inside(Watch):  # type: ignore[no-untyped-call]
    """Within, nothing is written but to memory that the code itself took."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: set[int] = set()

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func._schema.is_mutable and not _memory(args[0]) <= self._taken:
            raise RuntimeError("a write to a tensor outside")
        result = func(*args, **kwargs)
        self._taken |= _memory(result) - _memory((args, kwargs))
        return result

    def _numbers(self, make: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)


def _memory(values: Any) -> set[int]:
    return {leaf.untyped_storage()._cdata for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)}


class Recorder(Watch):  # type: ignore[no-untyped-call]
    """Records operations on tensors without values in a graph, each by its decomposition."""

    def __init__(self, table: Mapping[Any, Callable[..., Any]], fake: FakeTensorMode | None = None) -> None:
        super().__init__()
        self.fake, self._table = fake or FakeTensorMode(allow_non_fake_inputs=True), table
        self.draws: list[Draw] = []
        self.constants: dict[str, Constant] = {}
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        self._sharing: Counter[int] = Counter()  # how many tensors are in one memory
        self._held: list[Any] = []  # so that no other tensor gets the number of one that is known
        self._last: fx.Node | None = None  # of the placeholders
        self._drawn_before: dict[Any, Tensor] = {}

    def placeholder(self, value: Tensor) -> Tensor:
        """A tensor without values that stands for an input."""
        with _disable_current_modes():
            made: Tensor = self.fake.from_tensor(value)
        with self._graph.inserting_after(self._last) if self._last else nullcontext():
            self._last = self._graph.placeholder(f"given_{len(self._nodes)}")
        return self._noted(self._last, made)

    def recorded(self, outputs: Sequence[Tensor | None]) -> fx.GraphModule:
        self._graph.output(tuple(None if each is None else self._node(each) for each in outputs))
        self._graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or _writes(node))
        return fx.GraphModule({name: each.value for name, each in self.constants.items()}, self._graph)

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        small = self._table.get(func, None if func in LISTED else func.decompose)
        if small is not None:
            with self:
                result = small(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if torch.Tag.inplace_view in func.tags:
            return self._seen_otherwise(func, args, kwargs)
        if func._schema.is_mutable and (pure := self._pure(func, args)) is not None:
            with self:
                result = pure(*args, **kwargs)
            if result.dtype == args[0].dtype:
                self._nodes[id(args[0])] = self._node(result)
                return args[0]
        given, named = pytree.tree_map_only(Tensor, self._node, (args, kwargs))
        if func is aten.lift_fresh.default:
            func = aten.lift_fresh_copy.default
        result = func(*args, **kwargs)
        if func is aten.unsafe_split.Tensor:  # whose results count as memory of their own
            result = [each.clone() for each in result]
        node = self._graph.call_function(func, tuple(given), named)
        if isinstance(result, Tensor):
            return self._noted(node, result)
        node.meta["val"], node.meta["line"] = result, self.line
        for place, each in enumerate(result if isinstance(result, list | tuple) else []):
            if isinstance(each, Tensor):
                self._noted(self._graph.call_function(operator.getitem, (node, place)), each)
        return result

    def _seen_otherwise(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Note a change of shape in place, such as `transpose_`, as the view that it is."""
        node = self._node(args[0])
        node.meta["val"] = args[0].detach()  # the shape before
        packet = getattr(aten, func._schema.name.removeprefix("aten::")[:-1])
        view = getattr(packet, func._overloadname, None) or packet.int
        made = self._graph.call_function(view, (node, *args[1:]), kwargs)
        result = func(*args, **kwargs)
        made.meta["val"], made.meta["line"] = result.detach(), self.line
        self._nodes[id(args[0])] = made
        return result

    def _pure(self, func: Any, args: Any) -> Any:
        """The operation with a new value for a result, of a write to memory that nothing else has."""
        name = func._schema.name.removeprefix("aten::")
        alone = self._sharing[args[0].untyped_storage()._cdata] == 1
        if not alone or not name.endswith("_") or self._node(args[0]).op != "call_function":
            return None
        if name == "copy_":
            return lambda into, given, *_: given.to(into.dtype).expand(into.shape).clone()
        pure = getattr(getattr(aten, name[:-1], None), func._overloadname, None)
        return pure if pure is not None and _arguments(pure) == _arguments(func) else None

    def _noted(self, node: fx.Node, value: Tensor) -> Tensor:
        node.meta["val"], node.meta["line"] = value, self.line
        self._sharing[value.untyped_storage()._cdata] += 1
        self._nodes[id(value)] = node
        self._held.append(value)
        return value

    def _node(self, value: Tensor) -> fx.Node:
        if id(value) not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = Constant(value, self.line)
            self._noted(self._graph.get_attr(name), value)
        return self._nodes[id(value)]

    def _numbers(self, make: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A draw; the same one as before if code put the generator back where it was, to repeat it."""
        with _disable_current_modes():
            state = torch.default_generator.get_state().numpy().tobytes()
            torch.rand(())  # tensors without values leave the generator where it is
            key = make, shape, dtype, state
            if key not in self._drawn_before:
                self.draws.append(Draw("uniform" if make is torch.rand else "normal", shape, dtype))
                self._drawn_before[key] = self.placeholder(torch.zeros(shape, dtype=dtype))
        return self._drawn_before[key].clone()


def _bernoulli(watch: Watch, self: Tensor, p: Any = None, **_: Any) -> Tensor:
    return (watch.uniform(self) < (self if p is None else p)).to(self.dtype)


def _dropout(watch: Watch, input: Tensor, p: float, train: bool | None, **_: Any) -> Any:
    if train is False or p == 0:
        return input, torch.ones_like(input, dtype=torch.bool)
    kept = watch.uniform(input) >= p
    return input * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def _integers(watch: Watch, size: Any, high: int, low: int = 0, dtype: Any = None, **_: Any) -> Tensor:
    u = watch.uniform(size, torch.float64)
    return (low + (u * (high - low)).floor()).to(dtype if isinstance(dtype, torch.dtype) else torch.int64)


def _normal(watch: Watch, mean: Any = 0.0, std: Any = 1.0, self: Any = None, **_: Any) -> Tensor:
    like = next(each for each in (self, mean, std) if isinstance(each, Tensor))
    return watch.normal(like) * std + mean


def _uniform(watch: Watch, self: Tensor, to: float = 1.0, **more: Any) -> Tensor:
    low = more.get("from", 0.0)
    return watch.uniform(self) * (to - low) + low


_RANDOM: dict[str, Callable[..., Any]] = {
    "bernoulli": _bernoulli,
    "native_dropout": _dropout,
    "rand": lambda w, size, dtype=None, **_: w.uniform(size, dtype),
    "rand_like": lambda w, self, dtype=None, **_: w.uniform(self, dtype),
    "randn": lambda w, size, dtype=None, **_: w.normal(size, dtype),
    "randn_like": lambda w, self, dtype=None, **_: w.normal(self, dtype),
    "normal": _normal,
    "uniform": _uniform,
    "exponential": lambda w, self, lambd=1.0, **_: -torch.log1p(-w.uniform(self)) / lambd,
    "randint": _integers,
    "randint_like": lambda w, self, dtype=None, **more: _integers(
        w, self.shape, dtype=dtype or self.dtype, **more
    ),
}  # by name, of writes in place and others


def _asks(func: Any, args: Any) -> bool:
    """Whether the shape of a result, or a number that Python gets, depends on values."""
    if torch.Tag.dynamic_output_shape in func.tags and func.overloadpacket in (
        aten.index,
        aten.repeat_interleave,
    ):
        masks = pytree.tree_leaves(args[1:])
        return any(isinstance(mask, Tensor) and mask.dtype in (torch.bool, torch.uint8) for mask in masks)
    return torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags


def _is_constant(args: Any) -> bool:
    """Whether values are asked of constants of the code, or of real tensors."""
    held = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    return all(not isinstance(each, FakeTensor) or each.constant is not None for each in held)


def _asked(func: Any) -> str:
    if func in (aten._local_scalar_dense.default, aten.item.default):
        return "a question about a value (if, .item(), int(…))"
    return "a mask as an index" if func.overloadpacket is aten.index else _name(func)


def arguments_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by name; one that equals its default is not in a call."""
    arguments = func._schema.arguments
    given = dict(zip([argument.name for argument in arguments], args, strict=False))
    left_out = {each.name: each.default_value for each in arguments if each.has_default_value()}
    return {**left_out, **given, **kwargs}


def _arguments(func: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments]


def _name(target: Any) -> str:
    return str(target).removesuffix(".default").replace("aten.", "torch.")


def _line() -> str | None:
    """The file and line of the innermost frame that is neither torch's nor ours; none in a backward pass."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OURS):
            return None
        if not file.startswith(_TORCH):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


@contextmanager
def _explained(watch: Watch) -> Iterator[None]:
    """Turn an error of a trace into a sentence; there is nothing private in it."""
    try:
        yield
    except (UnsupportedModel, InvalidInput):
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        asked = _asked(error.func)
        raise UnsupportedModel(
            f"expected code whose steps do not depend on values, got {asked} at {watch_line(error, watch)}; "
            "use torch.where, padded sequences and a mask, or shapes"
        ) from None
    except UnsupportedOperatorException as error:
        raise UnsupportedModel(
            f"expected operations of torch, got {error.args[0]} at {watch_line(error, watch)}; write it in "
            "operations of torch, or as a torch.autograd.Function"
        ) from None
    except Exception as error:
        text = str(error).strip().splitlines()
        raise UnsupportedModel(
            f"expected model and loss to run on a tensor without values, got {type(error).__name__} at "
            f"{watch_line(error, watch)}: {text[0][:200] if text else ''}"
        ) from error


def watch_line(error: BaseException, watch: Watch) -> str:
    """The innermost line of the traceback that is neither torch's nor ours."""
    trace, found = error.__traceback__, watch.line
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((_OURS, _TORCH)):
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def code_of(function: Any) -> str:
    """The file and line where code begins."""
    if isinstance(function, nn.Module):
        function = type(function).forward
    function = inspect.unwrap(getattr(function, "func", function))
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return str(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


@contextmanager
def kept_as_it_was(model: nn.Module) -> Iterator[None]:
    """Afterwards each module has the attributes that it had: code may keep tensors without values."""
    kept = [(module, dict(vars(module)), _contents(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes, contents in kept:
            vars(module).clear()
            vars(module).update(attributes)
            for container, content in contents:
                if isinstance(container, list):
                    container[:] = content
                else:
                    container.clear()
                    container.update(content)


def _of_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """States of the generator are real tensors, so that code may keep one and put it back to repeat a draw."""

    def call_it(*args: Any) -> Any:
        with _disable_current_modes():
            return function(*args)

    return call_it


def _contents(attributes: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    return [(value, type(value)(value)) for value in attributes.values() if type(value) in (list, dict, set)]


@contextmanager
def pinned(seed: int = 0, *, traced: bool = True) -> Iterator[None]:
    """Settings that choose how torch writes a model down; generators as they were afterwards.

    `traced`: without oneDNN, whose recurrent layers are no list of operations.
    """
    fast, validated = torch.backends.mha.get_fastpath_enabled(), Distribution._validate_args
    with ExitStack() as stack:
        stack.enter_context(public_global_generators(seed))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu")))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        for place in (torch, torch.random):
            for name in ("get_rng_state", "set_rng_state"):
                stack.enter_context(
                    mock.patch.object(place, name, _of_real_tensors(getattr(torch.random, name)))
                )
        mkldnn = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(mkldnn and not traced)
        torch.backends.mha.set_fastpath_enabled(False)
        Distribution.set_default_validate_args(False)  # it asks for values
        try:
            yield
        finally:
            torch._C._set_mkldnn_enabled(mkldnn)
            torch.backends.mha.set_fastpath_enabled(fast)
            Distribution.set_default_validate_args(validated)


# From the trace to the graph


def _check_constants(graph: fx.Graph, constants: Mapping[str, Constant], model: nn.Module) -> None:
    own = {tensor.untyped_storage()._cdata: name for name, tensor in all_tensors(model).items()}
    for node in graph.find_nodes(op="get_attr"):
        value, line = constants[node.target]
        name = own.get(value.untyped_storage()._cdata)
        if name is not None:
            raise UnsupportedModel(
                f"expected {name} to be reached through the model, got the tensor itself at {line}; write "
                f"model.{name} where it is used"
            )
        detached = (aten.detach.default, aten.alias.default)  # detach of a constant is recorded as alias
        if value.requires_grad and any(user.target not in detached for user in node.users):
            raise UnsupportedModel(
                f"expected tensors that learn to be parameters of the model, got one of shape "
                f"{tuple(value.shape)} at {line}; make it an nn.Parameter of the model, or detach it"
            )


def _without_writes(traced: fx.GraphModule, watch: Recorder, weights: Sequence[str]) -> fx.GraphModule:
    """The same graph without writes in place; one that would outlast the row is refused."""
    if not any(_writes(node) for node in traced.graph.nodes):
        return traced
    placeholders = traced.graph.find_nodes(op="placeholder")
    again = Recorder(decomposed(), watch.fake)
    values = [again.placeholder(node.meta["val"].detach()) for node in placeholders]
    run = torch.func.functionalize(_as_called(traced, again), remove="mutations")
    with again:
        outputs = run(*values)
    pure = again.recorded(outputs)
    targets = {node: place for place, node in enumerate(pure.graph.find_nodes(op="placeholder"))}
    for node in list(pure.graph.nodes):
        if not _writes(node):
            continue
        place = targets.get(node.args[0])
        line = _written_at(traced, placeholders[place]) if place is not None else ""
        if place is None or place < len(weights):
            name = weights[place] if place is not None else "memory that outlasts the row"
            raise UnsupportedModel(
                f"expected a model that writes to no weight or buffer, got a write to {name} at "
                f"{line or 'a module of torch'}; keep state outside of the model; in the place of BatchNorm "
                "put GroupNorm (sfumato.models.replace_batchnorm(model)), in that of spectral norm"
                " weight_norm, "
                "or call eval() on the layer"
            )
        node.replace_all_uses_with(node.args[1])
        pure.graph.erase_node(node)
    return pure


def _as_called(traced: fx.GraphModule, watch: Watch) -> Callable[..., Any]:
    """The graph as a function whose operations keep the lines that they were called from."""

    class Replay(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            watch.line = node.meta.get("line", "")
            return super().run_node(node)

    return lambda *values: Replay(traced).run(*values, enable_io_processing=False)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _written_at(traced: fx.GraphModule, placeholder: fx.Node) -> str:
    """The line of the first write to a placeholder or to a view of it."""
    same = {placeholder}
    for node in traced.graph.nodes:
        if node.op == "call_function" and node.args and node.args[0] in same:
            if _writes(node):
                return str(node.meta.get("line", ""))
            same.add(node)
    return ""


_SAME = frozenset(
    [
        aten.detach.default,
        aten.alias.default,
        aten.lift_fresh_copy.default,
        aten.lift_fresh.default,
        aten.clone.default,
        aten.contiguous.default,
    ]
)


_CONTIGUOUS = aten.native_group_norm_backward.default  # takes its arguments for contiguous


def _simplify(graph: fx.GraphModule) -> None:
    """Drop copies, repeated operations and unused ones."""
    for node in graph.graph.nodes:
        if node.target in _SAME:
            for user in list(node.users):
                if node.target is not aten.clone.default or user.target is not _CONTIGUOUS:
                    user.replace_input_with(node, node.args[0])
        elif node.target in (
            aten.view.default,
            aten._unsafe_view.default,
        ):  # strides are not those of the trace
            node.target = aten.reshape.default
        elif node.target is aten.sum.dim_IntList and not node.kwargs and _of_single_elements(node):
            node.target, node.args = aten.reshape.default, (node.args[0], list(node.meta["val"].shape))
        elif node.target is aten.unsafe_split.Tensor:
            node.target = aten.split.Tensor
        elif node.target in (aten.t.default, aten.transpose.int):
            order = list(range(len(node.meta["val"].shape)))
            one, other = node.args[1:] if len(node.args) == 3 else (0, len(order) - 1)
            if order:
                order[one], order[other] = order[other], order[one]
            node.target, node.args = aten.permute.default, (node.args[0], order)
    graph.graph.set_codegen(fx.graph.CodeGen())
    graph.graph.eliminate_dead_code()
    seen: dict[Any, fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function":
            kept = seen.setdefault(_key(node), node)
            if kept is not node:
                node.replace_all_uses_with(kept)
                graph.graph.erase_node(node)


def _of_single_elements(node: Any) -> bool:
    """Whether a sum is over dimensions of size 1 alone, and of the type of its elements."""
    values, dims = node.args[0].meta["val"], node.args[1] or []
    same = values.dtype == node.meta["val"].dtype
    return same and bool(dims) and all(values.shape[dim] == 1 for dim in dims)


def _key(node: fx.Node) -> Any:
    """Equal for two nodes that compute the same value."""
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    return node.target, spec, tuple(leaf if isinstance(leaf, fx.Node) else repr(leaf) for leaf in leaves)


def _check(graph: fx.GraphModule) -> None:
    """Refuse operations that are not on the closed list."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem and not is_allowed(node):
            raise UnsupportedModel(
                f"expected operations on the closed list, got {_name(node.target)} at "
                f"{node.meta.get('line')}; write it in other operations of torch (windows, as of STFT, by "
                "Tensor.unfold or a convolution), or freeze the part that needs it"
            )
