"""What every mechanism must show; one that is exported without a case here fails.

Outputs are held against the distribution function that the docstring's formula gives, by the largest gap D
between it and the share of outputs. Massart (1990): P(D > t) ≤ 2·exp(−2·n·t²), for any distribution, so
t = √(ln(2/α) / 2n) raises a false alarm with chance α. α = 2e-8 for each of the few dozen checks: together
below 1e-6. Scales that are wrong by ×0.7 and ×1.4 lie further than 2t away, so that missing one has no
greater chance.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from sfumato import accounting, mechanisms, query
from sfumato.accounting import Relation
from sfumato.errors import InvalidInput
from sfumato.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    GaussianShares,
    GridGaussian,
    KaryResponse,
    Laplace,
    NoisyMax,
    TwoCoinResponse,
)
from sfumato.mechanisms.gaussian import DISCRETENESS
from sfumato.mechanisms.noisy_max import NOISES
from sfumato.query.apart import _Through
from sfumato.query.noise import WholeGaussian, WholeLaplace
from sfumato.randomness import Sampler, SecretStream

DRAWS = 20_000
FALSE_ALARM = 2e-8
TOLERANCE = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * DRAWS))  # 0.0215

Distribution = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    mechanism: Any
    scaled: Callable[[float], Any]  # the mechanism with its noise times a factor
    draw: Callable[[Any, Sampler], NDArray[Any]]  # DRAWS outputs
    cdf: Distribution  # their distribution function, by the formula
    grid: float  # outputs are whole multiples of it
    refused: tuple[Any, ...]  # inputs
    worst_ratio: float | None = None  # largest |ln likelihood ratio| of one output, where finite


NAN, INF = math.nan, math.inf
REAL_REFUSED = (NAN, INF, -INF, 1e300, np.array([0.0, NAN]), np.array([]), "1", True, None, 1j)
WHOLE_REFUSED = (1.0, NAN, INF, 2**62, -(2**63), np.array([0, 2**62]), np.array([0.0, NAN]), "1", True, None)
SUMS_REFUSED = (
    np.full(DRAWS, NAN),
    np.zeros(DRAWS),
    np.zeros(DRAWS, dtype=np.int32),
    np.zeros(DRAWS - 1, dtype=np.int64),
    np.full(DRAWS, 2**62, dtype=np.int64),
    np.full(DRAWS, -(2**63), dtype=np.int64),
)
CLASS_REFUSED = tuple(map(np.array, ([0, 4], [-1], [0.0], [NAN], [INF], ["1"], [None], [2**63], [1 + 0j])))
COUNTS_REFUSED = tuple(
    map(np.array, ([0.0, NAN], [INF, 0.0], [0.0, -INF], [1e300, 0.0], [0.0], [0.0, 1.0, 2.0], 0.0, ["1", "2"]))
)


def laplace_case() -> Case:
    mechanism = Laplace(sensitivity=0.7, scale=2.0)
    # One value, rounded: it moves by whole grid steps. In the tail left of both, F is the exponential itself.
    moved = math.ceil(0.7 / mechanism.grid) * mechanism.grid
    wide = replace(mechanism, dimension=DRAWS)
    return Case(
        name="Laplace",
        mechanism=mechanism,
        scaled=lambda factor: replace(mechanism, scale=2.0 * factor),
        draw=lambda m, sampler: replace(wide, scale=m.scale).release(np.full(DRAWS, 1 / 3), sampler),
        cdf=lambda x: stats.laplace.cdf(x + wide.grid / 2, loc=1 / 3, scale=2.0),
        grid=wide.grid,
        refused=REAL_REFUSED,
        worst_ratio=stats.laplace.logcdf(-10, scale=2.0) - stats.laplace.logcdf(-10 - moved, scale=2.0),
    )


def gaussian_case() -> Case:
    mechanism = Gaussian(sensitivity=0.7, sigma=2.0)
    wide = replace(mechanism, dimension=DRAWS)
    return Case(
        name="Gaussian",
        mechanism=mechanism,
        scaled=lambda factor: replace(mechanism, sigma=2.0 * factor),
        draw=lambda m, sampler: replace(wide, sigma=m.sigma).release(np.full(DRAWS, 1 / 3), sampler),
        cdf=lambda x: stats.norm.cdf(x + wide.grid / 2, loc=1 / 3, scale=2.0),
        grid=wide.grid,
        refused=REAL_REFUSED,
    )


def discrete_laplace_case() -> Case:
    outputs = np.arange(-60, 61)
    mechanism = DiscreteLaplace(sensitivity=3, scale=4.0)
    ratios = stats.dlaplace.logpmf(outputs, 1 / 4.0) - stats.dlaplace.logpmf(outputs - 3, 1 / 4.0)
    return Case(
        name="DiscreteLaplace",
        mechanism=mechanism,
        scaled=lambda factor: replace(mechanism, scale=4.0 * factor),
        draw=lambda m, sampler: m.release(np.full(DRAWS, 5), sampler),
        cdf=lambda x: stats.dlaplace.cdf(x - 5, 1 / 4.0),
        grid=1.0,
        refused=WHOLE_REFUSED,
        worst_ratio=float(np.abs(ratios).max()),
    )


def discrete_gaussian_case() -> Case:
    support = np.arange(-60, 61)
    weights = np.exp(-(support**2) / (2 * 3.0**2))
    mechanism = DiscreteGaussian(sensitivity=2, sigma=3.0)
    return Case(
        name="DiscreteGaussian",
        mechanism=mechanism,
        scaled=lambda factor: replace(mechanism, sigma=3.0 * factor),
        draw=lambda m, sampler: m.release(np.full(DRAWS, 5), sampler),
        cdf=lambda x: np.interp(x - 5, support, np.cumsum(weights) / weights.sum()),
        grid=1.0,
        refused=WHOLE_REFUSED,
    )


def whole_laplace_case() -> Case:
    """Of queries: its whole numbers are made by the engine, and every one of them has an answer."""
    mechanism = WholeLaplace(sensitivity=3000, scale=9000.0)
    return Case(
        name="WholeLaplace",
        mechanism=mechanism,
        scaled=lambda factor: replace(mechanism, scale=9000.0 * factor),
        draw=lambda m, sampler: m.release(np.full(DRAWS, 5), sampler),
        cdf=lambda x: stats.laplace.cdf(x + 0.5, loc=5, scale=9000.0),
        grid=1.0,
        refused=(),
        worst_ratio=3000 / 9000.0,
    )


def whole_gaussian_case() -> Case:
    mechanism = WholeGaussian(sensitivity=10, moved=4, scale=100.0)
    return Case(
        name="WholeGaussian",
        mechanism=mechanism,
        scaled=lambda factor: replace(mechanism, scale=100.0 * factor),
        draw=lambda m, sampler: m.release(np.full(DRAWS, 5), sampler),
        cdf=lambda x: stats.norm.cdf(x + 0.5, loc=5, scale=100.0),
        grid=1.0,
        refused=(),
    )


def grid_gaussian_case() -> Case:
    mechanism = GridGaussian(clip_norm=0.3, dimension=DRAWS, noise_multiplier=3.0, float_error=1e-5)
    eta = 1e-5 + mechanism.grid * math.sqrt(DRAWS) / 0.3
    sigma = 3.0 * 0.3 * (1 + eta)
    return Case(
        name="GridGaussian",
        mechanism=mechanism,
        scaled=lambda factor: replace(mechanism, noise_multiplier=3.0 * factor),
        draw=lambda m, sampler: m.release(np.full(DRAWS, 9), sampler),
        cdf=lambda x: stats.norm.cdf(x + mechanism.grid / 2, loc=9 * mechanism.grid, scale=sigma),
        grid=mechanism.grid,
        refused=SUMS_REFUSED,
    )


def gaussian_shares_case() -> Case:
    """One party's share; the width of the whole noise over √shares, in grid steps."""
    mechanism = GaussianShares(clip_norm=0.3, dimension=DRAWS, noise_multiplier=3.0, shares=4)
    width = 3.0 * 0.3 * (1 + 2.0**-5) / mechanism.grid / 2
    return Case(
        name="GaussianShares",
        mechanism=mechanism,
        scaled=lambda factor: replace(mechanism, noise_multiplier=3.0 * factor),
        draw=lambda m, sampler: m.release(np.full(DRAWS, 9), sampler),
        cdf=lambda x: stats.norm.cdf(x + 0.5, loc=9, scale=width),
        grid=1.0,
        refused=SUMS_REFUSED,
    )


