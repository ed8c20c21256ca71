"""One small network, plainly and privately, and at several ε."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sfumato import models
from sfumato.accounting import attacker_true_positive_rate
from sfumato.datasets.dataset import EXCERPT
from sfumato.demo.context import Progress, Scene
from sfumato.demo.pictures import save_grey, tiles
from sfumato.demo.size import DELTA
from sfumato.fitting import FitConfig, fit
from sfumato.reproduce import private_cnn
from sfumato.storage import RunFolder
from sfumato.training import Optimization, TrainingPlan, train
from sfumato.training.run import read_history

EPSILON = 1.0  # of the private twin
_PLAIN_BATCH = 128
_BATCHES_AN_EPOCH = 60  # of the private network
_SHOWN_DIGIT = 0  # of the public test images: the one that the feature maps are of


def private_plan(rows: int, epsilon: float, epochs: int) -> TrainingPlan:
    """Sixty batches an epoch; the average over the last weights is released."""
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=DELTA,
        public_size=rows,
        expected_batch=rows // _BATCHES_AN_EPOCH,
        epochs=epochs,
        clip_norm=1.0,
        average_decay=0.95,
    )


def _optimization(rows: int) -> Optimization:
    """The rate chosen on drawings for all of MNIST; fewer rows have more noise, and take shorter steps."""
    chosen = private_cnn.OURS.optimization
    return replace(chosen, learning_rate=chosen.learning_rate * (rows / private_cnn.SIZE) ** 0.5)


def plain_and_private(scene: Scene) -> dict[str, Any]:
    """The same network twice: accuracy and loss by epoch, and what its convolutions see."""
    plain, private = models.build("cnn"), models.build("cnn")
    runs = [
        _plainly(plain, scene, scene.part(0, 0.5)),
        _privately(private, scene, EPSILON, scene.size.private_epochs, "twin", scene.part(0.5, 0.98)),
    ]
    digit = scene.test().tensors()[0][_SHOWN_DIGIT : _SHOWN_DIGIT + 1]
    maps = {
        name: feature_maps(net, digit, scene.folder.figures, name)
        for name, net in (("plain", plain), ("private", private))
    }
    save_grey(digit[0, 0].numpy(), scene.folder.figures / "digit.png")
    return {
        "data": scene.size.data,
        "rows": scene.size.rows,
        "test_rows": len(scene.test()),
        "delta": DELTA,
        "runs": runs,
        "attacker_true_positive_rate": attacker_true_positive_rate(
            private_plan(scene.size.rows, EPSILON, scene.size.private_epochs).event()
        ),
        "feature_maps": {"digit": "digit.png", **maps},
    }


def sweep(scene: Scene) -> dict[str, Any]:
    """The network at several ε, with several first weights each; every run is charged."""
    size = scene.size
    cases = [(epsilon, seed) for epsilon in size.sweep_epsilons for seed in size.sweep_seeds]
    runs = []
    for number, (epsilon, seed) in enumerate(cases):
        progress = scene.part(number / len(cases), (number + 1) / len(cases))
        name = f"epsilon-{epsilon:g}-seed-{seed}"
        run = _privately(
            models.build("cnn", seed=seed), scene, epsilon, size.sweep_epochs, name, progress, seed=seed
        )
        runs.append({**run, "method": "CNN, from scratch"})
    return {"data": scene.size.data, "rows": size.rows, "delta": DELTA, "runs": runs}


def _plainly(net: nn.Module, scene: Scene, progress: Progress) -> dict[str, Any]:
    epochs = scene.size.plain_epochs
    history = fit(
        net,
        scene.rows(),
        FitConfig(epochs=epochs, batch_size=_PLAIN_BATCH),
        evaluate_on=scene.test(),
        on_epoch=lambda epoch: progress(epoch.number / epochs),
        progress=False,
    )
    found = [epoch.evaluation for epoch in history if epoch.evaluation is not None]
    return {
        "name": "CNN, without privacy",
        "epsilon": None,
        "test_accuracy": found[-1].accuracy,
        "test_loss": found[-1].loss,
        "history": [
            {"epoch": number, "test_accuracy": one.accuracy, "test_loss": one.loss}
            for number, one in enumerate(found, start=1)
        ],
    }


def _privately(
    net: nn.Module, scene: Scene, epsilon: float, epochs: int, name: str, progress: Progress, *, seed: int = 0
) -> dict[str, Any]:
    plan = private_plan(scene.size.rows, epsilon, epochs)
    folder = RunFolder(scene.folder.path / name)
    if not finished_run(folder, plan):
        with scene.ledger() as ledger:
            train(
                net,
                scene.rows(),
                plan,
                delta=DELTA,
                optimization=_optimization(scene.size.rows),
                test=scene.test(),
                ledger=ledger,
                out=folder.discard().path,
                caveats=(EXCERPT,),
                purpose=f"CNN at ε = {epsilon:g}" + (f", repetition {seed}" if seed else ""),
                on_step=lambda trainer: progress(trainer.steps_done / trainer.plan.steps),
            )
    net.load_state_dict(load_file(folder.release / "model.safetensors"))
    history = read_history(folder)
    return {
        "name": f"CNN, ε = {epsilon:g}",
        "epsilon": history[-1].epsilon,
        "target_epsilon": epsilon,
        "seed": seed,
        "test_accuracy": history[-1].test_accuracy,
        "test_loss": history[-1].test_loss,
        "history": [asdict(report) for report in history],
        "certificate": f"{name}/release/certificate.json",
    }


def finished_run(folder: RunFolder, plan: TrainingPlan) -> bool:
    """Whether a stage that was stopped later had finished this run, under this plan: it is not paid twice."""
    try:
        told = json.loads((folder.release / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return folder.finished and TrainingPlan.from_json(told) == plan


@torch.no_grad()
def feature_maps(net: nn.Module, digit: Tensor, folder: Path, name: str) -> dict[str, str]:
    """What the two convolutions make of a public digit, as pictures of one pixel a position."""
    first = net.activation1(net.conv1(digit))  # type: ignore[operator]  # (1, 16, 14, 14)
    second = net.activation2(net.conv2(net.pool1(first)))  # type: ignore[operator]  # (1, 32, 5, 5)
    files = {}
    for layer, maps in (("conv1", first[0]), ("conv2", second[0])):
        brightest = maps.flatten(1).amax(dim=1).clamp_min(1e-9)[:, None, None]
        files[layer] = f"maps-{name}-{layer}.png"
        save_grey(tiles((maps / brightest).numpy(), across=8), folder / files[layer])
    return files
