"""A released model: one file of tensors with its description, and the object that answers with them.

The description lies in the header of the safetensors file. Reading one runs no code: an architecture is a name
that this package knows, or the file is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save
from torch import Tensor, nn

from sfumato import _validate
from sfumato.array_files import damaged_unless_read, parsed, read_tensors
from sfumato.datasets import Dataset
from sfumato.datasets.images import to_shape
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput
from sfumato.ledger import Certificate
from sfumato.runs import MODEL

__all__ = ["MODEL", "ModelCard", "Predictor", "Released", "class_names", "model_bytes", "read_model"]

FORMAT = 1
OWN_MODULE = "module"  # the caller's: no file can say how it is built
_HEADER = "sfumato-model"
_BATCH, _BATCH_NUMBERS = 500, 2**24  # rows, and numbers in them, answered at a time
_MOST_NUMBERS = 2**24  # in one input
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
Floats = npt.NDArray[np.float32]
Scores = Callable[[Floats], npt.NDArray[Any]]  # (rows, …) → (rows, classes), logarithms up to a constant


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """A model's architecture, the shape of its inputs, and the names of its answers.

    >>> ModelCard(architecture="mlp", classes=("0", "1"), shape=(1, 8, 8)).labels.tolist()
    [0, 1]
    """

    architecture: str
    classes: tuple[str, ...]  # names, by the position of the score; none: not known
    shape: tuple[int, ...] | None  # of one input; None: not declared
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the architecture
    priors: Mapping[str, str] = field(default_factory=dict)  # name → sha256 of the public weights used

    @classmethod
    def of(cls, rows: Any, *, architecture: str = OWN_MODULE, **more: Any) -> ModelCard:
        """For a model trained on `rows`: the classes and the shape are those that a Dataset declares."""
        if not isinstance(rows, Dataset):
            return cls(architecture=architecture, classes=(), shape=None, **more)
        return cls(architecture=architecture, classes=class_names(rows), shape=rows.shape, **more)

    @property
    def labels(self) -> npt.NDArray[Any]:
        """The answers of `predict`: whole numbers where all names are such, else the names."""
        numbers = all(_NUMBER.fullmatch(name) for name in self.classes)
        return np.array([int(name) for name in self.classes] if numbers else self.classes)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "architecture": self.architecture,
            "classes": list(self.classes),
            "shape": None if self.shape is None else list(self.shape),
            "settings": dict(self.settings),
            "priors": dict(self.priors),
        }

    @classmethod
    def from_json(cls, data: Any) -> ModelCard:
        """Every field of its type, and no other field; ValueError, TypeError or KeyError elsewhere."""
        _expect(isinstance(data, dict) and data.pop("format", None) == FORMAT, f"format {FORMAT}")
        card = cls(**data)
        for name, kind in (("architecture", str), ("classes", list), ("settings", dict), ("priors", dict)):
            _expect(isinstance(getattr(card, name), kind), name)
        names = [*card.classes, *card.priors, *card.priors.values()]
        _expect(all(isinstance(name, str) for name in names), "names")
        shape = (
            None if card.shape is None else tuple(_validate.integer("shape", n, least=1) for n in card.shape)
        )
        _expect(shape is None or (len(shape) <= 8 and math.prod(shape) <= _MOST_NUMBERS), "a smaller input")
        return cls(**{**data, "classes": tuple(card.classes), "shape": shape})


def _expect(holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"expected {expected}")


def class_names(rows: Dataset) -> tuple[str, ...]:
    """Of a data set's classes: their names where it has some, else their numbers."""
    return rows.class_names or tuple(str(number) for number in range(rows.classes or 0))


# The file


@dataclass(frozen=True, kw_only=True)
class Released:
    """A module and its description: the model of a run."""

    module: nn.Module
    card: ModelCard

    def to_bytes(self) -> bytes:
        return model_bytes(self.card, self.module.state_dict())


