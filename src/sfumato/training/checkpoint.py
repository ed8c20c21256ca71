"""Checkpoints: one safetensors file, tensors and JSON, whole or not there; loading one runs no code.

A release is what a durable checkpoint holds. Steps after it that a crash took away left no output; they are
taken again with fresh samples and fresh noise, and cost nothing more. The ledger is told of each checkpoint, so
that an older copy of the file, whose later steps were released already, is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sfumato.errors import DataCorrupted, Refused
from sfumato.ledger import Head
from sfumato.run_folder import write_whole
from sfumato.training.plan import TrainingPlan
from sfumato.training.trainer import PrivateTrainer

FORMAT = 1


def save_checkpoint(trainer: PrivateTrainer, path: str | os.PathLike[str]) -> None:
    """Make the steps so far durable, and tell the ledger."""
    tensors = {f"model.{name}": value for name, value in trainer.model.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in trainer.average.values.items()}
    scalars: dict[str, Any] = {}
    for index, state in trainer.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                scalars[f"{index}.{key}"] = value
    record = {
        "format": FORMAT,
        "step": trainer.steps_done,
        "clip_norm": trainer.clip_norm,
        "averaged": trainer.average.updates,
        "plan": trainer.plan.to_json(),
        "optimizer": scalars,
        "reservation": None if trainer.reservation is None else trainer.reservation.head.to_json(),
        "private": trainer.sampler.private,
    }
    whole = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    write_whole(Path(path), save(whole, metadata={"sfumato": json.dumps(record)}))
    if trainer.reservation is not None:
        trainer.reservation.mark(trainer.steps_done)


def resume(trainer: PrivateTrainer, path: str | os.PathLike[str]) -> None:
    """Put a fresh trainer of the same plan where the checkpoint was; its noise will be new."""
    tensors, record = _read(Path(path))
    if TrainingPlan.from_json(record["plan"]) != trainer.plan:
        raise Refused(f"expected the plan of {path}; a checkpoint goes on under the plan it was priced with")
    if trainer.steps_started:
        raise Refused("expected a fresh trainer; this one has taken steps of its own")
    if trainer.ledger is not None:
        _take_up_reservation(trainer, record, path)
    trainer.model.load_state_dict(_under("model", tensors))
    _load_optimizer(trainer.optimizer, _under("optimizer", tensors), record["optimizer"])
    trainer.average.values.update(_under("average", tensors))
    trainer.average.updates = record["averaged"]
    trainer.clip_norm = record["clip_norm"]
    trainer.steps_done = trainer.steps_started = record["step"]
    if not record["private"]:
        trainer.seeded_before = True


def _take_up_reservation(trainer: PrivateTrainer, record: Mapping[str, Any], path: object) -> None:
    assert trainer.ledger is not None
    if record["reservation"] is None:
        raise Refused(f"expected {path} to name a reservation of this ledger; it was trained without one")
    reservation = trainer.ledger.reservation(Head.from_json(record["reservation"]))
    if reservation.marked > record["step"]:
        raise Refused(
            f"expected the newest checkpoint, of step {reservation.marked}, got one of step {record['step']}; "
            "the steps between were released already, and taking them again would release them twice"
        )
    trainer.reservation = reservation


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {}).get("sfumato", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        raise DataCorrupted(f"expected a checkpoint at {path}, got one that cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise DataCorrupted(
            f"expected a checkpoint of format {FORMAT} at {path}; it was written by another version"
        )
    return tensors, record


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _load_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **scalars}.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
