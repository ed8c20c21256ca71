"""From the graph of one row to the graph of a block of rows.

Each operation is batched by itself, so that rows cannot mix: a value that depends on a row gets a first
dimension for the rows of the block, and one that depends on weights and constants alone stays as it is and is
computed once. Torch's `vmap` batches the operations that have no rule here; rules are written for speed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from sfumato.errors import UnsupportedModel
from sfumato.training.operations import FOLDED, POINTWISE, PUBLIC, SHIFTED, TRAILING
from sfumato.training.trace import Recorder, Row, private_nodes

aten = torch.ops.aten

Shape: TypeAlias = tuple[int, ...]
_DIMS = ("dim", "dims", "dim0", "dim1", "dim2")
_WIDE = 16  # columns from which the rounding of a product does not depend on the place of a row
_BATCHED: dict[tuple[Any, ...], fx.GraphModule] = {}  # by operation, shapes and types


class Block:
    """Writes the operations of a block of rows into a graph, one node of the row's graph at a time.

    A value that depends on the row has shape (height, *its shape in one row).
    """

    def __init__(self, row: Row, height: int) -> None:
        self.row, self.height = row, height
        self.graph = fx.Graph()
        self.private = private_nodes(row)
        self._made: dict[fx.Node, Any] = {}
        self._copies: dict[tuple[fx.Node, Shape], fx.Node] = {}
        self._placeholders()
        for node in row.graph.graph.nodes:
            if node.op == "get_attr":
                self._made[node] = self._noted(self.graph.get_attr(node.target), node.meta["val"])

    def _placeholders(self) -> None:
        weights, leaves = len(self.row.weights), self.row.leaves
        for place, node in enumerate(self.row.placeholders):
            value = node.meta["val"]
            made = self.graph.placeholder(node.name)
            if place < weights:
                self._made[node] = self._noted(made, value)
                continue
            given = value.shape if place >= weights + leaves else value.shape[1:]
            made.meta["shape"], made.meta["dtype"] = (self.height, *given), value.dtype
            self._made[node] = self.reshaped(made, (self.height, *value.shape))

    def value(self, node: fx.Node) -> Any:
        """The node that computes this one for all rows."""
        if node not in self._made:
            self._write(node)
        return self._made[node]

    def _write(self, wanted: fx.Node) -> None:
        """Writes a node after all that it needs, without recursion: graphs are deep."""
        ways = [wanted]
        while ways:
            node = ways[-1]
            missing = [arg for arg in node.all_input_nodes if arg not in self._made and self._needed(node)]
            if missing:
                ways += missing
                continue
            ways.pop()
            if node not in self._made:
                self._made[node] = self._written(node)

    @staticmethod
    def _needed(node: fx.Node) -> bool:
        return node.target not in PUBLIC

    def _written(self, node: Any) -> Any:
        if node.target is operator.getitem:
            return self._made[node.args[0]][node.args[1]]
        if node.target in PUBLIC:
            return self._constant(node)
        if node not in self.private:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: self._made[arg])
            return self._split(self.graph.call_function(node.target, args, kwargs), node.meta["val"])
        rule = _RULES.get(node.target)
        found = rule(self, node) if rule is not None else None
        return self.by_vmap(node) if found is None else found

    # Building blocks of rules

    def emit(self, target: Any, *args: Any, shape: Sequence[int], dtype: torch.dtype, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta["shape"], node.meta["dtype"] = tuple(shape), dtype
        return node

    def reshaped(self, node: Any, shape: Sequence[int]) -> fx.Node:
        shape = tuple(shape)
        while node.target is aten.reshape.default:
            node = node.args[0]
        if node.meta["shape"] == shape:
            return node
        if (node, shape) not in self._copies:
            self._copies[node, shape] = self.emit(
                aten.reshape.default, node, list(shape), shape=shape, dtype=node.meta["dtype"]
            )
        return self._copies[node, shape]

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        made = self.graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
        made.meta["shape"], made.meta["dtype"] = node.meta["shape"], dtype
        return made

    def channels_last(self, node: fx.Node) -> fx.Node:
        """Images with their channels in the innermost place, where pooling is many times faster."""
        _, channels, height, width = node.meta["shape"]
        if channels == 1:  # torch takes a one-channel image for contiguous: by strides alone
            made = self.graph.call_function(aten.contiguous.default, (node,))
            strides = [height * width, 1, width, 1]
            made = self.graph.call_function(aten.as_strided.default, (made, list(node.meta["shape"]), strides))
        else:
            made = self.graph.call_function(
                aten.contiguous.default, (node,), {"memory_format": torch.channels_last}
            )
        made.meta["shape"], made.meta["dtype"] = node.meta["shape"], node.meta["dtype"]
        return made

    def laid_out(self, node: Any, like: Any) -> fx.Node:
        """For kernels that take for granted that two tensors have one layout, without gaps."""
        return self.emit(laid_out, node, like, shape=node.meta["shape"], dtype=node.meta["dtype"])

    def is_private(self, node: Any) -> bool:
        return isinstance(node, fx.Node) and node in self.private

    def rows(self, node: Any) -> fx.Node:
        """(height, *shape): the value of every row; a public one is expanded."""
        made = self.value(node)
        if node in self.private:
            return made
        shape = (self.height, *_shape(node))
        lifted = self.reshaped(made, (1, *_shape(node)))
        return self.emit(aten.expand.default, lifted, list(shape), shape=shape, dtype=_dtype(node))

    def merged(self, node: Any) -> fx.Node:
        """(height · first, …): the first dimension holds the rows, too."""
        first, *rest = _shape(node)
        return self.reshaped(self.rows(node), (self.height * first, *rest))

    def result(self, made: fx.Node, node: Any) -> Any:
        """Return the result of a rule with the rows as a dimension of their own."""
        if isinstance(node.meta["val"], Tensor):
            made.meta.setdefault("dtype", _dtype(node))
            return self.reshaped(made, (self.height, *_shape(node)))
        return self.parts(
            made, [None if each is None else tuple(each.shape) for each in node.meta["val"]], node
        )

    def parts(self, made: fx.Node, shapes: Sequence[Shape | None], node: fx.Node) -> list[fx.Node | None]:
        """The outputs of an operation that has several, (height, *shape) each."""
        found: list[fx.Node | None] = []
        for place, (shape, like) in enumerate(zip(shapes, node.meta["val"], strict=True)):
            if shape is None:
                found.append(None)
                continue
            flat = (self.height * shape[0], *shape[1:]) if node.target in FOLDED else (self.height, *shape)
            part = self.emit(operator.getitem, made, place, shape=flat, dtype=like.dtype)
            found.append(self.reshaped(part, (self.height, *shape)))
        return found

    def _noted(self, made: fx.Node, value: Tensor) -> fx.Node:
        made.meta["shape"], made.meta["dtype"] = tuple(value.shape), value.dtype
        return made

    def _split(self, made: fx.Node, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._noted(made, value)
        return [
            None
            if each is None
            else self._noted(self.graph.call_function(operator.getitem, (made, place)), each)
            for place, each in enumerate(value)
        ]

    def _constant(self, node: Any) -> fx.Node:
        """A tensor of nothing but numbers; one like a row's value is one for all rows."""
        value, name = node.meta["val"], str(node.target).split(".")[1]
        fills = {"zeros_like": 0, "new_zeros": 0, "ones_like": 1, "new_ones": 1}
        if name in fills or name in ("full_like", "new_full"):
            number = fills[name] if name in fills else node.args[-1]
            made = self.graph.call_function(
                aten.full.default, (list(value.shape), number), {"dtype": value.dtype}
            )
        else:
            made = self.graph.call_function(node.target, node.args, _without_place(node.kwargs))
        return self._noted(made, value)

    def by_vmap(self, node: Any) -> Any:
        """As torch batches it; traced once for an operation, its arguments, shapes and types."""
        leaves, spec = torch.utils._pytree.tree_flatten((node.args, dict(node.kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
        dims = tuple(0 if leaf in self.private else None for leaf in tensors)
        made = [self._made[leaf] for leaf in tensors]
        kinds = tuple((arg.meta["shape"], arg.meta["dtype"]) for arg in made)
        numbers = tuple(repr(leaf) for leaf in leaves if not isinstance(leaf, fx.Node))
        key = node.target, spec, kinds, dims, numbers, tuple(isinstance(leaf, fx.Node) for leaf in leaves)

        def apply(*values: Tensor) -> Any:
            given = iter(values)
            filled = [next(given) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
            args, kwargs = torch.utils._pytree.tree_unflatten(filled, spec)
            return [each for each in _listed(node.target(*args, **kwargs)) if each is not None]

        if key not in _BATCHED:
            recorder = Recorder({})
            with recorder.fake:
                examples = [recorder.placeholder(torch.empty(shape, dtype=dtype)) for shape, dtype in kinds]
                with recorder:
                    outputs = torch.vmap(apply, in_dims=dims)(*examples)
            _BATCHED[key] = recorder.recorded(outputs)
        sub = _BATCHED[key]
        return self._spliced(sub, made, node)

    def _spliced(self, sub: fx.GraphModule, given: Sequence[fx.Node], node: Any) -> Any:
        new: dict[fx.Node, fx.Node] = dict(zip(sub.graph.find_nodes(op="placeholder"), given, strict=True))
        for inner in sub.graph.nodes:
            if inner.op == "get_attr":
                raise UnsupportedModel(
                    f"expected an operation that torch can batch, got {node.target} at "
                    f"{node.meta.get('line')}; write it in other operations"
                )
            if inner.op == "call_function":
                target = inner.target
                target = (
                    aten.reshape.default if target in (aten.view.default, aten._unsafe_view.default) else target
                )
                args, kwargs = fx.map_arg((inner.args, inner.kwargs), lambda arg: new[arg])
                made = self.graph.call_function(target, args, kwargs)
                if isinstance(inner.meta.get("val"), Tensor):
                    self._noted(made, inner.meta["val"])
                new[inner] = made
        results: Any = sub.graph.output_node().args[0]
        outputs = iter([new[each] for each in results])
        value = node.meta["val"]
        if isinstance(value, Tensor):
            return next(outputs)
        return [None if each is None else next(outputs) for each in value]


def laid_out(values: Tensor, like: Tensor) -> Tensor:
    """The values in the layout of another tensor, channels last or first."""
    last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
    return values.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _listed(values: Any) -> Sequence[Any]:
    return [values] if isinstance(values, Tensor) else list(values)


def _shape(node: Any) -> Shape:
    return tuple(node.meta["val"].shape)


def _dtype(node: Any) -> torch.dtype:
    found: torch.dtype = node.meta["val"].dtype
    return found


def _without_place(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory", "layout")}


# The rules: (block, node of one row) → the node for all rows, or None to leave it to torch

Rule: TypeAlias = Callable[[Block, Any], Any]


def _pointwise(block: Block, node: Any) -> Any:
    rank = len(_shape(node))
    held = [arg for arg in node.args if isinstance(arg, fx.Node)]
    compared = held[1:] if node.target is aten.where.self else held
    common: torch.dtype | None = None
    if len({_dtype(arg) for arg in compared}) > 1:  # numbers with no dimension lose to those that have some
        common = _common_type([arg.meta["val"] for arg in compared])
    given: list[Any] = []
    for arg in node.args:
        if not isinstance(arg, fx.Node):
            given.append(arg)
            continue
        made = block._made[arg]
        if common is not None and arg in compared:
            made = block.cast(made, common) if made.meta["dtype"] != common else made
        if arg in block.private:
            shape = _shape(arg)
            made = block.reshaped(made, (block.height, *[1] * (rank - len(shape)), *shape))
        given.append(made)
    kwargs = _without_place(node.kwargs) if node.target is aten._to_copy.default else node.kwargs
    kwargs = {name: value for name, value in kwargs.items() if name != "memory_format"}
    shape = (block.height, *_shape(node))
    if node.target is aten._to_copy.default and kwargs.get("dtype") in (None, _dtype(node.args[0])):
        return given[0]
    made = block.graph.call_function(node.target, tuple(given), dict(kwargs))
    made.meta["shape"], made.meta["dtype"] = shape, _dtype(node)
    return made


def _common_type(values: Sequence[Tensor]) -> torch.dtype:
    common = values[0]
    for value in values[1:]:
        dtype = torch.result_type(common, value)
        rank = max(common.dim(), value.dim())
        common = torch.empty([1] * rank, dtype=dtype, device="meta")
    return common.dtype


def _shifted(block: Block, node: Any) -> Any:
    """Dimensions are one further: the first holds the rows."""
    schema = node.target._schema
    given = {
        **dict(zip([argument.name for argument in schema.arguments], node.args, strict=False)),
        **node.kwargs,
    }
    first = node.args[0]
    rank = max(len(_shape(each)) for each in (first if isinstance(first, list | tuple) else [first]))
    if rank == 0 and node.target not in (aten.unsqueeze.default, aten.stack.default):
        return None
    grown = rank + (node.target in (aten.unsqueeze.default, aten.stack.default))
    args: dict[str, Any] = {}
    for argument in schema.arguments:
        value = given.get(argument.name, argument.default_value)
        if argument.name in _DIMS:
            if value is None or (isinstance(value, list | tuple) and not value):
                if node.target in (
                    aten.sum.dim_IntList,
                    aten.mean.dim,
                    aten.amax.default,
                    aten.amin.default,
                ) or node.target in (aten.var.correction, aten.var_mean.correction):
                    value = range(1, rank + 1)
                else:
                    return None
            elif isinstance(value, int):
                value = value % grown + 1
            else:
                value = [dim % grown + 1 for dim in value]
            if node.target is aten.permute.default:
                value = [0, *value]
            value = list(value) if not isinstance(value, int) else value
        elif argument.name not in given:
            continue
        elif isinstance(value, fx.Node):
            value = block.rows(value)
        elif isinstance(value, list | tuple) and value and isinstance(value[0], fx.Node):
            some = [each for each in value if _shape(each) != (0,) or rank == 1]  # torch leaves out empty ones
            value = [block.rows(each) for each in some]
        args[argument.name] = value
    positional = [args.pop(a.name) for a in schema.arguments if not a.kwarg_only and a.name in args]
    made = block.graph.call_function(node.target, tuple(positional), args)
    if isinstance(node.meta["val"], Tensor):
        made.meta["shape"], made.meta["dtype"] = (block.height, *_shape(node)), _dtype(node)
        return made
    return block.result(made, node)


def _folded(block: Block, node: Any) -> Any:
    weights = {aten.convolution.default: (1, 2), aten.native_group_norm.default: (1, 2)}.get(node.target, ())
    if any(block.is_private(node.args[place]) for place in weights) or not block.is_private(node.args[0]):
        return None
    args: list[Any] = list(node.args)
    for place, arg in enumerate(args):
        if isinstance(arg, fx.Node):
            args[place] = block._made[arg] if place in weights else block.merged(arg)
    if node.target is aten.native_group_norm.default:
        args[0] = block.laid_out(args[0], args[0])
        args[3] *= block.height
    if node.target is aten.convolution.default and len(args[0].meta["shape"]) == 4:
        args[0] = block.channels_last(args[0])
    names = [argument.name for argument in node.target._schema.arguments]
    if "input_size" in names:
        place = names.index("input_size")
        args[place] = [block.height * args[place][0], *args[place][1:]]
    made = block.graph.call_function(node.target, tuple(args), dict(node.kwargs))
    value = node.meta["val"]
    if isinstance(value, Tensor):
        made.meta["shape"], made.meta["dtype"] = (block.height * value.shape[0], *value.shape[1:]), value.dtype
    return block.result(made, node)


def _layer_norm(block: Block, node: Any) -> Any:
    inputs, shape, weight, bias, eps = node.args
    if block.is_private(weight) or block.is_private(bias) or not block.is_private(inputs):
        return None
    own = [None if each is None else block._made[each] for each in (weight, bias)]
    made = block.graph.call_function(node.target, (block.rows(inputs), shape, *own, eps))
    return block.result(made, node)


def _layer_norm_backward(block: Block, node: Any) -> Any:
    gradient, inputs, shape, mean, rstd, weight, bias, mask = node.args
    if block.is_private(weight) or not block.is_private(inputs):
        return None
    g, x, m, r = (block.rows(each) for each in (gradient, inputs, mean, rstd))
    own = [None if each is None else block._made[each] for each in (weight, bias)]
    found: list[fx.Node | None] = [None, None, None]
    full, dtype = x.meta["shape"], x.meta["dtype"]
    if mask[0]:
        made = block.graph.call_function(node.target, (g, x, shape, m, r, *own, [True, False, False]))
        found[0] = block.emit(operator.getitem, made, 0, shape=full, dtype=dtype)
    inner = len(shape)
    lead = list(range(1, len(full) - inner))
    small = (block.height, *full[len(full) - inner :])

    def summed(values: fx.Node) -> fx.Node:
        if not lead:
            return block.reshaped(values, small)
        return block.emit(aten.sum.dim_IntList, values, lead, shape=small, dtype=dtype)

    if mask[1] and _used(node, 1):
        centred = block.emit(aten.sub.Tensor, x, m, shape=full, dtype=dtype)
        scaled = block.emit(aten.mul.Tensor, centred, r, shape=full, dtype=dtype)
        found[1] = summed(block.emit(aten.mul.Tensor, scaled, g, shape=full, dtype=dtype))
    if mask[2] and _used(node, 2):
        found[2] = summed(g)
    return found


def _group_norm_backward(block: Block, node: Any) -> Any:
    gradient, inputs, mean, rstd, weight, count, channels, size, groups, mask = node.args
    if block.is_private(weight) or not block.is_private(inputs):
        return None
    x = block.laid_out(block.merged(inputs), block.merged(inputs))
    g = block.laid_out(block.merged(gradient), x)
    m, r = block.merged(mean), block.merged(rstd)
    rows, dtype = block.height * count, x.meta["dtype"]
    own = None if weight is None else block._made[weight]
    found: list[fx.Node | None] = [None, None, None]
    if mask[0]:
        rest = (m, r, own, rows, channels, size, groups, [True, False, False])
        made = block.graph.call_function(node.target, (g, x, *rest))
        part = block.emit(operator.getitem, made, 0, shape=x.meta["shape"], dtype=dtype)
        found[0] = block.reshaped(part, (block.height, *_shape(inputs)))
    flat = (rows, groups, channels // groups, size)
    grouped = flat[:3]

    def per_channel(values: fx.Node) -> fx.Node:
        return block.emit(aten.sum.dim_IntList, block.reshaped(values, flat), [3], shape=grouped, dtype=dtype)

    def summed(values: fx.Node) -> fx.Node:
        lines = block.reshaped(values, (block.height, count, channels))
        if count == 1:
            return block.reshaped(lines, (block.height, channels))
        return block.emit(aten.sum.dim_IntList, lines, [1], shape=(block.height, channels), dtype=dtype)

    wants_scale, wants_shift = (mask[place] and _used(node, place) for place in (1, 2))
    if wants_scale or wants_shift:
        plain = per_channel(g)
        found[2] = summed(plain)
    if wants_scale:
        product = block.emit(aten.mul.Tensor, g, x, shape=x.meta["shape"], dtype=dtype)
        lift = (rows, groups, 1)
        shifted = block.emit(aten.mul.Tensor, plain, block.reshaped(m, lift), shape=grouped, dtype=dtype)
        centred = block.emit(aten.sub.Tensor, per_channel(product), shifted, shape=grouped, dtype=dtype)
        found[1] = summed(
            block.emit(aten.mul.Tensor, centred, block.reshaped(r, lift), shape=grouped, dtype=dtype)
        )
    return found


def _convolution_backward(block: Block, node: Any) -> Any:
    gradient, inputs, weight, sizes, *settings, mask = node.args
    if block.is_private(weight) or not block.is_private(gradient):
        return None
    g, x = block.merged(gradient), block.merged(inputs)
    dtype, own = g.meta["dtype"], block._made[weight]
    found: list[fx.Node | None] = [None, None, None]
    if mask[0] and _used(node, 0):
        made = block.graph.call_function(node.target, (g, x, own, sizes, *settings, [True, False, False]))
        part = block.emit(operator.getitem, made, 0, shape=x.meta["shape"], dtype=dtype)
        found[0] = block.reshaped(part, (block.height, *_shape(inputs)))
    if mask[1] and _used(node, 1):
        found[1] = _formed_kernel(block, node)
    if mask[2] and _used(node, 2):
        full = block.rows(gradient)
        dims = [1, *range(3, len(full.meta["shape"]))]
        shape = (block.height, full.meta["shape"][2])
        found[2] = block.emit(aten.sum.dim_IntList, full, dims, shape=shape, dtype=dtype)
    return found


def _formed_kernel(block: Block, node: Any) -> fx.Node:
    """The gradient of the kernel for each row: torch's own batching, asked for this output alone."""
    args = [*node.args[:-1], [False, True, False]]
    alone = _Alone(node.target, args, [None, node.meta["val"][1], None], node.meta.get("line"))
    found: fx.Node = block.by_vmap(alone)[1]
    return found


class _Alone:
    """A node with other arguments, of which no graph knows."""

    def __init__(self, target: Any, args: Sequence[Any], value: Any, line: Any) -> None:
        self.target, self.args = target, tuple(args)
        self.kwargs: dict[str, Any] = {}
        self.meta = {"val": value, "line": line}


def _used(node: Any, place: int) -> bool:
    return any(user.target is operator.getitem and user.args[1] == place and user.users for user in node.users)


def _reshape(block: Block, node: Any) -> Any:
    return block.reshaped(block.rows(node.args[0]), (block.height, *_shape(node)))


def _expand(block: Block, node: Any) -> Any:
    source: Any = node.args[0]
    shape, own = _shape(node), _shape(source)
    lifted = block.reshaped(block.rows(source), (block.height, *[1] * (len(shape) - len(own)), *own))
    full = (block.height, *shape)
    if lifted.meta["shape"] == full:
        return lifted
    return block.emit(aten.expand.default, lifted, list(full), shape=full, dtype=_dtype(node))


def _repeat(block: Block, node: Any) -> Any:
    source: Any = node.args[0]
    times: Any = node.args[1]
    own = _shape(source)
    lifted = block.reshaped(block.rows(source), (block.height, *[1] * (len(times) - len(own)), *own))
    shape = (block.height, *_shape(node))
    return block.emit(aten.repeat.default, lifted, [1, *times], shape=shape, dtype=_dtype(node))


def _any(block: Block, node: Any) -> Any:
    source: Any = node.args[0]
    flat = block.reshaped(block.rows(source), (block.height, math.prod(_shape(source))))
    target = aten.any.dim if node.target is aten.any.default else aten.all.dim
    return block.emit(target, flat, 1, shape=(block.height,), dtype=torch.bool)


def _of_all(block: Block, node: Any) -> Any:
    """A number for each row, of all its elements."""
    source: Any = node.args[0]
    if node.kwargs or not _shape(source):
        return None
    flat = block.reshaped(block.rows(source), (block.height, math.prod(_shape(source))))
    return block.emit(_ALONG_ONE[node.target], flat, [1], shape=(block.height,), dtype=_dtype(node))


_ALONG_ONE: dict[Any, Any] = {
    aten.mean.default: aten.mean.dim,
    aten.sum.default: aten.sum.dim_IntList,
    aten.max.default: aten.amax.default,
    aten.min.default: aten.amin.default,
}


def _mm(block: Block, node: Any) -> Any:
    left, right = node.args
    return _product(block, left, right, None, node)


def _addmm(block: Block, node: Any) -> Any:
    bias, left, right = node.args
    if node.kwargs:
        return None
    if not (block.is_private(bias) or block.is_private(right)) and len(_shape(bias)) == 1:
        return _product(block, left, right, block._made[bias], node)
    product = _product(block, left, right, None, node)
    added: Any = block._made[bias]
    if block.is_private(bias):
        shape = _shape(bias)
        added = block.reshaped(added, (block.height, *[1] * (2 - len(shape)), *shape))
    return block.emit(aten.add.Tensor, product, added, shape=product.meta["shape"], dtype=_dtype(node))


def _product(block: Block, left: Any, right: Any, bias: fx.Node | None, node: Any) -> fx.Node:
    """One product for all rows where the right factor is public.

    With a few columns more, if it has few: narrow products have kernels whose rounding depends on the place.
    """
    (m, n), k = _shape(node), _shape(left)[1]
    dtype, full = _dtype(node), (block.height, m, n)
    if block.is_private(right):
        return block.emit(aten.bmm.default, block.rows(left), block.rows(right), shape=full, dtype=dtype)
    lines, wide = block.height * m, _WIDE if 1 < n < _WIDE else n

    def widened(public: fx.Node) -> fx.Node:
        shape = *public.meta["shape"][:-1], wide
        if public.meta["shape"][-1] in (1, wide):
            return public
        return block.emit(aten.constant_pad_nd.default, public, [0, wide - n], shape=shape, dtype=dtype)

    given = block.reshaped(block.rows(left), (lines, k)), widened(block._made[right])
    if bias is None:
        made = block.emit(aten.mm.default, *given, shape=(lines, wide), dtype=dtype)
    else:
        made = block.emit(aten.addmm.default, widened(bias), *given, shape=(lines, wide), dtype=dtype)
    if wide > n:
        made = block.emit(aten.slice.Tensor, made, 1, 0, n, shape=(lines, n), dtype=dtype)
        made = block.emit(aten.contiguous.default, made, shape=(lines, n), dtype=dtype)
    return block.reshaped(made, full)


def _bmm(block: Block, node: Any) -> Any:
    left, right = node.args
    p, m, n = _shape(node)
    k, dtype = _shape(left)[2], _dtype(node)
    if not block.is_private(right):  # (height, p, m, k) → (p, height · m, k)
        a = block.emit(
            aten.permute.default,
            block.rows(left),
            [1, 0, 2, 3],
            shape=(p, block.height, m, k),
            dtype=dtype,
        )
        lines = block.reshaped(a, (p, block.height * m, k))
        made = block.emit(
            aten.bmm.default, lines, block._made[right], shape=(p, block.height * m, n), dtype=dtype
        )
        split = block.reshaped(made, (p, block.height, m, n))
        return block.emit(aten.permute.default, split, [1, 0, 2, 3], shape=(block.height, p, m, n), dtype=dtype)
    a, b = block.merged(left), block.merged(right)
    made = block.emit(aten.bmm.default, a, b, shape=(block.height * p, m, n), dtype=dtype)
    return block.reshaped(made, (block.height, p, m, n))


def _embedding(block: Block, node: Any) -> Any:
    table, index, *_ = node.args
    if block.is_private(table):
        return None
    shape = (block.height, *_shape(node))
    return block.emit(
        aten.embedding.default, block._made[table], block.rows(index), shape=shape, dtype=_dtype(node)
    )


def _embedding_backward(block: Block, node: Any) -> Any:
    """The gradient of the whole table for each row, as that of one table for all rows, one below the other."""
    gradient, index, entries, padding, *_ = node.args
    g, places = block.rows(gradient), block.rows(index)
    shape, dtype = places.meta["shape"], torch.int64
    lift = (block.height, *[1] * (len(shape) - 1))
    starts = block.emit(
        aten.arange.start_step,
        0,
        block.height * entries,
        entries,
        shape=(block.height,),
        dtype=dtype,
    )
    moved = block.emit(aten.add.Tensor, places, block.reshaped(starts, lift), shape=shape, dtype=dtype)
    if padding >= 0:
        g = without_padding(block, g, places, padding)
    size = (block.height * entries, g.meta["shape"][-1])
    made = block.emit(node.target, g, moved, size[0], -1, False, shape=size, dtype=g.meta["dtype"])
    return block.reshaped(made, (block.height, *_shape(node)))


def without_padding(block: Block, g: fx.Node, places: fx.Node, padding: Any) -> fx.Node:
    """The gradients of looked-up entries, but for the one that learns nothing."""
    shape = places.meta["shape"]
    met = block.emit(aten.eq.Scalar, places, padding, shape=shape, dtype=torch.bool)
    lifted = block.reshaped(met, (*shape, 1))
    return block.emit(aten.masked_fill.Scalar, g, lifted, 0.0, shape=g.meta["shape"], dtype=g.meta["dtype"])


_RULES: dict[Any, Rule] = {
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys(FOLDED, _folded),
    **dict.fromkeys(TRAILING, _layer_norm),
    **dict.fromkeys(SHIFTED, _shifted),
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.convolution_backward.default: _convolution_backward,
    aten.reshape.default: _reshape,
    aten.clone.default: lambda block, node: block.rows(node.args[0]),
    aten.expand.default: _expand,
    aten.repeat.default: _repeat,
    aten.any.default: _any,
    aten.all.default: _any,
    **dict.fromkeys(_ALONG_ONE, _of_all),
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _bmm,
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
}
