"""Prices of votes, against what they must come to and against brute force."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import integrate, stats

from sfumato.accounting import GaussianEvent, compose, epsilon, repeat
from sfumato.errors import InvalidInput
from sfumato.pate import SmoothRelease, VotePlan, analyze, count_votes, moments_epsilon, moments_epsilon_of
from sfumato.pate.analysis import (
    cost_table,
    dependent_divergences,
    gaussian_cost,
    places_of,
    smooth_sensitivity,
)
from sfumato.randomness import SecretStream, public_generator

DELTA = 1e-5
ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 16.0])


def plan(mechanism, teachers=250, queries=100, **changes):
    settings = {
        "laplace": {"gamma": 0.1},
        "gnmax": {"sigma": 40.0},
        "confident": {"sigma": 40.0, "sigma_threshold": 150.0, "threshold": 200.0, "answers": queries},
    }[mechanism]
    return VotePlan(mechanism=mechanism, teachers=teachers, queries=queries, **{**settings, **changes})


def votes_of(agreement, teachers=250, queries=100, classes=10, seed=0):
    source = public_generator(seed)
    truth = source.integers(classes, size=queries)
    wrong = source.integers(classes, size=(teachers, queries))
    return np.where(source.random((teachers, queries)) < agreement, truth, wrong)


def test_the_figure_of_the_source_to_four_decimals():
    # γ = .1, 9,000 queries, δ = 1e-5: at l = 1, 9000·½·.2²·2 + ln 1e5 = 360 + 11.512925.
    assert moments_epsilon(gamma=0.1, queries=9000, delta=1e-5) == pytest.approx(360 + math.log(1e5), abs=5e-5)
    assert f"{moments_epsilon(gamma=0.1, queries=9000, delta=1e-5):.4f}" == "371.5129"


def test_confident_gnmax_of_2018_with_a_cap():
    capped = plan("confident", queries=640, answers=286)
    by_hand = compose(repeat(GaussianEvent(150.0), 640), repeat(GaussianEvent(40 / math.sqrt(2)), 286))
    assert capped.epsilon(DELTA) == pytest.approx(epsilon(by_hand, DELTA), rel=1e-3)
    assert round(capped.epsilon(DELTA), 2) == 2.54  # recomputed independently before


@pytest.mark.parametrize("mechanism", ["laplace", "gnmax", "confident"])
@pytest.mark.parametrize("agreement", [0.0, 0.3, 0.6, 0.95, 1.0])
def test_data_dependent_is_never_above_data_independent(mechanism, agreement):
    found = analyze(count_votes(votes_of(agreement), classes=10), plan(mechanism), delta=DELTA)
    assert 0 <= found.data_dependent_epsilon <= found.data_independent_epsilon
    assert found.data_dependent_epsilon_published <= found.data_independent_epsilon
    if agreement == 1.0 and mechanism != "confident":
        assert found.data_dependent_epsilon < 0.5 * found.data_independent_epsilon


def histograms(teachers, classes):
    return [
        counts
        for counts in product(range(teachers + 1), repeat=classes)
        if sum(counts) in (teachers - 1, teachers)
    ]


def neighbours(counts, teachers):
    """One teacher votes otherwise, or votes no more, or begins to."""
    classes = range(len(counts))
    for old, new in product([None, *classes], [None, *classes]):
        if old == new or (old is not None and counts[old] == 0) or (old is None and sum(counts) == teachers):
            continue
        moved = list(counts)
        if old is not None:
            moved[old] -= 1
        if new is not None:
            moved[new] += 1
        yield tuple(moved)


def chances(counts, settings):
    """P[class wins], by quadrature over the noise of that class."""
    if settings.gamma is not None:
        noise, step, reach = stats.laplace(scale=1 / settings.gamma), 1 / 64, 40 / settings.gamma
    else:
        noise, step, reach = stats.norm(scale=settings.sigma), settings.sigma / 64, 12 * settings.sigma
    points = np.arange(-reach, reach + step / 2, step)
    density = noise.pdf(points)
    found = []
    for own, count in enumerate(counts):
        others = [noise.cdf(points + count - other) for j, other in enumerate(counts) if j != own]
        found.append(float(integrate.simpson(density * np.prod(others, axis=0), dx=step)))
    return np.array(found) / sum(found)


def divergence(p, q, order):
    return math.log(np.sum(p**order * q ** (1 - order))) / (order - 1)


def with_silence(answer, counts, settings):
    """P[each class is released], and of no answer."""
    passed = stats.norm.cdf((max(counts) - settings.threshold) / settings.sigma_threshold)
    return np.append(answer * passed, 1 - passed)


SMALL = [
    VotePlan(mechanism="laplace", teachers=7, queries=1, classes=3, gamma=0.8),
    VotePlan(mechanism="laplace", teachers=7, queries=1, classes=3, gamma=2.0),
    VotePlan(mechanism="gnmax", teachers=7, queries=1, classes=3, sigma=0.8),
    VotePlan(mechanism="gnmax", teachers=7, queries=1, classes=3, sigma=2.0),
    VotePlan(
        mechanism="confident",
        teachers=7,
        queries=1,
        classes=3,
        sigma=1.0,
        sigma_threshold=1.5,
        threshold=5.0,
        answers=1,
    ),
]


@pytest.mark.parametrize("settings", SMALL, ids=lambda p: f"{p.mechanism}-{p.gamma or p.sigma}")
def test_the_data_dependent_bound_holds_by_brute_force(settings):
    """Every histogram of 6 or 7 votes among 3 classes, against every neighbour."""
    exact = {}

    def released(counts):
        if counts not in exact:
            answer = chances(counts, settings)
            exact[counts] = with_silence(answer, counts, settings) if settings.silent else answer
        return exact[counts]

    below_everywhere = 0
    for counts in histograms(7, 3):
        bound = dependent_divergences(np.array([counts]), settings, ORDERS)[0]
        for other in neighbours(counts, 7):
            true = [divergence(released(counts), released(other), order) for order in ORDERS]
            assert np.all(np.array(true) <= bound + 1e-7), (counts, other)
        tied = dependent_divergences(np.array([[3, 3, 0]]), settings, ORDERS)[0]
        below_everywhere += bool(np.any(bound < 0.9 * tied))
    if settings.sigma != 2.0:  # noise that wide leaves nothing sure among seven votes
        assert below_everywhere  # the bound is of use, not only true


@pytest.mark.parametrize("settings", [SMALL[1], SMALL[2], SMALL[4]], ids=lambda p: p.mechanism)
def test_smooth_sensitivity_by_brute_force(settings):
    """Distances between histograms by breadth-first search; the table must bound every local change."""
    table, beta = cost_table(settings, 4.0), 0.1
    start = [counts for counts in product(range(8), repeat=3) if sum(counts) <= 7]
    place = {counts: tuple(index[0] for index in places_of(np.array([counts]), settings)) for counts in start}
    cost = {counts: table[place[counts]] for counts in start}
    local = {
        counts: max((abs(cost[counts] - cost[other]) for other in neighbours(counts, 7)), default=0.0)
        for counts in start
    }
    smooth = {c: smooth_sensitivity(table, places_of(np.array([c]), settings), beta) for c in start}
    for counts in start:
        seen, edge, distance = {counts}, {counts}, 0
        while edge:
            assert smooth[counts] >= math.exp(-beta * distance) * max(local[c] for c in edge) - 1e-12
            edge = {other for c in edge for other in neighbours(c, 7)} - seen
            seen |= edge
            distance += 1
        for other in neighbours(counts, 7):  # smoothness itself
            assert smooth[other] <= math.exp(beta) * smooth[counts] + 1e-12


def test_the_cost_that_is_smoothed_is_no_less_than_the_dependent_one():
    for settings in SMALL:
        table = cost_table(settings, 4.0)
        for counts in histograms(7, 3):
            row = np.array([counts])
            exact = dependent_divergences(row, settings, np.array([4.0]))[0, 0]
            assert table[places_of(row, settings)][0] >= exact - 1e-12


@pytest.mark.parametrize(("order", "beta", "noise"), [(4.0, 0.02, 3.0), (20.0, 0.005, 20.0), (2.0, 0.1, 1.0)])
def test_what_showing_costs_is_the_worst_of_all_neighbours(order, beta, noise):
    """Against Rényi divergences of two Gaussians by quadrature, for every ratio of widths in the range."""
    points = np.linspace(-60 * noise, 60 * noise, 200_001)
    for ratio in np.exp(np.linspace(-beta, beta, 9)):
        one = stats.norm.logpdf(points, 0.0, noise)
        other = stats.norm.logpdf(points, min(1.0, ratio), noise * ratio)
        found = math.log(integrate.simpson(np.exp(order * one + (1 - order) * other), points)) / (order - 1)
        assert found <= gaussian_cost(order, beta, noise) + 1e-9
    assert gaussian_cost(order, 1.0, noise) == math.inf or order < 1 / (1 - math.exp(-2))


def test_the_published_figure_is_noised_and_includes_its_own_cost():
    settings = plan("gnmax")
    counts = count_votes(votes_of(0.95), classes=10)
    smooth = SmoothRelease.chosen_for(settings, DELTA)
    shown = {smooth.show(counts, settings, SecretStream()) for _ in range(5)}
    assert len(shown) == 5

    class Quiet(SecretStream):
        def normal(self, size):
            return np.zeros(size)

    table = cost_table(settings, smooth.order)
    exact = float(table[places_of(counts, settings)].sum())
    assert smooth.show(counts, settings, Quiet()) == pytest.approx(exact + smooth.own_cost)
    assert smooth.own_cost > 0


def test_the_moments_of_the_source_given_votes():
    """One query of 100 unanimous teachers, γ = .1, by hand: q = 9·(2+10)/(4·e^10)."""
    q = 9 * 12 / (4 * math.exp(10))
    moments = []
    for l in range(1, 9):  # noqa: E741
        given = math.log((1 - q) * ((1 - q) / (1 - math.exp(0.2) * q)) ** l + q * math.exp(0.2 * l))
        moments.append((500 * given + math.log(1e5)) / l)
    counts = np.zeros((500, 10), int)
    counts[:, 3] = 100
    assert moments_epsilon_of(counts, gamma=0.1, delta=1e-5) == pytest.approx(min(moments))


def test_analysis_refuses_what_it_cannot_price():
    counts = count_votes(votes_of(0.9), classes=10)
    with pytest.raises(InvalidInput, match="delta"):
        analyze(counts, plan("gnmax"), delta=0)
    with pytest.raises(InvalidInput, match="queries"):
        analyze(counts, plan("gnmax", queries=5), delta=DELTA)
    with pytest.raises(InvalidInput, match="votes"):
        analyze(counts, plan("gnmax", teachers=5), delta=DELTA)
    interactive = VotePlan(
        mechanism="interactive", teachers=250, queries=100, sigma=40, sigma_threshold=99, threshold=1, answers=3
    )
    with pytest.raises(InvalidInput, match="mechanism"):
        analyze(counts, interactive, delta=DELTA)
    with pytest.raises(InvalidInput, match="beta"):
        SmoothRelease(order=10.0, beta=0.5, noise=1.0)
