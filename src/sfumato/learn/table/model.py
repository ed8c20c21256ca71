"""A model of a table: rows in, predictions out; as a file and back."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save

from sfumato.array_files import damaged_unless_read, parsed, read_metadata, read_tensors
from sfumato.errors import DataUnavailable, InvalidInput
from sfumato.learn.table import mlp
from sfumato.learn.table.additive import GROUPS, Additive, Boosted
from sfumato.learn.table.encoding import Cells, Encoder, Encoding, Target, categories_of
from sfumato.learn.table.sums import CENTRE_BITS, ONE, Design, shares
from sfumato.ledger import Certificate
from sfumato.policy import Column

if TYPE_CHECKING:
    import pyarrow as pa


FORMAT = "sfumato table model 1"
FILE = "model.safetensors"
Arrays = Mapping[str, npt.NDArray[Any]]


def _arrow(rows: Any, names: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows, preserve_index=False)
    absent = [name for name in names if name not in table.column_names]
    if absent:
        raise InvalidInput(f"expected rows with the columns {', '.join(absent)}; check the spelling")
    return table


class Scorer(Protocol):
    """A function from cells to scores, in 2⁻¹⁶."""

    def scores(self, cells: Cells) -> npt.NDArray[np.int64]: ...


@dataclass(frozen=True, kw_only=True)
class Unlearned:
    """Scores of a model that knows nothing: for a rehearsal on public rows."""

    outputs: int

    def scores(self, cells: Cells) -> npt.NDArray[np.int64]:
        return np.zeros((len(cells), self.outputs), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class TableModel:
    """A released model with the declared columns that it reads."""

    encoding: Encoding
    target: Target
    scorer: Scorer
    certificate: Certificate | None = None  # of a model that was loaded

    def predict(self, rows: Any) -> npt.NDArray[Any]:
        """The likeliest class of each row, or a number within the target's bounds.

        `rows`: an Arrow table or a DataFrame with the declared columns.
        """
        scores = self._scores(rows)
        if self.target.classes is None:
            return self.target.decode(scores[:, 0] / ONE)
        chosen = (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else scores.argmax(axis=1)
        return np.array(self.target.classes)[chosen]

    def predict_proba(self, rows: Any) -> npt.NDArray[np.float64]:
        """(rows, classes); of a model of numbers there are none."""
        if self.target.classes is None:
            raise InvalidInput("expected a model of classes, got one of numbers; ask predict")
        scores = self._scores(rows)
        if scores.shape[1] == 1:
            scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
        return shares(scores)

    @property
    def classes(self) -> npt.NDArray[Any]:
        """The label of each column of `predict_proba`."""
        return np.array(self.target.classes or ())

    def _scores(self, rows: Any) -> npt.NDArray[np.int64]:
        return self.scorer.scores(self.encoding.encode(_arrow(rows, self.encoding.names)))

    def to_bytes(self) -> bytes:
        """A safetensors file whose metadata hold the declared columns; nothing in it can run."""
        kind, arrays = _arrays(self.scorer)
        card = {
            "kind": kind,
            "target": _column_to_json(self.target.column),
            "columns": [_column_to_json(one.column) for one in self.encoding.encoders],
        }
        return save(arrays, metadata={"format": FORMAT, "table": json.dumps(card)})


def is_table_model(place: Path) -> bool:
    """Whether a file says that it is a model of a table."""
    try:
        return read_metadata(place).get("format") == FORMAT
    except (SafetensorError, OSError, ValueError):
        return False


def load_table(folder: str | os.PathLike[str]) -> TableModel:
    """The model that `sfumato train POLICY --target …` left in a run folder."""
    place = Path(folder) / "release" / FILE
    if not place.is_file():
        raise DataUnavailable(f"expected a model at {place}, got none; give the folder of a finished run")
    return read_table_model(place)


def read_table_model(place: Path) -> TableModel:
    """The model in a file; nothing in it can run."""
    with damaged_unless_read(f"expected {place} to be a model of a table, got something else"):
        metadata, arrays = read_tensors(place, "numpy")
        if metadata.get("format") != FORMAT:
            raise ValueError("another kind of model")
        return _model(parsed(metadata["table"]), arrays)


def _model(card: Mapping[str, Any], arrays: Arrays) -> TableModel:
    encoders = tuple(Encoder(column=_column_from_json(one)) for one in card["columns"])
    column = _column_from_json(card["target"])
    check_columns([column, *(one.column for one in encoders)])
    target = Target(column=column, classes=categories_of(column))
    check_target(target)
    scorer = _SCORERS[card["kind"]](encoders, target, arrays)
    return TableModel(encoding=Encoding(encoders=encoders, left_out=()), target=target, scorer=scorer)


def _arrays(scorer: Scorer) -> tuple[str, dict[str, npt.NDArray[Any]]]:
    if isinstance(scorer, mlp.Network):
        state = scorer.module.state_dict()
        return "mlp", {name: value.numpy().copy() for name, value in state.items()}
    if isinstance(scorer, Boosted):
        groups = {f"groups.{place}": found for place, found in enumerate(scorer.groups)}
        _, columns = _arrays(scorer.columns)
        return "boosted", {**columns, **groups, "pairs": scorer.pairs, "tables": scorer.tables}
    assert isinstance(scorer, Additive)
    design = scorer.design
    bins = {f"bins.{place}": found for place, found in enumerate(design.bin_of)}
    features = {name: getattr(design, name) for name in ("starts", "centre", "exponent", "trend")}
    return "linear", {**bins, **features, "weights": scorer.weights, "constant": scorer.constant}


def _linear(encoders: tuple[Encoder, ...], target: Target, arrays: Arrays) -> Additive:
    check_additive(encoders, target, arrays)
    features = {name: arrays[name] for name in ("starts", "centre", "exponent", "trend")}
    design = Design(bin_of=tuple(arrays[f"bins.{place}"] for place in range(len(encoders))), **features)
    return Additive(design=design, weights=arrays["weights"], constant=arrays["constant"])


def _boosted(encoders: tuple[Encoder, ...], target: Target, arrays: Arrays) -> Boosted:
    check_boosted(encoders, target, arrays)
    return Boosted(
        columns=_linear(encoders, target, arrays),
        groups=tuple(arrays[f"groups.{place}"] for place in range(len(encoders))),
        pairs=arrays["pairs"],
        tables=arrays["tables"],
    )


def _mlp(encoders: tuple[Encoder, ...], target: Target, arrays: Arrays) -> mlp.Network:
    import torch

    check_network(encoders, target, arrays)
    network = mlp.build(encoders, classes=None if target.classes is None else len(target.classes))
    network.module.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
    return network


_SCORERS: Mapping[str, Callable[[tuple[Encoder, ...], Target, Arrays], Scorer]] = {
    "linear": _linear,
    "boosted": _boosted,
    "mlp": _mlp,
}


def _column_to_json(column: Column) -> dict[str, Any]:
    bounds = [
        bound.isoformat() if isinstance(bound, datetime.date) else bound
        for bound in (column.lower, column.upper)
    ]
    categories = None if column.categories is None else list(column.categories)
    return {"name": column.name, "type": column.type, "bounds": bounds, "categories": categories}


def _column_from_json(data: Mapping[str, Any]) -> Column:
    lower, upper = (
        datetime.date.fromisoformat(bound) if isinstance(bound, str) else bound for bound in data["bounds"]
    )
    categories = data["categories"]
    return Column(
        name=data["name"],
        type=data["type"],
        lower=lower,
        upper=upper,
        categories=None if categories is None else tuple(categories),
    )


# Whether the arrays of a file fit its declared columns, before a row is looked up in them


_LARGEST = 2**46  # of a score, so that the scores of all columns can be added
_LARGEST_KEY = 2**63


def require(holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"expected {expected}")


def check_columns(columns: Sequence[Column]) -> None:
    """Columns that a policy could declare and a model can read."""
    require(bool(columns), "columns")
    for column in columns:
        require(isinstance(column.name, str) and column.lacks is None, "bounds or categories")
        keys = [key for key in column.categories or () if isinstance(key, int)]
        require(all(-_LARGEST_KEY <= key < _LARGEST_KEY for key in keys), "whole numbers that a table can hold")


def check_target(target: Target) -> None:
    require(target.classes is not None or target.column.bounds is not None, "classes or bounds of the target")
    require(target.classes is None or len(target.classes) > 1, "two classes")


def check_additive(encoders: Sequence[Encoder], target: Target, arrays: Arrays) -> None:
    """Every bin that a cell names has its features and its weights."""
    sizes = []
    for place, encoder in enumerate(encoders):
        bins = _whole(arrays, f"bins.{place}", (encoder.cells,), least=0, below=encoder.cells)
        sizes.append(int(bins.max()) + 1)
    total = sum(sizes)
    starts = _whole(arrays, "starts", (len(sizes),), least=0, below=total)
    require(starts.tolist() == np.cumsum([0, *sizes])[:-1].tolist(), "bins one after the other")
    _whole(arrays, "centre", (total,), least=0, below=(1 << CENTRE_BITS) + 1)
    _whole(arrays, "exponent", (total,), least=0, below=8)
    _whole(arrays, "trend", (total,), least=-_LARGEST, below=_LARGEST)
    _whole(arrays, "weights", (total, target.outputs), least=-_LARGEST, below=_LARGEST + 1)
    _whole(arrays, "constant", (target.outputs,), least=-_LARGEST, below=_LARGEST + 1)


def check_boosted(encoders: Sequence[Encoder], target: Target, arrays: Arrays) -> None:
    check_additive(encoders, target, arrays)
    for place, encoder in enumerate(encoders):
        _whole(arrays, f"groups.{place}", (encoder.cells,), least=0, below=GROUPS)
    count = len(arrays["pairs"])
    _whole(arrays, "pairs", (count, 2), least=0, below=len(encoders))
    _whole(arrays, "tables", (count, GROUPS**2, target.outputs), least=-_LARGEST, below=_LARGEST + 1)


def check_network(encoders: Sequence[Encoder], target: Target, arrays: Arrays) -> None:
    """The file holds all that the columns and the classes would have us allocate."""
    inputs, outputs = mlp.input_count(encoders), len(target.classes or "1")
    require(arrays["0.weight"].shape == (mlp.HIDDEN, inputs), "a weight for every input")
    require(arrays["2.weight"].shape == (outputs, mlp.HIDDEN), "a weight for every class")


def _whole(arrays: Arrays, name: str, shape: tuple[int, ...], *, least: int, below: int) -> npt.NDArray[Any]:
    found = arrays[name]
    require(found.dtype == np.int64 and found.shape == shape, f"{name} of shape {shape}")
    require(not found.size or (least <= int(found.min()) and int(found.max()) < below), f"smaller {name}")
    return found


# Figures on public rows


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
