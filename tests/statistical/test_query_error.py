"""Each aggregate's error against theory, and its interval's coverage, with the real noise.

False alarms: every test compares a mean over WORLDS independent draws with its expectation and allows Z = 4.9
standard errors, 1e-6 for both sides of a normal. A sabotaged noise (× 0.7) must fail both kinds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sfumato.accounting import gaussian_noise_multiplier
from sfumato.query import Policy, Table, parse_query, policy_from_dict, pricing
from sfumato.query.aggregates import estimate
from sfumato.query.measures import Cells
from sfumato.query.noise import WholeGaussian, WholeLaplace
from sfumato.query.pricing import KeySelection, Spending
from sfumato.query.release import NoisyEstimate, add_noise
from sfumato.query.shaping import by_group, cells_by_group
from sfumato.randomness import SecretStream, public_generator

WORLDS = 4000
Z = 4.9
EPSILON = 0.8
PEOPLE = 600


def policy() -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "budget": {"epsilon": 1, "delta": 1e-6},
            "columns": {
                "age": {"type": "integer", "lower": 0, "upper": 100},
                "income": {"type": "real", "lower": -500, "upper": 1500},
            },
        }
    )


@pytest.fixture(scope="module")
def data() -> pd.DataFrame:
    draw = public_generator(3)
    age = draw.integers(0, 101, PEOPLE)
    return pd.DataFrame({"age": age, "income": np.where(age > 90, np.nan, draw.normal(300, 200, PEOPLE))})


def worlds(data: pd.DataFrame, sql: str, count: int = WORLDS, noise: str = "laplace") -> list[NoisyEstimate]:
    """The same query answered in `count` worlds: exact sums once, noise in each."""
    table = Table(policy(), None, data=data)
    plan = parse_query(sql, table.policy)
    found = table.exact_sums(plan, salt="")
    groups: list[Any] = [()]
    exact = {name: np.repeat(value, count) for name, value in by_group(found.sums, groups, []).items()}
    counted = [cells_by_group(rows, groups, [], tree.cells) for tree, rows in found.cells]
    cells = [np.repeat(item, count, axis=0) for item in counted]
    noisy = add_noise(table.plan(plan, epsilon=EPSILON, noise=noise).price, exact, cells, SecretStream())
    return [estimate(aggregate, noisy) for aggregate in plan.aggregates]


def truths(data: pd.DataFrame) -> dict[str, float]:
    income = data.income.clip(-500, 1500).dropna()
    return {
        "COUNT(*)": len(data),
        "COUNT(income)": len(income),
        "SUM(age)": data.age.sum(),
        "SUM(income)": income.sum(),
        "AVG(age)": data.age.mean(),
        "AVG(income)": income.mean(),
        "VARIANCE(income)": income.var(),
        "VAR_POP(age)": data.age.var(ddof=0),
        "STDDEV(age)": data.age.std(),
    }


def theory(data: pd.DataFrame, noise: str = "laplace") -> dict[str, float]:
    """The variance of each answer, asked alone: derived from the noise, not from the code.

    Laplace of scale b has variance 2b²; all of a moment's numbers have scale R/ε. With Gaussian noise it is the
    squared noise multiplier times R², and 1/12 more for a whole number. With z in [0, 1], the average errs by
    ((1−z)·η₁ − z·η₀)·range/(nR), the variance by its gradient ((0,0,1) − E z²) − 2 E z ((0,½,1) − E z).
    """
    ratio = math.exp(-EPSILON)
    whole = 2 * ratio / (1 - ratio) ** 2  # discrete Laplace of scale 1/ε
    unit = 2 / EPSILON**2
    if noise == "gaussian":
        unit = gaussian_noise_multiplier(EPSILON, 1e-6) ** 2
        whole = unit + 1 / 12
    found = {"COUNT(*)": whole, "COUNT(income)": whole}
    found |= {"SUM(age)": unit * 100**2, "SUM(income)": unit * 1500**2}
    for name, values, low, reach in (
        ("age", data.age, 0, 100),
        ("income", data.income.clip(-500, 1500).dropna(), -500, 2000),
    ):
        z = (values - low) / reach
        mean, square, count = z.mean(), (z**2).mean(), len(z)
        found[f"AVG({name})"] = unit * (mean**2 + (1 - mean) ** 2) * (reach / count) ** 2
        gradient = (np.array([0, 0, 1]) - square) - 2 * mean * (np.array([0, 0.5, 1]) - mean)
        found[f"variance of {name}"] = unit * (gradient**2).sum() * (reach**2 / count) ** 2
    found["VARIANCE(income)"] = found["variance of income"]
    found["VAR_POP(age)"] = found["variance of age"]
    found["STDDEV(age)"] = found["variance of age"] / (4 * data.age.var())
    return found


def check_error(data: pd.DataFrame, aggregate: str, noise: str = "laplace") -> None:
    (found,) = worlds(data, f"SELECT {aggregate} FROM t", noise=noise)
    truth, variance = truths(data)[aggregate], theory(data, noise)[aggregate]
    errors = np.asarray(found.values, dtype=float) - truth
    # A ratio's second order shifts its mean by about the count's relative error, < 2% of a deviation here.
    slack = 0.02 * math.sqrt(variance) if not aggregate.startswith(("COUNT", "SUM")) else 0.0
    assert abs(errors.mean()) <= Z * math.sqrt(variance / WORLDS) + slack
    # The fourth moment of a Laplace is 6 times the squared variance; sums of several have less.
    assert abs(errors.var() / variance - 1) <= Z * math.sqrt(5 / WORLDS) + (0.05 if slack else 0.0)


def whole_number_coverage(scale: float) -> float:
    """P(|X| ≤ t) of the discrete Laplace for the smallest t that reaches 95%, by adding up its chances."""
    ratio = math.exp(-1 / scale)
    covered, t = (1 - ratio) / (1 + ratio), 0
    while covered < 0.95:
        t += 1
        covered += 2 * (1 - ratio) / (1 + ratio) * ratio**t
    return covered


def gaussian_whole_coverage() -> float:
    """P(|⌊G + ½⌋| ≤ t) = P(|G| < t + ½) for the smallest t that reaches 95%."""
    sigma = gaussian_noise_multiplier(EPSILON, 1e-6)
    return next(found for t in range(100) if (found := 1 - 2 * stats.norm.sf((t + 0.5) / sigma)) >= 0.95)


def check_coverage(data: pd.DataFrame, aggregate: str, noise: str = "laplace") -> None:
    whole = whole_number_coverage(1 / EPSILON) if noise == "laplace" else gaussian_whole_coverage()
    expected = whole if aggregate.startswith("COUNT") else 0.95
    (found,) = worlds(data, f"SELECT {aggregate} FROM t", noise=noise)
    truth = truths(data)[aggregate]
    covered = float(np.mean((found.low <= truth) & (truth <= found.high)))
    error = Z * math.sqrt(expected * (1 - expected) / WORLDS)  # 1.7%
    # Intervals of several numbers are up to 1% too wide, by which they cover up to 0.2% more.
    assert expected - error <= covered <= expected + error + 0.002


NAMES = [
    "COUNT(*)", "COUNT(income)", "SUM(age)", "SUM(income)", "AVG(age)", "AVG(income)", "VARIANCE(income)",
    "VAR_POP(age)", "STDDEV(age)",
]  # fmt: skip


@pytest.mark.parametrize("aggregate", NAMES)
def test_errors_are_what_theory_says(data: pd.DataFrame, aggregate: str) -> None:
    check_error(data, aggregate)


@pytest.mark.parametrize("aggregate", NAMES)
def test_intervals_cover_the_truth_in_95_percent(data: pd.DataFrame, aggregate: str) -> None:
    check_coverage(data, aggregate)


@pytest.mark.parametrize("aggregate", ["COUNT(*)", "SUM(income)", "AVG(income)", "VARIANCE(income)"])
def test_gaussian_errors_and_intervals_are_what_theory_says(data: pd.DataFrame, aggregate: str) -> None:
    check_error(data, aggregate, "gaussian")
    check_coverage(data, aggregate, "gaussian")


def test_too_little_gaussian_noise_is_noticed(data: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: 0.7 times the noise that is charged."""
    original = WholeGaussian.release

    def release(self: WholeGaussian, values: Any, sampler: Any) -> Any:
        return original(replace(self, scale=0.7 * self.scale), values, sampler)

    monkeypatch.setattr(WholeGaussian, "release", release)
    for check in (check_error, check_coverage):
        with pytest.raises(AssertionError):
            check(data, "AVG(income)", "gaussian")


