"""Who was in the training data? Attacks on plain and private networks, and claimed against measured ε.

Networks train on random halves of the same rows; each target is attacked with all the others as its shadows.
The talk "Differential privacy made practical" reports precision .71–.78 on CIFAR-10, about 1 on CIFAR-100, and
an empirical ε far below the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato import datasets, randomness
from sfumato.audit import (
    RateEstimate,
    Roc,
    at_false_positive_rate,
    auc,
    bound_on_held_out,
    draw_roc,
    epsilon_bound,
)
from sfumato.audit.membership import lira_scores, loss_scores, margins, shadow_classifier_scores
from sfumato.audit.roc import operating_point
from sfumato.audit.runs import mechanism as mechanism_audit
from sfumato.randomness import SecretStream
from sfumato.runs import Reproduction, write_run
from sfumato.storage import RunFolder, write_figure
from sfumato.training import TrainingPlan
from sfumato_lab.reproduce import black_box, ensemble

Floats = npt.NDArray[np.float64]
ATTACKERS = ("loss threshold", "shadow classifier", "LiRA", "black box, worst case", "canaries in the step")
_HIDDEN = 64
_PRIVATE_STEPS = 40


@dataclass(frozen=True, eq=False)
class Attacked:
    """Scores of members and others, pooled over the targets, and how good the networks are."""

    members: dict[str, Floats]
    others: dict[str, Floats]
    labels: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    accuracy: float


def run(
    out_dir: str | Path,
    *,
    data: str = "mnist",
    rows: int = 1000,
    networks: int = 32,
    targets: int = 8,
    epsilons: tuple[float, ...] = (1.0, 8.0),
    sizes: tuple[int, ...] = (250, 500, 1000),
    delta: float = 1e-4,
) -> dict[str, Any]:
    """Attack plain networks and private ones at each ε; figures and a table in the run folder.

    The rows are public data sets of digits, so that everything may be shown; on real members the scores are
    private.
    """
    folder = RunFolder.make(out_dir)
    results = {"plain": attack(data, rows, networks, targets, None, delta)}
    for epsilon in epsilons:
        results[f"ε = {epsilon:g}"] = attack(data, rows, networks, targets, epsilon, delta)
    table = {name: summary(attacked, delta) for name, attacked in results.items()}
    for epsilon in epsilons:
        table[f"ε = {epsilon:g}"] |= strongest(rows, epsilon, delta)
    by_size = {size: attack(data, size, networks, targets, None, delta) for size in sizes if size != rows}
    by_size[rows] = results["plain"]
    _draw(folder, results, table, dict(zip([f"ε = {e:g}" for e in epsilons], epsilons, strict=True)), by_size)
    answer = {"claimed": dict(zip(list(results)[1:], epsilons, strict=True)), "attacks": table}
    write_run(folder, Reproduction(name="membership", findings=answer), certificate=None)
    return answer


def attack(data: str, rows: int, networks: int, targets: int, epsilon: float | None, delta: float) -> Attacked:
    """Train all networks as one batch, then attack the first few with the others as shadows."""
    inputs, labels = _rows(data, "train", rows)
    coins = randomness.public_generator(rows).permuted(np.tile(np.arange(networks) % 2 == 0, (rows, 1)), axis=1)
    inside = coins.T.copy()  # (networks, rows): every row in half of the networks
    weights = _trained(inputs, labels, torch.from_numpy(inside.astype(np.float32)), epsilon, delta)
    confidences = F.log_softmax(ensemble.logits(weights, inputs), -1).numpy()
    test_inputs, test_labels = _rows(data, "test", 1000)
    right = ensemble.logits(weights, test_inputs).argmax(-1) == test_labels
    return _pooled(confidences, inside, labels.numpy(), targets, float(right.float().mean()))


def _trained(
    inputs: Tensor, labels: Tensor, members: Tensor, epsilon: float | None, delta: float
) -> ensemble.Weights:
    start = ensemble.Weights.drawn(len(members), inputs.shape[1], _HIDDEN, 10, seed=1)
    if epsilon is None:
        return ensemble.fit(start, inputs, labels, members, steps=400, learning_rate=0.1, batch=128)
    plan = _plan(len(inputs), epsilon, delta)
    step = ensemble.PrivateStep(
        clip_norm=plan.clip_norm, noise_multiplier=plan.noise_multiplier, expected_batch=plan.expected_batch
    )
    return ensemble.fit_privately(
        start, inputs, labels, members, step, SecretStream(), steps=plan.steps, learning_rate=1.0
    )


def _plan(rows: int, epsilon: float, delta: float) -> TrainingPlan:
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=delta,
        public_size=rows // 2,
        expected_batch=rows // 2,
        steps=_PRIVATE_STEPS,
    )


def _pooled(
    confidences: npt.NDArray[np.float32],
    inside: npt.NDArray[np.bool_],
    labels: npt.NDArray[np.int64],
    targets: int,
    accuracy: float,
) -> Attacked:
    losses = -np.take_along_axis(confidences, labels[None, :, None], axis=2)[..., 0].astype(np.float64)
    shown = margins(losses)
    scores: dict[str, list[Floats]] = {"loss threshold": [], "shadow classifier": [], "LiRA": []}
    for target in range(targets):
        rest = np.arange(len(inside)) != target
        scores["loss threshold"].append(loss_scores(losses[target]))
        taught = rest & (np.arange(len(inside)) < targets + 8)  # a few shadows teach a classifier enough
        scores["shadow classifier"].append(
            shadow_classifier_scores(confidences[target], confidences[taught], inside[taught], labels)
        )
        scores["LiRA"].append(lira_scores(shown[target], shown[rest], inside[rest]))
    mask = inside[:targets]
    repeated = np.tile(labels, (targets, 1))
    return Attacked(
        members={name: np.stack(found)[mask] for name, found in scores.items()},
        others={name: np.stack(found)[~mask] for name, found in scores.items()},
        labels=(repeated[mask], repeated[~mask]),
        accuracy=accuracy,
    )


def strongest(rows: int, epsilon: float, delta: float) -> dict[str, Any]:
    """What attackers prove who choose the data, or who see every step, at the same price."""
    seen = mechanism_audit.run(_plan(rows, epsilon, delta), delta=delta, pairs=64)
    chosen = black_box.run(epsilon=epsilon, delta=delta, networks=200)
    return {
        "black box, worst case": {"measured_epsilon": chosen.lower_bound},
        "canaries in the step": {"measured_epsilon": seen.lower_bound},
    }


def summary(attacked: Attacked, delta: float) -> dict[str, Any]:
    """Area, TPR at .1% FPR, precision and recall, and the ε that each attack measures."""
    found: dict[str, Any] = {"test_accuracy": attacked.accuracy}
    for name, present in attacked.members.items():
        absent = attacked.others[name]
        point, half = (
            at_false_positive_rate(present, absent),
            operating_point(present, absent, np.median(absent).item()),
        )
        found[name] = {
            "auc": _shown(auc(present, absent)),
            "tpr_at_fpr_0.001": _shown(point.true_positive_rate),
            "precision_at_median": _shown(half.precision),
            "recall_at_median": _shown(half.recall),
            "measured_epsilon": bound_on_held_out(
                present, absent, lambda e, a: epsilon_bound(e, delta=delta, alpha=a), alpha=0.05
            ),
        }
    return found


def _shown(estimate: RateEstimate) -> dict[str, float]:
    return {"value": estimate.value, **estimate.interval._asdict()}


def _rows(data: str, split: Literal["train", "test"], count: int) -> tuple[Tensor, Tensor]:
    images, labels = (column[:count] for column in datasets.load(data, split).tensors())
    flat = F.avg_pool2d(images, 2).flatten(1) if images.shape[-1] > 14 else images.flatten(1)
    return flat, labels


def _draw(
    folder: RunFolder,
    results: dict[str, Attacked],
    table: dict[str, Any],
    claims: dict[str, float],
    by_size: dict[int, Attacked],
) -> None:
    curves = {
        f"{name}, LiRA": Roc.of(found.members["LiRA"], found.others["LiRA"]) for name, found in results.items()
    }
    plain = results["plain"]
    curves["plain, loss threshold"] = Roc.of(plain.members["loss threshold"], plain.others["loss threshold"])
    draw_roc(curves, folder.figures / "membership-roc.png")
    _draw_claims(table, claims, folder.figures / "claimed-measured.png")
    _draw_precision(plain, by_size, folder.figures / "membership-precision.png")


def _draw_claims(table: dict[str, Any], claims: dict[str, float], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4), layout="constrained")
    axes = figure.subplots()
    line = np.array([0, 1.15 * max(claims.values(), default=1.0)])
    axes.plot(line, line, color="0.6", ls=":", label="measured = claimed")
    for attacker in ATTACKERS:
        measured = [table[name][attacker]["measured_epsilon"] for name in claims]
        axes.plot(list(claims.values()), measured, marker="o", label=attacker)
    axes.set(xlabel="claimed ε", ylabel="measured ε (95% lower bound)", title="What attackers achieve")
    axes.legend(fontsize=8)
    write_figure(path, figure, readable=True)


def _draw_precision(plain: Attacked, by_size: dict[int, Attacked], path: Path) -> None:
    """Precision of the shadow classifier by class, and by how many rows a network was trained on."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, points in ((left, precision_by_class(plain)), (right, precision_by_size(by_size))):
        names, estimates = list(points), list(points.values())
        values = np.array([estimate.value for estimate in estimates])
        reach = np.abs(np.array([estimate.interval for estimate in estimates]).T - values)
        axes.errorbar([str(name) for name in names], values, yerr=reach, fmt="o", capsize=3)
        axes.axhline(0.5, color="0.6", ls=":")
        axes.set(ylabel="precision", ylim=(0.4, 1))
    left.set(xlabel="class", title="Shadow classifier, by class")
    right.set(xlabel="rows in training", title="by training size")
    write_figure(path, figure, readable=True)


def precision_by_class(attacked: Attacked, name: str = "shadow classifier") -> dict[int, Any]:
    """Of those called members, the share that are; "member" is a score above zero, even odds."""
    present, absent = attacked.members[name], attacked.others[name]
    of_members, of_others = attacked.labels
    classes = np.unique(of_members)
    return {
        int(label): operating_point(present[of_members == label], absent[of_others == label], 0.0).precision
        for label in classes
    }


def precision_by_size(by_size: dict[int, Attacked], name: str = "shadow classifier") -> dict[int, Any]:
    return {
        size // 2: operating_point(found.members[name], found.others[name], 0.0).precision
        for size, found in sorted(by_size.items())
    }
