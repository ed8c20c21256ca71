"""The closed list: the operations that a graph may hold, each in a form that has a result for every value."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions, get_decompositions

aten = torch.ops.aten


def _named(names: str) -> frozenset[Any]:
    """Overloads by name; `name` stands for `name.default`."""
    found = []
    for name in names.split():
        packet, _, overload = name.partition(".")
        found.append(getattr(getattr(aten, packet), overload or "default"))
    return frozenset(found)


POINTWISE = _named(
    "abs acos acosh add.Tensor add.Scalar asin asinh atan atan2 atanh bitwise_and.Tensor bitwise_and.Scalar "
    "bitwise_not bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor bitwise_xor.Scalar ceil clamp "
    "clamp.Tensor clamp_min clamp_max copysign.Tensor cos cosh digamma div.Tensor div.Scalar div.Tensor_mode "
    "div.Scalar_mode elu elu_backward eq.Tensor eq.Scalar erf erfc erfinv exp exp2 expm1 floor fmax fmin "
    "fmod.Tensor fmod.Scalar ge.Tensor ge.Scalar gelu gelu_backward gt.Tensor gt.Scalar hardtanh "
    "hardtanh_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward hypot i0 isinf isnan "
    "isfinite le.Tensor le.Scalar leaky_relu leaky_relu_backward lgamma log log10 log1p log2 logical_and "
    "logical_not logical_or logical_xor lt.Tensor lt.Scalar maximum minimum mul.Tensor mul.Scalar ne.Tensor "
    "ne.Scalar neg pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar reciprocal relu remainder.Tensor "
    "remainder.Scalar round rsqrt sgn sigmoid sigmoid_backward sign silu silu_backward sin sinh softplus "
    "softplus_backward sqrt sub.Tensor sub.Scalar tan tanh tanh_backward threshold_backward trunc where.self "
    "_to_copy log_sigmoid_backward mish mish_backward clamp_min.Tensor clamp_max.Tensor hardshrink "
    "hardshrink_backward softshrink softshrink_backward special_i1 polygamma"
)
"""Each element of the result comes from the elements at its place."""

FOLDED = _named(
    "convolution native_group_norm max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d "
    "avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward max_pool3d_with_indices "
    "max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward upsample_nearest1d "
    "upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d "
    "upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward adaptive_max_pool2d "
    "adaptive_max_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
    "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward"
)
"""The first dimension counts independent items: images, one after the other."""

TRAILING = _named("native_layer_norm")
"""All dimensions but the last ones count independent items."""

SHIFTED = _named(
    "permute unsqueeze squeeze.dim squeeze.dims slice.Tensor select.int cat stack flip sum.dim_IntList "
    "mean.dim amax amin any.dim any.dims all.dim cumsum _softmax _log_softmax _softmax_backward_data "
    "_log_softmax_backward_data constant_pad_nd max.dim min.dim argmax argmin logcumsumexp "
    "topk sort prod.dim_int cumprod gather scatter.src scatter.value scatter_add var.correction "
    "var_mean.correction diagonal split_with_sizes split.Tensor unbind.int slice_scatter select_scatter glu "
    "glu_backward roll diagonal_scatter median.dim kthvalue"
)
"""Dimensions are given by their numbers."""

OWN = _named(
    "reshape expand mm addmm bmm embedding embedding_dense_backward convolution_backward "
    "native_layer_norm_backward native_group_norm_backward any all repeat mean sum max min clone"
)
"""Those with a batching of their own."""

BY_VMAP = _named(
    "index.Tensor index_put _unsafe_index.Tensor _unsafe_index_put index_select linalg_vector_norm "
    "grid_sampler_2d grid_sampler_2d_backward linalg_cholesky_ex linalg_inv_ex linalg_solve_triangular "
    "_linalg_det _linalg_slogdet _linalg_solve_ex linalg_qr cummax cummin _cdist_forward "
    "_cdist_backward _euclidean_dist col2im im2col linalg_householder_product "
    "view_as_complex view_as_real unfold unfold_backward linalg_matrix_exp "
    "linalg_lu_factor_ex linalg_lu_solve"
)
"""Those that torch batches, some of them slowly."""

PUBLIC = _named(
    "full zeros ones arange.start_step scalar_tensor eye full_like zeros_like ones_like new_zeros new_full "
    "new_ones empty.memory_format empty_like tril_indices triu_indices linspace"
)
"""Those that make tensors of nothing but numbers."""

WINDOWS = _named("reshape permute expand unsqueeze squeeze.dim squeeze.dims slice.Tensor select.int diagonal")
"""Those whose results are, mostly, memory of their arguments."""

EXACT = _named(
    "add.Tensor add.Scalar sub.Tensor sub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar neg abs sqrt relu "
    "threshold_backward clamp maximum minimum where.self eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar "
    "lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar ge.Tensor logical_and logical_or logical_not "
    "bitwise_and.Tensor bitwise_or.Tensor bitwise_not _to_copy floor ceil round trunc isnan isfinite sign sgn"
)
"""Those that every loop rounds alike, in whole vectors and for the elements after these."""

LISTED = POINTWISE | FOLDED | TRAILING | SHIFTED | OWN | BY_VMAP | PUBLIC

KEPT = _named(
    "addmm native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
    "convolution_backward embedding_dense_backward gelu gelu_backward silu silu_backward sigmoid_backward "
    "tanh_backward threshold_backward leaky_relu_backward elu_backward hardtanh_backward hardsigmoid_backward "
    "hardswish_backward softplus softplus_backward hardsigmoid hardswish _softmax_backward_data "
    "_log_softmax_backward_data max_pool2d_with_indices_backward avg_pool2d_backward mish mish_backward "
    "upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_nearest1d_backward "
    "upsample_nearest2d_backward upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward "
    "mm bmm t transpose.int isfinite sgn stack roll glu glu_backward split.Tensor split_with_sizes unbind.int "
    "unsafe_split.Tensor new_zeros new_full new_ones zeros ones full_like zeros_like ones_like clamp_min "
    "clamp_max"
)
"""Those that run as they are, though torch could write them in smaller ones."""


def is_allowed(node: fx.Node) -> bool:
    return node.target in LISTED


@cache
def decomposed() -> Mapping[Any, Callable[..., Any]]:
    """How operations are written in those of the list."""
    table: dict[Any, Any] = dict(core_aten_decompositions())
    for kept in KEPT:
        table.pop(kept, None)
    more = [aten.addcmul, aten.addcdiv, aten.linalg_vector_norm, aten.aminmax, aten._safe_softmax]
    more += [aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_no_training]
    table.update(get_decompositions(more))
    table.pop(aten.linalg_vector_norm.default, None)
    table.update(
        {
            aten._embedding_bag.default: _embedding_bag,
            aten._embedding_bag_forward_only.default: _embedding_bag,
            aten._embedding_bag_backward.default: _embedding_bag_backward,
            aten._weight_norm_interface_backward.default: _weight_norm_backward,
            aten._trilinear.default: _trilinear,
            aten._ctc_loss.default: _ctc_loss,
            aten._ctc_loss.Tensor: _ctc_loss,
            aten._ctc_loss_backward.default: _ctc_loss_backward,
            aten._ctc_loss_backward.Tensor: _ctc_loss_backward,
            aten.empty.memory_format: _no_memory,
            aten.empty_like.default: lambda like, **_: torch.zeros(like.shape, dtype=like.dtype),
            aten.new_empty.default: lambda like, size, **_: torch.zeros(size, dtype=like.dtype),
            aten.empty_strided.default: lambda size, stride, **more: _no_memory(size, **more),
            aten.new_empty_strided.default: lambda like, size, *_, **__: torch.zeros(size, dtype=like.dtype),
            aten.copy.default: lambda into, given, *_: given.to(into.dtype).expand(into.shape),
            aten._linalg_check_errors.default: lambda info, *_, **__: None,
        }
    )
    return table


def _no_memory(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """Zeros in the place of memory that nothing was written to: it could hold another row."""
    return torch.zeros(size, dtype=dtype)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sums, means and maxima of looked-up rows, by the matrix of which index is in which bag."""
    starts = offsets[:-1] if include_last_offset else offsets
    places = torch.arange(indices.shape[0])
    bag = (starts[None, :] <= places[:, None]).sum(1) - 1
    inside = (bag[:, None] == torch.arange(starts.shape[0])[None, :]).to(weight.dtype)
    if padding_idx >= 0:
        inside = inside * (indices != padding_idx).to(weight.dtype)[:, None]
    size = inside.sum(0)
    if mode == 2:
        held = torch.where(inside[..., None] > 0, weight[indices][:, None], -math.inf)  # (indices, bags, width)
        found = torch.where(size[:, None] > 0, held.amax(0), 0.0)
        return found, bag, size.to(torch.int64), indices[held.argmax(0)]
    if per_sample_weights is not None:
        inside = inside * per_sample_weights[:, None]
    if mode == 1:
        inside = inside / size.clamp(min=1.0)
    return inside.t() @ weight[indices], bag, size.to(torch.int64), size.to(torch.int64)