def model_bytes(card: ModelCard, tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file with the card in its header."""
    whole = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    return save(whole, metadata={_HEADER: json.dumps(card.to_json(), ensure_ascii=False, allow_nan=False)})


def read_model(path: Path) -> tuple[ModelCard, dict[str, Tensor]]:
    """Return card and tensors of a file."""
    if not path.is_file():
        raise DataUnavailable(f"expected a model at {path}, got none; a run writes it with --out")
    with damaged_unless_read(
        f"expected a model of format {FORMAT} at {path}, got a file that is damaged or of another version"
    ):
        metadata, tensors = read_tensors(path, "pt")
        return ModelCard.from_json(parsed(metadata[_HEADER])), tensors


# Answers


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictor:
    """A model that answers: class of each row, or probability of each class.

    Inputs: a Dataset, or an array or tensor of images (rows, height, width), (rows, channels, height, width) or
    (rows, height, width, channels), as bytes or as numbers from 0 to 1; of any size, where the model takes
    images. Each row is answered by itself. `certificate` states the model's cost; None where it was trained
    without privacy.
    """

    card: ModelCard
    scores: Scores
    certificate: Certificate | None = None

    @classmethod
    def of(cls, released: Released, certificate: Certificate | None = None) -> Predictor:
        return cls(card=released.card, scores=module_scores(released.module), certificate=certificate)

    @property
    def classes(self) -> npt.NDArray[Any]:
        """The label of each column of `predict_proba`."""
        return self.card.labels

    def predict(self, inputs: Any) -> npt.NDArray[Any]:
        """(rows,): the likeliest class of each row."""
        found = self._scores(inputs).argmax(axis=1)
        return self.classes[found] if self.card.classes else found

    def predict_proba(self, inputs: Any) -> Floats:
        """(rows, classes)."""
        return torch.softmax(torch.from_numpy(self._scores(inputs)), dim=1).numpy().astype(np.float32)

    def _scores(self, inputs: Any) -> npt.NDArray[np.float64]:
        rows, shape = as_numbers(inputs), self.card.shape
        step = max(1, min(_BATCH, _BATCH_NUMBERS // math.prod(shape or rows.shape[1:] or (1,))))
        as_inputs(rows[:0], shape)  # of the right shape, also where there are none
        parts = [
            self.scores(as_inputs(rows[start : start + step], shape)) for start in range(0, len(rows), step)
        ]
        if not parts:
            return np.zeros((0, max(1, len(self.card.classes))))
        found = np.concatenate(parts).astype(np.float64)
        if not np.isfinite(found).all():
            raise DataCorrupted(
                "expected finite scores, got NaN or infinity; the weights are damaged, or training "
                "diverged: train again with a smaller learning rate"
            )
        return found


def module_scores(module: nn.Module) -> Scores:
    """Return a function with the module's answers, in evaluation mode."""
    module = module.eval()

    def scores(rows: Floats) -> npt.NDArray[Any]:
        inputs = torch.from_numpy(rows)
        with torch.inference_mode():
            if inputs.dim() == 4:
                inputs = inputs.to(memory_format=torch.channels_last)
            found: npt.NDArray[Any] = module(inputs).numpy()
        return found

    return scores


def as_numbers(inputs: Any) -> npt.NDArray[Any]:
    """The rows that a model is asked about."""
    values = inputs.inputs if isinstance(inputs, Dataset) else inputs
    rows = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if rows.dtype.kind not in "uifb" or rows.ndim == 0:
        raise InvalidInput(
            f"expected inputs to be rows of numbers, got an array of {rows.dtype} with {rows.ndim} axes"
        )
    return rows


def as_inputs(rows: npt.NDArray[Any], shape: tuple[int, ...] | None) -> Floats:
    """Rows of the shape that a model takes, float32; images are resized, each by itself."""
    if shape is None:
        return np.ascontiguousarray(rows, dtype=np.float32)
    if len(shape) == 3:
        return to_shape(_images(rows), (shape[0], shape[1], shape[2]))
    if rows.shape[1:] != shape:
        raise InvalidInput(f"expected rows of shape {shape}, as the model was trained on, got {rows.shape[1:]}")
    return np.ascontiguousarray(rows, dtype=np.float32)


def _images(rows: npt.NDArray[Any]) -> Floats:
    """(rows, channels, height, width), from 0 to 1."""
    if rows.ndim not in (3, 4):
        raise InvalidInput(
            f"expected images (rows, height, width) or (rows, channels, height, width), got shape "
            f"{rows.shape}; one image is a batch of one: image[numpy.newaxis]"
        )
    levels = rows[:, np.newaxis] if rows.ndim == 3 else rows
    if levels.shape[1] not in (1, 3, 4) and levels.shape[3] in (1, 3, 4):
        levels = np.moveaxis(levels, 3, 1)
    scale = np.float32(255) if rows.dtype.kind in "ui" else np.float32(1)
    images = levels.astype(np.float32) / scale
    if images.size and not (images.min() >= 0.0 and images.max() <= 1.0):  # NaN compares as false
        raise InvalidInput("expected bytes, or numbers from 0 to 1, got others; divide by the largest level")
    return images
