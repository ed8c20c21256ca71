"""A look at a model before it meets private data.

`survey` runs model, loss and views on a few random public rows, with the weights a little off so that a layer
that starts at zero hides nothing. It finds out how rows lie and how functions are mapped over them. It refuses
a model where per-example clipping would mean nothing: another row, or one row more, that changes a row's loss
or gradients (batch statistics, sorting, a layout whose first dimension is not the rows), state that is kept
from call to call, a buffer written during the forward pass, a parameter used where no rule sees it.
Randomness is allowed: in the survey every draw of torch's is the same for all rows and in every run.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput, UnsupportedModel
from sfumato.training.blocks import Heights, most_rows
from sfumato.training.capture import (
    LayerCall,
    Layout,
    Pass,
    Wiring,
    call_model,
    count_rows,
    run,
    watch_both,
)
from sfumato.training.comparison import check_same_rows
from sfumato.training.devices import device_of, moved
from sfumato.training.following import follow
from sfumato.training.memory import Memory, Tensors, keeps_nothing, written_nowhere
from sfumato.training.moment import Moment, refuse_listeners
from sfumato.training.precision import plain_float32
from sfumato.training.public_rows import first, other_weights, random_rows, repeated, with_row
from sfumato.training.replaced import replaced, versions
from sfumato.training.rowwise import (
    VIEWS,
    WANTED_OF_VIEWS,
    Identity,
    LossFunction,
    RowMap,
    Views,
    check_losses,
    check_views,
    mapped,
    row_axes,
)
from sfumato.training.rules.fallback import layout_of
from sfumato.training.rules.terms import Factors
from sfumato.training.steps import Steps
from sfumato.training.structure import Structure, signature, tensors_of
from sfumato.training.trees import mapped_tree
from sfumato.training.unsuitable import (
    other_number,
    other_targets,
    other_type,
    refuse_batch_statistics,
    refuse_hooks_on_weights,
    refuse_low_precision,
    refuse_low_precision_inside,
    refuse_own_tensors,
    refuse_sparse,
)
from sfumato.training.watching import (
    Drawn,
    NothingDrawn,
    OneDrawForAll,
    no_randomness,
    noticed_draws,
    same_randomness,
)

_ROWS = 4
FEW = 3  # rows that labels are followed for
FEW_MORE = 5  # what is the same number there and with three rows is fixed, what grew grows with the rows
_TOLERANCE = 1e-6  # relative to the largest value: rounding, far below any real mixing
_SHAPE_TOLERANCE = 1e-4  # kernels of other shapes round otherwise
_ROWS_OF_A_BLOCK = 64  # that pay for laying out convolution weights channels last


@dataclass(frozen=True, eq=False)
class Survey:
    """What is known of a model with a loss, and views, on inputs of one shape.

    Attributes:
        channels_last: Whether convolutions work on channels-last memory.
        floats_per_row: How many numbers one row's pass keeps.
        parameters: How many numbers are trained.
        random: Whether the forward pass draws random numbers.
        alone: Whether rows must be worked on one by one.
        moves: Whether rows must be followed at each block size.
        layout: Which layers own which parameters, and their rules.
        loss: The loss, mapped over rows.
        views: The views, mapped over rows.
        copies: How many views a row has.
        public_rows: Random rows, for padding.
        heights: Block sizes at which results do not depend on the other rows.
        few_steps: What was done with few rows, once it was asked for.
    """

    channels_last: bool  # whether inputs are laid out channels last
    floats_per_row: int  # held while a chunk is worked on
    parameters: int
    random: bool  # whether the forward pass draws from torch's generator
    alone: bool  # whether each unit needs a block of its own, since the model decides in Python what it does
    moves: bool  # whether rows are moved by fixed numbers, so that they are followed at each height
    layout: Layout
    loss: RowMap  # how they are mapped; the functions themselves are not kept
    views: RowMap | None
    copies: int  # views of each row
    public_rows: tuple[Any, Any]  # inputs and targets, before views, to pad and compare with
    heights: Heights = field(default_factory=Heights)
    few_steps: list[Steps] = field(default_factory=list)


def survey(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, *, views: Views | None = None
) -> Survey:
    """Check model, loss and views on random rows shaped like the given ones; remember what passed.

    Only shapes and types of `inputs` and `targets` are looked at.

    Args:
        model: The model.
        loss_fn: `loss_fn(outputs, targets)` returns one loss for each row.
        inputs: Rows of the right shape and type.
        targets: Targets of the right shape and type.
        views: K random views of each row.

    Returns:
        What was found out.

    Raises:
        UnsupportedModel: If one row's loss depends on another row, or a buffer is written.

    >>> from sfumato.training import cross_entropy
    >>> survey(nn.Linear(2, 2), cross_entropy, torch.rand(4, 2), torch.zeros(4, dtype=torch.long)).parameters
    6
    """
    refuse_listeners()
    refuse_own_tensors(model)
    refuse_sparse(model)
    refuse_hooks_on_weights(model)
    key = signature(model, inputs, targets), versions(model)
    now = Moment(model, loss_fn, views)
    known = _surveyed.setdefault(model, [])
    for seen, same_loss, same_views, moment, found in known:
        if seen == key and same_loss(loss_fn) and same_views(views) and _is_like(now, moment()):
            return found
    refuse_low_precision(model)
    refuse_batch_statistics(model)
    found = _looked(model, loss_fn, inputs, targets, views)
    known.insert(0, (key, Identity(loss_fn), Identity(views), weakref.ref(now), found))
    del known[_REMEMBERED:]
    _moments.append(now)
    return found


def _is_like(now: Moment, then: Moment | None) -> bool:
    return then is not None and now.like(then)


_REMEMBERED = 16
_Known: TypeAlias = tuple[Any, Identity, Identity, "weakref.ref[Moment]", Survey]
_surveyed: weakref.WeakKeyDictionary[nn.Module, list[_Known]] = weakref.WeakKeyDictionary()
_moments: deque[Moment] = deque(maxlen=4)  # they keep models alive, so few are kept


def channels_last(inputs: Any) -> Any:
    """The same values, images laid out channels last (by strides alone where there is one channel)."""

    def lay_out(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() != 4 or not leaf.is_floating_point():
            return leaf
        if leaf.shape[1] == 1 and leaf.is_contiguous():  # torch takes a one-channel image for contiguous
            height, width = leaf.shape[2:]
            return leaf.as_strided(leaf.shape, (height * width, 1, width, 1))
        return leaf.contiguous(memory_format=torch.channels_last)

    return mapped_tree(lay_out, inputs)


def _looked(model: nn.Module, *arguments: Any) -> Survey:
    """Most models draw nothing, and then no operation needs to be watched for it: that is tried first."""
    device = device_of(model)
    if not any(isinstance(module, _DropoutNd) and module.training for module in model.modules()):
        with suppress(Drawn):
            return _look(model, *arguments, randomness=no_randomness(device))
    return _look(model, *arguments, randomness=same_randomness(device))


def _look(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    views: Views | None,
    *,
    randomness: AbstractContextManager[OneDrawForAll | NothingDrawn],
) -> Survey:
    inputs, targets = moved((inputs, targets), device_of(model))
    raw, labels = random_rows(inputs, 2 * _ROWS, 20), random_rows(targets, 2 * _ROWS, 22)
    memory, weights = model_memory(model), Tensors(Structure(model))
    with plain_float32(), randomness as draws, other_weights(model), written_nowhere(weights):
        with draws, _blamed(VIEWS, f"; {WANTED_OF_VIEWS}"):
            view_map, rows = _mapped_views(model, views, raw)
            labels_of_rows = repeated(labels, count_rows(rows) // count_rows(raw))
        remedy = other_number(model, rows) or other_type(model, rows) or other_targets(targets)
        with _blamed("model and loss_fn", _seen_as(views, raw, rows) + remedy):
            with draws:
                layout, loss = _mapped_loss(model, loss_fn, rows, labels_of_rows, memory, draws.check)
            look = _Look(model, loss, Wiring.of(model, layout), memory, draws)
            base = look.base(rows, labels_of_rows)
            look.check_other_rows(base, rows, labels_of_rows)
            look.check_one_row_more(base, rows, labels_of_rows)
            look.check_learns(base, rows, labels_of_rows)
            together, moves = look.how_rows_meet(first(rows, FEW), first(labels_of_rows, FEW))
            together = together or look.what_is_drawn(first(rows, _ROWS))
            suits = look.runs_channels_last(base, rows, labels_of_rows)
    if together:
        warnings.warn(f"{together}, so each row is worked on alone, which is slow: {_REMEDY}", stacklevel=4)
    kernels = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d))
    elements = sum(leaf.numel() // len(leaf) for leaf in pytree.tree_leaves(rows) if isinstance(leaf, Tensor))
    return Survey(
        channels_last=suits and kernels < _ROWS_OF_A_BLOCK * elements,
        floats_per_row=_floats_per_row(base),
        heights=Heights(most_rows(_floats_per_row(base))),
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        random=draws.used,
        alone=bool(together),
        moves=moves,
        layout=layout,
        loss=loss.forgotten(),
        views=None if view_map is None else view_map.forgotten(),
        copies=count_rows(rows) // count_rows(raw),
        public_rows=(raw, labels),
    )


def _mapped_views(model: nn.Module, views: Views | None, raw: Any) -> tuple[RowMap | None, Any]:
    """The views mapped over rows, and public rows as the model will see them."""
    if views is None:
        return None, raw
    axes = row_axes(first(raw, _ROWS), raw, (_ROWS, 2 * _ROWS), "the inputs of views")
    view_map = mapped(views, (raw,), axes, name=VIEWS, but=tensors_of(model).values())
    check_views(view_map(raw), count_rows(raw))
    _check_memory(view_map, (raw,))
    return view_map, seen_by_model(view_map, raw)


def seen_by_model(views: RowMap | None, raw: Any, copies: int | None = None) -> Any:
    """The rows that the model is run on: K views of each, one after the other; K must be `copies` if given."""
    if views is None:
        return raw
    seen = views(raw)
    check_views(seen, count_rows(raw), copies)
    return pytree.tree_map(lambda leaf: leaf.flatten(0, 1), seen)


def _seen_as(views: Views | None, raw: Any, rows: Any) -> str:
    """What views made of public rows, for whoever reads why a model does not run on them."""
    if views is None:
        return ""
    before, after = (
        ", ".join(str(tuple(leaf.shape[1:])) for leaf in pytree.tree_leaves(each) if isinstance(leaf, Tensor))
        for each in (raw, rows)
    )
    return f"; out of each row of {before}, views made {count_rows(rows) // count_rows(raw)} of {after}"


def _mapped_loss(
    model: nn.Module,
    loss_fn: LossFunction,
    rows: Any,
    labels: Any,
    memory: Memory,
    check: Callable[[], None],
) -> tuple[Layout, RowMap]:
    """Where rows lie in every call and in the outputs, and how the loss is mapped over them.

    `check` is called when the model has run.
    """
    counts = _ROWS, count_rows(rows)
    few_labels = first(labels, _ROWS)
    containers, few, more = watch_both(model, first(rows, _ROWS), rows, memory.put_back)
    check()
    if [call.prefix for call in few.calls] != [call.prefix for call in more.calls]:
        raise UnsupportedModel("expected the same layers to be called whatever the rows, but the calls differ")
    calls = tuple(layout_of(one, other, counts) for one, other in zip(few.calls, more.calls, strict=True))
    axes = row_axes((few.outputs, few_labels), (more.outputs, labels), counts, "the model's output")
    columns = few.outputs, few_labels
    loss = mapped(loss_fn, columns, axes, name="loss_fn", but=tensors_of(model).values())
    _check_loss(loss, columns)
    return Layout(containers, calls), loss


_REMEDY = "use torch.where for choices, draw by torch, and reduce, sort and count within rows only"


def _check_loss(loss: RowMap, columns: tuple[Any, Any]) -> None:
    rows = len(next(leaf for leaf in pytree.tree_leaves(columns[1]) if isinstance(leaf, Tensor)))
    check_losses(loss(*columns), rows)
    _check_memory(loss, columns)


def _check_memory(function: RowMap, columns: tuple[Any, ...]) -> None:
    """What remembers is seen by its answers: for the same rows again, in another order with one row less.

    It would be made to forget, and so not do what its author meant.
    """
    memory, function = function.memory, replace(function, memory=None)
    base = function(*columns)
    rows = count_rows(base)
    for order in (torch.arange(rows), torch.arange(rows - 1, 0, -1)):
        expected = pytree.tree_map(lambda leaf, order=order: leaf[order], base)
        _refuse_state(expected, function(*_picked(columns, order, function.axes)), function.name)
    if memory is not None:
        memory.put_back()


def _picked(columns: Any, order: Tensor, axes: Sequence[int | None]) -> Any:
    leaves, tree = pytree.tree_flatten(columns)
    chosen = [leaf if axis is None else leaf[order] for leaf, axis in zip(leaves, axes, strict=True)]
    return pytree.tree_unflatten(chosen, tree)


def _refuse_state(before: Any, after: Any, name: str) -> None:
    pairs = zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True)
    if not all(torch.allclose(b, a, rtol=_SHAPE_TOLERANCE, atol=1e-6, equal_nan=True) for b, a in pairs):
        raise UnsupportedModel(
            f"expected {name} to answer the same for the same row, but it did not; it keeps something from "
            "call to call, or draws from a generator of its own: keep no state, and draw from torch's generator"
        )


@dataclass(frozen=True)
class _Look:
    """A model with its loss, run on public rows."""

    model: nn.Module
    loss: RowMap
    wiring: Wiring
    memory: Memory
    draws: OneDrawForAll | NothingDrawn

    def at(self, inputs: Any, targets: Any, rows: int) -> Pass:
        try:
            return self._remembering(inputs, targets, rows)
        finally:
            self.memory.put_back()

    def _remembering(self, inputs: Any, targets: Any, rows: int) -> Pass:
        inputs, targets = first(inputs, rows), first(targets, rows)
        with self.draws:
            passed = run(self.model, self.loss, inputs, targets, self.wiring)
        refuse_low_precision_inside(passed)
        return passed

    def base(self, inputs: Any, targets: Any) -> Pass:
        """The pass that others are compared with.

        A model that remembers it answers otherwise the next time: it would be made to forget, and so not do
        what its author meant.
        """
        try:
            base = self._remembering(inputs, targets, _ROWS)
            again = self._remembering(inputs, targets, _ROWS)
        finally:
            self.memory.put_back()
        _refuse_state(base.losses, again.losses, "the model")
        check_same_rows(base, again, range(_ROWS), _TOLERANCE, "an earlier call")
        return base

    def check_other_rows(self, base: Pass, inputs: Any, targets: Any) -> None:
        """One row with another input and target: no other row may notice, in any layer."""
        inputs, targets = first(inputs, _ROWS), first(targets, _ROWS)
        others = random_rows(inputs, _ROWS, 23), random_rows(targets, _ROWS, 24)
        for row in range(_ROWS):
            changed = with_row(inputs, row, others[0]), with_row(targets, row, others[1])
            _compare(base, self.at(*changed, _ROWS), row)

    def how_rows_meet(self, inputs: Any, targets: Any) -> tuple[str, bool]:
        """What lets rows meet, or nothing: whatever the values are, each element that counts is of one row.

        And whether rows were moved by fixed numbers, which may come to something else with more rows.
        """
        try:
            with self.draws:
                shadow, apart = follow(self.model, self.loss, self.wiring, inputs, targets)
        finally:
            self.memory.put_back()
        if shadow.reads:
            return (
                "the model looks at values in its forward or backward pass and might bring rows together",
                False,
            )
        if apart:
            return "", shadow.moves
        return f"the model brings rows together, perhaps on rare values only (see {shadow.mixing[0]})", False

    def what_is_drawn(self, inputs: Any) -> str:
        with self.draws, torch.enable_grad(), noticed_draws() as draws:
            call_model(self.model, inputs)
        self.memory.put_back()
        if not draws.found:
            return ""
        return f"the model calls {draws.found[0]} in its forward pass and might bring rows together on that"

    def check_one_row_more(self, base: Pass, inputs: Any, targets: Any) -> None:
        more = self.at(inputs, targets, _ROWS + 1)
        check_same_rows(base, more, range(_ROWS), _SHAPE_TOLERANCE, "adding a row")

    def check_learns(self, base: Pass, inputs: Any, targets: Any) -> None:
        """Refuse a loss with no gradient at all; other rows and weights are tried before it is believed."""
        if base.has_gradients:
            return
        wide = 9 if base.losses.is_cpu else 1  # whole numbers beyond 0 and 1 may be no class and no token
        for seed, most in ((31, 1), (33, 1), (35, wide)):
            other, labels = (random_rows(like, 2 * _ROWS, seed, most=most) for like in (inputs, targets))
            with suppress(Exception), other_weights(self.model):
                if self.at(other, labels, 2 * _ROWS).has_gradients:
                    return
        raise UnsupportedModel(
            "expected loss_fn to give a random row a gradient, got zero for every row and parameter, which "
            "would spend the whole ε and learn nothing; loss_fn sees one row at a time: put what it compares "
            "into the row (an anchor, its positive and its negatives in one input), or use a loss of one row"
        )

    def runs_channels_last(self, base: Pass, inputs: Any, targets: Any) -> bool:
        if not any(isinstance(module, nn.Conv2d) for module in self.model.modules()):
            return False
        laid_out = channels_last(first(inputs, _ROWS))
        try:
            with self.draws:
                losses = run(self.model, self.loss, laid_out, first(targets, _ROWS), self.wiring).losses
        except RuntimeError:  # a view that only exists in the contiguous layout
            return False
        finally:
            self.memory.put_back()
        return torch.allclose(losses, base.losses, rtol=1e-3, atol=1e-5, equal_nan=True)


def model_memory(model: nn.Module) -> Memory:
    """What the model could remember; nothing, where all of its code is of packages that keep nothing."""
    roots = () if keeps_nothing(model) else (model, *replaced(model).values())
    return Memory(*roots, name="the model", but=tensors_of(model).values())


@contextmanager
def _blamed(what: str, remedy: str) -> Iterator[None]:
    """Say in one sentence that `what` does not run."""
    try:
        yield
    except (InvalidInput, UnsupportedModel, Drawn):
        raise
    except Exception as error:  # on public rows: its text tells nothing
        raise UnsupportedModel(
            f"expected {what} to run on random rows like those of the data, got "
            f"{type(error).__name__}: {error}{remedy}"
        ) from error


def _compare(base: Pass, other: Pass, row: int) -> None:
    others = [number for number in range(_ROWS) if number != row]
    check_same_rows(base, other, others, _TOLERANCE, f"changing row {row}")


def _floats_per_row(base: Pass) -> int:
    """Activations, their gradients, patches and what else lives as long as a chunk, roughly."""
    total = 0
    for call, gradients in base.by_call():
        total += sum(4 * gradient.numel() for gradient in gradients if gradient is not None)
        if isinstance(call, LayerCall) and gradients[0] is not None:
            found = call.contributions(gradients, _ROWS).values()
            total += sum(math.prod(c.inputs.shape) for c in found if isinstance(c, Factors))
    return max(1, total // _ROWS)
