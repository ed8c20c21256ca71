"""How exposed the people of a table are, and what k-anonymity leaves to an attacker."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sfumato.errors import InvalidInput
from sfumato.query.risk import k_anonymous_classes, measure_risk


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
