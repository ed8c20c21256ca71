"""Deliberately broken variants of our own code: each is caught, and the intact code is not accused.

    python tests/audit/test_sabotage.py         write docs/audit-sabotage.md

Every audit decides as a build would, at α = 1e-6, so that the intact code fails in fewer than one run of
100,000; each variant is far from what its audits tolerate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from sfumato import audit, mechanisms
from sfumato.audit import VERDICT_ALPHA, Verdict
from sfumato.audit.runs import mechanism as canaries
from sfumato.audit.runs import randomiser as randomiser_audit
from sfumato.mechanisms import GridGaussian, KaryResponse, noisy_max, vector
from sfumato.randomness import Integers, Sampler, SecretStream, spread_rounded_normal
from sfumato.training import Flat, PrivateTrainer, TrainingPlan, sampling
from sfumato.training.engine import Engine
from sfumato.training.sampling import Sample, shuffled_samples

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "audit-sabotage.md"
PLAN = TrainingPlan(sample_rate=0.1, expected_batch=40, steps=200, noise_multiplier=1.1)
_SIDE = 32  # 2,048 canaries

Audit = Callable[[], str | None]
"""Looks at the code as it is now: what is wrong with it, or nothing."""


@dataclass(frozen=True)
class Sabotage:
    """A way to break the code, undone when the context is left."""

    name: str
    what: str
    patches: Callable[[], tuple[tuple[Any, str, Any], ...]]
    audits: Mapping[str, Audit]  # of the code that is broken; the others do not run it

    @contextmanager
    def applied(self) -> Iterator[None]:
        patches = self.patches()
        intact = [(place, name, getattr(place, name)) for place, name, _ in patches]
        try:
            for place, name, broken in patches:
                setattr(place, name, broken)
            yield
        finally:
            for place, name, value in intact:
                setattr(place, name, value)


# Audits


def mechanism() -> str | None:
    """Dirac canaries through the training step."""
    scores = canaries.canary_scores(PLAN, pairs=4, side=_SIDE)
    mu = scores.mu_bound(alpha=VERDICT_ALPHA)
    claimed = 1 / PLAN.noise_multiplier
    return f"one step is at least {mu:.2f}-GDP, claimed {claimed:.2f}" if mu > claimed else None


def fresh_noise() -> str | None:
    """Steps on no rows at all: the noise of each layer and step, its size and its correlations."""
    plan = replace(canaries.single_step(PLAN, side=_SIDE), steps=3)
    parts: dict[str, npt.NDArray[np.float64]] = {}
    model = canaries.CanaryModel(_SIDE)
    subject = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=1.0), plan)
    nobody = canaries.canary_rows(np.zeros(2 * _SIDE**2, dtype=np.bool_), _SIDE, 1.0)
    for batch in subject.batches(nobody):
        subject.step(batch, canaries.chosen_output)
        for name, parameter in subject.parameters.items():
            assert parameter.grad is not None
            parts[f"{name} {batch.step}"] = parameter.grad.flatten().double().numpy() * plan.expected_batch
    failed = [
        check.name
        for check in audit.noise_checks(parts, sigma=plan.noise_multiplier * plan.clip_norm)
        if check.fails(VERDICT_ALPHA)
    ]
    return ", ".join(failed) or None


def poisson() -> str | None:
    """Which units the trainer's batches hold, against independent coins."""
    units = 400
    model = nn.Linear(1, 1)
    subject = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=1.0), PLAN)
    rows = torch.zeros(units, 1), torch.zeros(units)
    samples = [batch.sample.units for batch in subject.batches(rows)]
    failed = [
        check.name
        for check in audit.poisson_checks(samples, units=units, rate=PLAN.sample_rate)
        if check.fails(VERDICT_ALPHA)
    ]
    return ", ".join(failed) or None


def replayed_step() -> str | None:
    """Record a step on some rows, replay it with one row more: an ordinary one, and one of NaN."""
    plan = replace(canaries.single_step(PLAN, side=_SIDE), expected_batch=8.0)
    inputs, targets = canaries.canary_rows(np.arange(2 * _SIDE**2) < 8, _SIDE, 16.0)
    for odd in (inputs[:1], torch.full_like(inputs[:1], torch.nan)):
        more = torch.cat([inputs, odd]), torch.cat([targets, targets[:1]])
        report = audit.replay(partial(_one_step, plan=plan), (inputs, targets), more)
        if not report.holds:
            return report.findings[0]
    return None


