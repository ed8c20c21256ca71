"""The loss and the gradients of one row as a graph of pure tensor operations.

Model, loss and views run once, on tensors that have shapes and no values. They cannot see a row, another row,
or the number of rows. They leave a graph whose inputs are the weights, one row and the random draws; no node in
it writes to memory, asks for a value or is missing on the closed list of `operations`.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.fx.experimental.proxy_tensor as proxies
from torch import Tensor, fx, nn
from torch._functorch.compile_utils import fx_graph_cse
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from sfumato.errors import InvalidInput, UnsupportedModel
from sfumato.randomness import public_global_generators
from sfumato.training.compiler.operations import PUBLIC, decomposed, is_allowed, made_total
from sfumato.training.hugging_face import completed
from sfumato.training.losses import check_views

aten = torch.ops.aten

MOST_OF_A_CONSTANT = 1024  # elements of a tensor in the code that need not be declared as public
_OURS = str(Path(__file__).parents[1])
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
        UnsupportedModel: If the code asks for values, writes to weights, or does what is not on the list.

    >>> row = trace(nn.Linear(2, 1), lambda out, _: out[:, 0], torch.zeros(1, 2), torch.zeros(1))
    >>> row.trainable
    ('weight', 'bias')
    """
    named = {name: tensor.detach() for name, tensor in all_tensors(model).items()}
    learning = [name for name, p in model.named_parameters() if p.requires_grad]
    leaves, spec = pytree.tree_flatten((inputs, targets))
    rows = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def joint(weights: list[Tensor], given: list[Tensor]) -> tuple[Any, ...]:
        filled = iter(given)
        data = [next(filled) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        row_inputs, row_targets = pytree.tree_unflatten(data, spec)
        tensors = dict(zip(named, weights, strict=True))
        swapped = nn.utils.stateless._reparametrize_module(model, tensors, tie_weights=True)
        with watch, swapped:  # layers may run again in the backward pass
            losses = losses_of(model, loss_fn, row_inputs, row_targets, views)
            if not losses.requires_grad:
                raise UnsupportedModel(
                    f"expected a loss that learns, got one that depends on no weight, by {code_of(loss_fn)}; "
                    "leave out detach(), argmax and no_grad() between the weights and the loss"
                )
            found: Any = torch.autograd.grad(
                losses.sum(), [tensors[name] for name in learning], allow_unused=True
            )
        return losses, *found

    watch = Watch()
    weights = [tensor.requires_grad_(name in learning) for name, tensor in named.items()]
    with kept_as_it_was(model), pinned(), _explained(watch):
        traced = proxies.make_fx(
            joint,
            decomposition_table=decomposed(),
            tracing_mode="fake",
            _allow_non_fake_inputs=True,
            _disable_torch_fn_metadata_mode=True,
        )(weights, rows)
    draws = _draws_as_inputs(traced, watch)
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    constants = _constants(traced, model)
    graph = _simplified(_without_writes(traced, placeholders, list(named), len(rows)))
    _check(graph)
    row = Row(graph, tuple(named), tuple(learning), len(rows), draws, constants)
    made_total(graph.graph, private_nodes(row))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return row


def placed(graph: fx.Graph, device: torch.device) -> None:
    """Let what a graph makes of nothing lie on a device."""
    for node in graph.nodes if device.type != "cpu" else ():
        schema = getattr(node.target, "_schema", None)
        if schema is not None and any(argument.name == "device" for argument in schema.arguments):
            node.kwargs = {**node.kwargs, "device": device}


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


# What the code may not do


@dataclass(repr=False)
class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operation as it is called: notes the line, and puts plain draws in the place of random ones."""

    lines: dict[str, str] = field(default_factory=dict)  # by node
    keys: list[tuple[Any, ...]] = field(default_factory=list)  # of the draws, in their order
    line: str = ""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.supports_higher_order_operators = True

    def __hash__(self) -> int:
        return id(self)

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
        if _asks(func, args) and not _is_constant(args):
            raise UnsupportedModel(
                f"expected code whose steps do not depend on values, got {_asked(func)} at {self.line}; use "
                "torch.where, masks of fixed shape, or shapes"
            )
        if torch.Tag.nondeterministic_seeded in func.tags:
            result = self._drawn(func, arguments_of(func, args, kwargs))
        else:
            result = func(*args, **kwargs)
        mode = proxies.get_proxy_mode()
        for node in [] if mode is None else reversed(mode.tracer.graph.nodes):
            if node.name in self.lines:
                break
            self.lines[node.name] = node.meta["line"] = self.line
        return result

    def _drawn(self, func: Any, given: dict[str, Any]) -> Any:
        if given.get("generator") is not None:
            raise UnsupportedModel(
                "expected random draws from torch's own generator, got a generator of your own at "
                f"{self.line}; leave the generator out: draws are made from the secret stream"
            )
        make = _RANDOM.get(func)
        if make is None:
            raise UnsupportedModel(
                f"expected random draws that can be inputs of a graph, got {_name(func)} at {self.line}; use "
                "torch.rand, torch.randn or dropout"
            )
        return make(self, **given)

    def uniform(self, like: Tensor | Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        return self._draw(torch.rand, like, dtype)

    def normal(self, like: Tensor | Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        return self._draw(torch.randn, like, dtype)

    def _draw(self, make: Any, like: Tensor | Sequence[int], dtype: torch.dtype | None) -> Tensor:
        """A draw; the same one as before if code put the generator back where it was, to repeat it."""
        shape = tuple(like.shape if isinstance(like, Tensor) else like)
        dtype = dtype or (like.dtype if isinstance(like, Tensor) else torch.get_default_dtype())
        if not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        with _disable_current_modes():
            state = torch.default_generator.get_state().numpy().tobytes()
            torch.rand(())  # tensors without values leave the generator where it is
        self.keys.append((make, shape, dtype, state))
        drawn: Tensor = make(shape, dtype=dtype)
        return drawn


def _bernoulli(watch: Watch, self: Tensor, p: Any = None, **_: Any) -> Tensor:
    return (watch.uniform(self) < (self if p is None else p)).to(self.dtype)


def _dropout(watch: Watch, input: Tensor, p: float, train: bool | None, **_: Any) -> Any:
    if train is False or p == 0:
        return input, torch.ones_like(input, dtype=torch.bool)
    kept = watch.uniform(input) >= p
    return input * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def _integers(watch: Watch, shape: Sequence[int], low: int, high: int, dtype: Any) -> Tensor:
    u = watch.uniform(shape, torch.float64)
    return (low + (u * (high - low)).floor()).to(dtype or torch.int64)


def _exponential(watch: Watch, self: Tensor, lambd: float = 1.0, **_: Any) -> Tensor:
    return -torch.log1p(-watch.uniform(self)) / lambd


_RANDOM: dict[Any, Callable[..., Any]] = {
    aten.bernoulli_.float: lambda w, **a: a["self"].copy_(_bernoulli(w, **a)),
    aten.bernoulli_.Tensor: lambda w, **a: a["self"].copy_(_bernoulli(w, **a)),
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.Tensor: _bernoulli,
    aten.native_dropout.default: _dropout,
    aten.rand.default: lambda w, size, dtype=None, **_: w.uniform(size, dtype),
    aten.rand_like.default: lambda w, self, dtype=None, **_: w.uniform(self, dtype),
    aten.randn.default: lambda w, size, dtype=None, **_: w.normal(size, dtype),
    aten.randn_like.default: lambda w, self, dtype=None, **_: w.normal(self, dtype),
    aten.normal_.default: lambda w, self, mean=0.0, std=1.0, **_: self.copy_(w.normal(self) * std + mean),
    aten.normal.Tensor_float: lambda w, mean, std=1.0, **_: w.normal(mean) * std + mean,
    aten.normal.Tensor_Tensor: lambda w, mean, std, **_: w.normal(mean) * std + mean,
    aten.normal.float_Tensor: lambda w, mean, std, **_: w.normal(std) * std + mean,
    aten.uniform_.default: lambda w, **a: a["self"].copy_(
        w.uniform(a["self"]) * (a.get("to", 1.0) - a.get("from", 0.0)) + a.get("from", 0.0)
    ),
    aten.exponential_.default: lambda w, **a: a["self"].copy_(_exponential(w, **a)),
    aten.randint.default: lambda w, high, size, dtype=None, **_: _integers(w, size, 0, high, dtype),
    aten.randint.low: lambda w, low, high, size, dtype=None, **_: _integers(w, size, low, high, dtype),
    aten.randint_like.default: lambda w, self, high, **_: _integers(w, self.shape, 0, high, self.dtype),
    aten.randint_like.low_dtype: lambda w, self, low, high, **_: _integers(
        w, self.shape, low, high, self.dtype
    ),
}


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
    """Whether values are asked of what the code brought along, or of real tensors."""
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
    """Turns what a trace raises into a sentence; there is nothing private in it."""
    try:
        yield
    except (UnsupportedModel, InvalidInput):
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        asked = _asked(error.func)
        raise UnsupportedModel(
            f"expected code whose steps do not depend on values, got {asked} at {watch_line(error, watch)}; "
            "use torch.where, masks of fixed shape, or shapes"
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
    fast = torch.backends.mha.get_fastpath_enabled()
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
        try:
            yield
        finally:
            torch._C._set_mkldnn_enabled(mkldnn)
            torch.backends.mha.set_fastpath_enabled(fast)


# From the trace to the graph


def _draws_as_inputs(traced: fx.GraphModule, watch: Watch) -> tuple[Draw, ...]:
    """Put a placeholder in the place of each draw; draws from one state of the generator share it."""
    graph = traced.graph
    drawn = [node for node in graph.nodes if node.target in (aten.rand.default, aten.randn.default)]
    if len(drawn) != len(watch.keys):
        raise UnsupportedModel(
            "expected each random draw to be called by the model, got one inside an operation"
        )
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    made: dict[tuple[Any, ...], fx.Node] = {}
    draws = []
    for node, key in zip(drawn, watch.keys, strict=True):
        if key not in made:
            kind = "uniform" if key[0] is torch.rand else "normal"
            with graph.inserting_after(last):
                last = made[key] = graph.placeholder(f"draw_{len(made)}")
            last.meta["val"] = node.meta["val"]
            draws.append(Draw(kind, key[1], key[2]))
        node.replace_all_uses_with(made[key])
        graph.erase_node(node)
    return tuple(draws)


def _constants(traced: fx.GraphModule, model: nn.Module) -> dict[str, Constant]:
    own = {tensor.untyped_storage()._cdata: name for name, tensor in all_tensors(model).items()}
    found = {}
    for node in traced.graph.nodes:
        if node.op != "get_attr":
            continue
        value = operator.attrgetter(node.target)(traced)
        line = next((user.meta.get("line", "") for user in node.users), "")
        if not isinstance(value, Tensor):
            raise UnsupportedModel(
                f"expected one straight list of operations, got a sub-graph at {line}; leave out torch.cond, "
                "torch.while_loop and the like"
            )
        name = own.get(value.untyped_storage()._cdata)
        if name is not None:
            raise UnsupportedModel(
                f"expected {name} to be reached through the model, got the tensor itself at {line}; write "
                f"model.{name} where it is used"
            )
        detached = (aten.detach.default, aten.alias.default)  # of a constant, alias is what detach leaves
        if value.requires_grad and any(user.target not in detached for user in node.users):
            raise UnsupportedModel(
                f"expected tensors that learn to be parameters of the model, got one of shape "
                f"{tuple(value.shape)} at {line}; make it an nn.Parameter of the model, or detach it"
            )
        found[str(node.target)] = Constant(value, line)
    return found


def _without_writes(
    traced: fx.GraphModule, placeholders: Sequence[fx.Node], weights: Sequence[str], leaves: int
) -> fx.GraphModule:
    """The same graph without writes in place; one that would outlast the row is refused."""
    _write_anew(traced.graph)
    if not any(_writes(node) for node in traced.graph.nodes):
        return traced
    values = [node.meta["val"] for node in placeholders]
    with pinned():
        pure: fx.GraphModule = proxies.make_fx(
            torch.func.functionalize(_as_called(traced), remove="mutations"),
            decomposition_table=decomposed(),
            tracing_mode="fake",
            _allow_non_fake_inputs=True,
            _disable_torch_fn_metadata_mode=True,
        )(*values)
    targets = {node: place for place, node in enumerate(pure.graph.find_nodes(op="placeholder"))}
    for node in list(pure.graph.nodes):
        if not _writes(node):
            continue
        place = targets.get(node.args[0])
        line = _written_at(traced, placeholders[place]) if place is not None else ""
        if place is None or place < len(weights):
            name = weights[place] if place is not None else "memory that outlasts the row"
            raise UnsupportedModel(
                f"expected a model that writes to no weight or buffer, got a write to {name} at {line}; "
                "keep state outside of the model; in the place of BatchNorm put GroupNorm "
                "(sfumato.models.replace_batchnorm(model)), or call eval()"
            )
        node.replace_all_uses_with(node.args[1])
        pure.graph.erase_node(node)
    return pure


def _as_called(traced: fx.GraphModule) -> Callable[..., Any]:
    """The graph as a function whose operations keep the lines that they were called from."""

    class Replay(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            result = super().run_node(node)
            mode = proxies.get_proxy_mode()
            if mode is not None:
                for made in reversed(mode.tracer.graph.nodes):
                    if "line" in made.meta:
                        break
                    made.meta["line"] = node.meta.get("line", "")
            return result

    def run(*values: Any) -> Any:
        return Replay(traced).run(*values, enable_io_processing=False)

    return run


def _write_anew(graph: fx.Graph) -> None:
    """Make a new value of each write in place, where no other value in the same memory is used after it.

    Of the writes that are left, and of those to inputs, torch's own functionalization takes care: it is exact
    for all, and copies whole tensors for each.
    """
    nodes = list(graph.nodes)
    place = {node: number for number, node in enumerate(nodes)}
    sharing: dict[int, list[fx.Node]] = {}
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            sharing.setdefault(value.untyped_storage()._cdata, []).append(node)
    for node in nodes:
        if node.op != "call_function" or not _writes(node):
            continue
        written = node.args[0]
        if not isinstance(written, fx.Node) or written.op != "call_function":
            continue
        value = written.meta["val"]
        beside = sharing[value.untyped_storage()._cdata]
        if any(
            other is not written and place[other] < place[node] and _overlap(other.meta["val"], value)
            and (other.op != "call_function" or any(place.get(user, -1) > place[node] for user in other.users))
            for other in beside
        ):  # fmt: skip
            continue
        with graph.inserting_before(node):
            anew = _pure(graph, node)
        if anew is None:
            continue
        anew.meta.update(node.meta)
        for user in list(written.users):
            if place.get(user, -1) > place[node]:
                user.replace_input_with(written, anew)
        node.replace_all_uses_with(anew)
        place[anew] = place[node]
        beside.append(anew)
        beside.remove(node)
        graph.erase_node(node)


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors in the same memory may share an element."""
    if not one.numel() or not other.numel():
        return False
    (start, end), (first, last) = _span(one), _span(other)
    return start <= last and first <= end


def _span(value: Tensor) -> tuple[int, int]:
    start = int(value.storage_offset())
    steps = ((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    return start, start + int(sum(steps))


def _pure(graph: fx.Graph, node: Any) -> fx.Node | None:
    """The same operation with a new tensor for a result."""
    name, overload = str(node.target).removeprefix("aten.").split(".")
    value: Tensor = node.args[0].meta["val"]
    if name == "copy_":
        source: Any = node.args[1]
        held = source.meta["val"]
        if held.dtype != value.dtype:
            source = graph.call_function(aten._to_copy.default, (source,), {"dtype": value.dtype})
            source.meta["val"] = torch.empty_like(held, dtype=value.dtype)
        return graph.call_function(aten.expand.default, (source, list(value.shape)))
    if name in ("zero_", "fill_") and (name == "zero_" or overload == "Scalar"):
        number = node.args[1] if name == "fill_" else 0
        return graph.call_function(aten.full.default, (list(value.shape), number), {"dtype": value.dtype})
    packet = getattr(aten, name.removesuffix("_"), None)
    pure = getattr(packet, overload, None) or getattr(packet, "int", None)
    arguments = [arg for arg in node.all_input_nodes if isinstance(arg.meta.get("val"), Tensor)]
    alike = all(arg.meta["val"].dtype == value.dtype for arg in arguments)
    if pure is None or not name.endswith("_") or pure._schema.is_mutable or not alike:
        return None
    return graph.call_function(pure, node.args, node.kwargs)


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


def _simplified(graph: fx.GraphModule) -> fx.GraphModule:
    """Without copies, with each value computed once and nothing that is not needed."""
    for node in graph.graph.nodes:
        if node.target in _SAME:
            node.replace_all_uses_with(node.args[0])
        elif node.target in (
            aten.view.default,
            aten._unsafe_view.default,
        ):  # strides are not those of the trace
            node.target = aten.reshape.default
        elif node.target in (aten.t.default, aten.transpose.int):
            order = list(range(len(node.meta["val"].shape)))
            one, other = node.args[1:] if len(node.args) == 3 else (0, len(order) - 1)
            if order:
                order[one], order[other] = order[other], order[one]
            node.target, node.args = aten.permute.default, (node.args[0], order)
    graph.graph.eliminate_dead_code()
    lines = {node.name: node.meta.get("line", "") for node in graph.graph.nodes}
    merged = fx_graph_cse(graph.graph)
    for node in merged.nodes:
        node.meta.setdefault("line", lines.get(node.name, ""))
    merged.set_codegen(fx.graph.CodeGen())
    return fx.GraphModule(graph, merged)


def _check(graph: fx.GraphModule) -> None:
    """Refuse operations that are not on the closed list."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem and not is_allowed(node):
            raise UnsupportedModel(
                f"expected operations on the closed list, got {_name(node.target)} at {node.meta.get('line')}; "
                "write it in other operations of torch, or freeze the part that needs it"
            )
