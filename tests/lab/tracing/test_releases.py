"""What enters the noise when one message changes, what noise comes out, and what it is said to cost."""

import math

import numpy as np
import pytest

from sfumato.errors import InvalidInput
from sfumato.mechanisms import GridGaussian
from sfumato.randomness import SecretStream
from sfumato_lab.tracing import METHODS, Disease, Population, Release, TestKit, release_scores, scoring
from sfumato_lab.tracing.denoising import denoise

NOBODY = np.zeros(0, dtype=np.int64)
NOISED = [name for name, method in METHODS.items() if method.sensitivity is not None]


def _inputs(method, monkeypatch, results, disease, overlap=0.0, *, negatives=True):
    """What is handed to the noise over 20 days, in units of Δ, with every release frozen to the same tape.

    Person 0 meets person 1 once, on day 3, and others meet daily; person 1's tests are `results`. The others'
    own messages are the same in both worlds, as person 1 reaches them only through frozen releases. Without
    `negatives`, person 1 is tested on positive days alone.
    """
    tape, seen = SecretStream(test_seed=7), []

    def replay(self, sums, sampler):
        if sums.size > 1:
            seen.append(sums.reshape(-1) * (self.grid / self.clip_norm))
        return (self.sigma * sampler.normal(sums.size)).reshape(sums.shape).astype(np.float32)

    monkeypatch.setattr(GridGaussian, "release", replay)
    population = Population(8, disease, TestKit())
    release = Release(method=method, noise_multiplier=2.0, rounds=3, overlap=overlap)
    for day in range(20):
        one, other = [2, 3, 4, 5], [3, 4, 5, 6]
        if day == 3:
            one, other = [*one, 0], [*other, 1]
        population.begin_day((np.array(one), np.array(other)))
        release_scores(population, release, tape)
        population.record_tests(np.array([3]), np.array([day == 5]))
        if results[day] or negatives:
            population.record_tests(np.array([1]), results[day : day + 1])
    return seen


@pytest.mark.parametrize(("method", "overlap"), [*((name, 0.0) for name in NOISED), ("dpfn", 0.5)])
@pytest.mark.parametrize("pattern", ["one positive", "all positive", "late positive", "flickering"])
def test_one_message_moves_the_releases_of_its_life_by_no_more_than_declared(
    method, overlap, pattern, monkeypatch
):
    disease = Disease(message_bound=0.7)
    days = np.arange(20)
    results = {
        "one positive": days == 2,
        "all positive": days >= 0,
        "late positive": days >= 6,
        "flickering": days % 2 == 0,
    }[pattern]
    with monkeypatch.context() as patch:
        here = _inputs(method, patch, results, disease, overlap)
    with monkeypatch.context() as patch:
        there = _inputs(method, patch, np.zeros(20, dtype=bool), disease, overlap)
    # Person 0 also speaks to person 1; what person 1 receives is another message's business.
    rounds = 3 if method == "dpfn-daily" else 1
    moved = [_received_by_0(a, method) - _received_by_0(b, method) for a, b in zip(here, there, strict=True)]
    slack = 1 + 2.0**-9  # both ends rounded to a grid of 2⁻¹⁰
    assert max(float(np.linalg.norm(move)) for move in moved) <= slack
    life = math.sqrt(sum(float(move @ move) for move in moved) / rounds)
    assert life <= Release(method=method, overlap=overlap).life_norm(disease) * slack
    if pattern != "late positive":  # after many negative tests, a positive one says nothing of day 3
        assert life > 0.01  # the comparison is not of nothing with nothing


def _received_by_0(values, method):
    if method == "per-message":
        # Messages of one day, sorted by receiver: person 0 has the first one, if any, when there are ten.
        return values[:1] if values.size == 10 else np.zeros(1)
    return values.reshape(-1, 8)[:, 0]


def test_published_daily_release_is_caught_if_priced_as_one(monkeypatch):
    # The same replay, held against the price of a single release, must fail for a message noised every day.
    disease, results = Disease(), np.arange(20) >= 0
    with monkeypatch.context() as patch:
        here = _inputs("dpfn-daily", patch, results, disease)
    with monkeypatch.context() as patch:
        there = _inputs("dpfn-daily", patch, ~results, disease)
    moved = [
        _received_by_0(a, "dpfn-daily") - _received_by_0(b, "dpfn-daily")
        for a, b in zip(here, there, strict=True)
    ]
    assert math.sqrt(sum(float(move @ move) for move in moved) / 3) > 2


@pytest.mark.parametrize("method", NOISED)
def test_calibration_meets_the_budget_over_a_day_or_over_a_life(method):
    disease = Disease()
    for span in ("release", "lifetime"):
        release = Release.calibrated(method=method, epsilon=1, delta=1e-3, disease=disease, span=span)
        price = release.price(disease, contacts_per_day=10).epsilons(1e-3)
        assert 0.999 <= price[span] <= 1
        assert price["release"] <= price["lifetime"] < price["person"]


