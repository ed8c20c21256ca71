"""Which rule belongs to which type of module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from sfumato.training.rules.terms import Contribution

# (module, input, gradient of the output) → what each row adds, by the module's own parameter names
Rule: TypeAlias = Callable[[Any, Tensor, Tensor], Mapping[str, Contribution]]

_rules: dict[type[nn.Module], Rule] = {}
_KNOWN = {"weight", "bias"}


def register(*types: type[nn.Module]) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        _rules.update(dict.fromkeys(types, rule))
        return rule

    return add


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a module's type, unless its weights are made of parameters that the rule does not know."""
    known = {name for name, _ in module.named_parameters(recurse=False)} <= _KNOWN
    return _rules.get(type(module)) if known else None


def covered_types() -> tuple[type[nn.Module], ...]:
    return tuple(_rules)