@pytest.fixture
def weak_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: 0.7 times the noise that is charged."""
    calibrated = WholeLaplace.calibrated
    original = WholeLaplace.release

    def release(self: WholeLaplace, values: Any, sampler: Any) -> Any:
        return original(replace(self, scale=0.7 * self.scale), values, sampler)

    monkeypatch.setattr(WholeLaplace, "release", release)
    assert calibrated(sensitivity=1, epsilon=1.0).scale == 1.0


@pytest.mark.parametrize("aggregate", ["COUNT(*)", "AVG(income)"])
@pytest.mark.usefixtures("weak_noise")
def test_too_little_noise_is_noticed(data: pd.DataFrame, aggregate: str) -> None:
    with pytest.raises(AssertionError):
        check_error(data, aggregate)
    with pytest.raises(AssertionError):
        check_coverage(data, aggregate)


def test_quantiles_err_by_ranks_as_theory_says(data: pd.DataFrame) -> None:
    """Median and a tail quantile: coverage at least 95%, and ranks no further off than the tree's noise."""
    count = 1500
    median, tail = worlds(data, "SELECT MEDIAN(age), QUANTILE(age, 0.9) FROM t", count)
    ages = np.sort(data.age.to_numpy())
    cells = Cells(None, 0.0, 100.0, 101, True)  # type: ignore[arg-type]
    children, depth = cells.shape
    for found, level in ((median, 0.5), (tail, 0.9)):
        truth = ages[math.ceil(level * PEOPLE) - 1]
        covered = float(np.mean((found.low <= truth) & (truth <= found.high)))
        assert covered >= 0.95 - Z * math.sqrt(0.95 * 0.05 / count)
        # D's deviation: at most (children−1)·depth + 1 siblings of scale depth/ε, weights at most max(q, 1−q).
        deviation = math.sqrt(2 * ((children - 1) * depth + 1)) * max(level, 1 - level) * depth / EPSILON
        values = np.asarray(found.values)
        ranks_low = np.searchsorted(ages, values, "left")
        ranks_high = np.searchsorted(ages, values, "right")
        wrong = np.maximum(np.maximum(ranks_low - level * PEOPLE, level * PEOPLE - ranks_high), 0)
        assert np.mean(wrong**2) <= deviation**2 * (1 + Z * math.sqrt(5 / count))


