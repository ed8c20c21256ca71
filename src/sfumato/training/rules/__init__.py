"""Rules: pure functions from a layer's input and output gradient to what each row adds to its parameters.

A rule is registered for one exact type of module: a subclass may compute something else, and then goes
through the fallback, which is exact for every module.
"""

from __future__ import annotations

from sfumato.training.rules import conv, embedding, linear, norm
from sfumato.training.rules.registry import Rule, covered_types, rule_for

__all__ = ["Rule", "conv", "covered_types", "embedding", "linear", "norm", "rule_for"]
