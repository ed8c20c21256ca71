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
from scipy import stats
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
    operating_point,
)
from sfumato.audit.runs import mechanism as mechanism_audit
from sfumato.cli import show
from sfumato.errors import InvalidInput
from sfumato.randomness import SecretStream
from sfumato.storage import RunFolder
from sfumato.training import TrainingPlan
from sfumato_lab.reproduce import black_box, ensemble
from sfumato_lab.reproduce.tables import canvas, conclude, print_table

Floats = npt.NDArray[np.float64]

Bools = npt.NDArray[np.bool_]


def loss_scores(losses: npt.ArrayLike) -> Floats:
    """Return minus the loss: training rows are fitted better (Yeom et al. 2018)."""
    return -np.asarray(losses, dtype=np.float64)


def margins(losses: npt.ArrayLike) -> Floats:
    """ln(p / (1 − p)) of the true class's probability p = e^(−loss): close to normal (Carlini et al. 2022, §5).

    >>> margins([np.log(2.0)]).tolist()
    [0.0]
    """
    values = np.maximum(np.asarray(losses, dtype=np.float64), 1e-12)
    return -values - np.log(-np.expm1(-values))


def lira_scores(target: npt.ArrayLike, shadows: npt.ArrayLike, members: npt.ArrayLike) -> Floats:
    """ln of the ratio of two normal densities of each row's margin: among shadows with it, and without it.

    With few shadows the spread of all rows together is used, one with and one without (Carlini et al. 2022,
    "Membership inference attacks from first principles", algorithm 1 and §6.3). `target` is (rows,).
    """
    seen, others, inside = _shadow_arrays(target, shadows, members)
    means = [np.where(mask, others, 0).sum(0) / mask.sum(0) for mask in (inside, ~inside)]
    spreads = [
        _pooled_deviation(others, mask, mean) for mask, mean in zip((inside, ~inside), means, strict=True)
    ]
    densities = [stats.norm.logpdf(seen, mean, spread) for mean, spread in zip(means, spreads, strict=True)]
    return np.asarray(densities[0] - densities[1], dtype=np.float64)


def calibrated_scores(target: npt.ArrayLike, shadows: npt.ArrayLike, members: npt.ArrayLike) -> Floats:
    """The margin less its mean among shadows without the row: how much better than its difficulty (offline)."""
    seen, others, inside = _shadow_arrays(target, shadows, members)
    return np.asarray(seen - np.where(inside, 0, others).sum(0) / (~inside).sum(0), dtype=np.float64)


def shadow_classifier_scores(
    target: npt.ArrayLike, shadows: npt.ArrayLike, members: npt.ArrayLike, labels: npt.ArrayLike
) -> Floats:
    """A classifier for each class, taught on shadows to tell members by their confidences (Shokri et al. 2017).

    `target` is (rows, classes) and `shadows` (networks, rows, classes): log-probabilities. Features are the
    true class's, and the three largest in order.
    """
    from sklearn.linear_model import LogisticRegression

    labels = np.asarray(labels)
    known, taught = _features(np.asarray(target)[None], labels)[0], _features(np.asarray(shadows), labels)
    inside = np.asarray(members, dtype=np.bool_)
    scores = np.empty(len(labels))
    for label in np.unique(labels):
        rows = labels == label
        model = LogisticRegression(C=1.0, max_iter=500)
        model.fit(taught[:, rows].reshape(-1, known.shape[-1]), inside[:, rows].reshape(-1))
        scores[rows] = model.decision_function(known[rows])
    return scores


def _shadow_arrays(
    target: npt.ArrayLike, shadows: npt.ArrayLike, members: npt.ArrayLike
) -> tuple[Floats, Floats, Bools]:
    seen, others = np.asarray(target, dtype=np.float64), np.asarray(shadows, dtype=np.float64)
    inside = np.asarray(members, dtype=np.bool_)
    if others.ndim != 2 or inside.shape != others.shape or seen.shape != others.shape[1:]:
        raise InvalidInput(
            f"expected target (rows,), shadows and members (networks, rows), got {seen.shape}, {others.shape} "
            f"and {inside.shape}"
        )
    if not (inside.any(0) & ~inside.all(0)).all():
        raise InvalidInput(
            "expected every row in some shadow's training data and not in another's; add shadows"
        )
    return seen, others, inside


