"""Cells become values: in their bins, and no longer than they need to be."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.randomness import SecretStream
from sfumato.synthesis import CellColumn
from sfumato.synthesis.cells import to_table


@pytest.mark.parametrize(
    ("lower", "upper", "decimals"),
    [(0, 200_000, 0), (0, 100, 2), (0, 1, 4), (-3, 3, 4), (36.5, 42.1, 4), (2**-40, 2**-20, 10)],
)
def test_real_numbers_are_as_long_as_their_bins_make_sense_of(lower, upper, decimals):
    column = CellColumn(name="x", type="real", lower=lower, upper=upper, width=(upper - lower) / 64)
    cells = np.arange(64).repeat(50)
    found = to_table([column], {"x": cells}, SecretStream())["x"].to_numpy()
    assert all(round(value, decimals) == value for value in found.tolist())
    first = lower + cells * column.width
    assert ((first <= found) & (found < first + column.width * (1 + 1e-12))).all()
    assert len(np.unique(found)) > 1000  # hundred numbers or more in every bin


def test_numbers_that_no_grid_fits_are_drawn_all_the_same():
    wide = CellColumn(name="x", type="real", lower=-(2.0**52), upper=2.0**52, width=2.0**53 / 64)
    found = to_table([wide], {"x": np.array([0, 63, 64])}, SecretStream())["x"].to_pylist()
    assert -(2.0**52) <= found[0] < -(2.0**51) < 2.0**51 < found[1] <= 2.0**52
    assert found[2] is None


def test_a_missing_value_stays_missing_and_changes_no_other():
    column = CellColumn(name="x", type="real", lower=0, upper=640, width=10)
    found = to_table([column], {"x": np.array([64, 3])}, SecretStream())["x"].to_pylist()
    assert found[0] is None
    assert round(found[1], 1) == found[1]
