"""The sparse graph of masks: regular, symmetric, connected whoever is lost; and as sparse as is proved."""

import math

import pytest
from scipy import stats

from sfumato.holders import Parties
from sfumato.holders.parties import degree, partners, ring
from sfumato.randomness import public_generator

CASES = [(30, 3, 3), (100, 10, 10), (1000, 50, 50), (1000, 100, 100)]


@pytest.mark.parametrize(("holders", "dropped", "colluding"), CASES)
def test_the_declared_failures_are_as_rare_as_is_said(holders, dropped, colluding):
    """The two chances again, by sums of the hypergeometric law."""
    found = Parties(holders=holders, dropped=dropped, colluding=colluding).degree
    half = found.partners // 2
    assert found.partners < holders / 2
    few = sum(
        stats.hypergeom.pmf(colluders, holders, colluding, half)
        for colluders in range(half + 1)
        if half - colluders <= dropped / 2
    )
    many = sum(
        stats.hypergeom.pmf(colluders, holders - 1, colluding, found.partners)
        for colluders in range(found.share_threshold, found.partners + 1)
    )
    assert holders * (few + many) <= 2.0**-80 * (1 + 1e-6)
    assert found.share_threshold <= found.partners + 1 - dropped


def test_one_partner_less_on_either_side_is_not_enough():
    found = degree(1000, dropped=100, colluding=100, threshold=551)
    half = found.partners // 2 - 1
    few = math.exp(stats.hypergeom.logsf(half - 51, 1000, 100, half))
    many = math.exp(stats.hypergeom.logsf(2 * half - 100, 999, 100, 2 * half))
    assert 1000 * few > 2.0**-81 or 1000 * many > 2.0**-81


@pytest.mark.parametrize(("holders", "count"), [(3, 2), (10, 9), (30, 10), (31, 10)])
def test_partners_are_mutual(holders, count):
    places = range(7, holders + 7)  # a cohort need not begin with the first client
    near = {place: partners("seed", place, places=places, count=count) for place in places}
    assert all(len(found) == count and place not in found for place, found in near.items())
    assert all(place in near[other] for place, found in near.items() for other in found)


def test_another_round_has_another_order():
    places = tuple(range(1, 51))
    assert ring("1", places) != ring("2", places)
    assert sorted(ring("1", places)) == list(places)


def _components(near, left):
    left = set(left)
    count = 0
    while left:
        count += 1
        edge = [left.pop()]
        while edge:
            new = near[edge.pop()] & left
            left -= new
            edge.extend(new)
    return count


def test_honest_survivors_stay_connected_whoever_is_called_lost():
    """The coordinator calls those lost who stand around a victim; fewer partners would leave it alone."""
    parties = Parties(holders=60, dropped=6, colluding=6)
    generator = public_generator(1)
    for count, breaks in ((parties.degree.partners, False), (4, True)):
        broken = 0
        for trial in range(30):
            near = {p: partners(f"{trial}", p, places=range(1, 61), count=count) for p in range(1, 61)}
            colluding = set(generator.choice(range(1, 61), 6, replace=False).tolist())
            order = ring(f"{trial}", tuple(range(1, 61)))
            worst = 0
            for start in range(60):
                run = [order[(start + step) % 60] for step in range(-count, count + 1) if step]
                honest = [place for place in sorted(run, key=order.index) if place not in colluding]
                lost = set(honest[:3] + honest[-3:]) if count > 4 else set(honest[:6])
                left = set(range(1, 61)) - colluding - lost
                worst = max(worst, _components(near, left))
            broken += worst > 1
        assert bool(broken) == breaks
