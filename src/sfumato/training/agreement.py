"""What the ranks of a run must have in common before anything is charged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sfumato.training.distributed import Bytes
from sfumato.training.ownership import DIGEST
from sfumato.training.sources import columns_of

if TYPE_CHECKING:
    from sfumato.training.trainer import PrivateTrainer


def terms(trainer: PrivateTrainer, data: Any, units: npt.ArrayLike | None, views: object) -> dict[str, Bytes]:
    """Plan, model, optimizer, layout and the rest, each as a digest; no value of a row is in any of them."""
    layout = {**_layout(data), "units": _kind(units), "views": views is not None}
    facts: Mapping[str, Any] = {
        "version": [torch.__version__, metadata.version("sfumato")],
        "plan": trainer.plan.to_json(),
        "model": _model(trainer.model),
        "optimizer": _optimizer(trainer.optimizer),
        "data layout": layout,
        "sharded": trainer.peers.sharded,
        "privacy of the sampler": trainer.private,
        "step to begin with": [trainer.steps_done, trainer.clip_norm],
    }
    return {name: digest(json.dumps(fact, sort_keys=True, default=str)) for name, fact in facts.items()}


def digest(text: str) -> Bytes:
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=DIGEST).digest(), np.uint8)


def _model(model: torch.nn.Module) -> list[Any]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [str(model), [(name, _form(value), value.requires_grad) for name, value in tensors]]


def _optimizer(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Its kind, its settings and what it remembers; steps of it move all ranks alike."""
    groups = [
        {name: str(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    return [type(optimizer).__name__, groups, _remembered(optimizer.state_dict()["state"])]


def _remembered(state: Any) -> list[str]:
    return [
        hashlib.blake2b(_content(leaf), digest_size=DIGEST).hexdigest() for leaf in pytree.tree_leaves(state)
    ]


def _content(leaf: Any) -> bytes:
    if isinstance(leaf, Tensor):
        return leaf.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return repr(leaf).encode()


def _layout(data: Any) -> dict[str, Any]:
    """How a row is made; not how many there are."""
    columns = columns_of(data)
    data = getattr(data, "dataset", data)  # of a DataLoader
    found, structure = pytree.tree_flatten(columns if columns is not None else data[0] if len(data) else ())
    leaves = [torch.as_tensor(leaf) for leaf in found]
    rows = leaves if columns is None else [leaf[:0] for leaf in leaves]
    return {"items": columns is None, "structure": str(structure), "rows": [_form(row) for row in rows]}


def _form(tensor: Tensor) -> list[str]:
    return [str(tuple(tensor.shape)), str(tensor.dtype)]


def _kind(units: npt.ArrayLike | None) -> str | None:
    return None if units is None else np.asarray(units).dtype.kind