def test_several_aggregates_share_one_epsilon(data: pd.DataFrame) -> None:
    """COUNT(*), COUNT, SUM and AVG of one column cost no more noise than the average alone."""
    rule = policy()
    names = ["COUNT(*)", "COUNT(income)", "SUM(income)", "AVG(income)"]
    alone = pricing.price(_measures("SELECT AVG(income) FROM t", rule), rule.unit, Spending(epsilon=EPSILON))
    sql = f"SELECT {', '.join(names)} FROM t"
    together = pricing.price(_measures(sql, rule), rule.unit, Spending(epsilon=EPSILON))
    assert len(together.measures) == 1
    assert together.noises[0].scale == alone.noises[0].scale
    for found, name in zip(worlds(data, sql), names, strict=True):
        truth = truths(data)[name]
        covered = float(np.mean((found.low <= truth) & (truth <= found.high)))
        assert abs(covered - 0.95) <= Z * math.sqrt(0.95 * 0.05 / WORLDS) + 0.01


def _measures(sql: str, rule: Policy) -> Any:
    from sfumato.query.aggregates import measures_for

    return measures_for(parse_query(sql, rule), rule)


def test_a_key_of_one_person_is_shown_with_probability_delta() -> None:
    """δ is made large enough to count: k groups of one unit each, shown with chance at most δ altogether."""
    delta, groups, tries = 0.05, 3, 20_000
    selection = KeySelection(
        noise=WholeLaplace.calibrated(sensitivity=groups, epsilon=EPSILON), delta=delta, groups=groups
    )
    gaussian = replace(selection, noise=WholeGaussian.of_multiplier(3.0, sensitivity=1, moved=groups))
    tail = float(stats.norm.sf((gaussian.threshold - 1.5) / gaussian.noise.scale))  # P(1 + ⌊G + ½⌋ ≥ T)
    assert 1 - (1 - tail) ** groups <= delta
    noticed = gaussian.select(np.ones((tries, groups), dtype=np.int64), SecretStream()).any(axis=1)
    assert abs(noticed.mean() - (1 - (1 - tail) ** groups)) <= Z * math.sqrt(delta / tries)
    shown = selection.select(np.ones((tries, groups), dtype=np.int64), SecretStream()).any(axis=1)
    ratio = math.exp(-1 / selection.noise.scale)
    tail = ratio ** (selection.threshold - 1) / (1 + ratio)  # P(X ≥ T − 1)
    expected = 1 - (1 - tail) ** groups
    assert expected <= delta < 1 - (1 - tail / ratio) ** groups  # the smallest threshold that will do
    assert abs(shown.mean() - expected) <= Z * math.sqrt(delta / tries)
