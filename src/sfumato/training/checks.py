"""Whether a graph is the code that it was traced from, tried on public rows before anything is spent."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput, UnsupportedModel
from sfumato.randomness import public_global_generators
from sfumato.training.losses import first, other_weights, random_rows, repeated
from sfumato.training.trace import (
    MOST_OF_A_CONSTANT,
    Row,
    Watch,
    all_tensors,
    call,
    code_of,
    kept_as_it_was,
    losses_of,
    pinned,
)

ROWS, _MORE = 2, 8  # made up, each alone
_TOGETHER = 5  # in one batch: two rows may differ alike in all that a loss ignores
_UNIFORM, _NORMAL = 0.4, 0.3  # the value of every draw while code and graph are compared
_LOSS, _GRADIENT = 1e-3, 2e-2  # relative differences that rounding may make


def check_model(model: nn.Module) -> None:
    """Refuse settings that do not show in a graph, or only as an obscure error."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise UnsupportedModel(
                f"expected no batch statistics, got {type(module).__name__} at {name!r}, which mixes rows; "
                "sfumato.models.replace_batchnorm(model) puts GroupNorm in its place, or freeze it by eval()"
            )
        if getattr(module, "scale_grad_by_freq", False) or getattr(module, "sparse", False):
            raise UnsupportedModel(
                f"expected a plain {type(module).__name__} at {name!r}, got scale_grad_by_freq or sparse: "
                "gradients of the whole batch, or not dense ones; unset both"
            )
    kinds: dict[torch.dtype, str] = {}
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise UnsupportedModel(
                f"expected no hook on a parameter, got one on {name}; gradients of single rows do not pass "
                "there: remove it, and change the step's gradient in the optimizer"
            )
        if parameter.requires_grad:
            kinds.setdefault(parameter.dtype, name)
    if len(kinds) > 1 or not kinds.keys() <= {torch.float32, torch.float64}:
        got = " and ".join(f"{name} of {dtype}" for dtype, name in kinds.items())
        raise UnsupportedModel(
            f"expected trainable parameters of one type, float32 or float64, got {got}; call model.float(), "
            "and use autocast inside forward for lower precision"
        )


def check_constants(row: Row, model: nn.Module, public: Sequence[Tensor], data: Any) -> None:
    """Refuse tensors in the code or the model that are, or may be, a part of the private rows."""
    private = [_memory(leaf) for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor)]
    declared = {_memory(tensor) for tensor in public}
    held = [(tensor, name) for name, tensor in all_tensors(model).items()]
    for value, where in [*row.constants.values(), *held]:
        begin, end = _memory(value)
        if any(begin < last and first < end for first, last in private):
            raise UnsupportedModel(
                f"expected code that holds no private rows, got a part of the training data, of shape "
                f"{tuple(value.shape)}, at {where}; hand it over as inputs or targets"
            )
    for value, where in row.constants.values():
        if value.numel() > MOST_OF_A_CONSTANT and _memory(value) not in declared:
            raise UnsupportedModel(
                f"expected tensors in the code to be small or declared, got one of shape {tuple(value.shape)} "
                f"at {where}; make it a buffer of the model, or declare it as public data: public=[tensor]"
            )


