"""Whole runs with correlated noise: how loud one unit is, the draws behind the noise, and whose turn it is.

    from sfumato.audit.runs import correlated
    correlated.run(plan).refuted

Canaries that each own one weight take part in a run of `PrivateTrainer`. The attacker knows the factorisation
and the order. For a unit that takes part in the steps of u it looks along Cu at C·(the release), which is
N(‖Cu‖, σ²) with the unit and N(0, σ²) without: the best that anyone can do (Neyman & Pearson).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import signal

from sfumato import accounting
from sfumato.accounting import GaussianEvent
from sfumato.audit import VERDICT_ALPHA, DiracScores, Verdict, dirac_scores, noise_checks
from sfumato.audit.runs.mechanism import CanaryModel, canary_rows, chosen_output
from sfumato.randomness import SecretStream
from sfumato.training import PrivateTrainer, TrainingPlan

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SIDE = 16  # 2 · 16² = 512 canaries
_LOUDNESS = 16.0  # norm of a canary's gradient, in clip norms, before clipping


def run(plan: TrainingPlan, *, delta: float = 1e-5, pairs: int = 2, side: int = _SIDE) -> Verdict:
    """The ε that canaries prove for the whole plan, beside the plan's claim."""
    scores = canary_scores(plan, pairs=pairs, side=side)
    return Verdict.of(
        partial(_epsilon_bound, scores, delta),
        claimed_epsilon=plan.epsilon(delta),
        delta=delta,
        untested=("the model's own layers: the canaries go through two linear layers in doubles",),
        details={"canaries": 2 * side * side, "runs_observed": 2 * pairs},
    )


def canary_scores(plan: TrainingPlan, *, pairs: int, side: int = _SIDE) -> DiracScores:
    """How loud each canary is in the best direction, with it and without it."""
    listen = partial(_heard, plan=plan, side=side)
    return dirac_scores(listen, canaries=2 * side * side, pairs=pairs, coins=SecretStream())


def stale_draws(plan: TrainingPlan, *, side: int = _SIDE) -> str | None:
    """A run on zeros, multiplied by C: draws that are repeated or too small; nothing if they are as priced."""
    released, _ = _released(np.zeros(2 * side * side, dtype=np.bool_), plan, side)
    drawn = {f"step {step}": part for step, part in enumerate(_undone(plan, released))}
    checks = noise_checks(drawn, sigma=plan.noise_multiplier)
    return ", ".join(check.name for check in checks if check.fails(VERDICT_ALPHA)) or None


def out_of_turn(plan: TrainingPlan, *, units: int = 40) -> str | None:
    """Units that take part in other steps than every pass's same one; nothing if there are none."""
    model = torch.nn.Linear(1, 1)
    subject = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=1.0), plan)
    taken = np.zeros((plan.steps, units), dtype=np.bool_)
    for batch in subject.batches((torch.zeros(units, 1), torch.zeros(units))):
        taken[batch.step, batch.sample.units] = True
    turn = np.arange(plan.steps) % plan.steps_an_epoch
    first = [set(turn[taken[:, unit]]) for unit in range(units)]
    due = [np.isin(turn, list(own)) for own in first]
    wrong = [unit for unit in range(units) if len(first[unit]) > 1 or (taken[:, unit] != due[unit]).any()]
    return f"{len(wrong)} of {units} units take part out of their turn" if wrong else None


def _heard(present: Bools, *, plan: TrainingPlan, side: int) -> Floats:
    """⟨Cu, C·released⟩ / ‖Cu‖ at each canary's own weight, u being the steps that it took part in."""
    released, taken = _released(present, plan, side)
    direction = _undone(plan, taken.astype(np.float64))
    length = np.linalg.norm(direction, axis=0)
    return np.asarray((direction * _undone(plan, released)).sum(axis=0) / np.maximum(length, 1e-300))


def _released(present: Bools, plan: TrainingPlan, side: int) -> tuple[Floats, Bools]:
    """Return by step the change of the weights, in clip norms, and who took part; absent ones are zeros."""
    model = CanaryModel(side)
    subject = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=1.0), plan)
    inputs, targets = canary_rows(np.ones_like(present), side, _LOUDNESS * plan.clip_norm)
    inputs[~torch.from_numpy(present)] = 0.0
    released, taken = [], np.zeros((plan.steps, present.size), dtype=np.bool_)
    for batch in subject.batches((inputs, targets)):
        before = _weights(subject)
        subject.step(batch, chosen_output)
        released.append((before - _weights(subject)) * plan.expected_batch / plan.clip_norm)
        taken[batch.step, batch.sample.units] = True
    return np.stack(released), taken


def _weights(subject: PrivateTrainer) -> Floats:
    parts = [parameter.detach().double().flatten() for parameter in subject.parameters.values()]
    return np.asarray(torch.cat(parts).numpy().copy())


def _undone(plan: TrainingPlan, values: npt.NDArray[Any]) -> Floats:
    """C times values (steps, …)."""
    return np.asarray(signal.lfilter(plan.noise.column(plan.steps), [1.0], values, axis=0))


def _epsilon_bound(scores: DiracScores, delta: float, alpha: float) -> float:
    mu = scores.mu_bound(alpha=alpha)
    return accounting.epsilon(GaussianEvent(1 / mu), delta) if mu else 0.0
