"""Cells that hold next to nobody are merged by noisy counts alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sfumato.randomness import public_generator
from sfumato.synthesis import CellColumn
from sfumato.synthesis.cells import coarser, merge_table, merged

CITY = CellColumn(name="city", type="text", values=("a", "b", "c", "d"))
INCOME = CellColumn(name="income", type="real", lower=0, upper=8, width=1)


def test_rare_values_share_a_bucket_and_keep_their_proportions():
    bucket = merged(CITY, np.array([500.0, 20.0, 10.0, 400.0, 0.0]), sigma=10)
    assert bucket.place[1] == bucket.place[2] != bucket.place[0] != bucket.place[3]
    shares = bucket.shares[bucket.place[1]]
    np.testing.assert_allclose(shares[[1, 2]], [2 / 3, 1 / 3], atol=1e-6)


def test_missing_values_are_drawn_only_where_they_are_certain():
    few = merged(CITY, np.array([500.0, 500, 500, 500, 39]), sigma=10)
    assert (few.shares[:, CITY.missing] == 0).all()
    many = merged(CITY, np.array([500.0, 500, 500, 500, 41]), sigma=10)
    assert many.shares[many.place[CITY.missing], CITY.missing] == 1


def test_neighbouring_bins_are_joined():
    bucket = merged(INCOME, np.array([5.0, 5, 100, 100, 0, 0, 0, 5, 0]), sigma=10)
    assert bucket.place[:3].tolist() == [0, 0, 0]
    assert (np.diff(bucket.place[:8]) >= 0).all()


@given(
    noisy=st.lists(st.floats(-100, 1000), min_size=9, max_size=9),
    column=st.sampled_from([INCOME, CellColumn(name="c", type="text", values=tuple("abcdefgh"))]),
)
def test_every_cell_has_one_bucket_and_every_bucket_a_distribution(noisy, column):
    bucket = merged(column, np.array(noisy), sigma=10)
    assert sorted(set(bucket.place.tolist())) == list(range(bucket.size))
    np.testing.assert_allclose(bucket.shares.sum(axis=1), 1)
    outside = bucket.place[None, :] != np.arange(bucket.size)[:, None]
    assert (bucket.shares[outside] == 0).all()


@given(
    noisy=st.lists(st.floats(-100, 1000), min_size=9, max_size=9),
    column=st.sampled_from([INCOME, CellColumn(name="c", type="text", values=tuple("abcdefgh"))]),
    most=st.integers(2, 7),
)
def test_a_view_joins_whole_buckets_and_keeps_missing_numbers_apart(noisy, column, most):
    fine = merged(column, np.array(noisy), sigma=10)
    view = coarser(column, fine, fine.counts(np.array(noisy)), most)
    assert sorted(set(view.place.tolist())) == list(range(view.size))
    assert view.size <= most
    np.testing.assert_allclose(view.shares.sum(axis=1), 1)
    for bucket in range(fine.size):
        assert len(set(view.place[fine.place == bucket])) == 1
    if column is INCOME:
        assert (np.diff(view.place[:8]) >= 0).all()
        if fine.place[8] not in fine.place[:8]:
            assert view.place[8] not in view.place[:8]


def test_in_two_buckets_a_number_is_there_or_missing():
    even = np.array([100.0] * 9)
    fine = merged(INCOME, even, sigma=10)
    assert coarser(INCOME, fine, even, 2).place.tolist() == [0] * 8 + [1]
    assert coarser(INCOME, fine, even, 5).place.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_merging_a_table_adds_up_its_cells():
    counts = public_generator(1).integers(0, 9, (5, 9))
    first = merged(CITY, np.array([500.0, 2, 1, 400, 0]), sigma=10)
    second = merged(INCOME, np.array([50.0] * 9), sigma=10)
    found = merge_table(counts, [first, second])
    slow = np.zeros_like(found)
    for (i, j), count in np.ndenumerate(counts):
        slow[first.place[i], second.place[j]] += count
    assert (found == slow).all()
