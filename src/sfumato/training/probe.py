"""A look at a model before it meets private data.

`survey` runs the model on a few random public rows and refuses it where per-example clipping would mean
nothing: a row that changes another row's loss or gradients (batch statistics, sorting, a layout whose first
dimension is not the rows), a buffer written during the forward pass, a parameter used where no rule sees it.
Dropout is allowed: every run starts from the same state of torch's generator, so that masks are equal.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput, UnsupportedModel
from sfumato.randomness import public_torch_generator
from sfumato.training.capture import LayerCall, LossFunction, Pass, run
from sfumato.training.rules.terms import Factors

_ROWS = 3
_TOLERANCE = 1e-6  # relative to the largest value: rounding, far below any real mixing


@dataclass(frozen=True)
class Survey:
    """What is known of a model on inputs of one shape."""

    channels_last: bool  # whether it runs, with equal losses, on inputs laid out channels last
    floats_per_row: int  # held while a chunk is worked on
    parameters: int
    convolution_weights: int


def survey(model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any) -> Survey:
    """Checks the model on random rows shaped like the given ones; remembers models that passed.

    Only shapes and types of `inputs` and `targets` are looked at.
    """
    key = _signature(model, inputs, targets)
    known = _surveyed.setdefault(model, {})
    if key not in known:
        _refuse_half_precision(model)
        _refuse_batch_statistics(model)
        known[key] = _look(model, loss_fn, inputs, targets)
    return known[key]


_surveyed: weakref.WeakKeyDictionary[nn.Module, dict[Any, Survey]] = weakref.WeakKeyDictionary()


def channels_last(inputs: Any) -> Any:
    """The same values, images laid out channels last (by strides alone where there is one channel)."""

    def lay_out(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() != 4 or not leaf.is_floating_point():
            return leaf
        if leaf.shape[1] == 1 and leaf.is_contiguous():  # torch takes a one-channel image for contiguous
            height, width = leaf.shape[2:]
            return leaf.as_strided(leaf.shape, (height * width, 1, width, 1))
        return leaf.contiguous(memory_format=torch.channels_last)

    return pytree.tree_map(lay_out, inputs)


def _refuse_half_precision(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise UnsupportedModel(
                f"expected float32 parameters, got {name} of {parameter.dtype}; norms need more digits: "
                "call model.float()"
            )


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        frozen = not module.training and not any(p.requires_grad for p in module.parameters(recurse=False))
        if isinstance(module, _BatchNorm) and not (frozen and module.track_running_stats):
            raise UnsupportedModel(
                f"expected no batch statistics, got {type(module).__name__} at {name!r}, which mixes "
                "examples; sfumato.models.replace_batchnorm(model) puts GroupNorm in its place"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise UnsupportedModel(
                f"expected no running statistics, got {type(module).__name__} at {name!r} with "
                "track_running_stats=True; set it to False"
            )
        if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
            raise UnsupportedModel(
                f"expected a plain Embedding at {name!r}, got max_norm={module.max_norm}, "
                f"scale_grad_by_freq={module.scale_grad_by_freq}, which depend on the whole batch; unset both"
            )


def random_rows(like: Any, rows: int) -> Any:
    """Public random rows with the shapes and types of the given data."""
    return _random_rows(like, rows, public_torch_generator(21))


def _look(model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any) -> Survey:
    generator = public_torch_generator(20)
    rows, labels = _random_rows(inputs, _ROWS, generator), _random_rows(targets, _ROWS, generator)
    with _same_dropout() as rewind, _buffers_kept(model):
        base = _attempt(model, loss_fn, rows, labels, rewind)
        for row in range(_ROWS):
            changed = _with_row(rows, row, _random_rows(inputs, _ROWS, generator))
            _compare(base, _attempt(model, loss_fn, changed, labels, rewind), row)
        suits = _runs_channels_last(model, loss_fn, rows, labels, base, rewind)
    weights = [m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d)]
    return Survey(
        channels_last=suits,
        floats_per_row=_floats_per_row(base),
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        convolution_weights=sum(weights),
    )


def _attempt(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, rewind: Callable[[], None]
) -> Pass:
    rewind()
    try:
        return run(model, loss_fn, inputs, targets)
    except (InvalidInput, UnsupportedModel):
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"expected model and loss_fn to run on {_ROWS} random rows, got {type(error).__name__}: {error}"
        ) from error


def _compare(base: Pass, other: Pass, row: int) -> None:
    """Row `row` was changed: no other row may notice, in any layer."""
    _same_elsewhere(base.losses, other.losses, row, "the loss")
    if len(base.calls) != len(other.calls):
        raise UnsupportedModel("expected the same layers to be called whatever the rows, but the calls differ")
    for call, before, after in zip(base.calls, base.gradients, other.gradients, strict=True):
        pairs = [(b, a) for b, a in zip(before, after, strict=True) if b is not None and a is not None]
        if isinstance(call, LayerCall):
            for b, a in pairs:
                _same_elsewhere(b, a, row, f"layer {call.prefix.rstrip('.')!r}")


def _same_elsewhere(before: Tensor, after: Tensor, row: int, where: str) -> None:
    if before.shape != after.shape or before.dim() == 0 or before.shape[0] % _ROWS:
        raise UnsupportedModel(
            f"expected {where} to keep rows in its first dimension, got shape {tuple(before.shape)} for "
            f"{_ROWS} rows; keep rows first (batch_first=True), and expand what rows share: "
            "positions.expand(len(inputs), -1)"
        )
    others = [other for other in range(_ROWS) if other != row]
    b, a = (t.detach().reshape(_ROWS, -1)[others] for t in (before, after))
    scale = float(torch.nan_to_num(b).abs().amax()) if b.numel() else 0.0
    if not torch.allclose(b, a, rtol=0.0, atol=_TOLERANCE * scale, equal_nan=True):
        raise UnsupportedModel(
            f"expected rows to be independent, but changing row {row} changed {where} of other rows; remove "
            "what mixes examples (batch statistics, sorting, a first dimension that is not the rows)"
        )


def _runs_channels_last(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, base: Pass, rewind: Callable[[], None]
) -> bool:
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return False
    rewind()
    try:
        losses = run(model, loss_fn, channels_last(inputs), targets).losses
    except RuntimeError:  # a view that only exists in the contiguous layout
        return False
    return torch.allclose(losses, base.losses, rtol=1e-3, atol=1e-5, equal_nan=True)


def _floats_per_row(base: Pass) -> int:
    """Activations, their gradients, patches and what else lives as long as a chunk, roughly."""
    total = 0
    for call, gradients in zip(base.calls, base.gradients, strict=True):
        total += sum(4 * gradient.numel() for gradient in gradients if gradient is not None)
        if isinstance(call, LayerCall) and gradients[0] is not None:
            found = call.contributions(gradients, _ROWS).values()
            total += sum(math.prod(c.inputs.shape) for c in found if isinstance(c, Factors))
    return max(1, total // _ROWS)


def _random_rows(like: Any, rows: int, generator: torch.Generator) -> Any:
    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            return leaf
        shape = (rows, *leaf.shape[1:])
        if leaf.is_floating_point():
            return torch.randn(shape, generator=generator).to(leaf)
        return torch.randint(0, 2, shape, generator=generator).to(leaf)

    return pytree.tree_map(draw, like)


def _with_row(rows: Any, row: int, source: Any) -> Any:
    def put(leaf: Any, other: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            return leaf
        changed = leaf.clone()
        # eight times larger: maxima and other order statistics of a batch must not hide the change
        changed[row] = other[row] * 8 if leaf.is_floating_point() else 1 - leaf[row].to(torch.int64)
        return changed

    return pytree.tree_map(put, rows, source)


@contextmanager
def _same_dropout() -> Iterator[Callable[[], None]]:
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        yield lambda: torch.set_rng_state(state)


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
        written = [n for n, b in model.named_buffers() if n not in before or not torch.equal(b, before[n])]
        if written:
            raise UnsupportedModel(
                f"expected the forward pass to write no buffer, but it wrote {', '.join(written)}; what it "
                "keeps of the examples is not private: remove it, or switch the module to eval()"
            )
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in before and buffer.shape == before[name].shape:
                    buffer.copy_(before[name])


def _signature(model: nn.Module, *data: Any) -> Any:
    leaves = [leaf for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor)]
    shapes = tuple((tuple(leaf.shape[1:]), leaf.dtype) for leaf in leaves)
    parts = tuple((type(module), module.training) for module in model.modules())
    trained = tuple((parameter.requires_grad, parameter.dtype) for parameter in model.parameters())
    return shapes, parts, trained