def kary_case() -> Case:
    keep = math.exp(1.5) / (math.exp(1.5) + 3)
    other = 1 / (math.exp(1.5) + 3)
    return Case(
        name="KaryResponse",
        mechanism=KaryResponse(classes=4, epsilon=1.5),
        scaled=lambda factor: KaryResponse(classes=4, epsilon=1.5 / factor),
        draw=lambda m, sampler: m.release(np.zeros(DRAWS, dtype=int), sampler),
        cdf=lambda x: np.where(x < 0, 0.0, keep + other * x),
        grid=1.0,
        refused=CLASS_REFUSED,
        worst_ratio=math.log(keep / other),
    )


def two_coin_case(truth: float, yes: float) -> Case:
    said_yes = {answer: truth * answer + (1 - truth) * yes for answer in (0, 1)}
    ratio = max(math.log(said_yes[1] / said_yes[0]), math.log((1 - said_yes[0]) / (1 - said_yes[1])))
    odds = truth / (1 - truth)
    return Case(
        name=f"TwoCoinResponse {truth} {yes}",
        mechanism=TwoCoinResponse(truth=truth, yes=yes),
        scaled=lambda factor: TwoCoinResponse(truth=odds / (odds + factor**2), yes=yes),
        draw=lambda m, sampler: m.release(np.ones(DRAWS, dtype=bool), sampler),
        cdf=lambda x: np.select([x < 0, x < 1], [0.0, 1 - said_yes[1]], 1.0),
        grid=1.0,
        refused=(*CLASS_REFUSED, np.array([2])),
        worst_ratio=ratio,
    )


