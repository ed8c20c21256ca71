"""One small network, plainly and privately, and at several ε."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sfumato import models
from sfumato.accounting import attacker_true_positive_rate
from sfumato.caveats import Code
from sfumato.errors import InvalidInput
from sfumato.fitting import FitConfig, fit
from sfumato.runs import (
    Comparison,
    Epoch,
    EpochReport,
    FeatureMaps,
    Network,
    Sweep,
    SweepRun,
    read_history,
)
from sfumato.storage import RunFolder, read_json
from sfumato.training import Optimization, TrainingPlan, train
from sfumato_lab.demo.context import DELTA, Progress, StageContext, save_grey, tiles
from sfumato_lab.reproduce.networks import OURS, SIZE

EPSILON = 1.0  # of the private twin
_PLAIN_BATCH = 128
_FALSE_POSITIVE_RATE = 0.01  # at which an attacker on the private network is bounded
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
    return replace(OURS, learning_rate=OURS.learning_rate * (rows / SIZE) ** 0.5)


def plain_and_private(context: StageContext) -> Comparison:
    """Train the same network twice, plainly and privately; return curves by epoch and feature maps."""
    plain, private = models.build("cnn"), models.build("cnn")
    networks = [_plainly(plain, context, context.part(0, 0.5))]
    history = _privately(
        private, context, EPSILON, context.size.private_epochs, "twin", context.part(0.5, 0.98)
    )
    networks.append(_network(f"CNN, ε = {EPSILON:g}", history[-1].epsilon_if_fixed_in_advance, history))
    digit = context.test().tensors()[0][_SHOWN_DIGIT : _SHOWN_DIGIT + 1]
    maps = {
        name: feature_maps(net, digit, context.folder.figures, name)
        for name, net in (("plain", plain), ("private", private))
    }
    save_grey(digit[0, 0].numpy(), context.folder.figures / "digit.png")
    return Comparison(
        data=context.size.data,
        rows=context.size.rows,
        test_rows=len(context.test()),
        delta=DELTA,
        networks=tuple(networks),
        private_epochs=context.size.private_epochs,
        attacker_false_positive_rate=_FALSE_POSITIVE_RATE,
        attacker_true_positive_rate=attacker_true_positive_rate(
            private_plan(context.size.rows, EPSILON, context.size.private_epochs).event(),
            false_positive_rate=_FALSE_POSITIVE_RATE,
        ),
        feature_maps=FeatureMaps(digit="digit.png", **maps),
    )


def sweep(context: StageContext) -> Sweep:
    """The network at several ε, with several first weights each; every run is charged."""
    size = context.size
    cases = [(epsilon, seed) for epsilon in size.sweep_epsilons for seed in size.sweep_seeds]
    runs = []
    for number, (epsilon, seed) in enumerate(cases):
        progress = context.part(number / len(cases), (number + 1) / len(cases))
        name = f"epsilon-{epsilon:g}-seed-{seed}"
        net = models.build("cnn", seed=seed)
        last = _privately(net, context, epsilon, size.sweep_epochs, name, progress, seed=seed)[-1]
        runs.append(sweep_run(last, epsilon, seed))
    return Sweep(
        method="network",
        name="CNN from scratch",
        data=size.data,
        delta=DELTA,
        runs=tuple(runs),
        rows=size.rows,
        test_rows=len(context.test()),
        epochs=size.sweep_epochs,
    )


def sweep_run(last: EpochReport, target: float, seed: int) -> SweepRun:
    """A finished run, by its last epoch; a stage has public test data."""
    assert last.test_accuracy is not None
    return SweepRun(
        epsilon=last.epsilon_if_fixed_in_advance,
        target_epsilon=target,
        seed=seed,
        test_accuracy=last.test_accuracy,
        test_loss=last.test_loss,
    )


def _plainly(net: nn.Module, context: StageContext, progress: Progress) -> Network:
    epochs = context.size.plain_epochs
    epochs_done = fit(
        net,
        context.rows(),
        FitConfig(epochs=epochs, batch_size=_PLAIN_BATCH),
        evaluate_on=context.test(),
        on_epoch=lambda epoch: progress(epoch.number / epochs),
        progress=False,
    )
    found = [epoch.evaluation for epoch in epochs_done if epoch.evaluation is not None]
    history = [
        Epoch(epoch=number, test_accuracy=one.accuracy, test_loss=one.loss)
        for number, one in enumerate(found, start=1)
    ]
    return _network("CNN, without privacy", None, history)


def _network(name: str, epsilon: float | None, history: Sequence[Epoch]) -> Network:
    last = history[-1]
    assert last.test_accuracy is not None
    epochs = [
        Epoch(epoch=one.epoch, test_accuracy=one.test_accuracy, test_loss=one.test_loss) for one in history
    ]
    return Network(
        name=name,
        epsilon=epsilon,
        test_accuracy=last.test_accuracy,
        test_loss=last.test_loss,
        history=tuple(epochs),
    )


def _privately(
    net: nn.Module,
    context: StageContext,
    epsilon: float,
    epochs: int,
    name: str,
    progress: Progress,
    *,
    seed: int = 0,
) -> list[EpochReport]:
    """Train, unless a stage that was stopped later had done it; `net` has the weights afterwards."""
    plan = private_plan(context.size.rows, epsilon, epochs)
    folder = RunFolder(context.folder.path / name)
    if not finished_run(folder, plan):
        with context.ledger() as ledger:
            train(
                net,
                context.rows(),
                plan,
                delta=DELTA,
                optimization=_optimization(context.size.rows),
                test=context.test(),
                ledger=ledger,
                out=folder.discard().path,
                caveats=(Code.EXCERPT(),),
                purpose=f"CNN at ε = {epsilon:g}" + (f", repetition {seed}" if seed else ""),
                on_step=lambda trainer: progress(trainer.steps_done / trainer.plan.steps),
            )
    net.load_state_dict(load_file(folder.release / "model.safetensors"))
    return read_history(folder)


def finished_run(folder: RunFolder, plan: TrainingPlan) -> bool:
    """Whether a stage that was stopped later had finished this run, under this plan: it is not paid twice."""
    try:
        stated = read_json(folder.release / "plan.json")
    except (OSError, InvalidInput):
        return False
    return folder.finished and TrainingPlan.from_json(stated) == plan


@torch.no_grad()
def feature_maps(net: nn.Module, digit: Tensor, folder: Path, name: str) -> dict[str, str]:
    """Draw the feature maps of the two convolutions for a public digit, one pixel a position."""
    first = net.activation1(net.conv1(digit))  # type: ignore[operator]  # (1, 16, 14, 14)
    second = net.activation2(net.conv2(net.pool1(first)))  # type: ignore[operator]  # (1, 32, 5, 5)
    files = {}
    for layer, maps in (("conv1", first[0]), ("conv2", second[0])):
        brightest = maps.flatten(1).amax(dim=1).clamp_min(1e-9)[:, None, None]
        files[layer] = f"maps-{name}-{layer}.png"
        save_grey(tiles((maps / brightest).numpy(), across=8), folder / files[layer])
    return files
