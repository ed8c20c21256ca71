"""The attacks work where they should, and stop where privacy begins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sfumato.errors import InvalidInput
from sfumato.ledger import Budget, Ledger
from sfumato.query.attack import differencing, draw_differencing, reconstruction, village
from sfumato.query.risk import k_anonymous_classes, measure_risk
from sfumato.randomness import SecretStream


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


def test_risk_of_a_small_table() -> None:
    table = pd.DataFrame(
        {
            "person": range(6),
            "age": [30, 30, 30, 40, 40, 50],
            "zip": ["a", "a", "a", "b", "b", "c"],
            "illness": ["flu", "flu", "cold", "flu", "flu", "cold"],
        }
    )
    risk = measure_risk(table, sensitive="illness", k=2)
    assert risk.quasi_identifiers == ("age", "zip")
    assert (risk.rows, risk.unique, risk.k, risk.l) == (6, 1, 1, 1)
    assert risk.unique_share == pytest.approx(1 / 6)


def test_k_anonymous_classes_have_k_rows_and_linkage_still_learns() -> None:
    draw = np.arange(2000)
    table = pd.DataFrame({"age": draw * 7 % 83, "zip": draw * 13 % 101, "ill": draw * 29 % 10 == 0})
    for first in (0, 1):
        classes = k_anonymous_classes(table, ("age", "zip"), 5, first=first)
        assert np.bincount(classes).min() >= 5
    attack = measure_risk(table, quasi_identifiers=("age", "zip"), sensitive="ill", k=5).attack
    assert attack is not None
    assert attack.k >= 5
    # With one in ten ill, about 0.9⁵ of the classes of five or so have nobody ill: they give themselves away.
    assert 0.2 < attack.certain_one <= attack.certain_two
    assert attack.guess_private <= attack.guess_before + 1e-12


def test_risk_refuses_unknown_columns() -> None:
    with pytest.raises(InvalidInput, match="height"):
        measure_risk(pd.DataFrame({"age": [1]}), quasi_identifiers=("height",))