# ln P(the candidate who trails by `gap` scales wins against one other), for gap ≥ 0. Laplace: the tail of a
# difference of two Laplaces. Exponential: half that of one, as it has no memory. Gumbel: the logistic.
TRAILING: dict[str, Callable[[float], float]] = {
    "laplace": lambda gap: math.log(0.5 + gap / 4) - gap,
    "exponential": lambda gap: math.log(0.5) - gap,
    "gumbel": lambda gap: float(stats.logistic.logcdf(-gap)),
    "gaussian": lambda gap: float(stats.norm.logcdf(-gap / math.sqrt(2))),
}


def noisy_max_case(noise: str) -> Case:
    mechanism = NoisyMax(noise=noise, candidates=2, sensitivity=1.0, scale=2.0)
    first_wins = math.exp(TRAILING[noise](1.0))
    # Furthest from the lead the ratio is largest: both counts move, the gap grows by 2 of 2 scales.
    worst = TRAILING[noise](1000.0) - TRAILING[noise](1001.0)
    return Case(
        name=f"NoisyMax {noise}",
        mechanism=mechanism,
        scaled=lambda factor: replace(mechanism, scale=2.0 * factor),
        draw=lambda m, sampler: m.release_each(np.tile([3.0, 5.0], (DRAWS, 1)), sampler),
        cdf=lambda x: np.select([x < 0, x < 1], [0.0, first_wins], 1.0),
        grid=1.0,
        refused=COUNTS_REFUSED,
        worst_ratio=None if noise == "gaussian" else worst,
    )


CASES = (
    laplace_case(),
    gaussian_case(),
    discrete_laplace_case(),
    discrete_gaussian_case(),
    grid_gaussian_case(),
    gaussian_shares_case(),
    whole_laplace_case(),
    whole_gaussian_case(),
    kary_case(),
    two_coin_case(0.5, 0.5),
    two_coin_case(0.6, 0.2),
    *(noisy_max_case(noise) for noise in NOISES),
)

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def distance(outputs: NDArray[Any], case: Case) -> float:
    values, counts = np.unique(outputs.astype(np.float64), return_counts=True)
    below = np.concatenate([[0.0], np.cumsum(counts) / outputs.size])
    gaps = np.abs(below[1:] - case.cdf(values)), np.abs(below[:-1] - case.cdf(values - case.grid))
    return float(np.max(gaps))


def cost(mechanism: Any) -> float:
    return accounting.epsilon(mechanism.event(), 1e-5, relation=Relation.REPLACE_ONE)


