"""How good a model is on public rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfumato.errors import InvalidInput
from sfumato.learn.table.model import TableModel

if TYPE_CHECKING:
    import pyarrow as pa


def measure(model: TableModel, table: pa.Table) -> dict[str, float | None]:
    """Accuracy, and the area under the curve of two classes; of numbers the root mean square error and R²."""
    truth = model.target.encode(table)
    known = np.flatnonzero(~np.isnan(truth))
    if known.size == 0:
        raise InvalidInput(
            f"expected test rows with a known {model.target.name}, got none; check the file and the policy's "
            "categories"
        )
    table, truth = table.take(known), truth[known]
    if model.target.classes is None:
        return _of_numbers(model, table)
    chance = model.predict_proba(table)
    found: dict[str, float | None] = {"test_accuracy": float((chance.argmax(axis=1) == truth).mean())}
    if len(model.target.classes) == 2:
        found["test_auc"] = _area(truth, chance[:, 1])
    return found


def _area(truth: np.ndarray, chance: np.ndarray) -> float | None:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, chance)) if 0 < truth.mean() < 1 else None


def _of_numbers(model: TableModel, table: pa.Table) -> dict[str, float | None]:
    truth = model.target.decode(model.target.encode(table))
    error, spread = truth - model.predict(table), truth - truth.mean()
    return {
        "test_rmse": float(np.sqrt((error**2).mean())),
        "test_r2": float(1 - (error**2).sum() / (spread**2).sum()) if spread.any() else None,
    }
