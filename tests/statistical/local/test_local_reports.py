"""Reports have the ε they claim, estimators are unbiased, intervals cover.

False alarms: every check here fails by chance with probability below 1e-6, as stated beside it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.local import (
    ClassMoments,
    GaussianVector,
    LabelledDirection,
    LaplaceVector,
    RawMoments,
    class_means,
    frequencies,
    mean,
    second_moment,
    shrink,
)
from sfumato.mechanisms import KaryResponse, TwoCoinResponse
from sfumato.randomness import SecretStream

FAR = 5.5  # standard errors: a normal is beyond with probability 4e-8


def axis(dimension, sign=1.0):
    vector = np.zeros(dimension)
    vector[0] = sign
    return vector


# The two-sided test of ε: an event whose probabilities on two inputs are in the ratio e^ε. With n reports on
# each side the log-ratio has standard error √((1−p)/(np) + (1−q)/(nq)); 20% of ε is over twice FAR of them.

EPSILON = 1.5
PEOPLE = 60_000


def labelled_cap(epsilon, label, sign, people, stream):
    randomiser = LabelledDirection(classes=3, dimension=6, epsilon=epsilon)
    labels, points = randomiser.release(np.full(people, label), np.tile(axis(6, sign), (people, 1)), stream)
    claimed = LabelledDirection(classes=3, dimension=6, epsilon=EPSILON)
    return (labels == 0) & (points[:, 0] >= claimed.threshold)


def direction_cap(epsilon, label, sign, people, stream):
    randomiser, claimed = (LabelledDirection(classes=1, dimension=6, epsilon=one) for one in (epsilon, EPSILON))
    _, points = randomiser.release(
        np.zeros(people, dtype=np.int64), np.tile(axis(6, sign), (people, 1)), stream
    )
    return points[:, 0] >= claimed.threshold


def kary(epsilon, label, sign, people, stream):
    return KaryResponse(classes=5, epsilon=epsilon).release(np.full(people, label), stream) == 0


def laplace(epsilon, label, sign, people, stream):
    values = np.full((people, 1), float(label == 0))
    return LaplaceVector(dimension=1, epsilon=epsilon).release(values, stream)[:, 0] >= 1.0


@pytest.mark.parametrize("event", [labelled_cap, direction_cap, kary, laplace], ids=lambda f: f.__name__)
def test_the_worst_ratio_is_epsilon_and_a_fifth_more_is_seen(event):
    def log_ratio(epsilon, seed):
        one = event(epsilon, 0, 1.0, PEOPLE, SecretStream(test_seed=seed)).mean()
        other = event(epsilon, 1, -1.0, PEOPLE, SecretStream(test_seed=seed + 1)).mean()
        error = math.sqrt((1 - one) / one / PEOPLE + (1 - other) / other / PEOPLE)
        return math.log(one / other), error

    found, error = log_ratio(EPSILON, 10)
    assert abs(found - EPSILON) < FAR * error
    sabotaged, error = log_ratio(1.2 * EPSILON, 20)
    assert sabotaged - EPSILON > FAR * error


def test_gaussian_noise_has_its_sigma_and_a_fifth_less_is_seen():
    # Sample variance of n normals: relative standard error √(2/n).
    noise = GaussianVector.calibrated(dimension=50, epsilon=4.0, delta=1e-5)
    weaker = GaussianVector.calibrated(dimension=50, epsilon=4.8, delta=1e-5)
    rows = np.tile(axis(50), (1000, 1))
    far = FAR * math.sqrt(2 / rows.size)
    for used, holds in ((noise, True), (weaker, False)):
        left = used.release(rows, SecretStream(test_seed=3)) - rows
        assert bool(abs(left.var() / noise.sigma**2 - 1) < far) is holds


def test_two_coins_and_shares_are_unbiased_over_200_repeats():
    truth = np.repeat([0, 1, 2], [500, 300, 200])
    kary_response, coins = KaryResponse(classes=3, epsilon=1.0), TwoCoinResponse()
    found = {"kary": [], "coins": []}
    for repeat in range(200):
        stream = SecretStream(test_seed=1000 + repeat)
        found["kary"].append(frequencies(kary_response, kary_response.release(truth, stream)).values)
        found["coins"].append([coins.estimate(coins.release(truth == 0, stream)).value])
    for name, repeats in found.items():
        values = np.array(repeats)
        wanted = np.array([0.5, 0.3, 0.2])[: values.shape[1]]
        errors = values.std(axis=0, ddof=1) / math.sqrt(200)
        assert (np.abs(values.mean(axis=0) - wanted) < FAR * errors).all(), name


def crowd(people, seed):
    """Two classes of directions with known moments."""
    stream = SecretStream(test_seed=seed)
    labels = (stream.uniform(people) < 0.4).astype(np.int64)
    rows = stream.normal(people * 4).reshape(people, 4) * 0.4 + np.where(
        labels[:, None] == 1, axis(4), -axis(4)
    )
    return labels, rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_class_moments_are_unbiased_over_200_repeats_and_their_intervals_cover():
    labels, rows = crowd(2000, seed=1)
    truth = np.stack([rows[labels == label].mean(axis=0) for label in (0, 1)])
    seconds = np.stack(
        [rows[labels == label].T @ rows[labels == label] / (labels == label).sum() for label in (0, 1)]
    )
    randomiser = LabelledDirection(classes=2, dimension=4, epsilon=3.0)
    shares = np.bincount(labels) / len(labels)
    means, second, covered = [], [], []
    for repeat in range(200):
        reports = randomiser.release(labels, rows, SecretStream(test_seed=repeat))
        raw = RawMoments.of(randomiser, *reports, expected_shares=shares)
        means.append(raw.means.values * raw.shares.values[:, None] / shares[:, None])
        second.append(raw.second * (raw.shares.values / shares)[:, None, None])
        low, high = raw.means.interval(0.95)
        covered.append((low <= truth) & (truth <= high))
    for values, wanted in ((np.array(means), truth), (np.array(second), seconds)):
        errors = values.std(axis=0, ddof=1) / math.sqrt(200)
        assert (np.abs(values.mean(axis=0) - wanted) < FAR * errors).all()
    # 1600 intervals, correlated within a repeat by no more than all 8 moving together: n ≥ 200.
    assert np.mean(covered) > 0.95 - FAR * math.sqrt(0.95 * 0.05 / 200)


def test_means_under_a_noisy_label_channel_are_unbiased_and_covered():
    labels, rows = crowd(2000, seed=2)
    truth = np.stack([rows[labels == label].mean(axis=0) for label in (0, 1)])
    response = KaryResponse(classes=2, epsilon=2.0)
    noise = GaussianVector.calibrated(dimension=4, epsilon=6.0, delta=1e-5)
    found, covered = [], []
    for repeat in range(200):
        stream = SecretStream(test_seed=repeat)
        estimate = class_means(response.release(labels, stream), noise.release(rows, stream), response)
        found.append(estimate.values)
        low, high = estimate.interval(0.95)
        covered.append((low <= truth) & (truth <= high))
    errors = np.std(found, axis=0, ddof=1) / math.sqrt(200)
    # A ratio of unbiased sums has a bias of the order of 1/n, here far below a standard error of the mean.
    assert (np.abs(np.mean(found, axis=0) - truth) < FAR * errors).all()
    assert np.mean(covered) > 0.95 - FAR * math.sqrt(0.95 * 0.05 / 200)


def test_second_moments_lose_the_noise_and_nothing_else():
    _, rows = crowd(2000, seed=3)
    noise = GaussianVector.calibrated(dimension=4, epsilon=6.0, delta=1e-5)
    truth, found, naive = rows.T @ rows / len(rows), [], []
    for repeat in range(200):
        reports = noise.release(rows, SecretStream(test_seed=repeat))
        found.append(second_moment(reports, noise.sigma**2).values)
        naive.append(second_moment(reports, 0.0).values)
    errors = np.std(found, axis=0, ddof=1) / math.sqrt(200)
    assert (np.abs(np.mean(found, axis=0) - truth) < FAR * errors).all()
    assert (np.abs(np.mean(naive, axis=0) - truth) > FAR * errors).any()  # the test sees noise left in


@pytest.mark.parametrize("kind", ["shares", "mean"])
def test_intervals_cover_as_often_as_they_say(kind):
    truth = np.repeat([0, 1, 2], [500, 300, 200])
    response, noise = KaryResponse(classes=3, epsilon=1.0), LaplaceVector(dimension=1, epsilon=1.0)
    hits = 0
    for repeat in range(400):
        stream = SecretStream(test_seed=repeat)
        if kind == "shares":
            low, high = frequencies(response, response.release(truth, stream)).interval(0.9)
            hits += int(low[0] <= 0.5 <= high[0])
        else:
            low, high = mean(noise.release(truth[:, None] / 2, stream)).interval(0.9)
            hits += int(low[0] <= truth.mean() / 2 <= high[0])
    # Shares of a fixed crowd: intervals count the crowd's own spread too, and may cover a little more.
    least, most = stats.binom.ppf([5e-7, 1 - 5e-7], 400, 0.9)
    assert least <= hits <= (400 if kind == "shares" else most)


def test_with_much_noise_the_public_guess_comes_out():
    labels, rows = crowd(3000, seed=4)
    public = ClassMoments.of(*crowd(3000, seed=5)[::-1], 2)
    randomiser = LabelledDirection(classes=2, dimension=4, epsilon=0.05)
    learnt = shrink(
        RawMoments.of(randomiser, *randomiser.release(labels, rows, SecretStream(test_seed=1))), public
    )
    assert learnt.trust < 0.9
    exact = LabelledDirection(classes=2, dimension=4, epsilon=12.0)
    other = ClassMoments(shares=public.shares, means=public.means[::-1].copy(), covariances=public.covariances)
    learnt = shrink(RawMoments.of(exact, *exact.release(labels, rows, SecretStream(test_seed=1))), other)
    assert learnt.trust > 0.95  # a wrong guess is given up where the reports are clear
    truth = np.stack([rows[labels == label].mean(axis=0) for label in (0, 1)])
    assert np.abs(learnt.moments.means - truth).max() < 0.15


DRAWS = 60_000
FALSE_ALARM = 1e-6


class Tape(SecretStream):
    """Whole numbers chosen by the test in the place of noise; no draw in doubles may be asked for."""

    def __init__(self, draws):
        super().__init__()
        self.draws = draws

    def discrete_laplace(self, scale, size):
        return np.asarray(self.draws[:size], dtype=np.int64)

    def laplace(self, size):
        raise AssertionError("noise in doubles cannot reach every whole number with the right chance")


@pytest.mark.keeps_out("Local reports with Laplace noise in doubles, called pure ε")
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (0.0, 100.0), (-3.1, 7.7), (1e9, 1e9 + 1.0)])
def test_both_neighbours_can_give_every_report(bounds):
    """A report of one end is a report of the other end with noise moved by S steps at most: a ratio of e^ε."""
    low, high = bounds
    vector = LaplaceVector(dimension=1, epsilon=1.0, lower=low, upper=high)
    noise = np.arange(-5, 6) * (vector.span // 3) + 1
    one = vector.release(np.full((11, 1), low), Tape(noise))
    other = vector.release(np.full((11, 1), high), Tape(noise - vector.span))
    assert (one == other).all()
    # Worst log ratio over all reports: max_z (|z − S| − |z|)/scale = S/scale.
    assert vector.span / vector.scale_in_steps <= 1.0
    assert vector.span / vector.scale_in_steps > 1.0 - 1e-12
    assert vector.span * vector.grid <= (high - low) * (1 + 2.0**-19)


def test_no_value_within_the_bounds_moves_further_than_the_span():
    vector = LaplaceVector(dimension=1, epsilon=1.0, lower=-3.1, upper=7.7)
    inside = np.concatenate([np.linspace(-3.1, 7.7, 10_001), np.nextafter([-3.1, 7.7], [0, 0])])
    steps = vector.release(inside[:, None], Tape(np.zeros(inside.size)))[:, 0] / vector.grid
    assert steps.max() - steps.min() == vector.span


def test_reports_far_in_the_tail_are_as_likely_as_they_should_be():
    """Of |noise| / scale, exponential: counts beyond 1, 2, …, 8 scales, each within its binomial range."""
    vector = LaplaceVector(dimension=1, epsilon=2.0)
    noise = vector.release(np.full((DRAWS, 1), 0.5), SecretStream())[:, 0] - 0.5
    for far in range(1, 9):
        least, most = stats.binom.ppf(
            [FALSE_ALARM / 16, 1 - FALSE_ALARM / 16], DRAWS, math.exp(-far)
        )  # two sides, eight counts
        assert least <= np.count_nonzero(np.abs(noise) > far * vector.scale) <= most
