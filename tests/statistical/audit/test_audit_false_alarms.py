"""How often a bound exceeds the truth on a true mechanism: at most α.

1,000 repeats at α = .05 give Bin(1000, ≤ .05) alarms; more than 90 have a chance below 1e-7. The same attacks
on the same mechanism with much less noise must alarm in most repeats.
"""

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.audit import (
    Errors,
    Guesses,
    bound_corrected,
    bound_on_held_out,
    epsilon_bound,
    mu_bound,
    noise_checks,
    one_run,
    poisson_checks,
    trade_off,
)
from sfumato.randomness import public_generator

REPEATS, ALPHA, MOST = 1000, 0.05, 90


def test_limit():
    assert stats.binom.sf(MOST, REPEATS, ALPHA) < 1e-7


def gaussian_errors(factor, trials=400):
    """Counts of the best attacker on N(0, 1) against N(1, 1), the noise times `factor`."""
    draw = public_generator(11)
    rate = stats.norm.cdf(-0.5 / factor)
    counts = draw.binomial(trials, rate, (REPEATS, 2))
    return [
        Errors(false_positives=a, negatives=trials, false_negatives=b, positives=trials)
        for a, b in counts.tolist()
    ]


def randomised_response_errors(epsilon, trials=400):
    """Two-sided coins: ε-DP, and no better attacker than the one who believes them."""
    draw = public_generator(12)
    counts = draw.binomial(trials, 1 / (1 + math.exp(epsilon)), (REPEATS, 2))
    return [
        Errors(false_positives=a, negatives=trials, false_negatives=b, positives=trials)
        for a, b in counts.tolist()
    ]


@pytest.mark.keeps_out("An auditor whose own bound is wrong")
def test_gdp_bound():
    alarms = [sum(mu_bound(e, alpha=ALPHA) > 1 for e in gaussian_errors(factor)) for factor in (1.0, 0.7)]
    assert alarms[0] <= MOST
    assert alarms[1] > 900


def test_pure_bound():
    found = [
        sum(epsilon_bound(e, delta=0, alpha=ALPHA) > 1 for e in randomised_response_errors(eps))
        for eps in (1.0, 1.6)
    ]
    assert found[0] <= MOST
    assert found[1] > 800


def right_guesses(epsilon, made=200):
    return public_generator(13).binomial(made, 1 / (1 + math.exp(-epsilon)), REPEATS).tolist()


@pytest.mark.keeps_out("An auditor whose own bound is wrong")
def test_one_run_bound():
    """m independent randomised responses are the worst case of an ε-DP release of m coins."""
    bounds = {
        v: one_run.epsilon_bound(Guesses(canaries=200, made=200, right=v), delta=0, alpha=ALPHA)
        for v in range(201)
    }
    assert sum(bounds[v] > 1 for v in right_guesses(1.0)) <= MOST
    assert sum(bounds[v] > 1 for v in right_guesses(2.0)) > 900


@pytest.mark.parametrize("guessed", [200, 60])
def test_one_run_f_dp_bound(guessed):
    """m independent canaries of one Gaussian each; those farthest from the middle are guessed."""
    draw = public_generator(14)
    coins = draw.random((REPEATS, 200)) < 0.5
    noise = draw.normal(size=(REPEATS, 200))
    counts = []
    for factor in (1.0, 0.25):
        scores = coins - 0.5 + factor * noise
        counts.append(
            [Guesses.of_scores(s, c, guesses=guessed).right for s, c in zip(scores, coins, strict=True)]
        )
    refuted = {
        v: one_run.refutes(
            Guesses(canaries=200, made=guessed, right=v), trade_off.gaussian_inverse(1.0), alpha=ALPHA
        )
        for v in range(guessed + 1)
    }
    alarms = [sum(refuted[v] for v in found) for found in counts]
    assert alarms[0] <= MOST
    assert alarms[1] > 900


@pytest.mark.parametrize("route", ["half", "corrected"])
def test_chosen_thresholds(route):
    """Choosing the threshold must not turn luck into proof."""
    draw = public_generator(15)

    def bound(errors, alpha):
        return mu_bound(errors, alpha=alpha)

    alarms = 0
    for repeat in range(100):
        present, absent = draw.normal(0.3, 1, 200), draw.normal(0, 1, 200)
        if route == "half":
            found = bound_on_held_out(present, absent, bound, alpha=ALPHA, seed=repeat)
        else:
            found = bound_corrected(present, absent, bound, np.linspace(-2, 2, 9).tolist(), alpha=ALPHA)
        alarms += found > 0.3
    assert alarms <= 20  # of 100 at ≤ .05: more have a chance below 1e-7
    assert stats.binom.sf(20, 100, ALPHA) < 1e-7


def test_checks_of_noise():
    draw = public_generator(16)
    repeats = 300
    p_values = np.array(
        [
            [
                check.p_value
                for check in noise_checks({"a": draw.normal(size=500), "b": draw.normal(size=500)}, sigma=1)
            ]
            for _ in range(repeats)
        ]
    )
    assert (p_values < ALPHA).sum(0).max() <= 41  # of 300
    assert stats.binom.sf(41, repeats, ALPHA) < 1e-7
    weak, same = noise_checks({"a": 0.7 * draw.normal(size=500), "b": draw.normal(size=500)}, sigma=1)
    assert weak.fails(1e-6)
    assert not same.fails(1e-6)
    noise = draw.normal(size=500)
    assert noise_checks({"a": noise, "b": noise}, sigma=1)[1].fails(1e-6)
    assert noise_checks({"a": noise, "b": np.zeros(500)}, sigma=1)[0].fails(1e-6)


def test_checks_of_sampling():
    draw = public_generator(17)
    repeats = 300

    def coins():
        return [np.flatnonzero(draw.random(200) < 0.2) for _ in range(50)]

    p_values = np.array(
        [[c.p_value for c in poisson_checks(coins(), units=200, rate=0.2)] for _ in range(repeats)]
    )
    assert (p_values < ALPHA).sum(0).max() <= 41
    fixed = [draw.permutation(200)[:40] for _ in range(50)]
    sizes = poisson_checks(fixed, units=200, rate=0.2)[1]
    assert sizes.fails(1e-6)
    passes = [part for _ in range(10) for part in np.array_split(draw.permutation(200), 5)]
    assert poisson_checks(passes, units=200, rate=0.2)[2].fails(1e-6)
    often = [np.flatnonzero(draw.random(200) < 0.3) for _ in range(50)]
    assert poisson_checks(often, units=200, rate=0.2)[1].fails(1e-6)
    assert poisson_checks([np.array([3, 3])], units=5, rate=0.2)[0].fails(1e-6)
