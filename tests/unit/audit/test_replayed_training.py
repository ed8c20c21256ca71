"""Whole training runs on D and on a neighbour with the same noise: nothing public may differ."""

from functools import partial

import numpy as np
import pytest
import torch

from sfumato import datasets, models
from sfumato.audit import ReplayedRelease, ReplayOutcome, replay
from sfumato.ledger import Budget, Ledger
from sfumato.randomness import SecretStream
from sfumato.training import PrivateTrainer, TrainingPlan, cross_entropy


def trained(rows, sampler, *, plan, ledger_path, sensitivity=None):
    """Train a small network; the ledger, the certificate and the number of steps are public."""
    model = models.build("mlp", side=8, seed=0)
    start = torch.cat([p.detach().clone().flatten() for p in model.parameters()])
    ledger_path.unlink(missing_ok=True)
    with Ledger.create(ledger_path, Budget(epsilon=20, delta=1e-5)) as ledger:
        trainer = PrivateTrainer(
            model, torch.optim.SGD(model.parameters(), lr=1.0), plan, ledger=ledger, sampler=sampler
        )
        for batch in trainer.batches(rows):
            trainer.step(batch, cross_entropy)
        charge = trainer.finish()
        public = {
            "spent": ledger.epsilon_spent,
            "steps": trainer.steps_done,
            "eta": trainer.eta,
            "event": repr(charge.event),
        }
    moved = (torch.cat([p.detach().flatten() for p in model.parameters()]) - start) * plan.expected_batch
    bound = plan.clip_norm * (1 + trainer.eta)
    return ReplayOutcome(
        public=public, released={"weights": ReplayedRelease(moved, bound)} if plan.steps == 1 else {}
    )


@pytest.fixture(scope="module")
def rows():
    return datasets.load("digits", "train").excerpt(64).tensors()


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("change", ["last row gone", "last row strange", "last row not finite"])
def test_nothing_public_differs(rows, tmp_path, steps, change):
    """A single step may move by the sensitivity; of later ones everything but the weights is compared."""
    plan = TrainingPlan(sample_rate=0.5, expected_batch=32, steps=steps, noise_multiplier=1.0, clip_norm=0.5)
    inputs, targets = rows
    neighbour = {
        "last row gone": (inputs[:-1], targets[:-1]),
        "last row strange": (torch.cat([inputs[:-1], 1e6 * inputs[-1:]]), targets),
        "last row not finite": (torch.cat([inputs[:-1], torch.full_like(inputs[-1:], np.nan)]), targets),
    }[change]
    pipeline = partial(trained, plan=plan, ledger_path=tmp_path / "ledger.db")
    for seed in range(2 if steps == 1 else 1):
        report = replay(pipeline, rows, neighbour, sampler=SecretStream(test_seed=seed))
        # A strange row replaces an ordinary one: both the old and the new gradient may move the sum.
        limit = 1.0 if change == "last row gone" else 2.0
        assert report.differences == ()
        assert all(share <= limit + 1e-3 for share in report.movements.values())
        assert len(report.movements) == (steps == 1)