def _memory(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's storage begins and ends; (0, 0) for one without memory of its own."""
    storage = tensor.untyped_storage()
    try:
        begin = storage.data_ptr()
    except RuntimeError:
        return 0, 0
    return begin, begin + (storage.nbytes() if begin else 0)


def check_code(row: Row, model: nn.Module, loss_fn: Any, example: tuple[Any, Any], views: Any) -> None:
    """Refuse code that mixes rows, does something else each time, or learns nothing.

    The weights are moved meanwhile: a layer that begins with zeros would hide all that comes before it. Every
    draw is one constant, which is the same for a row wherever it is.
    """
    inputs, targets = random_rows(example, _TOGETHER)

    def of(data: tuple[Any, Any], seed: int) -> tuple[Tensor, Tensor]:
        """Losses, and the sum of the gradients of the first rows, by the code itself."""
        with pinned(seed, traced=False), _Constant(), kept_as_it_was(model):
            losses = losses_of(model, loss_fn, *data, views)
            if isinstance(losses, FakeTensor):
                raise UnsupportedModel(
                    "expected code that keeps nothing from call to call, got a tensor of an earlier call, by "
                    f"{code_of(model)} or {code_of(loss_fn)}; compute each loss of its arguments alone"
                )
            learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
            found = torch.autograd.grad(losses[:ROWS].sum(), learning, allow_unused=True)
        return losses.detach(), _flat(found, learning)

    with other_weights(model):
        try:
            together, added = of((inputs, targets), 1)
        except UnsupportedModel:
            raise
        except Exception:  # values that the code cannot take, such as a matrix that is not definite
            inputs, targets = repeated(example, _TOGETHER)
            together, added = of((inputs, targets), 1)
        alone = [of(_row((inputs, targets), number), 2 + number) for number in range(ROWS)]
        traced = [run_row(row, model, _row((inputs, targets), number)) for number in range(ROWS)]
        single = torch.cat([losses for losses, _ in alone])
        again = of(_row((inputs, targets), 0), 11)
        apart = sum((gradients for _, gradients in alone[1:]), alone[0][1])
        mixed = not near(together[:ROWS], single, _LOSS) or not near(added, apart)
        where = _which(model, loss_fn, inputs, views) if mixed else ""
    if not near(again[0], alone[0][0], _LOSS) or not near(again[1], alone[0][1], _GRADIENT):
        raise UnsupportedModel(
            f"expected code that does the same each time, got other losses from the same row, by "
            f"{code_of(model)} or {code_of(loss_fn)}; draw with torch.rand, which becomes an input, not with "
            "Python or NumPy"
        )
    if mixed:
        raise UnsupportedModel(
            "expected the loss of each row to be that of the row alone, got others in a batch of "
            f"{_TOGETHER}, by {where}; keep rows in the first dimension and apart: no squeeze(), no mean "
            "over dimension 0; put all rows that a loss compares into one, such as an anchor and its negatives "
            "in one input"
        )
    for (losses, gradients), (own, formed) in zip(traced, alone, strict=True):
        if not near(losses, own, _LOSS) or not near(gradients, formed, _GRADIENT):
            raise UnsupportedModel(
                f"expected graph and code to compute the same numbers, got others, by {code_of(model)} or "
                f"{code_of(loss_fn)}; leave out code that depends on time, files or earlier calls"
            )
    finite = [gradients for _, gradients in traced if bool(gradients.isfinite().all())]
    if not any(bool(gradients.any()) for gradients in finite) and not _learns(row, model, example):
        raise UnsupportedModel(
            "expected a loss that learns, got a gradient of zero for every made-up row, by "
            f"{code_of(loss_fn)}; leave out detach(), argmax and rounding between the weights and the loss"
        )


def _learns(row: Row, model: nn.Module, example: tuple[Any, Any]) -> bool:
    """Whether any of more made-up rows, larger whole numbers among them, has a gradient at other weights.

    Rows without a finite gradient tell nothing: where there are no others, that is not known.
    """
    told = False
    for seed, most in ((31, 1), (33, 1), (35, 9)):
        data = random_rows(example, _MORE, seed, most=most)
        with other_weights(model), public_global_generators(seed):
            for number in range(_MORE):
                draws = [
                    (torch.rand if draw.kind == "uniform" else torch.randn)(draw.shape, dtype=draw.dtype)
                    for draw in row.draws
                ]
                _, gradients = run_row(row, model, _row(data, number), draws)
                finite = bool(gradients.isfinite().all())
                told |= finite
                if finite and bool(gradients.any()):
                    return True
    return not told


def run_row(
    row: Row, model: nn.Module, data: Any, draws: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The loss of one row, and its gradients end to end, by the graph on the CPU; every draw is a constant."""
    tensors = {name: tensor.detach().cpu() for name, tensor in all_tensors(model).items()}
    leaves = [leaf.cpu() for leaf in pytree.tree_leaves(data) if isinstance(leaf, Tensor)]
    with torch.no_grad(), torch.device("cpu"):
        draws = constant_draws(row) if draws is None else draws
        losses, _, *gradients = _Eager(row.graph).run(*[tensors[name] for name in row.weights], *leaves, *draws)
    return losses, _flat(gradients, [tensors[name] for name in row.trainable])


class _Eager(fx.Interpreter):
    """Runs a graph as autograd calls it: some kernels take for granted that gradients are contiguous."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.native_group_norm_backward.default:
            args = (args[0].contiguous(), args[1].contiguous(), *args[2:])
        return super().call_function(target, args, kwargs)


def constant_draws(row: Row, rows: int | None = None) -> list[Tensor]:
    """The draws of one row, or of a block of rows, every one the same constant."""
    lead = () if rows is None else (rows,)
    return [
        torch.full((*lead, *draw.shape), _UNIFORM if draw.kind == "uniform" else _NORMAL, dtype=draw.dtype)
        for draw in row.draws
    ]


def _flat(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    parts = [
        parameter.detach().new_zeros(parameter.numel()) if gradient is None else gradient.flatten()
        for gradient, parameter in zip(gradients, like, strict=True)
    ]
    return torch.cat(parts)


def near(one: Tensor, other: Tensor, share: float = _GRADIENT) -> bool:
    """Whether two vectors differ by no more than rounding, where both are finite."""
    told = one.isfinite() & other.isfinite()
    if not bool(told.all()):
        one, other = one[told], other[told]
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).norm()) <= share * max(float(one.norm()), float(other.norm())) + 1e-6


def _row(data: Any, number: int) -> Any:
    return pytree.tree_map_only(Tensor, lambda leaf: leaf[number : number + 1], data)


def _which(model: nn.Module, loss_fn: Any, inputs: Any, views: Any) -> str:
    """The code that mixes rows: the model if its outputs are others, else the loss."""
    if views is not None:
        return f"{code_of(views)}, {code_of(model)} or {code_of(loss_fn)}"
    with pinned(1, traced=False), _Constant(), kept_as_it_was(model):
        together, alone = call(model, inputs), call(model, first(inputs, 1))
    pairs = zip(_tensors(together), _tensors(alone), strict=False)
    same = all(
        one.shape[1:] == other.shape[1:] and near(one[:1].flatten(), other[:1].flatten(), _LOSS)
        for one, other in pairs
        if one.dim() and other.dim()
    )
    return code_of(loss_fn) if same else code_of(model)


def _tensors(outputs: Any) -> list[Tensor]:
    return [
        leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]


class _Constant(Watch):  # type: ignore[no-untyped-call]
    """Within, every draw is one constant."""

    def _numbers(self, make: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.full(shape, _UNIFORM if make is torch.rand else _NORMAL, dtype=dtype)


def other_number(model: nn.Module, inputs: Any) -> str:
    """Return the remedy for inputs that the forward pass takes in another number or by other names."""
    named, several = isinstance(inputs, dict), isinstance(inputs, tuple | list)
    given: Any = () if named else inputs if several else (inputs,)
    try:
        inspect.signature(model.forward).bind(*given, **(inputs if named else {}))
    except TypeError:
        pass
    except Exception:  # a signature that cannot be read says nothing
        return ""
    else:
        return ""
    return (
        "; its forward takes other inputs than the items have: items ((a, b), target) call model(a, b), and "
        "items ({'a': …, 'b': …}, target) call model(a=…, b=…); change the items, or forward"
    )


def other_type(model: nn.Module, inputs: Any) -> str:
    """Return the remedy for inputs whose type no weight has; int64 are tokens."""
    weights = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    given = {leaf.dtype for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)}
    strangers = sorted(map(str, given - weights - {torch.int64, torch.bool}))
    if not strangers or not weights:
        return ""
    kind = str(next(iter(weights))).removeprefix("torch.")
    return f"; the inputs are {strangers[0]}: convert them with .to(torch.{kind}), as the weights are"


def other_targets(targets: Any) -> str:
    """Return the remedy for targets that are neither classes nor numbers."""
    given = {leaf.dtype for leaf in pytree.tree_leaves(targets) if isinstance(leaf, Tensor)}
    strangers = sorted(map(str, given - {torch.int64, torch.float32}))
    if not strangers:
        return ""
    return f"; the targets are {strangers[0]}: convert classes with .to(torch.int64), numbers with .float()"


def as_written(model: Any) -> nn.Module:
    """The module inside a compiled one, which shares its weights; any other model as it is.

    Raises:
        InvalidInput: If it is no module: a class that was not called, a function, nothing.
        UnsupportedModel: If a part of the model was compiled by itself, or turned into TorchScript.
    """
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise InvalidInput(f"expected model to be a torch.nn.Module, got {got}; build one and pass it")
    inside: nn.Module = getattr(model, "_orig_mod", model)
    if isinstance(inside, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UnsupportedModel(
            f"expected the model itself, got {type(inside).__name__} around it; give model.module, and "
            "peers=Peers.of_world() for several processes"
        )
    for name, module in inside.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModel(
                f"expected a model as it was written, got {name or 'model'!r} in TorchScript, which runs past "
                "torch's modules; give the model before torch.jit.script or torch.jit.trace, and script it "
                "after training"
            )
        if "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None:
            raise UnsupportedModel(
                f"expected a model that is not compiled, or compiled as a whole by torch.compile(model), got "
                f"{name or 'model'!r}, which was compiled by itself; compile it after training"
            )
    return inside
