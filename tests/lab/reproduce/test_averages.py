"""Averages without noise give one person away; private ones, and a budget, do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sfumato.ledger import Budget, Ledger
from sfumato.randomness import SecretStream
from sfumato_lab.reproduce.averages import differencing, draw_differencing, reconstruction, village


def test_two_averages_give_the_victim_away_and_two_private_ones_do_not(tmp_path: Path) -> None:
    people = village()
    assert (people.age.mean(), len(people)) == (49.5, 96)
    assert people.age[people.name == "Peter"].mean() == 49.0
    result = differencing(epsilon=1.0, tries=1000, sampler=SecretStream(test_seed=3))
    assert result.averages_only == pytest.approx(97, abs=1e-9)
    assert result.minimum_group == pytest.approx(97, abs=1e-9)
    # Either answer, times its number of people, errs by a deviation of 120·√2·√½ years or more: together 170.
    assert np.std(result.private) > 120
    assert result.buried(within=5) < 0.1
    draw_differencing(result, tmp_path / "differencing.png")
    assert (tmp_path / "differencing.png").stat().st_size > 5_000


def test_a_budget_stops_reconstruction(tmp_path: Path) -> None:
    sampler = SecretStream(test_seed=5)
    rich = Ledger.open(tmp_path / "rich.db", budget=Budget(epsilon=1e4))
    poor = Ledger.open(tmp_path / "poor.db", budget=Budget(epsilon=3))
    without = reconstruction(rich, people=24, queries=60, epsilon=4.0, sampler=sampler)
    stopped = reconstruction(poor, people=24, queries=60, epsilon=1.0, sampler=sampler)
    assert without.right >= 0.95
    assert (stopped.answered, stopped.refused) == (3, 57)
    assert stopped.right <= 0.8
