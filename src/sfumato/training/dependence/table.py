"""Which rule an operation has."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from sfumato.training.dependence.by_index import (
    embedded,
    gathered,
    indexed,
    put_by_index,
    scattered,
    selected,
)
from sfumato.training.dependence.by_shape import (
    along,
    attention,
    classes,
    concatenated,
    convolved,
    convolved_back,
    everything,
    groups,
    moved,
    nothing,
    overwritten,
    padded,
    pointwise,
    pointwise_draw,
    product,
    reduced,
    trailing,
    unreduced,
    varying,
    windows,
)
from sfumato.training.dependence.by_trial import tried
from sfumato.training.dependence.operation import Labels, Operation, Rule

_RULES: dict[Rule, str] = {
    nothing: (
        "empty_like zeros_like ones_like full_like new_empty new_zeros new_ones new_full "
        "new_empty_strided empty zeros ones full arange zero_ eye linspace scalar_tensor tril_indices "
        "triu_indices _assert_async _assert_tensor_metadata"
    ),
    varying: (
        "rand randn randint randperm rand_like randn_like randint_like uniform_ normal_ exponential_ "
        "geometric_ log_normal_ cauchy_ random_"
    ),
    pointwise_draw: "native_dropout bernoulli normal poisson rrelu_with_noise",
    overwritten: "copy_ fill_ copy",
    pointwise: (
        "_to_copy clone masked_fill masked_fill_ where gelu_ hardtanh_backward elu_backward "
        "leaky_relu_backward hardswish hardswish_ hardswish_backward hardsigmoid_backward mish_backward "
        "softplus_backward softshrink_backward hardshrink_backward log_sigmoid_forward "
        "log_sigmoid_backward _prelu_kernel eq_ ne_ lt_ gt_ le_ ge_ tril triu tril_ triu_ fill threshold_ "
        "native_dropout_backward lift_fresh_copy floor_divide floor_divide_ __and__ __or__ __iand__ "
        "__ior__"
    ),
    unreduced: (
        "mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward "
        "binary_cross_entropy binary_cross_entropy_backward soft_margin_loss soft_margin_loss_backward"
    ),
    classes: "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward",
    reduced: (
        "sum mean any all amax amin prod var std var_mean std_mean logsumexp argmax argmin max min median "
        "mode kthvalue count_nonzero linalg_vector_norm norm nansum aminmax"
    ),
    along: (
        "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data cumsum "
        "cumsum_ cumprod cumprod_ logcumsumexp sort argsort topk _cummax_helper _cummin_helper glu "
        "glu_backward"
    ),
    product: "mm bmm addmm addmm_ baddbmm baddbmm_",
    windows: (
        "max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d "
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward "
        "avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool3d _adaptive_avg_pool2d_backward "
        "_adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward "
        "upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d "
        "upsample_nearest1d_backward upsample_nearest2d_backward upsample_bilinear2d_backward "
        "upsample_bicubic2d_backward reflection_pad1d reflection_pad2d replication_pad1d "
        "replication_pad2d reflection_pad1d_backward reflection_pad2d_backward"
    ),
    trailing: "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward",
    groups: "native_group_norm native_group_norm_backward",
    convolved: "convolution",
    convolved_back: "convolution_backward",
    everything: "mkldnn_rnn_layer_backward",
    attention: (
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"
    ),
    embedded: "embedding",
    selected: "index_select",
    gathered: "gather",
    scattered: "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_",
    indexed: "index _unsafe_index",
    put_by_index: "index_put index_put_ _index_put_impl_ _unsafe_index_put",
    concatenated: "cat stack",
    padded: "constant_pad_nd",
    moved: (
        "slice_backward select_backward diagonal_backward flip roll repeat pixel_shuffle pixel_unshuffle "
        "diag_embed expand_copy view_copy permute_copy slice_scatter select_scatter"
    ),
}
_BY_NAME = {name: rule for rule, names in _RULES.items() for name in names.split()}


@lru_cache(maxsize=4096)
def rule_of(func: Any) -> Rule:
    """By torch's own tag of pointwise operations, then by name, else by trial."""
    if func.namespace != "aten":
        return tried
    if torch.Tag.pointwise in func.tags:
        return pointwise
    return _BY_NAME.get(func.overloadpacket.__name__, tried)


def draws(func: Any) -> bool:
    """Whether it makes something that varies out of nothing."""
    return rule_of(func) in (varying, pointwise_draw)


def labels_after(operation: Operation) -> list[Labels]:
    """The labels of every output."""
    found = rule_of(operation.func)(operation)
    return [np.broadcast_to(labels, out.shape) for labels, out in zip(found, operation.outputs, strict=True)]
