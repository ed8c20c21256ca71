"""Models of the transformers library, as they are: their loss, row by row, and their decoder's inputs.

Such a model averages its own loss over all tokens of a batch, so that a row's share depends on the others. Here
the loss is computed again from the logits, for each row by itself. The library is not imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.errors import InvalidInput
from sfumato.training.losses import LossFunction, cross_entropy

IGNORED = -100  # the label of tokens that do not count
_NEXT_TOKEN = ("ForCausalLM", "LMHeadModel")
_TOKENS = ("ForConditionalGeneration", "ForMaskedLM", "ForTokenClassification")
_CLASSES = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")


def default_loss(model: nn.Module) -> LossFunction:
    """Cross-entropy; for a model of transformers, the loss that it is named for, one value for each row.

    Args:
        model: The model; one of transformers may be inside adapters of peft.

    Returns:
        A `loss_fn(outputs, targets)` for `PrivateTrainer.step`.

    Raises:
        InvalidInput: For a model of transformers whose loss is not known; pass a loss_fn of your own.

    >>> default_loss(nn.Linear(2, 2)) is cross_entropy
    True
    """
    if not _comes_from_transformers(model):
        return cross_entropy
    name = type(_base(model)).__name__
    if name.endswith(_NEXT_TOKEN):
        return TokenLoss(shift=1)
    if name.endswith(_TOKENS):
        return TokenLoss(shift=0)
    if name.endswith(_CLASSES):
        return ClassLoss(problem=_problem(model))
    raise InvalidInput(
        f"expected a model whose loss is known ({', '.join((*_NEXT_TOKEN, *_TOKENS, *_CLASSES))}), got {name}; "
        "pass loss_fn(outputs, targets), which returns one loss for each row"
    )


@dataclass(frozen=True)
class TokenLoss:
    """Mean cross-entropy of a row's tokens, but of those labelled −100; `shift` 1 predicts the next token."""

    shift: int

    def __call__(self, outputs: Any, labels: Tensor) -> Tensor:
        logits, labels = outputs.logits, labels[:, self.shift :]
        logits = logits[:, : logits.shape[1] - self.shift] if self.shift else logits
        each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
        return each.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


@dataclass(frozen=True)
class ClassLoss:
    """Of one label, several labels or a number for each row, as transformers name the problem."""

    problem: str

    def __call__(self, outputs: Any, labels: Tensor) -> Tensor:
        logits = outputs.logits
        if self.problem == "regression":
            return (logits.flatten(1) - labels.reshape(len(labels), -1).to(logits)).square().mean(1)
        if self.problem == "multi_label_classification":
            each = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
            return each.mean(1)
        return F.cross_entropy(logits, labels, reduction="none")


def completed(model: nn.Module, inputs: Any, labels: Any) -> Any:
    """The inputs, with those that a decoder makes of the labels, moved by one, where the model has one."""
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is None or not isinstance(inputs, dict) or "decoder_input_ids" in inputs:
        return inputs
    return {**inputs, "decoder_input_ids": prepare(labels=labels)}


def _comes_from_transformers(module: nn.Module) -> bool:
    return any(kind.__module__.startswith(("transformers.", "peft.")) for kind in type(module).__mro__)


def _base(model: nn.Module) -> nn.Module:
    """The model inside adapters of peft."""
    inner = getattr(model, "get_base_model", None)
    return model if inner is None else inner()


def _problem(model: nn.Module) -> str:
    config: Any = _base(model).config
    if config.problem_type is not None:
        return str(config.problem_type)
    return "regression" if config.num_labels == 1 else "single_label_classification"
