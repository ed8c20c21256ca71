"""The noise that measurements really get, and the choices that are really made.

False alarms: a variance over N draws is compared with theory and allowed Z = 4.9 standard errors, 1e-6 for both
sides of a normal; a share of CHOICES likewise. Noise × 0.7, and a choice without noise, must fail.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sfumato.randomness import SecretStream
from sfumato.synthesis import CellColumn, PaidTable, SynthesisPlan
from sfumato.synthesis.cells import Buckets

Z = 4.9
CELLS = 4000
PLAN = SynthesisPlan(
    columns=1, picks=(1,), single_sigma=12.0, joint_sigma=7.0, choice_scale=50.0, rows=2, target=None
)
COLUMN = CellColumn(name="c", type="integer", values=tuple(range(CELLS - 1)))
APART = Buckets(np.arange(CELLS), np.eye(CELLS), "c")


class Counts:
    rows = 2

    def __init__(self, counts: np.ndarray) -> None:
        self.counts = counts

    def prepare(self) -> None:
        pass

    def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
        return self.counts


def deviation(values: np.ndarray, sigma: float) -> float:
    """How many standard errors the variance of so many normal draws is off; discreteness adds below 1e-6."""
    return abs(float(np.mean(np.square(values))) - sigma**2) / (sigma**2 * math.sqrt(2 / values.size))


def noise_of(plan: SynthesisPlan, kind: str) -> np.ndarray:
    counts = np.arange(CELLS)
    paid = PaidTable(plan, Counts(counts), SecretStream())
    noisy = paid.single("c") if kind == "single" else paid.joint(("c",), {"c": APART})
    return noisy - counts


@pytest.mark.parametrize("kind", ["single", "joint"])
def test_measurements_have_the_noise_of_the_plan(kind):
    assert deviation(noise_of(PLAN, kind), getattr(PLAN, f"{kind}_sigma")) < Z


@pytest.mark.parametrize("kind", ["single", "joint"])
def test_less_noise_is_found_out(kind):
    name = f"{kind}_sigma"
    weaker = replace(PLAN, **{name: 0.7 * getattr(PLAN, name)})
    assert deviation(noise_of(weaker, kind), getattr(PLAN, name)) > Z


CHOICES = 3000
GAP = 60


def share_of_the_better(plan: SynthesisPlan) -> float:
    """How often the better of two candidates wins, whose scores are GAP apart."""
    two = {("c",): np.zeros(1), ("d",): np.zeros(1)}

    class Two(Counts):
        def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
            return np.array([GAP if clique == ("c",) else 0])

    one = {name: Buckets(np.zeros(1, dtype=np.int64), np.ones((1, 1)), name) for name in "cd"}
    many = replace(plan, picks=(CHOICES,))
    paid = PaidTable(many, Two(np.zeros(1)), SecretStream())
    wins = [paid.choose(two, one, 0.0) == ("c",) for _ in range(CHOICES)]
    return float(np.mean(wins))


def expected_share(scale: float) -> float:
    return 1 / (1 + math.exp(-GAP / scale))  # the exponential mechanism: odds e^(gap/scale)


def test_choices_have_the_chances_of_the_exponential_mechanism():
    share = expected_share(PLAN.choice_scale)
    error = math.sqrt(share * (1 - share) / CHOICES)
    assert abs(share_of_the_better(PLAN) - share) < Z * error


@pytest.mark.keeps_out("A synthesizer that chooses what to measure without noise")
def test_a_choice_with_next_to_no_noise_is_found_out():
    share = expected_share(PLAN.choice_scale)
    error = math.sqrt(share * (1 - share) / CHOICES)
    assert abs(share_of_the_better(replace(PLAN, choice_scale=0.01)) - share) > Z * error
