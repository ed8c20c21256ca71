"""Which rule belongs to which type of module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from sfumato.training.rules.terms import Contribution

# (module, input, gradient of the output) → what each row adds, by the module's own parameter names
Rule: TypeAlias = Callable[[Any, Tensor, Tensor], Mapping[str, Contribution]]

_rules: dict[type[nn.Module], Rule] = {}


def register(*types: type[nn.Module]) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        _rules.update(dict.fromkeys(types, rule))
        return rule

    return add


def rule_for(module: nn.Module) -> Rule | None:
    return _rules.get(type(module))


def covered_types() -> tuple[type[nn.Module], ...]:
    return tuple(_rules)
