"""The only hooks: what went into each layer, and where the gradient of what came out will be found.

Hooks live inside one context manager. They are put before the user's own, see each module's plain output,
and are gone afterwards, whatever happened. Nothing is written on the user's modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils import _pytree as pytree

from sfumato.errors import InvalidInput, UnsupportedModel
from sfumato.training.hugging_face import without_shortcuts
from sfumato.training.rowwise import LossFunction, check_losses
from sfumato.training.rules import Rule, rule_for
from sfumato.training.rules.fallback import CallLayout, SeenCall, expand, layout_of
from sfumato.training.rules.terms import Contribution, Rows


@dataclass(frozen=True)
class Layout:
    """Which modules are expanded as a whole although their parts have rules, and how rows lie in such calls."""

    containers: frozenset[str] = frozenset()  # prefixes
    calls: Sequence[CallLayout] = ()  # of everything that is expanded, in order


@dataclass(frozen=True)
class Wiring:
    """Where a model is listened to: a walk over its modules that many passes share."""

    layout: Layout
    parameters: Mapping[str, nn.Parameter]  # the trained ones
    names: Mapping[int, str]  # of these, by identity
    owners: Sequence[tuple[str, nn.Module, Rule | None]]
    part_sizes: dict[int, int] = field(default_factory=dict)  # of units with so many rows; found as they come

    @classmethod
    def of(cls, model: nn.Module, layout: Layout) -> Wiring:
        trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        names = {id(parameter): name for name, parameter in trained.items()}
        return cls(layout, trained, names, tuple(owners(model, layout.containers)))


class Part(NamedTuple):
    """Some of the units of a block, one after the other, with all their rows."""

    start: int
    stop: int
    of: int  # units of the block

    def rows(self, tensor: Tensor) -> slice:
        """Theirs in a tensor with equally many for each unit."""
        each = len(tensor) // self.of
        return slice(self.start * each, self.stop * each)


@dataclass(frozen=True)
class LayerCall:
    """One call of a module that has a rule."""

    prefix: str
    module: nn.Module
    rule: Rule
    inputs: Tensor
    version: int  # of the input: an in-place change afterwards would falsify the rule
    source: Node | None  # where the input came from
    edge: GradientEdge  # where the output's gradient arrives

    @property
    def targets(self) -> list[GradientEdge]:
        return [self.edge]

    def contributions(
        self, gradients: Sequence[Tensor | None], rows: int, part: Part | None = None
    ) -> Mapping[int, Contribution]:
        """What each row of a part adds to the parameters, by their identity: tied ones have several names."""
        (gradient,) = gradients
        if gradient is None:  # the output does not reach the loss
            return {}
        for tensor in (self.inputs, gradient):
            if tensor.dim() == 0 or tensor.shape[0] % rows or tensor.shape[0] == 0:
                raise _no_rows(self.prefix, tensor, rows)
        if self.inputs._version != self.version:
            raise UnsupportedModel(
                f"expected the input of layer {self.prefix!r} to stay as it was, but it was changed in place "
                "afterwards; use the out-of-place operation"
            )
        inputs = self.inputs.detach()
        if part is not None:
            inputs, gradient = inputs[part.rows(inputs)], gradient[part.rows(gradient)]
        found = self.rule(self.module, inputs, gradient)
        own = self.module.named_parameters(recurse=False)
        return {id(parameter): found[name] for name, parameter in own if parameter.requires_grad}


@dataclass(frozen=True)
class ExpandedCall:
    """One call of a module without a rule, made with row-wise parameters."""

    prefix: str
    module: nn.Module
    leaves: Mapping[str, Tensor | tuple[Tensor, ...]]

    @property
    def targets(self) -> list[Tensor]:
        return [t for leaf in self.leaves.values() for t in (leaf if isinstance(leaf, tuple) else (leaf,))]

    def contributions(
        self, gradients: Sequence[Tensor | None], rows: int, part: Part | None = None
    ) -> Mapping[int, Contribution]:
        found = self.stacked(gradients)
        for name, gradient in found.items():
            if gradient.shape[0] % rows:
                raise _no_rows(self.prefix, gradient, rows)
            if part is not None:
                found[name] = gradient[part.rows(gradient)]
        return {id(self.module.get_parameter(name)): Rows(gradient) for name, gradient in found.items()}

    def stacked(self, gradients: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """The gradient of every row, rows first, by parameter; none for what does not reach the loss."""
        remaining, found = list(gradients), {}
        for name, leaf in self.leaves.items():
            count = len(leaf) if isinstance(leaf, tuple) else 1
            mine, remaining = remaining[:count], remaining[count:]
            if any(gradient is not None for gradient in mine):
                found[name] = _stacked(leaf, mine)
        return found


Call: TypeAlias = LayerCall | ExpandedCall


@dataclass
class Tape:
    """What one forward pass left behind."""

    rows: int
    layout: Layout = field(default_factory=Layout)
    calls: list[Call] = field(default_factory=list)
    expanded: int = 0  # calls that were expanded so far
    expanding: bool = False  # inside a fallback's own call of its module

    def next_layout(self, module: nn.Module) -> CallLayout:
        if self.expanded == len(self.layout.calls):
            raise UnsupportedModel(
                f"expected the same calls whatever the rows, but {type(module).__name__} was called once more"
            )
        self.expanded += 1
        return self.layout.calls[self.expanded - 1]

    def escaped(self, losses: Tensor, parameters: Mapping[int, str]) -> set[str]:
        """Names of the parameters that reach the loss past every captured call.

        Walks the autograd graph from the loss, not entering captured layers but going on from their
        inputs: whatever parameter is met on the way was used where no rule sees it.
        """
        layers = [call for call in self.calls if isinstance(call, LayerCall)]
        seen: set[Node] = {call.edge.node for call in layers}
        ways = [losses.grad_fn, *(call.source for call in layers)]
        found: set[str] = set()
        while ways:
            node = ways.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in parameters:
                found.add(parameters[id(variable)])
            ways.extend(following for following, _ in node.next_functions)
        return found


@contextmanager
def capture(wiring: Wiring, rows: int) -> Iterator[Tape]:
    """Records every call of a module that owns trainable parameters, for a forward pass of `rows` rows."""
    tape, handles = Tape(rows, wiring.layout), []
    try:
        for prefix, module, rule in wiring.owners:
            hook = _watch(tape, prefix, rule) if rule else _replace(tape, prefix)
            handles.append(module.register_forward_hook(hook, prepend=True, with_kwargs=True))
        yield tape
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Watched:
    """What a forward pass on public rows did: the calls that would be expanded, and the outputs."""

    calls: Sequence[SeenCall]
    outputs: Any


def watch_both(
    model: nn.Module, few: Any, more: Any, forget: Callable[[], object]
) -> tuple[frozenset[str], Watched, Watched]:
    """The containers, and what is done with few and with more rows; `forget` is called after each pass.

    One pass is enough for either, unless there are containers.
    """

    def watched(prefixes: set[str], inputs: Any) -> tuple[list[SeenCall], Any]:
        try:
            return _watched(model, prefixes, inputs)
        finally:
            forget()

    rules = {prefix: rule for prefix, _, rule in owners(model)}
    passes = [watched(set(rules), rows) for rows in (few, more)]
    containers = _containers_of_shared(model, rules, [calls for calls, _ in passes], few, more)
    if containers:
        rules = {prefix: rule for prefix, _, rule in owners(model, containers)}
        expanded = {prefix for prefix, rule in rules.items() if rule is None}
        passes = [watched(expanded, rows) for rows in (few, more)]
    first, second = (
        Watched([call for call in calls if rules[call.prefix] is None], outputs) for calls, outputs in passes
    )
    return containers, first, second


def _containers_of_shared(
    model: nn.Module,
    rules: Mapping[str, Rule | None],
    passes: Sequence[Sequence[SeenCall]],
    few: Any,
    more: Any,
) -> frozenset[str]:
    """Modules to expand as a whole, since a layer inside works on something that has no dimension for the rows.

    Such a layer (T5's relative positions, of shape (length, length)) computes once for all rows, and where its
    output meets the rows is known to its container only: the smallest one that takes and returns rows. A layer
    whose input is shared in a first dimension of 1 needs none: its output is expanded (`_watch`).
    """
    seen = [_shapes_of_inputs(call for call in calls if rules[call.prefix] is not None) for calls in passes]
    lonely = {prefix for prefix in set(seen[0]) & set(seen[1]) if _is_shared(seen, prefix)}
    return frozenset(_container(model, prefix, few, more) for prefix in lonely)


def _is_shared(seen: Sequence[Mapping[str, tuple[int, ...]]], prefix: str) -> bool:
    few, more = (shapes[prefix] for shapes in seen)
    return few == more and few[:1] != (1,)


def _shapes_of_inputs(calls: Iterable[SeenCall]) -> dict[str, tuple[int, ...]]:
    found = {}
    for call in calls:
        first = call.args[0] if call.args else next(iter(call.kwargs.values()), None)
        if isinstance(first, Tensor):
            found[call.prefix] = tuple(first.shape)
    return found


def _container(model: nn.Module, prefix: str, few: Any, more: Any) -> str:
    """The smallest module around a layer whose calls can be expanded; the whole model in the end."""
    rows = count_rows(few), count_rows(more)
    while prefix:
        prefix = prefix.rstrip(".").rpartition(".")[0]
        prefix = f"{prefix}." if prefix else ""
        calls, others = (_watched(model, {prefix}, inputs)[0] for inputs in (few, more))
        try:
            for one, other in zip(calls, others, strict=True):
                layout_of(one, other, rows)
        except (UnsupportedModel, ValueError):
            continue
        if calls:
            return prefix
    return ""


def _watched(model: nn.Module, prefixes: set[str], inputs: Any) -> tuple[list[SeenCall], Any]:
    """The calls of the modules with these prefixes, and the outputs, of a forward pass on public rows."""
    seen: list[SeenCall] = []
    handles = []

    def watch(prefix: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            seen.append(SeenCall(prefix, module, args, kwargs, output))

        return hook

    try:
        for name, module in model.named_modules():
            prefix = f"{name}." if name else ""
            if prefix in prefixes:
                handles.append(module.register_forward_hook(watch(prefix), prepend=True, with_kwargs=True))
        with torch.enable_grad():  # without, whole layers take shortcuts past their parts
            outputs = call_model(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen, outputs


@dataclass(frozen=True)
class Pass:
    """One forward and one backward pass to the layers' outputs."""

    names: Mapping[int, str]  # of the trainable parameters, by identity
    outputs: Any  # of the model
    losses: Tensor
    calls: Sequence[Call]
    gradients: Sequence[Sequence[Tensor | None]]

    @property
    def has_gradients(self) -> bool:
        """Whether any gradient is other than zero."""
        return any(part is not None and bool((part != 0).any()) for of in self.gradients for part in of)

    def by_call(self) -> Iterator[tuple[Call, Sequence[Tensor | None]]]:
        return zip(self.calls, self.gradients, strict=True)


def run(model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any, wiring: Wiring) -> Pass:
    """Forward, then back to the outputs of the layers only: no parameter gradient is computed.

    `loss_fn` is a function that was mapped over rows (`rowwise.RowMap`).
    """
    names, rows = wiring.names, count_rows(inputs)
    with torch.enable_grad(), capture(wiring, rows) as tape:
        outputs = call_model(model, inputs)
        losses = loss_fn(outputs, targets)
    check_losses(losses, rows)
    escaped = tape.escaped(losses, names)
    if escaped:
        raise UnsupportedModel(
            "expected every trainable parameter to be used by its own module only, but "
            f"{', '.join(sorted(escaped))} is used elsewhere; call the module that owns it, or freeze it with "
            "requires_grad_(False)"
        )
    return Pass(names, outputs, losses.detach(), tape.calls, _backward(losses, tape.calls))


def _backward(losses: Tensor, calls: Sequence[Call]) -> list[Sequence[Tensor | None]]:
    targets: Any = [target for call in calls for target in call.targets]
    if not targets or not losses.requires_grad:
        return [[None] * len(call.targets) for call in calls]
    with torch.enable_grad():
        found = iter(torch.autograd.grad(losses.sum(), targets, allow_unused=True))
    return [[next(found) for _ in call.targets] for call in calls]


def call_model(model: nn.Module, inputs: Any) -> Any:
    """model(x), model(*tuple) or model(**dict)."""
    with without_shortcuts(model):
        if isinstance(inputs, dict):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def count_rows(inputs: Any) -> int:
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if not tensors or any(tensor.dim() == 0 or len(tensor) != len(tensors[0]) for tensor in tensors):
        raise InvalidInput(
            f"expected inputs to be tensors with the same number of rows, got shapes "
            f"{[tuple(tensor.shape) for tensor in tensors]}"
        )
    return len(tensors[0])


def owners(
    model: nn.Module, containers: frozenset[str] = frozenset()
) -> Iterator[tuple[str, nn.Module, Rule | None]]:
    """The modules that answer for all trainable parameters, with their rules.

    A module without a rule that owns a parameter itself, and one of the `containers`, answers for its whole
    subtree, by the fallback.
    """
    seen: set[nn.Module] = set()
    stack = [("", model)]
    while stack:
        prefix, module = stack.pop()
        if module in seen:
            continue
        seen.add(module)
        if prefix in containers:
            yield prefix, module, None
        elif any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            yield prefix, module, rule_for(module)
        else:
            stack.extend((f"{prefix}{name}.", child) for name, child in reversed(list(module.named_children())))


def _watch(tape: Tape, prefix: str, rule: Rule) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
        if not output.requires_grad or tape.expanding:
            return None
        inputs = args[0] if args else kwargs["input"]
        if tape.rows > 1 and inputs.shape[:1] == output.shape[:1] == (1,):
            # One for all rows, as a model's positions are: the same for each, so that each has its gradient.
            inputs, output = (each.expand(tape.rows, *each.shape[1:]) for each in (inputs, output))
        if output._is_view():
            # An in-place operation on a view would bypass this edge; this tensor is a view to nobody.
            output = torch.ops.aten._unsafe_view(output, output.shape)
        edge = get_gradient_edge(output)
        tape.calls.append(LayerCall(prefix, module, rule, inputs, inputs._version, inputs.grad_fn, edge))
        return output

    return hook


def _replace(tape: Tape, prefix: str) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if tape.expanding or not torch.is_grad_enabled():
            return None
        tape.expanding = True
        try:
            expanded = expand(module, args, kwargs, output, tape.next_layout(module))
        finally:
            tape.expanding = False
        tape.calls.append(ExpandedCall(prefix, module, expanded.leaves))
        return expanded.output

    return hook


def _stacked(leaf: Tensor | tuple[Tensor, ...], gradients: Sequence[Tensor | None]) -> Tensor:
    if isinstance(leaf, Tensor):
        assert gradients[0] is not None
        return gradients[0]
    pairs = zip(leaf, gradients, strict=True)
    return torch.stack([torch.zeros_like(t) if g is None else g for t, g in pairs])


def _no_rows(prefix: str, tensor: Tensor, rows: int) -> UnsupportedModel:
    return UnsupportedModel(
        f"expected layer {prefix.rstrip('.')!r} to keep the {rows} rows in its first dimension, got shape "
        f"{tuple(tensor.shape)}; keep rows first (batch_first=True), and expand what rows share: "
        "positions.expand(len(inputs), -1)"
    )
