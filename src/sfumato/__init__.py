"""Sfumato: publish what is useful about private data under one privacy budget.

>>> from sfumato import Budget
>>> Budget(epsilon=3, delta=1e-5).epsilon
3.0
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sfumato.accounting import Budget, Relation

if TYPE_CHECKING:
    from sfumato.ledger import Ledger
    from sfumato.training import PrivateClassifier, PrivateTrainer, TrainingPlan, train

__version__ = "0.1.0"
__all__ = ["Budget", "Ledger", "PrivateClassifier", "PrivateTrainer", "Relation", "TrainingPlan", "train"]

# Loaded when first asked for: whoever only keeps a ledger should not wait for torch.
_HOMES = {
    "Ledger": "sfumato.ledger",
    "PrivateClassifier": "sfumato.training",
    "PrivateTrainer": "sfumato.training",
    "TrainingPlan": "sfumato.training",
    "train": "sfumato.training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
