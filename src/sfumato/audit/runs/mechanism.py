"""Dirac canaries through the installed training step: clip → sum → noise, as a run would take it.

sfumato audit mechanism
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato.audit import DISPLAY_ALPHA, DiracScores, Verdict, dirac_scores
from sfumato.randomness import Sampler, SecretStream
from sfumato.storage import write_figure
from sfumato.training import PrivateTrainer, TrainingPlan

TUTORIAL = TrainingPlan(sample_rate=256 / 60000, expected_batch=256, steps=14062, noise_multiplier=1.1)
"""The best known public DP-SGD setting on MNIST; ε = 2.382 at δ = 1e-5."""

UNTESTED = (
    "the sampler: who enters a step is decided by the audit itself",
    "the accountant: the step's bound is composed by the one that made the claim",
    "the model's own layers, and the rounding of float32: the canaries go through two linear layers in doubles",
)
_SIDE = 40  # 2 · 40² = 3,200 coordinates: the more rows in a step, the more noise is added for rounding
PAIRS = 400
_LOUDNESS = 16.0  # norm of a canary's gradient, in clip norms, before clipping


class CanaryModel(nn.Module):
    """Two layers side by side; the gradient of the output that a row asks for is its input, in one place."""

    def __init__(self, side: int = _SIDE) -> None:
        super().__init__()
        # In doubles the trainer's allowance for rounding, which hides a little of the noise it claims, is nil.
        self.left = nn.Linear(side, side, bias=False, dtype=torch.float64)
        self.right = nn.Linear(side, side, bias=False, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        left, right = inputs.chunk(2, dim=1)
        return torch.cat([self.left(left), self.right(right)], dim=1)


def chosen_output(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of a canary: the output at its row of the weights."""
    return outputs.gather(1, targets[:, None])[:, 0]


def canary_rows(present: npt.NDArray[np.bool_], side: int, size: float) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the canaries that are present; canary j owns the j-th weight of the model."""
    layer, row, column = np.unravel_index(np.flatnonzero(present), (2, side, side))
    inputs = torch.zeros(len(row), 2 * side, dtype=torch.float64)
    inputs[torch.arange(len(row)), torch.from_numpy(layer * side + column)] = size
    return inputs, torch.from_numpy(layer * side + row)


def released_by_step(
    present: npt.NDArray[np.bool_], plan: TrainingPlan, *, model: CanaryModel, sampler: Sampler | None = None
) -> npt.NDArray[np.float64]:
    """One step of `PrivateTrainer` on the canaries that are present: the noised sum over clip norm."""
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, sampler=sampler)
    rows = canary_rows(present, model.left.in_features, _LOUDNESS * plan.clip_norm)
    before = [parameter.detach().clone() for parameter in trainer.parameters.values()]
    whole = plan.unit == "record" and plan.rows_per_unit is None
    for batch in trainer.batches(rows, units=None if whole else np.arange(len(rows[0]))):  # one unit a canary
        trainer.step(batch, chosen_output)
    # The change of the weights is the release; .grad may differ.
    moved = [old - new.detach() for old, new in zip(before, trainer.parameters.values(), strict=True)]
    scale = plan.expected_batch / plan.clip_norm
    return torch.cat([part.double().flatten() for part in moved]).numpy() * scale


def single_step(plan: TrainingPlan, *, side: int = _SIDE) -> TrainingPlan:
    """The plan's clip and noise in one step that takes every canary that is present."""
    return replace(plan, sample_rate=1.0, steps=1, expected_batch=float(side * side), average_decay=0.0)


def canary_scores(
    plan: TrainingPlan,
    *,
    pairs: int,
    side: int = _SIDE,
    sampler: Sampler | None = None,
    on_pair: Callable[[], object] = bool,
) -> DiracScores:
    """Scores of `pairs` pairs of steps; all steps draw from one sampler, as those of a run do."""
    stream = SecretStream() if sampler is None else sampler
    plan, model = single_step(plan, side=side), CanaryModel(side)
    step = partial(released_by_step, plan=plan, model=model, sampler=stream)
    return dirac_scores(step, canaries=2 * side * side, pairs=pairs, coins=SecretStream(), on_pair=on_pair)


def run(
    plan: TrainingPlan = TUTORIAL,
    *,
    delta: float = 1e-5,
    pairs: int = PAIRS,
    side: int = _SIDE,
    figure: str | os.PathLike[str] | None = None,
    on_pair: Callable[[], object] = bool,
) -> Verdict:
    """The ε that the canaries prove for the whole plan, beside the plan's claim."""
    scores = canary_scores(plan, pairs=pairs, side=side, on_pair=on_pair)
    at_most = 1 / max(scores.mu_bound(alpha=DISPLAY_ALPHA), 1e-9)
    verdict = Verdict.of(
        partial(_epsilon_bound, plan, delta, scores),
        claimed_epsilon=plan.epsilon(delta),
        delta=delta,
        untested=UNTESTED,
        details={
            "canaries": 2 * side * side,
            "steps_observed": 2 * pairs,
            "noise_multiplier_claimed": plan.noise_multiplier,
            "noise_multiplier_at_most": at_most,
        },
    )
    if figure is not None:
        draw_scores(scores, plan, verdict, figure)
    return verdict


def _epsilon_bound(plan: TrainingPlan, delta: float, scores: DiracScores, alpha: float) -> float:
    """The plan's ε if its noise were as little as the canaries allow."""
    mu = scores.mu_bound(alpha=alpha)
    return replace(plan, noise_multiplier=1 / mu).epsilon(delta) if mu else 0.0


def draw_scores(
    scores: DiracScores, plan: TrainingPlan, verdict: Verdict, path: str | os.PathLike[str]
) -> Path:
    """Histograms of both kinds of canary, and the normal curves that the plan claims."""
    from matplotlib.figure import Figure

    image = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = image.subplots()
    spread = np.sqrt(2) * plan.noise_multiplier
    line = np.linspace(-1 - 4 * spread, 1 + 4 * spread, 300)
    for name, values, centre, colour in (
        ("in the first of two steps", scores.first, 1.0, "C0"),
        ("in the second", scores.second, -1.0, "C1"),
    ):
        axes.hist(
            values, bins=120, range=(line[0], line[-1]), density=True, alpha=0.35, color=colour, label=name
        )
        curve = np.exp(-(((line - centre) / spread) ** 2) / 2) / (spread * np.sqrt(2 * np.pi))
        axes.plot(line, curve, color=colour, lw=1.4)
    axes.set(xlabel="difference of the two releases, in clip norms", ylabel="density", yticks=[])
    axes.set_title(f"claimed ε {verdict.claimed_epsilon:.3f}, proved ε ≥ {verdict.lower_bound:.3f}")
    axes.plot([], [], color="0.4", lw=1.4, label="as claimed")
    axes.axvline(0, color="0.3", lw=1, ls=":", label="the attacker's threshold")
    axes.margins(x=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return write_figure(path, image)