def _embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    if mode == 2:
        learning = torch.where(bag_size[:, None] > 0, grad, 0.0)
        return torch.zeros_like(grad[:1]).expand(num_weights, -1).scatter_add(0, maximum_indices, learning)
    each = grad[offset2bag]
    if mode == 1:
        each = each / bag_size[offset2bag].clamp(min=1).to(grad.dtype)[:, None]
    if per_sample_weights is not None:
        each = each * per_sample_weights[:, None]
    return aten.embedding_dense_backward(each, indices, num_weights, padding_idx, False)


def _weight_norm_backward(
    grad: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    others = [other for other in range(saved_v.dim()) if other != dim % saved_v.dim()]
    along = (grad * saved_v).sum(others, keepdim=True) / saved_norms
    return saved_g / saved_norms * (grad - saved_v * along / saved_norms), along


def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    factors = []
    for factor, expand in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for dim in expand:
            factor = factor.unsqueeze(dim)
        factors.append(factor)
    return (factors[0] * factors[1] * factors[2]).sum(list(sumdim))


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, steps: Any, labels: Any, blank: int = 0, zero_infinity: bool = False
) -> tuple[Tensor, Tensor]:
    """Losses (rows,), and log-probabilities (rows, steps, places) of all ways to each place."""
    walk = _Walk(log_probs, targets, steps, labels, blank)
    alpha = walk.along(walk.emitted, walk.labels)
    last = (walk.steps - 1).clamp_min(0)[None, :, None].expand(1, *alpha.shape[1:])
    ends = (walk.turned == 0) | (walk.turned == 1)
    found = -_summed(torch.where(ends, alpha.gather(0, last)[0], -math.inf).t())
    without = torch.where(walk.turned[:, 0] > 0, math.inf, 0.0).to(found.dtype)  # of a row without steps
    return torch.where(walk.steps > 0, found, without), alpha.movedim(0, 1)