def mechanisms_of(package: ModuleType) -> set[type]:
    """Every class in a package that has both a price and a way to release; protocols have neither."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and Protocol not in value.__bases__
    }
    whole = {kind for kind in classes if not inspect.isabstract(kind)}
    return {kind for kind in whole if hasattr(kind, "event") and hasattr(kind, "release")}


def test_every_mechanism_has_a_case() -> None:
    """Local randomisers have a suite of their own, which finds them in the same way."""
    found = {kind for package in (mechanisms, query) for kind in mechanisms_of(package)}
    found -= {_Through}  # adds no noise: it hands a sum on to holders who each add a share
    assert found == {type(case.mechanism) for case in CASES}
    assert set(NOISES) == {case.mechanism.noise for case in CASES if isinstance(case.mechanism, NoisyMax)}


@each_case
def test_the_scale_is_right(case: Case) -> None:
    outputs = case.draw(case.mechanism, SecretStream())
    assert outputs.shape == (DRAWS,)
    assert distance(outputs, case) < TOLERANCE


@each_case
@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_a_wrong_scale_is_noticed(case: Case, factor: float) -> None:
    assert distance(case.draw(case.scaled(factor), SecretStream()), case) > TOLERANCE


@each_case
def test_outputs_lie_on_the_grid(case: Case) -> None:
    steps = case.draw(case.mechanism, SecretStream()).astype(np.float64) / case.grid
    assert np.array_equal(steps, np.round(steps))


@each_case
def test_more_noise_costs_less(case: Case) -> None:
    costs = [cost(case.scaled(factor)) for factor in (0.7, 1.0, 1.4, 2.0)]
    assert costs[1] == pytest.approx(cost(case.mechanism), rel=1e-9)
    assert all(more > less > 0 for more, less in pairwise(costs))


@each_case
def test_the_event_prices_the_worst_output(case: Case) -> None:
    epsilon = accounting.epsilon(case.mechanism.event(), 0.0, relation=Relation.REPLACE_ONE)
    if case.worst_ratio is None:
        assert epsilon == math.inf
    else:
        # The noisy maximum reaches its ε in the limit only.
        assert 0.99 * epsilon < case.worst_ratio <= epsilon * (1 + 1e-9)


class Untouched:
    """A sampler that must not be drawn from."""

    private = True

    def __getattr__(self, name: str) -> Callable[..., None]:
        def draw(*arguments: object) -> None:
            raise AssertionError(f"{name} was drawn")

        return draw


@each_case
def test_bad_input_is_refused_before_noise_is_drawn(case: Case) -> None:
    for values in case.refused:
        with pytest.raises(InvalidInput, match="expected") as refusal:
            case.mechanism.release(values, Untouched())
        assert "nan" not in str(refusal.value).lower()  # no message shows a value
    with pytest.raises(AssertionError, match="drawn"):
        case.draw(case.mechanism, Untouched())


@each_case
def test_a_mechanism_is_a_frozen_value(case: Case) -> None:
    assert replace(case.mechanism) == case.mechanism
    with pytest.raises(AttributeError):
        case.mechanism.sensitivity = 1
    with pytest.raises(TypeError):
        type(case.mechanism)(1.0, 1.0, 1)


# --- Floating point ----------------------------------------------------------------------------------------


@pytest.mark.keeps_out("Floating-point noise whose low bits tell")
@pytest.mark.parametrize(
    "mechanism", [Laplace(sensitivity=1.0, scale=3.0), Gaussian(sensitivity=1.0, sigma=3.0)]
)
def test_neighbours_have_the_same_possible_outputs(mechanism: Laplace | Gaussian) -> None:
    """Mironov's attack: with noise in doubles, some outputs can come from one of two inputs only."""
    stream = SecretStream()
    for value in (1 / 3, 4 / 3, 1e-30, 12345.678):
        steps = np.array([mechanism.release(value, stream) for _ in range(50)]) / mechanism.grid
        assert np.array_equal(steps, np.round(steps))

    # The sabotaged variant, noise in doubles, leaves the grid.
    naive = (1 / 3 + 3.0 * stream.laplace(50)) / mechanism.grid
    assert not np.array_equal(naive, np.round(naive))


class Tape:
    """A sampler that plays back chosen noise, in grid steps."""

    private = False

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __getattr__(self, name: str) -> Callable[..., NDArray[np.int64]]:
        # The Laplace mechanism draws in half steps, less a bit.
        factor = {"discrete_laplace": 2, "bernoulli": 0}.get(name, 1)
        return lambda _, size: np.full(size, factor * self.steps)


@pytest.mark.parametrize(
    "mechanism", [Laplace(sensitivity=1.0, scale=3.0), Gaussian(sensitivity=1.0, sigma=3.0)]
)
def test_every_output_of_one_input_is_one_of_its_neighbour(mechanism: Laplace | Gaussian) -> None:
    one = {mechanism.release(1 / 3, Tape(steps)) for steps in range(-200, 200)}
    shift = round(1 / mechanism.grid)  # the neighbour needs noise smaller by Δ, in steps
    other = {mechanism.release(4 / 3, Tape(steps - shift)) for steps in range(-200, 200)}
    assert len(one) == 400
    assert one == other


# --- The discrete Gaussian, priced as a continuous one -----------------------------------------------------


