"""Which rule belongs to which type of module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from sfumato.training.rules.terms import Contribution

# (module, input, gradient of the output) → what each row adds, by the module's own parameter names
Rule: TypeAlias = Callable[[Any, Tensor, Tensor], Mapping[str, Contribution]]

# module → the shape of every parameter that its forward pass uses, as far as the rule knows it
Shapes: TypeAlias = Callable[[Any], Mapping[str, tuple[int, ...]]]


@dataclass(frozen=True)
class _Registered:
    """A rule, and what must hold of a module for it to be right."""

    rule: Rule
    shapes: Shapes
    forward: Callable[..., Any]  # of the type, when the rule was written for it

    def fits(self, module: nn.Module) -> bool:
        kind = type(module)
        if kind.forward is not self.forward or _own_methods(module):
            return False
        known = self.shapes(module)
        own = module.named_parameters(recurse=False)
        return all(known.get(name) == tuple(parameter.shape) for name, parameter in own)


_rules: dict[type[nn.Module], _Registered] = {}


def register(*types: type[nn.Module], shapes: Shapes) -> Callable[[Rule], Rule]:
    """Register a rule for exact types of modules with parameters of these names and shapes."""

    def add(rule: Rule) -> Rule:
        _rules.update({each: _Registered(rule, shapes, each.forward) for each in types})
        return rule

    return add


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a module's type, if the module computes what the rule was written for.

    None for a module with a method of its own, such as another `forward`, and for one with a parameter that the
    rule does not know, or of another shape: the fallback is exact for all of them.
    """
    found = _rules.get(type(module))
    return found.rule if found is not None and found.fits(module) else None


def covered_types() -> tuple[type[nn.Module], ...]:
    return tuple(_rules)


def _own_methods(module: nn.Module) -> bool:
    """Whether something was put in the place of a method on this one module."""
    return any(callable(getattr(type(module), name, None)) for name in vars(module))