def _pooled_deviation(values: Floats, mask: Bools, means: Floats) -> float:
    residuals = np.where(mask, values - means, 0.0)
    freedom = max(1, int(mask.sum() - mask.any(0).sum()))
    return float(max(np.sqrt((residuals**2).sum() / freedom), 1e-6))


def _features(confidences: npt.NDArray[np.floating], labels: npt.NDArray[np.int64]) -> Floats:
    """(networks, rows, 4)."""
    true = np.take_along_axis(confidences, labels[None, :, None], axis=2)
    largest = np.sort(confidences, axis=2)[..., ::-1][..., :3]
    return np.maximum(np.concatenate([true, largest], axis=2), -30.0).astype(np.float64)


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
    results = {"plain": attack(data, rows, networks, targets, None, delta)}
    for epsilon in epsilons:
        results[f"ε = {epsilon:g}"] = attack(data, rows, networks, targets, epsilon, delta)
    table = {name: summary(attacked, delta) for name, attacked in results.items()}
    for epsilon in epsilons:
        table[f"ε = {epsilon:g}"] |= strongest(rows, epsilon, delta)
    by_size = {size: attack(data, size, networks, targets, None, delta) for size in sizes if size != rows}
    by_size[rows] = results["plain"]
    claims = dict(zip(list(results)[1:], epsilons, strict=True))
    figures = {
        "claimed-measured": _draw_claims(table, claims),
        "membership-precision": _draw_precision(results["plain"], by_size),
    }
    _draw_curves(results, RunFolder.make(out_dir).figures / "membership-roc.png")
    return conclude(out_dir, "membership", {"claimed": claims, "attacks": table}, figures)


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
    """Return the ε that attackers prove who choose the data, or who see every step, at the same price."""
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


def _draw_curves(results: dict[str, Attacked], path: Path) -> None:
    curves = {
        f"{name}, LiRA": Roc.of(found.members["LiRA"], found.others["LiRA"]) for name, found in results.items()
    }
    plain = results["plain"]
    curves["plain, loss threshold"] = Roc.of(plain.members["loss threshold"], plain.others["loss threshold"])
    draw_roc(curves, path)


def _draw_claims(table: dict[str, Any], claims: dict[str, float]) -> Any:
    figure, axes = canvas(
        "What attackers achieve", width=5.2, xlabel="claimed ε", ylabel="measured ε (95% lower bound)"
    )
    line = [0, 1.15 * max(claims.values(), default=1.0)]
    axes.plot(line, line, color="0.6", ls=":", label="measured = claimed")
    for attacker in ATTACKERS:
        measured = [table[name][attacker]["measured_epsilon"] for name in claims]
        axes.plot(list(claims.values()), measured, marker="o", label=attacker)
    axes.legend(fontsize=8)
    return figure


def _draw_precision(plain: Attacked, by_size: dict[int, Attacked]) -> Any:
    """Draw the precision of the shadow classifier by class, and by how many rows a network was trained on."""
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
    return figure


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


def membership(out: show.Out = Path("out/membership"), json: show.Json = False) -> None:
    """Run membership inference against plain and private networks.

    Example: sfumato reproduce membership
    """
    with show.errors.status("training and attacking networks"):
        found = run(out)
    if json:
        show.emit_json(found)
        return
    measures = ("auc", "tpr_at_fpr_0.001", "precision_at_median", "recall_at_median")
    rows = [
        (f"{network}: {name}", *(f"{scores[measure]['value']:.3f}" for measure in measures))
        for network, attacks in found["attacks"].items()
        for name, scores in attacks.items()
        if isinstance(scores, dict) and "auc" in scores
    ]
    columns = ("network: attack", "AUC", "TPR at 0.1% FPR", "precision", "recall")
    print_table("Membership attacks, MNIST", columns, rows)
    show.console.print(f"Figures: {out}")