def _one_step(rows: Any, sampler: Sampler, *, plan: TrainingPlan) -> audit.ReplayOutcome:
    model = canaries.CanaryModel(_SIDE)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    subject = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, sampler=sampler)
    for batch in subject.batches(rows):
        subject.step(batch, canaries.chosen_output)
    moved = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) * plan.expected_batch
    assert subject.eta is not None
    return audit.ReplayOutcome(
        public={"certificate": subject.certificate(delta=1e-5).to_json(), "steps": subject.steps_done},
        released={"weights": audit.ReplayedRelease(moved, plan.clip_norm * (1 + subject.eta))},
    )


def _refuted(attack: Callable[[], Verdict]) -> Audit:
    def look() -> str | None:
        verdict = attack()
        return f"ε ≥ {verdict.sure_bound:.2f}, claimed {verdict.claimed_epsilon:g}" if verdict.refuted else None

    look.__doc__ = attack.__doc__
    return look


STEP_AUDITS: Mapping[str, Audit] = {
    "mechanism": mechanism,
    "fresh noise": fresh_noise,
    "sampler": poisson,
    "replay": replayed_step,
}
RANDOMISER_AUDITS: Mapping[str, Audit] = {
    name: _refuted(attack) for name, attack in randomiser_audit.RANDOMISERS.items()
}
VOTE_AUDITS = {"Laplace vote": RANDOMISER_AUDITS["Laplace vote"]}  # the Gaussian one draws other noise
LOCAL_AUDITS = {name: look for name, look in RANDOMISER_AUDITS.items() if "vote" not in name}
AUDITS = {**STEP_AUDITS, **RANDOMISER_AUDITS}


# Sabotages


def _half_noise() -> Any:
    intact = PrivateTrainer._mechanism

    def broken(self: PrivateTrainer) -> GridGaussian:
        true = intact(self)
        return replace(true, noise_multiplier=true.noise_multiplier / 2)

    return ((PrivateTrainer, "_mechanism", broken),)


def _realised_batch() -> Any:
    intact = PrivateTrainer._move

    def broken(self: PrivateTrainer, gradients: dict[str, torch.Tensor]) -> None:
        share = self.plan.expected_batch / max(1, self.private_log._units)
        intact(self, {name: value * share for name, value in gradients.items()})

    return ((PrivateTrainer, "_move", broken),)


def _no_clip() -> Any:
    intact = Engine.clipped

    def broken(self: Engine, inputs: Any, targets: Any, clipping: Any, **more: Any) -> Any:
        return intact(self, inputs, targets, Flat(norm=float("inf")), **more)

    return ((Engine, "clipped", broken),)


