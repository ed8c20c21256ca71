"""Sfumato: publish useful results on private data under one privacy budget.

>>> from sfumato import Budget
>>> Budget(epsilon=3, delta=1e-5).epsilon
3.0
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from sfumato.accounting import Budget, Relation
    from sfumato.desk import connect
    from sfumato.ledger import Ledger
    from sfumato.loading import load
    from sfumato.training import (
        BoundedScaler,
        CoinSplit,
        NoisyAccuracyScorer,
        PrivateClassifier,
        PrivateTrainer,
        TrainingPlan,
        train,
    )

__version__ = "0.2.0"
__all__ = [
    "BoundedScaler",
    "Budget",
    "CoinSplit",
    "Ledger",
    "NoisyAccuracyScorer",
    "PrivateClassifier",
    "PrivateTrainer",
    "Relation",
    "TrainingPlan",
    "connect",
    "load",
    "train",
]

# Loaded when first asked for: a ledger should not wait for torch, and help should wait for nothing.
_HOMES = {
    "BoundedScaler": "sfumato.training",
    "Budget": "sfumato.accounting",
    "CoinSplit": "sfumato.training",
    "Ledger": "sfumato.ledger",
    "NoisyAccuracyScorer": "sfumato.training",
    "PrivateClassifier": "sfumato.training",
    "PrivateTrainer": "sfumato.training",
    "Relation": "sfumato.accounting",
    "TrainingPlan": "sfumato.training",
    "connect": "sfumato.desk",
    "load": "sfumato.loading",
    "train": "sfumato.training",
}
_PACKAGES = (
    "accounting",
    "audit",
    "datasets",
    "errors",
    "ledger",
    "local",
    "mechanisms",
    "models",
    "pate",
    "policy",
    "query",
    "learn",
    "runs",
    "training",
)


def __getattr__(name: str) -> _Any:
    if name not in _HOMES and name not in _PACKAGES:
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")
    try:
        module = _import_module(_HOMES.get(name, f"sfumato.{name}"))
    except ModuleNotFoundError as error:
        from sfumato.errors import missing_extra

        raise missing_extra(error) or error from error
    return module if name in _PACKAGES else getattr(module, name)


def __dir__() -> list[str]:
    """Return the public names: exports and packages."""
    return sorted([*__all__, *_PACKAGES, "__version__"])
