"""The runs of a recipe, each in a folder of its own: found again when done, taken up when interrupted.

A run is the same if data, first weights and settings are. Curves are of the public test set; a plain network
was not paid for and lies in the private half of its folder.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import nn

from sfumato.datasets import Dataset
from sfumato.fitting import FitConfig, fit
from sfumato.storage import CHECKPOINT, RunFolder
from sfumato.training import Optimization, PrivateTrainer, TrainingPlan, Views, train
from sfumato.training.checkpoint import remove_checkpoint

DELTA = 1e-5
_RECORD = "run.json"

Watch = Callable[[str, float], None]
"""Told the name of the run under way and how much of it is done, 0 to 1."""


def unwatched(name: str, share: float) -> None:
    """Nobody looks."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a network reached: accuracy and loss on the public test set after each epoch, and its price."""

    name: str
    epsilon: float | None  # at δ = 1e-5, by PLD; None without privacy
    noise_multiplier: float | None
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    seconds: float
    folder: str

    @property
    def test_accuracy(self) -> float:
        return self.accuracy[-1]

    @property
    def test_loss(self) -> float:
        return self.loss[-1]


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """One setting, run from several first weights: means, spread, and the dearest run's ε."""

    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return self.runs[0].name

    @property
    def epsilon(self) -> float | None:
        found = [run.epsilon for run in self.runs if run.epsilon is not None]
        return max(found) if found else None

    @property
    def test_accuracy(self) -> float:
        return statistics.fmean(run.test_accuracy for run in self.runs)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the accuracy."""
        return statistics.stdev(run.test_accuracy for run in self.runs) if len(self.runs) > 1 else None

    @property
    def test_loss(self) -> float:
        return statistics.fmean(run.test_loss for run in self.runs)

    @property
    def seconds(self) -> float:
        """Of one run."""
        return statistics.fmean(run.seconds for run in self.runs)

    def accuracy_told(self) -> str:
        spread = "" if self.deviation is None else f" ± {100 * self.deviation:.2f}"
        return f"{self.test_accuracy:.2%}{spread}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "epsilon": self.epsilon,
            "test_accuracy": self.test_accuracy,
            "standard_deviation": self.deviation,
            "test_loss": self.test_loss,
            "runs": [asdict(run) for run in self.runs],
        }


def plain_run(
    name: str,
    model: nn.Module,
    data: Dataset,
    test: Dataset,
    config: FitConfig,
    *,
    out: Path,
    watch: Watch = unwatched,
) -> Run:
    """Fit without privacy, or find what was fitted before; `model` has the weights afterwards."""
    folder = RunFolder.make(out)
    settings = _settings(model, data, fit=asdict(config))
    if (kept := _kept(folder, settings)) is not None:
        model.load_state_dict(load((folder.private / "model.safetensors").read_bytes()))
        return kept
    started = time.perf_counter()
    watch(name, 0.0)
    history = fit(
        model,
        data,
        config,
        evaluate_on=test,
        on_epoch=lambda epoch: watch(name, epoch.number / config.epochs),
        progress=False,
    )
    found = [epoch.evaluation for epoch in history if epoch.evaluation is not None]
    run = Run(
        name=name,
        epsilon=None,
        noise_multiplier=None,
        accuracy=tuple(evaluation.accuracy for evaluation in found),
        loss=tuple(evaluation.loss for evaluation in found),
        seconds=time.perf_counter() - started,
        folder=str(out),
    )
    state = {key: value.detach().clone().contiguous() for key, value in model.state_dict().items()}
    folder.write("model.safetensors", save(state), private=True)
    return _keep(folder, settings, run)


def private_run(
    name: str,
    model: nn.Module,
    data: Dataset,
    test: Dataset,
    plan: TrainingPlan,
    optimization: Optimization,
    *,
    out: Path,
    caveats: tuple[str, ...] = (),
    views: Views | None = None,
    watch: Watch = unwatched,
) -> Run:
    """Train under the plan, or go on, or find what was trained before; `model` has the weights afterwards."""
    folder = RunFolder.make(out)
    seen = {} if views is None else {"views": views.__qualname__}
    settings = _settings(model, data, plan=plan.to_json(), optimization=asdict(optimization), **seen)
    if (kept := _kept(folder, settings)) is not None:
        model.load_state_dict(load((folder.release / "model.safetensors").read_bytes()))
        return kept
    _forget_others(folder, settings)
    folder.discard()  # no ledger paid for it

    def after_step(trainer: PrivateTrainer) -> None:
        watch(name, trainer.steps_done / plan.steps)

    result = train(
        model,
        data,
        plan,
        delta=DELTA,
        optimization=optimization,
        test=test,
        out=out,
        caveats=caveats,
        views=views,
        purpose=name,
        on_step=after_step,
    )
    run = Run(
        name=name,
        epsilon=result.epsilon,
        noise_multiplier=plan.noise_multiplier,
        accuracy=tuple(report.test_accuracy or 0.0 for report in result.history),
        loss=tuple(report.test_loss or 0.0 for report in result.history),
        seconds=result.seconds,
        folder=str(out),
    )
    return _keep(folder, settings, run)


def _settings(model: nn.Module, data: Dataset, **choices: Any) -> dict[str, Any]:
    """What makes a run the same run; the data are named, not hashed."""
    weights = hashlib.sha256(save({name: value.contiguous() for name, value in model.state_dict().items()}))
    facts = {
        "data": data.name,
        "size": data.public_size,
        "model": str(model),
        "first weights": weights.hexdigest(),
    }
    plain: dict[str, Any] = json.loads(json.dumps({**facts, **choices}))
    return plain


def _kept(folder: RunFolder, settings: Mapping[str, Any]) -> Run | None:
    path = folder.private / _RECORD
    record = json.loads(path.read_text()) if path.exists() else {}
    if record.get("settings") != settings or "run" not in record:
        return None
    found = record["run"]
    curves = {name: tuple(found[name]) for name in ("accuracy", "loss")}
    return Run(**{**found, **curves, "folder": str(folder.path)})


def _keep(folder: RunFolder, settings: Mapping[str, Any], run: Run) -> Run:
    folder.write_json(_RECORD, {"settings": settings, "run": asdict(run)}, private=True)
    return run


def _forget_others(folder: RunFolder, settings: Mapping[str, Any]) -> None:
    """Drop a half-done run of other settings, which the checkpoint alone would not tell from this one."""
    path = folder.private / _RECORD
    if not path.exists() or json.loads(path.read_text()).get("settings") != settings:
        remove_checkpoint(folder.private / CHECKPOINT)
    folder.write_json(_RECORD, {"settings": settings}, private=True)