def _silent_layer() -> Any:
    intact = spread_rounded_normal

    def broken(sampler: Sampler, scale: float, size: int, work: Any) -> None:
        def silenced(start: int, noise: Any) -> None:
            noise[max(0, size // 2 - start) :] = 0  # the second of two equal layers is the second half
            work(start, noise)

        intact(sampler, scale, size, silenced)

    return ((vector, "spread_rounded_normal", broken),)


def _shuffle() -> Any:
    left: list[Sample] = []

    def broken(units: int, rate: float, sampler: Sampler) -> Sample:
        if not left:
            left.extend(shuffled_samples(units, max(1, round(1 / rate)), sampler))
        return left.pop()

    return ((sampling, "poisson_sample", broken),)


def _repeated_noise() -> Any:
    intact = spread_rounded_normal

    def broken(sampler: Sampler, *arguments: Any) -> None:
        intact(SecretStream(test_seed=0), *arguments)

    return ((vector, "spread_rounded_normal", broken),)


def _let_nan_through() -> Any:
    intact = Engine.clipped

    def broken(*arguments: Any, **more: Any) -> Any:
        result = intact(*arguments, **more)
        poison = 0.0 if bool(result.finite.all()) else float("nan")
        return replace(result, sums={name: value + poison for name, value in result.sums.items()})

    return ((Engine, "clipped", broken),)


def _truncated_votes() -> Any:
    def broken(sampler: Sampler, scale: float, size: int) -> Integers:
        # Noise cut to a whole number of votes; the grid has a power of two of steps to a vote.
        votes = 1 << 20
        return np.trunc(sampler.laplace(size) * scale / votes).astype(np.int64) * votes

    return ((noisy_max, "NOISES", {**noisy_max.NOISES, "laplace": broken}),)


def _label_off_by_one() -> Any:
    def broken(self: KaryResponse, answers: npt.NDArray[Any], sampler: Sampler) -> Integers:
        truth = np.asarray(answers)
        lies = sampler.bernoulli(self._lie_probability, truth.size)
        return np.where(lies, (truth + sampler.integers(self.classes - 1, truth.size)) % self.classes, truth)

    return ((mechanisms.KaryResponse, "release", broken),)


def _sensitivity_one() -> Any:
    return ((randomiser_audit, "unit_sphere_sensitivity", lambda: 1.0),)


SABOTAGES: tuple[Sabotage, ...] = (
    Sabotage("σ halved", "the step draws noise of half the priced multiplier", _half_noise, STEP_AUDITS),
    Sabotage(
        "realised batch", "the noisy sum is divided by how many were sampled", _realised_batch, STEP_AUDITS
    ),
    Sabotage("clip off", "gradients are summed as they are", _no_clip, STEP_AUDITS),
    Sabotage("silent layer", "one layer's gradient gets no noise", _silent_layer, STEP_AUDITS),
    Sabotage("shuffle priced as Poisson", "batches are dealt from a shuffled pass", _shuffle, STEP_AUDITS),
    Sabotage("repeated noise", "every step draws the same noise", _repeated_noise, STEP_AUDITS),
    Sabotage("NaN let through", "a gradient that is not finite reaches the sum", _let_nan_through, STEP_AUDITS),
    Sabotage(
        "vote noise truncated",
        "Laplace noise on votes is cut to whole numbers",
        _truncated_votes,
        VOTE_AUDITS,
    ),
    Sabotage(
        "label channel off by one",
        "a lie may be the truth, and never the answer before it",
        _label_off_by_one,
        LOCAL_AUDITS,
    ),
    Sabotage(
        "sensitivity 1 instead of 2",
        "vectors on the unit sphere are priced as moving by 1",
        _sensitivity_one,
        LOCAL_AUDITS,
    ),
)


@dataclass(frozen=True)
class SabotageRow:
    sabotage: Sabotage | None
    findings: Mapping[str, str]  # by audit
    seconds: float


def run() -> tuple[SabotageRow, ...]:
    """Every audit on the intact code, then on each variant."""
    return (examine(None), *(examine(sabotage) for sabotage in SABOTAGES))


def examine(sabotage: Sabotage | None) -> SabotageRow:
    """What each audit finds while the code is broken in one way."""
    started = time.perf_counter()
    if sabotage is None:
        found = {name: look() for name, look in AUDITS.items()}
    else:
        with sabotage.applied():
            found = {name: look() for name, look in sabotage.audits.items()}
    findings = {name: text for name, text in found.items() if text is not None}
    return SabotageRow(sabotage, findings, time.perf_counter() - started)


def table(rows: tuple[SabotageRow, ...]) -> str:
    """The page docs/audit-sabotage.md: no figure in it changes from run to run."""
    lines = [
        "# Which audit catches what",
        "",
        "Written by `python tests/audit/test_sabotage.py`. Each row is our own code broken in",
        "one way; ● marks the audits that catch it, deciding at a chance of 1e-6 for a false alarm. Audits of",
        "code that a variant does not touch are not run on it. On the intact code none may find anything.",
        "",
        "| variant | what is wrong | " + " | ".join(AUDITS) + " |",
        "|---|---|" + ":-:|" * len(AUDITS),
    ]
    for row in rows:
        name, what = (row.sabotage.name, row.sabotage.what) if row.sabotage else ("intact", "–")
        marks = " | ".join("●" if audited in row.findings else "" for audited in AUDITS)
        lines.append(f"| {name} | {what} | {marks} |")
    lines += ["", "What each audit looks at:", ""]
    lines += [f"- **{name}**: {(look.__doc__ or '').strip()}" for name, look in AUDITS.items()]
    return "\n".join(lines) + "\n"


def test_all_ten_are_there():
    assert len(SABOTAGES) == 10


def test_every_variant_is_caught_the_intact_code_is_not_accused_and_the_published_table_is_true():
    """One test, so that the audits run once and not on every worker."""
    rows = {row.sabotage.name if row.sabotage else "intact": row for row in run()}
    assert rows["intact"].findings == {}
    assert [one.name for one in SABOTAGES if not rows[one.name].findings] == []
    assert PAGE.read_text(encoding="utf-8") == table(tuple(rows.values()))
    assert replayed_step() is None  # all of it is undone
    assert randomiser_audit.unit_sphere_sensitivity() == 2.0


if __name__ == "__main__":
    PAGE.write_text(table(run()), encoding="utf-8")
