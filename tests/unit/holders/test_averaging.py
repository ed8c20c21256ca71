"""Federated averaging with the privacy of clients."""

import numpy as np
import pytest
import torch

from sfumato import accounting, datasets
from sfumato.errors import InvalidInput
from sfumato.holders import AveragingTerms, Parties, rehearsals, simulate_averaging
from sfumato.holders.rehearsals import averaging_study, clipped_update
from sfumato.holders.sums import new_keys, public_keys
from sfumato.learn import Recipe

TERMS = AveragingTerms(clients=8, rounds=6)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small = Recipe(extractors=("strokes",), drawn=100, directions=8, steps=1)
    monkeypatch.setattr(rehearsals, "recipe_for", lambda name: small)


@pytest.mark.parametrize("spoilt", [None, float("nan"), float("inf"), 1e30])
def test_updates_are_bounded_whatever_the_rows_hold(spoilt):
    head, inputs = torch.nn.Linear(5, 3), torch.randn(20, 5) * 100
    if spoilt is not None:
        inputs[3] = spoilt
    update = clipped_update(head, inputs, torch.arange(20) % 3, AveragingTerms(clients=8, clip_norm=0.5))
    assert np.isfinite(update).all()
    assert np.linalg.norm(update) <= 0.5
    assert clipped_update(head, inputs[:0], torch.arange(0), TERMS).tolist() == [0.0] * 18


@pytest.mark.keeps_out("Amplification claimed for clients whom the coordinator picks")
def test_cohorts_go_round_and_each_round_is_paid_for():
    """Six rounds of four of eight clients: each is in three, and three are the price; no amplification."""
    seen = [place for number in range(1, 7) for place in TERMS.cohort(number, 4)]
    assert np.bincount(seen)[1:].tolist() == [3] * 8
    assert TERMS.taken(4) == 3
    keys = public_keys(new_keys(8))
    common = {"name": "x", "parameters": 10, "epsilon": 2.0, "delta": 1e-5}
    found = averaging_study(TERMS, Parties(holders=4), keys, **common)
    assert found.taken == 3
    spent = accounting.epsilon(accounting.repeat(found.rounds[0].event(), 3), 1e-5)
    assert 0.99 * 2 <= spent <= 2
    whole = averaging_study(TERMS, Parties(holders=8), keys, **common)
    assert whole.taken is None
    assert accounting.epsilon(accounting.repeat(whole.rounds[0].event(), 6), 1e-5) <= 2
    with pytest.raises(InvalidInput, match="at most 8"):
        averaging_study(TERMS, Parties(holders=9), keys, **common)


def test_many_clients_learn_together():
    rows = datasets.load("digits", "train").excerpt(400)
    done = simulate_averaging(
        rows,
        rows,
        parties=Parties(holders=5, dropped=1),
        terms=AveragingTerms(clients=10, rounds=4),
        epsilon=500.0,
    )
    assert done.test_accuracy > 0.3  # 8 directions only; by chance 0.1
    assert done.study.unit == "client"
    assert done.abandoned == 0
