"""Beliefs against listing every trace, and against the joint chain of a whole small graph."""

import itertools

import numpy as np
import pytest

from sfumato.randomness import public_generator
from sfumato_lab.tracing import Disease, Evidence, Population, Release, TestKit, believe, release_scores
from sfumato_lab.tracing.scoring import untested


def _traces(window):
    """All S^a E^b I^c R^d of window + 1 mornings."""
    mornings = window + 1
    for a, b, c in itertools.product(range(mornings + 1), repeat=3):
        if a + b + c <= mornings:
            yield [0] * a + [1] * b + [2] * c + [3] * (mornings - a - b - c)


def _weight(trace, exposure, if_infectious, if_other, start, disease):
    """The weight of one trace, written out from the definition."""
    g, h = disease.onset, disease.recovery
    weight = start[trace[0]]
    for day, (now, then) in enumerate(itertools.pairwise(trace)):
        stay = (1 - disease.background) * np.exp(-exposure[day])
        step = {
            (0, 0): stay, (0, 1): 1 - stay, (1, 1): 1 - g, (1, 2): g, (2, 2): 1 - h, (2, 3): h, (3, 3): 1.0,
        }  # fmt: skip
        weight *= step.get((now, then), 0.0)
    for day, state in enumerate(trace):
        weight *= if_infectious[day] if state == 2 else if_other[day]
    return weight


@pytest.mark.parametrize("window", [1, 3, 6])
def test_beliefs_equal_the_sum_over_all_traces(window):
    disease = Disease(window=window, onset=0.4, recovery=0.3, background=0.02)
    random = public_generator(window)
    people = 5
    exposure = random.exponential(0.3, (window, people))
    if_infectious, if_other = random.random((2, window + 1, people))
    start = random.dirichlet(np.ones(4), people).T
    evidence = Evidence(exposure=exposure, if_infectious=if_infectious, if_other=if_other, start=start)
    belief = believe(evidence, disease)
    for person in range(people):
        column = [values[:, person] for values in (exposure, if_infectious, if_other, start)]
        weights = {tuple(t): _weight(t, *column, disease) for t in _traces(window)}
        total = sum(weights.values())
        for morning in range(window + 1):
            wanted = sum(w for t, w in weights.items() if t[morning] == 2) / total
            assert belief.infectious[morning, person] == pytest.approx(wanted, abs=1e-12)
        for state in range(4):
            wanted = sum(w for t, w in weights.items() if t[-1] == state) / total
            assert belief.tomorrow[state, person] == pytest.approx(wanted, abs=1e-12)


def _joint(disease, meetings, tests, people, kit):
    """P(I tomorrow) of everyone by the Markov chain of all people together: exact, and exponential."""
    states = list(itertools.product(range(4), repeat=people))
    weight = np.array([np.prod([disease.start()[s] for s in state]) for state in states])
    g, h, p0, p1 = disease.onset, disease.recovery, disease.background, disease.transmission
    for day in range(disease.window + 1):
        for person, positive in tests.get(day, []):
            infectious, other = kit.likelihood(np.array([positive]))
            weight *= [infectious[0] if state[person] == 2 else other[0] for state in states]
        if day == disease.window:
            break
        following = np.zeros_like(weight)
        for w, state in zip(weight, states, strict=True):
            rows = []
            for person in range(people):
                ill = sum(state[b] == 2 for a, b in meetings.get(day, []) if a == person)
                ill += sum(state[a] == 2 for a, b in meetings.get(day, []) if b == person)
                stay = (1 - p0) * (1 - p1) ** ill
                rows.append(
                    [[stay, 1 - stay, 0, 0], [0, 1 - g, g, 0], [0, 0, 1 - h, h], [0, 0, 0, 1]][state[person]]
                )
            for index, then in enumerate(states):
                following[index] += w * np.prod([rows[p][then[p]] for p in range(people)])
        weight = following
    weight /= weight.sum()
    return [sum(w for w, state in zip(weight, states, strict=True) if state[p] == 2) for p in range(people)]


def test_score_is_exact_on_a_star_whose_arms_are_met_once():
    # Each neighbour is met on one day and tested no later than that day, so what it says does not depend on
    # the person in the middle and factorised neighbours is exact.
    disease = Disease(window=4, transmission=0.3, onset=0.6, recovery=0.2, background=0.05)
    kit = TestKit(false_positive_rate=0.05, false_negative_rate=0.1)
    meetings = {1: [(0, 1)], 2: [(0, 2)]}
    tests = {1: [(1, True)], 2: [(2, True), (0, False)], 4: [(0, True)]}
    population = Population(3, disease, kit)
    release = Release(method="dpfn-daily", rounds=5)
    for day in range(4):
        pairs = np.array(meetings.get(day, [])).reshape(-1, 2).T.astype(np.int64)
        population.begin_day((pairs[0], pairs[1]))
        # Tests of morning `day` were recorded on the evening before; the last morning's come after the loop.
        for person, positive in tests.get(day + 1, []):
            population.record_tests(np.array([person]), np.array([positive]))
    for _ in range(3):  # beliefs settle
        scores = release_scores(population, release, None)
    assert scores[0] == pytest.approx(_joint(disease, meetings, tests, 3, kit)[0], abs=1e-6)


def test_score_rises_with_exposure_and_never_leaves_the_unit_interval():
    disease = Disease()
    exposure = np.zeros((14, 50))
    exposure[10] = np.linspace(0, 5, 50)
    score = believe(untested(exposure, disease), disease).score
    assert (np.diff(score) > 0).all()
    assert (score >= 0).all()
    assert (score <= 1).all()


def test_a_positive_test_raises_and_a_negative_one_lowers_the_score():
    population = Population(3, Disease(), TestKit())
    nobody = np.zeros(0, dtype=np.int64)
    population.begin_day((nobody, nobody))
    population.record_tests(np.array([0, 1]), np.array([True, False]))
    positive, negative, untold = release_scores(population, Release(method="dpfn-daily"), None)
    assert positive > untold > negative