def _life_of_a_message(monkeypatch, first, second, *, overlap):
    """How far the releases of two lives are apart: person 1 tests positive on either of two days."""
    lives = []
    for day in (first, second):
        with monkeypatch.context() as patch:
            lives.append(_inputs("dpfn", patch, np.arange(20) == day, Disease(), overlap, negatives=False))
    moved = [_received_by_0(a, "dpfn") - _received_by_0(b, "dpfn") for a, b in zip(*lives, strict=True)]
    return math.sqrt(sum(float(move @ move) for move in moved))


@pytest.mark.parametrize(("first", "second"), [(3, 8), (4, 15), (3, 99)])
def test_a_whole_life_told_over_it_costs_one_release(first, second, monkeypatch):
    assert _life_of_a_message(monkeypatch, first, second, overlap=0.5) == pytest.approx(1, abs=2.0**-8)


def test_a_life_told_at_once_is_caught_if_priced_as_one_release(monkeypatch):
    assert _life_of_a_message(monkeypatch, 3, 8, overlap=0.0) == pytest.approx(math.sqrt(2), abs=2.0**-8)


def test_the_price_of_a_person_grows_with_their_contacts():
    release = Release.calibrated(method="dpfn", epsilon=1, delta=1e-3, disease=Disease())
    prices = [release.price(Disease(), contacts_per_day=n).epsilons(1e-3)["person"] for n in (1, 10, 900)]
    assert prices == sorted(prices)


def test_every_method_has_a_price_and_a_score():
    assert scoring._SCORES.keys() == METHODS.keys()


@pytest.mark.parametrize("method", ["random", "none"])
def test_what_reads_no_message_costs_nothing(method):
    price = Release(method=method).price(Disease(), contacts_per_day=10)
    assert price.epsilons(1e-3) == {"release": 0, "lifetime": 0, "person": 0}


def test_an_unprotected_release_has_no_finite_price():
    price = Release(method="traditional").price(Disease(), contacts_per_day=10)
    assert price.epsilons(1e-3)["release"] == math.inf


def test_unknown_methods_and_spans_are_refused_with_the_list():
    with pytest.raises(InvalidInput, match="dpfn-daily"):
        Release(method="dpnf")
    with pytest.raises(InvalidInput, match="lifetime"):
        Release.calibrated(method="dpfn", epsilon=1, delta=1e-3, disease=Disease(), span="year")


def test_traditional_counts_meetings_with_people_who_tested_positive():
    population = Population(4, Disease(), TestKit())
    for _ in range(3):
        population.begin_day((np.array([0, 0, 1]), np.array([1, 2, 3])))
        release_scores(population, Release(method="traditional"), SecretStream(test_seed=1))
    population.record_tests(np.array([1, 2]), np.array([True, False]))
    population.begin_day((NOBODY, NOBODY))
    scores = release_scores(population, Release(method="traditional"), SecretStream(test_seed=1))
    assert scores.tolist() == [3, 0, 0, 3]


def test_denoising_is_monotone_positive_and_leaves_the_lonely_at_zero():
    noisy = np.linspace(-8, 40, 500)
    contacts = np.full(500, 9)
    clean = denoise(noisy, 1.0, contacts, slab=3.0)
    assert (np.diff(clean) >= -1e-9).all()
    assert (clean >= 0).all()
    # Far above the noise, nothing but the slab's slope σ²/slab is taken off; the centre is cut at 35.
    assert clean[-1] == pytest.approx(35, rel=0.01)
    assert denoise(noisy, 1.0, np.zeros(500, dtype=np.int64), slab=3.0).max() == 0
    assert denoise(noisy, 0.0, contacts, slab=3.0) is noisy


def test_denoising_gives_the_posterior_mean():
    # x is 0 with chance 0.8, else exponential with mean 1.5; noise 0.7: the posterior mean by integration.
    x = np.linspace(0, 40, 400_001)
    for seen in (-1.0, 0.3, 2.0, 6.0):
        likelihood = np.exp(-((seen - x) ** 2) / (2 * 0.49))
        slab = 0.2 * np.exp(-x / 1.5) / 1.5 * likelihood
        step = x[1] - x[0]
        wanted = float(np.trapezoid(x * slab) * step / (np.trapezoid(slab) * step + 0.8 * likelihood[0]))
        # The chance of 0.2 is what a mean of 0.3 says of a slab of 1.5.
        many = np.concatenate([[seen], np.full(10_000, 0.3)])
        many[1] += 0.3 - seen
        assert denoise(many, 0.7, np.full(10_001, 10), slab=1.5)[0] == pytest.approx(wanted, rel=1e-6)
