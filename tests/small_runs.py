"""Small private runs that tests share."""

import torch
from torch import nn

from sfumato.training import PrivateTrainer, cross_entropy


def rows(count=20, seed=1, features=5, classes=3):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, features, generator=generator),
        torch.randint(0, classes, (count,), generator=generator),
    )


def make_trainer(plan, model=None, *, optimizer=torch.optim.SGD, rate=0.1, **more):
    model = nn.Linear(5, 3) if model is None else model
    return PrivateTrainer(model, optimizer(model.parameters(), lr=rate), plan, **more)


def take(trainer, steps=None, data=None, loss=cross_entropy, **more):
    """Take steps up to number `steps`, or all."""
    for batch in trainer.batches(rows() if data is None else data, **more):
        trainer.step(batch, loss)
        if trainer.steps_done == steps:
            break
    return trainer