def discrete_delta(steps: int, scale: float, epsilon: float) -> float:
    """δ(ε) of discrete Gaussian noise on a shift by whole steps, summed over every output."""
    reach = np.arange(-int(40 * scale), int(40 * scale) + 1)
    normaliser = math.log(np.exp(-(reach**2) / (2 * scale**2)).sum())
    first = math.floor(epsilon * scale**2 / steps + steps / 2) + 1  # of the outputs that favour the shift
    outputs = np.arange(first, max(first, steps) + int(40 * scale) + 1, dtype=np.float64)
    chance = np.exp(-((outputs - steps) ** 2) / (2 * scale**2) - normaliser)
    excess = epsilon - (2 * outputs * steps - steps**2) / (2 * scale**2)
    return float(np.sum(chance * -np.expm1(excess)))


@pytest.mark.parametrize(
    ("steps", "scale"), [(2**4, 2**8), (2**8, 2**8), (2**12, 2**8), (2**20, 2**8), (2**14, 2**14)]
)
def test_declared_sensitivity_covers_the_discrete_gaussian(steps: int, scale: int) -> None:
    """2⁸ steps is the least noise that a mechanism accepts, where discreteness shows most."""
    mu = steps / scale
    margins = []
    for deviations in np.linspace(-2, 7, 37):
        epsilon = mu**2 / 2 + deviations * mu
        if epsilon > 0:
            exact = discrete_delta(steps, float(scale), float(epsilon))
            priced = accounting.delta(accounting.GaussianEvent(1 / (mu * DISCRETENESS)), float(epsilon))
            margins.append(priced / exact - 1)
    assert len(margins) > 10
    assert min(margins) > 0
    assert Gaussian(sensitivity=1.0, sigma=2.0**-12).grid * 2**8 <= 2.0**-12


# --- The noisy maximum of more than two --------------------------------------------------------------------

DENSITIES = {
    "laplace": stats.laplace,
    "exponential": stats.expon,
    "gumbel": stats.gumbel_r,
    "gaussian": stats.norm,
}


@pytest.mark.parametrize("noise", NOISES)
def test_each_candidate_wins_as_often_as_it_should(noise: str) -> None:
    counts, law = np.array([2.0, 0.0, 1.0, 1.0]), DENSITIES[noise]
    mechanism = NoisyMax(noise=noise, candidates=4, sensitivity=1.0, scale=2.0)

    def wins(i: int) -> float:
        others = np.delete(counts, i)
        # ∫ density(z − cᵢ) ∏ F(z − cⱼ) dz
        chance, _ = integrate.quad(
            lambda z: law.pdf(z, counts[i], 2.0) * np.prod(law.cdf(z, others, 2.0)),
            -80, 80, points=[0.0, 1.0, 2.0], limit=400,
        )  # fmt: skip
        return float(chance)

    expected = np.cumsum([wins(i) for i in range(4)])
    assert expected[-1] == pytest.approx(1, abs=1e-6)
    winners = mechanism.release_each(np.tile(counts, (10_000, 1)), SecretStream())
    shares = np.cumsum(np.bincount(winners, minlength=4)) / 10_000
    assert np.abs(shares - expected).max() < math.sqrt(math.log(2 / FALSE_ALARM) / 20_000)


# --- Estimates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coins", [(0.5, 0.5), (0.7, 0.1)])
def test_two_coin_estimate_is_unbiased(coins: tuple[float, float]) -> None:
    mechanism = TwoCoinResponse(truth=coins[0], yes=coins[1])
    answers = np.arange(100_000) < 30_000
    estimate = mechanism.estimate(mechanism.release(answers, SecretStream()))
    # A mean of n reports is off by t with chance 2·exp(−2nt²) (Hoeffding); dividing by `truth` stretches it.
    allowed = math.sqrt(math.log(2 / FALSE_ALARM) / 200_000) / coins[0]
    assert abs(estimate.value - 0.3) < allowed
    yes = 0.3 * coins[0] + (1 - coins[0]) * coins[1]
    assert estimate.standard_error == pytest.approx(math.sqrt(yes * (1 - yes) / 100_000) / coins[0], rel=0.05)


def test_kary_estimate_is_unbiased() -> None:
    mechanism = KaryResponse(classes=5, epsilon=1.0)
    answers = np.repeat(np.arange(5), [50_000, 30_000, 15_000, 5_000, 0])
    shares = mechanism.estimate(mechanism.release(answers, SecretStream()))
    stretch = 1 / (mechanism.channel()[0, 0] - mechanism.channel()[0, 1])
    allowed = math.sqrt(math.log(10 / FALSE_ALARM) / 200_000) * stretch
    assert np.abs(shares - [0.5, 0.3, 0.15, 0.05, 0.0]).max() < allowed
    assert shares.sum() == pytest.approx(1)
