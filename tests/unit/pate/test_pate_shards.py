"""One record, one teacher: by its own id and the key alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidInput
from sfumato.pate import assign, capacity_for, draw_key, shard_table
from sfumato.randomness import SecretStream

KEY = bytes(range(32))
IDS = st.lists(st.text(max_size=8), min_size=1, max_size=40, unique=True)


@settings(max_examples=50, deadline=None)
@given(ids=IDS, teachers=st.integers(1, 9), gone=st.integers(0, 39), order=st.randoms(use_true_random=False))
def test_no_record_moves_another(ids, teachers, gone, order):
    before = dict(zip(ids, assign(ids, teachers=teachers, key=KEY), strict=True))
    others = [unit for position, unit in enumerate(ids) if position != gone % len(ids)]
    order.shuffle(others)
    if others:
        after = dict(zip(others, assign(others, teachers=teachers, key=KEY), strict=True))
        assert all(before[unit] == after[unit] for unit in others)


@settings(max_examples=50, deadline=None)
@given(owner=st.lists(st.integers(0, 4), min_size=1, max_size=60), capacity=st.integers(1, 70))
def test_shards_are_disjoint_and_hold_their_own_rows(owner, capacity):
    owner = np.array(owner)
    table = shard_table(owner, teachers=5, capacity=capacity)
    rows = table[table >= 0]
    assert len(set(rows.tolist())) == len(rows)
    for teacher in range(5):
        own = table[teacher][table[teacher] >= 0]
        assert (owner[own] == teacher).all()
        assert len(own) == min(capacity, (owner == teacher).sum())


def test_rows_of_one_unit_have_one_teacher_and_keys_change_who():
    ids = ["ann", "bob", "ann", "ann"]
    owner = assign(ids, teachers=1000, key=KEY)
    assert owner[0] == owner[2] == owner[3] != owner[1]
    people = [f"person {number}" for number in range(200)]
    one, other = draw_key(SecretStream()), draw_key(SecretStream())
    assert (assign(people, teachers=50, key=one) != assign(people, teachers=50, key=other)).mean() > 0.8


def test_shards_are_about_equal_and_fit():
    # 50,000 ids on 250 teachers: Binomial with mean 200; beyond six deviations with chance < 250·1e-8.
    owner = assign(np.arange(50_000), teachers=250, key=KEY)
    sizes = np.bincount(owner, minlength=250)
    assert sizes.max() <= capacity_for(50_000, 250) <= 290
    assert sizes.min() > 110


@pytest.mark.parametrize("arguments", [{"teachers": 0, "key": KEY}, {"teachers": 3, "key": b"short"}])
def test_wrong_arguments(arguments):
    with pytest.raises(InvalidInput, match="expected"):
        assign(["a"], **arguments)
    with pytest.raises(InvalidInput, match="one unit id"):
        assign([["a", "b"]], teachers=2, key=KEY)
