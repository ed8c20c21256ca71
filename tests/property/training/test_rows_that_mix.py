"""Generated losses, views and models that try to bring rows together: each is refused, or moves nobody else.

`SFUMATO_FUZZ_CASES` sets how many are tried; 240 in a test run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from sfumato.errors import SfumatoError
from sfumato.randomness import SecretStream
from sfumato.training import Flat
from sfumato.training.engine import Engine

CASES = int(os.environ.get("SFUMATO_FUZZ_CASES", "240"))
SHARES = 8  # tests that the cases are dealt to
WIDTH, CLASSES, CLIP = 4, 3, 0.05


def order(x):
    return x[torch.argsort(x.flatten(1).sum(1))]


MIXERS = {
    "mean": lambda x: x.mean(0, keepdim=True).expand_as(x),
    "maximum": lambda x: x.amax(0, keepdim=True).expand_as(x),
    "sorted": order,
    "running sum": lambda x: x.cumsum(0),
    "neighbour": lambda x: x.roll(1, 0),
    "reversed": lambda x: x.flip(0),
    "first row": lambda x: x[:1].expand_as(x),
    "last row": lambda x: x[-1:].expand_as(x),
    "standardised": lambda x: (x - x.mean(0)) / (x.std(0, correction=0) + 1e-3),
    "softmax over rows": lambda x: torch.softmax(x, 0),
    "number of rows": lambda x: x / x.shape[0],
    "more rows than three": lambda x: x * float(x.shape[0] > 3),
    "parity": lambda x: x * (1.0 - 2.0 * (x.shape[0] % 2)),
    "places": lambda x: x * torch.arange(x.shape[0]).view(-1, *[1] * (x.dim() - 1)),
    "norm of all": lambda x: x / (x.norm() + 1e-3),
    "Gram": lambda x: ((x.flatten(1) @ x.flatten(1).t()) @ x.flatten(1)).view_as(x),
    "count above zero": lambda x: x * (x > 0).sum(),
    "shuffled": lambda x: x[torch.randperm(x.shape[0])],
    "dropout of rows": lambda x: (
        x * torch.bernoulli(torch.full((x.shape[0],), 0.5)).view(-1, *[1] * (x.dim() - 1))
    ),
    "mean beside a large row": lambda x: (x.abs().amax() > 20) * x.mean(0, keepdim=True).expand_as(x),
    "columns of large rows": lambda x: x * (x.abs() > 20).any(0),
    "capacity": lambda x: x * ((x.abs() > 20).cumsum(0) < 2),
    "places of large rows": lambda x: x[torch.where(x.flatten(1).amax(1) > 20, 0, torch.arange(x.shape[0]))],
    "nothing": lambda x: torch.zeros_like(x),
}
DRAWING = ("shuffled", "dropout of rows")  # after the model's dropout they would draw otherwise in each world
PLACES = ("loss outputs", "loss targets", "loss value", "model input", "model middle", "model output", "views")


@dataclass
class Remembering:
    """Adds something of what it saw before."""

    kept: object = 0.0

    def __call__(self, x):
        seen, self.kept = self.kept, x.detach().mean()
        return x + seen


@dataclass(frozen=True)
class Case:
    place: str
    mixer: str
    strength: float
    remembers: bool
    rows: int
    seed: int
    zero_head: bool
    training: bool

    def mix(self, at: str):
        if at != self.place:
            return lambda x: x
        # Of this case it holds numbers only: what a loss can reach is searched for memories, again and again.
        mixer, remember, strength = MIXERS[self.mixer], Remembering() if self.remembers else None, self.strength

        def mixed(x):
            x = x if remember is None else remember(x)
            return x + strength * mixer(x)

        return mixed


cases = st.builds(
    Case,
    place=st.sampled_from(PLACES),
    mixer=st.sampled_from(sorted(MIXERS)),
    strength=st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
    remembers=st.booleans(),
    rows=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    zero_head=st.booleans(),
    training=st.booleans(),
)


class Model(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.first, self.drop, self.head = nn.Linear(WIDTH, 6), nn.Dropout(0.3), nn.Linear(6, CLASSES)
        if case.zero_head:
            nn.init.zeros_(self.head.weight)
        self.input, self.middle, self.output = (case.mix(f"model {at}") for at in ("input", "middle", "output"))

    def forward(self, x):
        return self.output(self.head(self.middle(self.drop(F.relu(self.first(self.input(x)))))))


def loss_and_views(case):
    on_outputs, on_targets, on_value, on_views = (
        case.mix(at) for at in ("loss outputs", "loss targets", "loss value", "views")
    )

    def loss(outputs, targets):
        guesses = F.softmax(on_outputs(outputs), 1)
        return on_value(((guesses - on_targets(targets)) ** 2).sum(1))

    def views(x):
        return torch.stack([x, on_views(x)], dim=1)

    return loss, views if case.place == "views" else None


def moved(case):
    """How far the sum moves, in clipping norms, as the last row comes; None where the case was refused."""
    generator = torch.Generator().manual_seed(case.seed)
    inputs = 3 * torch.randn(case.rows + 1, WIDTH, generator=generator)
    inputs[-1] *= 40
    targets = F.one_hot(torch.randint(0, CLASSES, (case.rows + 1,), generator=generator), CLASSES).float()
    targets[-1] *= 100
    torch.default_generator.manual_seed(case.seed)
    model = Model(case).train(case.training and case.mixer not in DRAWING)
    loss, views = loss_and_views(case)
    try:
        engine = Engine(model, loss, (torch.zeros(1, WIDTH), torch.zeros(1, CLASSES)), views=views)
    except SfumatoError:
        return None
    after, before = (  # dropout's masks are the same for the rows that stay
        engine.clipped(
            inputs[:rows], targets[:rows], Flat(norm=CLIP), sampler=SecretStream(test_seed=case.seed)
        )
        for rows in (case.rows + 1, case.rows)
    )
    total = sum((after.sums[name] - before.sums[name]).double().square().sum() for name in after.sums)
    return float(total) ** 0.5 / CLIP / (1 + max(before.rounding, after.rounding))


@pytest.mark.keeps_out(
    "A model that brings rows together only in batches of some sizes, and there on rare values only"
)
@pytest.mark.keeps_out("Rows that meet on a rare value or token only, in the forward or the backward pass")
@pytest.mark.keeps_out("Rows mixed on a rare draw, which no trial run sees")
@pytest.mark.keeps_out("A loss, view or target transform that looks at other rows or at the batch size")
@pytest.mark.parametrize("share", range(SHARES))
def test_every_way_of_mixing_is_refused_or_moves_nobody_else(share):
    found = {"refused": 0, "kept": 0}

    @hypothesis.seed(share)
    @hypothesis.settings(
        max_examples=CASES // SHARES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @hypothesis.given(cases)
    def tried(case):
        distance = moved(case)
        found["refused" if distance is None else "kept"] += 1
        assert distance is None or distance <= 1 + 1e-5, f"moved by {distance:.3f} clipping norms"
        if case.mixer == "nothing" and not case.remembers:
            assert distance is not None, "refused, though no row sees another"

    tried()
    assert min(found.values()) > 0  # neither everything nor nothing is refused
