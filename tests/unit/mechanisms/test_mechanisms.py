"""Prices and calibration; reference values are published or in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from sfumato import accounting, mechanisms
from sfumato.accounting import Relation
from sfumato.errors import InvalidInput
from sfumato.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    GridGaussian,
    KaryResponse,
    Laplace,
    NoisyMax,
    TwoCoinResponse,
)
from sfumato.randomness import Bools, Integers, SecretStream


def pure_epsilon(mechanism: Laplace | DiscreteLaplace | NoisyMax | KaryResponse | TwoCoinResponse) -> float:
    return accounting.epsilon(mechanism.event(), 0.0, relation=Relation.REPLACE_ONE)


def test_exported_names() -> None:
    assert sorted(mechanisms.__all__) == mechanisms.__all__
    assert set(mechanisms.__all__) == {
        "Banded", "CorrelatedNoise", "DiscreteGaussian", "DiscreteLaplace", "Gaussian", "GaussianShares",
        "GridGaussian", "Independent", "KaryResponse", "LambdaCGD", "Laplace", "NoisyMax", "Proportion",
        "TwoCoinResponse",
        "add_to_grid", "correlated_noise", "from_grid", "to_grid", "vector_grid",
    }  # fmt: skip


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1 / 3, 1.0, 8.0])
def test_a_calibrated_laplace_costs_its_budget_and_no_more(epsilon: float) -> None:
    assert pure_epsilon(Laplace.calibrated(sensitivity=1, epsilon=epsilon)) == pytest.approx(epsilon, rel=1e-15)
    for mechanism in (
        Laplace.calibrated(sensitivity=0.3, epsilon=epsilon, dimension=7),
        DiscreteLaplace.calibrated(sensitivity=3, epsilon=epsilon),
    ):
        assert pure_epsilon(mechanism) == pytest.approx(epsilon, rel=1e-12)
        assert mechanism.scale >= mechanism.sensitivity / epsilon


# Analytic σ at Δ=1 and δ=1e-5 (Balle & Wang 2018, theorem 8).
@pytest.mark.parametrize(("epsilon", "sigma"), [(1.0, 3.730632), (3.0, 1.390593), (10.0, 0.499889)])
@pytest.mark.parametrize("sensitivity", [1.0, 0.3])
def test_a_calibrated_gaussian_is_the_analytic_one(epsilon: float, sigma: float, sensitivity: float) -> None:
    mechanism = Gaussian.calibrated(sensitivity=sensitivity, epsilon=epsilon, delta=1e-5)
    assert mechanism.sigma == pytest.approx(sigma * sensitivity, rel=1e-5)
    assert 0.9999 * epsilon < accounting.epsilon(mechanism.event(), 1e-5) <= epsilon * (1 + 1e-12)


def test_the_classical_gaussian_would_not_do() -> None:
    classical = Gaussian(sensitivity=1.0, sigma=math.sqrt(2 * math.log(1.25 / 1e-5)) / 10)
    assert accounting.delta(classical.event(), 10.0) > 2e-5


def test_rounding_is_paid_for() -> None:
    few, many = Laplace(sensitivity=1.0, scale=1.0), Laplace(sensitivity=1.0, scale=1.0, dimension=1000)
    assert few.sensitivity_on_grid == 1.0
    assert many.sensitivity_on_grid == 1.0 + 1000 * many.grid
    assert 1.0 < many.sensitivity_on_grid <= 1.0 + 2.0**-20
    assert 1.0 < Gaussian(sensitivity=1.0, sigma=1.0, dimension=1000).sensitivity_on_grid <= 1.0 + 2.0**-18


@pytest.mark.parametrize("changed", [1, 4])
def test_a_calibrated_discrete_gaussian_fits(changed: int) -> None:
    mechanism = DiscreteGaussian.calibrated(sensitivity=1, epsilon=1.0, delta=1e-5, changed=changed)
    assert 0.99 < accounting.epsilon(mechanism.event(), 1e-5) <= 1.0
    # At such σ it costs about what the continuous one does.
    assert mechanism.sigma == pytest.approx(3.730632 * math.sqrt(changed), rel=0.01)


def test_the_grid_gaussian_costs_its_noise_multiplier() -> None:
    mechanism = GridGaussian(clip_norm=2.0, dimension=10_000, noise_multiplier=1.1, float_error=1e-4)
    assert mechanism.event() == accounting.GaussianEvent(1.1)
    assert mechanism.grid == 2.0**-16  # 2·2⁻¹⁰/100 = 1.95e-5, and 2⁻¹⁶ = 1.53e-5
    assert mechanism.eta == pytest.approx(1e-4 + 2.0**-16 * 100 / 2)
    assert mechanism.sigma == pytest.approx(1.1 * 2.0 * (1 + mechanism.eta))


def test_the_grid_gaussian_keeps_shape_and_leaves_the_sums_alone() -> None:
    mechanism = GridGaussian(clip_norm=1.0, dimension=6, noise_multiplier=1.0)
    sums = np.arange(6).reshape(2, 3)
    released = mechanism.release(sums, SecretStream())
    assert released.dtype == np.float32
    assert released.shape == (2, 3)
    assert sums.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dimension", [1, 1000, (1 << 20) + 5])
def test_the_grid_gaussian_noises_every_sum(dimension: int) -> None:
    mechanism = GridGaussian(clip_norm=1.0, dimension=dimension, noise_multiplier=2.0)
    sums = np.arange(dimension)
    released = mechanism.release(sums, SecretStream(test_seed=1))
    mechanism.add_noise_in_place(sums, SecretStream(test_seed=1))
    np.testing.assert_array_equal(released, sums.astype(np.float32) * np.float32(mechanism.grid))
    # σ is over 4,000 grid steps: a draw rounds to zero once in 10,000, and 10 in a row do once in 1e40.
    unchanged = sums == np.arange(dimension)
    assert not any(block.all() for block in np.array_split(unchanged, -(-dimension // 10)) if block.size == 10)


def test_sums_that_are_not_contiguous_are_refused() -> None:
    mechanism = GridGaussian(clip_norm=1.0, dimension=2, noise_multiplier=1.0)
    for use in (mechanism.release, mechanism.add_noise_in_place):
        with pytest.raises(InvalidInput, match="contiguous"):
            use(np.arange(4)[::2], SecretStream())


def test_two_fair_coins_cost_ln_3() -> None:
    assert TwoCoinResponse().epsilon == pytest.approx(math.log(3), rel=1e-15)
    assert pure_epsilon(TwoCoinResponse()) == pytest.approx(math.log(3), rel=1e-12)


@pytest.mark.parametrize(("truth", "yes"), [(0.1, 0.9), (0.5, 0.01), (0.9, 0.5)])
def test_biased_coins_cost_their_worst_answer(truth: float, yes: float) -> None:
    table = np.array(
        [[1 - (1 - truth) * yes, (1 - truth) * yes], [(1 - truth) * (1 - yes), truth + (1 - truth) * yes]]
    )
    worst = np.abs(np.log(table[0] / table[1])).max()
    assert pure_epsilon(TwoCoinResponse(truth=truth, yes=yes)) == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-17, 0.01, 1.0, 8.0, 30.0, 800.0])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_kary_response_never_exceeds_its_epsilon(epsilon: float, classes: int) -> None:
    """Exact thanks to chances that are multiples of 2⁻⁵³, however rare the other answers."""
    mechanism = KaryResponse(classes=classes, epsilon=epsilon)
    channel = mechanism.channel()
    np.testing.assert_allclose(channel.sum(axis=1), 1.0)
    ratio = math.log(channel[0, 0] / channel[0, 1])
    assert ratio <= epsilon * (1 + 1e-14)
    assert pure_epsilon(mechanism) == pytest.approx(ratio, rel=1e-4, abs=1e-12)
    if epsilon <= 8:
        assert ratio == pytest.approx(epsilon, rel=1e-9, abs=1e-12)


def test_answers_keep_their_shape() -> None:
    answers = np.zeros((2, 3), dtype=np.uint8)
    assert KaryResponse(classes=3, epsilon=1.0).release(answers, SecretStream()).shape == (2, 3)
    assert TwoCoinResponse().release(answers, SecretStream()).shape == (2, 3)
    assert KaryResponse(classes=3, epsilon=50.0).release(answers, SecretStream()).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("noise", ["laplace", "exponential", "gumbel"])
def test_noisy_max_is_cheaper_when_counts_move_alike(noise: str) -> None:
    both = NoisyMax(noise=noise, candidates=10, sensitivity=1.0, scale=4.0)
    alike = NoisyMax(noise=noise, candidates=10, sensitivity=1.0, scale=4.0, monotone=True)
    single = NoisyMax(noise=noise, candidates=10, sensitivity=1.0, scale=4.0, changed=1)
    assert [pure_epsilon(mechanism) for mechanism in (both, alike, single)] == [0.5, 0.25, 0.25]
    calibrated = NoisyMax.calibrated(noise=noise, candidates=10, sensitivity=1.0, epsilon=0.5)
    assert calibrated == both


def test_gaussian_noisy_max_costs_what_papernot_says() -> None:
    # GNMax with σ is (α, α/σ²)-RDP: a teacher moves two votes (Papernot et al. 2018, proposition 8).
    mechanism = NoisyMax(noise="gaussian", candidates=10, sensitivity=1.0, scale=40.0, changed=2)
    order = 10.0
    divergence = np.asarray(accounting.rdp(mechanism.event(), np.array([order])))[0]
    assert divergence == pytest.approx(order / 40.0**2, rel=1e-5)
    fits = NoisyMax.calibrated(
        noise="gaussian", candidates=10, sensitivity=1.0, epsilon=1.0, delta=1e-5, changed=2
    )
    assert fits.scale == pytest.approx(3.730632 * math.sqrt(2), rel=1e-5)


def test_noisy_max_of_reals_pays_for_the_grid() -> None:
    mechanism = NoisyMax(noise="laplace", candidates=2, sensitivity=0.3, scale=0.6)
    assert 1.0 < pure_epsilon(mechanism) < 1.0 + 2.0**-19


def excess(shifts: tuple[int, ...], scale: float, epsilon: float) -> float:
    """δ(ε) of discrete Laplace noise on numbers that move by `shifts`, summed over every output."""
    outputs = np.arange(-25, 26)
    left, right = np.ones(1), np.ones(1)
    for shift in shifts:
        left = np.outer(left, stats.dlaplace.pmf(outputs, 1 / scale)).reshape(-1)
        right = np.outer(right, stats.dlaplace.pmf(outputs - shift, 1 / scale)).reshape(-1)
    return float(np.maximum(left - math.exp(epsilon) * right, 0).sum())


@pytest.mark.parametrize("shifts", [(2, 2), (1, 3), (1, 1, 2)])
def test_moving_one_number_by_all_of_the_sensitivity_is_the_worst(shifts: tuple[int, ...]) -> None:
    for epsilon in np.linspace(0, 4 / 1.5, 9):
        assert excess(shifts, 1.5, float(epsilon)) <= excess((4,), 1.5, float(epsilon)) + 1e-6
    assert excess(shifts, 1.5, 1.0) < 0.9 * excess((4,), 1.5, 1.0)


class Silent(SecretStream):
    """No noise."""

    def discrete_laplace(self, scale: float, size: int) -> Integers:
        return np.zeros(size, dtype=np.int64)

    def bernoulli(self, rate: float, size: int) -> Bools:
        return np.zeros(size, dtype=np.bool_)


def test_the_first_of_equals_wins() -> None:
    mechanism = NoisyMax(noise="laplace", candidates=3, sensitivity=1.0, scale=1.0)
    assert mechanism.release(np.array([2, 5, 5]), Silent()) == 1
    assert mechanism.release_each(np.array([[7, 5, 7], [0, 0, 0]]), Silent()).tolist() == [0, 0]
    assert mechanism.release_each(np.zeros((0, 3)), SecretStream()).shape == (0,)


WRONG: tuple[Callable[[], object], ...] = (
    lambda: Laplace(sensitivity=0.0, scale=1.0),
    lambda: Laplace(sensitivity=math.nan, scale=1.0),
    lambda: Laplace(sensitivity=1.0, scale=0.0),
    lambda: Laplace(sensitivity=1.0, scale=-1.0),
    lambda: Laplace(sensitivity=1.0, scale=math.inf),
    lambda: Laplace(sensitivity=1.0, scale=1e-5),
    lambda: Laplace(sensitivity=1.0, scale=1e30),
    lambda: Laplace(sensitivity=1e200, scale=1e200),
    lambda: Laplace(sensitivity=1.0, scale=1.0, dimension=0),
    lambda: Laplace.calibrated(sensitivity=1.0, epsilon=0.0),
    lambda: Gaussian(sensitivity=1.0, sigma=math.nan),
    lambda: Gaussian(sensitivity=-1.0, sigma=1.0),
    lambda: Gaussian.calibrated(sensitivity=1.0, epsilon=1.0, delta=0.0),
    lambda: DiscreteLaplace(sensitivity=0, scale=1.0),
    lambda: DiscreteLaplace(sensitivity=1.5, scale=1.0),  # type: ignore[arg-type]
    lambda: DiscreteLaplace.calibrated(sensitivity=1, epsilon=-1.0),
    lambda: DiscreteGaussian(sensitivity=1, sigma=0.0),
    lambda: DiscreteGaussian(sensitivity=1, sigma=1.0, changed=0),
    lambda: GridGaussian(clip_norm=1.0, dimension=3, noise_multiplier=0.0),
    lambda: GridGaussian(clip_norm=0.0, dimension=3, noise_multiplier=1.0),
    lambda: GridGaussian(clip_norm=1.0, dimension=0, noise_multiplier=1.0),
    lambda: GridGaussian(clip_norm=1.0, dimension=3, noise_multiplier=1.0, float_error=-0.1),
    lambda: KaryResponse(classes=1, epsilon=1.0),
    lambda: KaryResponse(classes=3, epsilon=0.0),
    lambda: TwoCoinResponse(truth=1.0),
    lambda: TwoCoinResponse(truth=0.0),
    lambda: TwoCoinResponse(yes=1.0),
    lambda: TwoCoinResponse(yes=math.nan),
    lambda: TwoCoinResponse().estimate(np.array([1])),
    lambda: NoisyMax(noise="cauchy", candidates=3, sensitivity=1.0, scale=1.0),
    lambda: NoisyMax(noise="laplace", candidates=0, sensitivity=1.0, scale=1.0),
    lambda: NoisyMax(noise="laplace", candidates=3, sensitivity=1.0, scale=1.0, changed=4),
    lambda: NoisyMax(noise="laplace", candidates=3, sensitivity=1.0, scale=1.0, changed=0),
    lambda: NoisyMax.calibrated(noise="laplace", candidates=3, sensitivity=1.0, epsilon=1.0, delta=1e-5),
    lambda: NoisyMax.calibrated(noise="gaussian", candidates=3, sensitivity=1.0, epsilon=1.0),
)  # fmt: skip


@pytest.mark.parametrize("make", WRONG)
def test_settings_without_a_meaning_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match=r"expected .*, got "):
        make()