def _ctc_loss_backward(
    grad: Tensor, log_probs: Tensor, targets: Tensor, steps: Any, labels: Any, losses: Tensor, alpha: Tensor,
    blank: int, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """The gradient of log-probabilities that come from a softmax, as torch has it."""
    walk = _Walk(log_probs, targets, steps, labels, blank)
    times = torch.arange(log_probs.shape[0])[:, None]
    inside, place = walk.turned >= 0, walk.turned.clamp_min(0)
    step = (walk.steps - 1 - times).clamp_min(0)[..., None].expand_as(walk.emitted)  # from the end

    def turned(values: Tensor) -> Tensor:
        return values.gather(0, step).gather(2, place.expand_as(values))

    labelled = walk.labels.gather(1, place)
    beta = turned(walk.along(torch.where(inside, turned(walk.emitted), -math.inf), labelled))
    twice = (walk.turned == 0) & (walk.labels == _later(walk.labels, 1, -1))  # torch lets a blank label replace
    counted = inside & ~(
        twice & (times[..., None] == walk.steps[:, None] - 1)
    )  # the blank after it, at the end
    both = torch.where(counted, alpha.movedim(1, 0) + beta - walk.emitted, -math.inf)
    shares = torch.zeros_like(log_probs).scatter_add(
        2, walk.labels.expand_as(both), (both + losses[:, None]).exp()
    )
    kept = times[..., None] < walk.steps[:, None]
    if zero_infinity:
        kept = kept & (losses < math.inf)[:, None]
    return torch.where(kept, (log_probs.exp() - shares) * grad[:, None], 0.0)


class _Walk:
    """Places that a labelling passes: labels between blanks."""

    def __init__(self, log_probs: Tensor, targets: Tensor, steps: Any, labels: Any, blank: int) -> None:
        self.steps, count = torch.as_tensor(steps), torch.as_tensor(labels)
        targets = targets.view(log_probs.shape[1], -1).long()
        places = 2 * targets.shape[1] + 1
        self.labels = torch.full((len(targets), places), blank).slice_scatter(targets, 1, 1, places, 2)
        self.emitted = log_probs.gather(2, self.labels.expand(len(log_probs), -1, -1))  # (steps, rows, places)
        self.turned = 2 * count[:, None] - torch.arange(places)  # places counted from the end

    @staticmethod
    def along(emitted: Tensor, labels: Tensor) -> Tensor:
        """Log-probabilities of all ways to each place, at each step; a label may follow another one at once."""
        skips = labels != _later(labels, 2, 0)
        found = [torch.where(torch.arange(emitted.shape[2]) < 2, emitted[0], -math.inf)]
        for emits in emitted[1:]:
            ways = [found[-1], _later(found[-1], 1), torch.where(skips, _later(found[-1], 2), -math.inf)]
            found.append(_summed(torch.stack(ways)) + emits)
        return torch.stack(found)


def _later(values: Tensor, by: int, value: float = -math.inf) -> Tensor:
    return torch.nn.functional.pad(values, (by, 0), value=value)[:, : values.shape[1]]


def _summed(logs: Tensor) -> Tensor:
    """log Σ exp, of nothing but -∞ too."""
    most = logs.amax(0).clamp_min(-1e30)
    return (logs - most).exp().sum(0).log() + most


# Results for every value


_GRIDS = {aten.grid_sampler_2d.default: 1, aten.grid_sampler_2d_backward.default: 2}
_FARTHEST = 1e4  # of a place in a grid, where the image lies from -1 to 1


def made_total(graph: fx.Graph, private: set[fx.Node]) -> None:
    """Clamp the values that an operation would raise on, and mark the row: the second output becomes true.

    Only values that depend on the row: weights and constants that raise are their owner's mistake, and show on
    the first step.
    """
    total = _Total(graph, private)
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        with graph.inserting_before(node):
            total.clamp_indices(node)
            total.replace_divisor(node)
            total.bound_grid(node)
        if node.target in _CHECKED:
            total.note_failure(node)
    total.put_out()


class _Total:
    """Writes the total forms of operations into the graph of a row."""

    def __init__(self, graph: fx.Graph, private: set[fx.Node]) -> None:
        self.graph, self.private = graph, private
        self.marks: list[fx.Node] = []
        self._clamped: dict[tuple[fx.Node, int, int], fx.Node] = {}

    def clamp_indices(self, node: Any) -> None:
        args = list(node.args)
        for place, most in _index_of(node):
            if args[place] in self.private:
                args[place] = self._within(args[place], 0, most - 1)
        if node.target in _INDEXED:
            sizes = _shape(node.args[0])
            args[1] = [
                index if index not in self.private else self._within(index, -sizes[dim], sizes[dim] - 1)
                for dim, index in enumerate(args[1])
            ]
        node.args = tuple(args)

    def replace_divisor(self, node: Any) -> None:
        """By 1 where whole numbers have no quotient."""
        if node.target not in _DIVIDED or node.args[1] not in self.private:
            return
        numerator, divisor, *more = node.args
        if any(arg.meta["val"].is_floating_point() for arg in node.all_input_nodes):
            return
        bad = self._emit(aten.eq.Scalar, divisor, 0)
        if isinstance(numerator, fx.Node):  # the least number has no negative
            least = torch.iinfo(numerator.meta["val"].dtype).min
            pair = self._emit(aten.eq.Scalar, divisor, -1), self._emit(aten.eq.Scalar, numerator, least)
            bad = self._emit(aten.bitwise_or.Tensor, bad, self._emit(aten.bitwise_and.Tensor, *pair))
        self.marks.append(self._emit(aten.any.default, bad))
        one = self._emit(aten.full.default, (), 1)
        node.args = (numerator, self._emit(aten.where.self, bad, one, divisor), *more)

    def bound_grid(self, node: Any) -> None:
        """Replace by 0 places that are NaN or far outside: the sampler's kernels would read memory there."""
        place = _GRIDS.get(node.target)
        if place is None or node.args[place] not in self.private:
            return
        args = list(node.args)
        near = self._emit(aten.le.Scalar, self._emit(aten.abs.default, args[place]), _FARTHEST)
        self.marks.append(self._emit(aten.any.default, self._emit(aten.logical_not.default, near)))
        args[place] = self._emit(
            aten.where.self, near, args[place], self._emit(aten.zeros_like.default, args[place])
        )
        node.args = tuple(args)

    def note_failure(self, node: Any) -> None:
        """Of a factorization that says itself whether it failed."""
        place = _CHECKED[node.target]
        infos = [user for user in node.users if user.args[1] == place]
        with self.graph.inserting_after(node):
            info = infos[0] if infos else self.graph.call_function(operator.getitem, (node, place))
        info.meta["val"] = node.meta["val"][place]
        with self.graph.inserting_after(info):
            failed = self._emit(aten.ne.Scalar, info, 0)
        with self.graph.inserting_after(failed):
            self.marks.append(self._emit(aten.any.default, failed))

    def put_out(self) -> None:
        """Join the marks that depend on the row."""
        output: Any = self.graph.output_node()
        bad: fx.Node | None = None
        with self.graph.inserting_before(output):
            for mark in self.marks:
                if _depends(mark, self.private):
                    bad = mark if bad is None else self._emit(aten.logical_or.default, bad, mark)
        losses, *gradients = output.args[0]
        output.args = ((losses, bad, *gradients),)

    def _within(self, index: fx.Node, least: int, most: int) -> fx.Node:
        key = index, least, most
        if key not in self._clamped:
            sides = self._emit(aten.lt.Scalar, index, least), self._emit(aten.gt.Scalar, index, most)
            self.marks.append(self._emit(aten.any.default, self._emit(aten.bitwise_or.Tensor, *sides)))
            self._clamped[key] = self._emit(aten.clamp.default, index, least, most)
        return self._clamped[key]

    def _emit(self, target: Any, *args: Any) -> fx.Node:
        made = self.graph.call_function(target, args)
        made.meta["val"] = target(*[arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args])
        return made


def _depends(mark: fx.Node, private: set[fx.Node]) -> bool:
    ways, seen = [mark], set()
    while ways:
        node = ways.pop()
        if node in private:
            return True
        if node not in seen:
            seen.add(node)
            ways += node.all_input_nodes
    return False


_INDEXED = _named("index.Tensor index_put _unsafe_index.Tensor _unsafe_index_put")
_DIVIDED = _named("div.Tensor_mode remainder.Tensor fmod.Tensor")
_CHECKED = {
    aten.linalg_cholesky_ex.default: 1,
    aten.linalg_inv_ex.default: 1,
    aten._linalg_solve_ex.default: 3,
}
_ALONG = _named("gather scatter.src scatter.value scatter_add index_select")


def _index_of(node: Any) -> list[tuple[int, int]]:
    """Which arguments are indices that must not be negative, and the sizes that they index."""
    if node.target is aten.embedding.default:
        return [(1, _shape(node.args[0])[0])]
    if node.target is aten.embedding_dense_backward.default:
        return [(1, int(node.args[2]))]
    if node.target in _ALONG:
        shape = _shape(node.args[0])
        return [(2, shape[int(node.args[1])] if shape else 1)]
    return []


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)
