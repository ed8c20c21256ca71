"""The attack must find a model that gives its canaries away, and nothing where there is nothing."""

from __future__ import annotations

import numpy as np

from sfumato.audit import one_run
from sfumato.randomness import SecretStream
from sfumato.synthesis import CellColumn, SyntheticModel, WithCanaries, draw_canaries, linked, membership_scores

CANARIES = 200
COLUMNS = [CellColumn(name=name, type="integer", values=tuple(range(60))) for name in "ab"]


class Counts:
    rows = 2

    def prepare(self) -> None:
        pass

    def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
        return np.full([61] * len(clique), 1)


def test_canaries_that_are_in_add_the_rows_of_one_person_each():
    sampler = SecretStream(test_seed=1)
    included = one_run.toss(CANARIES, sampler)
    table = WithCanaries(Counts(), draw_canaries(COLUMNS, CANARIES, sampler), included)
    for clique in (("a",), ("a", "b")):
        added = table.marginal(clique) - Counts().marginal(clique)
        assert added.sum() == 2 * included.sum()
        assert added[..., -1].sum() == 0  # none of them misses a value


def attacked(noise: float) -> tuple[SyntheticModel, dict[str, np.ndarray], np.ndarray]:
    """A model of noisy pairs, the canaries, and who of them was in."""
    sampler = SecretStream(test_seed=2)
    included = one_run.toss(CANARIES, sampler)
    canaries = draw_canaries(COLUMNS, CANARIES, sampler)
    counts = WithCanaries(Counts(), canaries, included).marginal(("a", "b"))
    noisy = np.maximum(counts + noise * sampler.normal(counts.size).reshape(counts.shape), 1e-6)
    shares = {column.name: np.eye(61) for column in COLUMNS}
    tables = {("a", "b"): noisy / noisy.sum()}
    return SyntheticModel.of(COLUMNS, shares, tables, float(noisy.sum())), canaries, included


def bound(noise: float) -> float:
    """What the attack proves of a model of noisy pairs."""
    model, canaries, included = attacked(noise)
    guesses = one_run.Guesses.of_scores(
        membership_scores(model, canaries), included, guesses=one_run.planned_guesses(CANARIES)
    )
    return one_run.epsilon_bound(guesses, delta=1e-6, alpha=0.05)


def test_pairs_without_noise_give_everybody_away():
    assert bound(0.0) > 2


def test_pairs_with_much_noise_give_nobody_away():
    assert bound(1000.0) < 1


def test_without_noise_a_secret_is_read_off_the_model_and_with_much_noise_it_is_not():
    """Of 60 values one is right by chance; 30 of 100 would be so with a chance below 1e-6."""
    for noise, told in ((0.0, True), (1000.0, False)):
        model, canaries, included = attacked(noise)
        right = linked(model, canaries, "b")
        assert (right[included].mean() > 0.3) == told
        assert right[~included].mean() < 0.3
