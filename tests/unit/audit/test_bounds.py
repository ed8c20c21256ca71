"""Bounds against published values, closed forms and each other."""

import math

import numpy as np
import pytest
from scipy import special, stats

from sfumato import accounting
from sfumato.audit import (
    Errors,
    Guesses,
    balanced_mu_bound,
    bound_corrected,
    bound_on_held_out,
    clopper_pearson,
    epsilon_bound,
    gdp_epsilon,
    gdp_epsilon_bound,
    mu_bound,
    one_run,
    trade_off,
)
from sfumato.errors import InvalidInput
from sfumato.randomness import public_generator


def test_perfect_attack():
    """No error in 500 trials a side: both rates are below 1 − .005^(1/500) with 99%."""
    perfect = Errors(false_positives=0, negatives=500, false_negatives=0, positives=500)
    rate = 1 - 0.005 ** (1 / 500)
    assert epsilon_bound(perfect, delta=0, alpha=0.01) == pytest.approx(math.log((1 - rate) / rate), rel=1e-9)
    assert epsilon_bound(perfect, delta=0, alpha=0.01) == pytest.approx(4.5419, abs=5e-5)
    assert epsilon_bound(perfect, delta=0.5, alpha=0.01) < 4.0


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (250, 1000)])
def test_clopper_pearson_limits_solve_their_definition(hits, trials):
    """At the upper limit p, P[Bin(n, p) ≤ k] = α/2; at the lower one P[Bin(n, p) ≥ k] = α/2."""
    limits = clopper_pearson(hits, trials, alpha=0.05)
    if hits < trials:
        assert stats.binom.cdf(hits, trials, limits.upper) == pytest.approx(0.025)
    if hits > 0:
        assert stats.binom.sf(hits - 1, trials, limits.lower) == pytest.approx(0.025)
    assert limits.lower <= hits / trials <= limits.upper


def test_gdp_epsilon_reference():
    assert gdp_epsilon(0.5, 1e-5) == pytest.approx(1.99309, abs=1e-5)
    assert gdp_epsilon(1.0, 1e-5) == pytest.approx(4.37718, abs=1e-5)
    assert gdp_epsilon(0.0, 1e-5) == 0


@pytest.mark.parametrize(("trials", "low", "high"), [(100, 6.2, 6.7), (250, 7.5, 7.9)])
def test_gdp_route_at_epsilon_ten(trials, low, high):
    """The best attacker on a Gaussian of ε = 10 at δ = 1e-5 (μ = 1/.499889) errs by Φ(−μ/2) on both sides."""
    errors = round(trials * stats.norm.cdf(-1 / 0.499889 / 2))
    seen = Errors(false_positives=errors, negatives=trials, false_negatives=errors, positives=trials)
    assert low < gdp_epsilon_bound(seen, delta=1e-5, alpha=0.05) < high
    assert mu_bound(seen, alpha=0.05) < 1 / 0.499889


def test_guessing_proves_nothing():
    coin = Errors(false_positives=50, negatives=100, false_negatives=50, positives=100)
    assert epsilon_bound(coin, delta=0, alpha=0.05) == mu_bound(coin, alpha=0.05) == 0
    assert one_run.epsilon_bound(Guesses(canaries=100, made=100, right=50), delta=0, alpha=0.05) == 0
    assert one_run.mu_bound(Guesses(canaries=100, made=100, right=50), alpha=0.05) == 0


def test_one_run_reference_values():
    """Steinke, Nasr & Jagielski 2023; with δ = 0 and all guessed it is a binomial tail."""
    guesses = Guesses(canaries=100, made=100, right=75)
    assert one_run.p_value(guesses, epsilon=math.log(3), delta=0) == pytest.approx(0.55347, abs=5e-6)
    assert one_run.p_value(guesses, epsilon=math.log(3), delta=0) == pytest.approx(
        stats.binom.sf(74, 100, 0.75)
    )
    assert one_run.epsilon_bound(guesses, delta=0, alpha=0.05) == pytest.approx(0.70221, abs=1e-5)
    few = Guesses(canaries=1000, made=100, right=75)
    assert one_run.epsilon_bound(few, delta=1e-4, alpha=0.05) == pytest.approx(0.67298, abs=1e-5)


def test_one_run_p_value_by_the_formula():
    """The δ term as it is written, with a loop, for a small case."""
    m, r, v, eps, delta = 40, 30, 25, 0.8, 1e-3
    chance = math.exp(eps) / (1 + math.exp(eps))
    pmf = [math.comb(r, k) * chance**k * (1 - chance) ** (r - k) for k in range(r + 1)]
    slopes = [sum(pmf[max(0, v - i) : v]) / i for i in range(1, m + 1)]
    expected = sum(pmf[v:]) + 2 * m * delta * max(slopes)
    found = one_run.p_value(Guesses(canaries=m, made=r, right=v), epsilon=eps, delta=delta)
    assert found == pytest.approx(expected, rel=1e-9)


def test_f_dp_with_one_canary_is_the_trade_off_itself():
    """One guess: P[right] ≤ f̄(P[wrong]) with both adding up to 1, so the most is Φ(μ/2)."""
    guess = Guesses(canaries=1, made=1, right=1)
    most = stats.norm.cdf(0.5)
    inverse = trade_off.gaussian_inverse(1.0)
    assert not one_run.refutes(guess, inverse, alpha=most - 1e-6)
    assert one_run.refutes(guess, inverse, alpha=most + 1e-6)


def test_f_dp_of_an_event_agrees_with_its_closed_form():
    inverse = trade_off.event_inverse(accounting.GaussianEvent(1.0))
    exact = trade_off.gaussian_inverse(1.0)
    for y in (0.01, 0.2, 0.5, 0.9):
        assert exact(y) - 2e-3 <= inverse(y) <= exact(y) + 1e-9  # a finite grid of ε refutes less


def test_f_dp_is_tighter_than_the_bound_for_any_mechanism():
    guesses = Guesses(canaries=1000, made=1000, right=700)
    assert one_run.gdp_epsilon_bound(guesses, delta=1e-5, alpha=0.05) > 1.5 * one_run.epsilon_bound(
        guesses, delta=1e-5, alpha=0.05
    )


def test_guesses_of_scores():
    scores, coins = [5.0, 4.0, 0.1, -0.1, -4.0, -5.0], [True, False, True, True, False, False]
    assert Guesses.of_scores(scores, coins, guesses=4) == Guesses(canaries=6, made=4, right=3)


def test_threshold_on_a_half_and_corrected():
    draw = public_generator(3)
    present, absent = draw.normal(2, 1, 4000), draw.normal(0, 1, 4000)
    bounds = [
        bound_on_held_out(present, absent, lambda errors, alpha: mu_bound(errors, alpha=alpha), alpha=0.05),
        bound_corrected(
            present, absent, lambda errors, alpha: mu_bound(errors, alpha=alpha), [0.5, 1.0, 1.5], alpha=0.05
        ),
    ]
    for found in bounds:
        assert 1.7 < found < 2.0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: clopper_pearson(5, 0, alpha=0.05),
        lambda: clopper_pearson(5, 4, alpha=0.05),
        lambda: clopper_pearson(1, 4, alpha=0.0),
        lambda: Errors.at(0.0, [1.0, np.nan], [0.0]),
        lambda: Errors.at(0.0, [], [0.0]),
        lambda: Guesses(canaries=3, made=4, right=1),
        lambda: Guesses.of_scores([1.0, 2.0], [True], guesses=2),
        lambda: Guesses.of_scores([1.0, 2.0], [True, False], guesses=4),
    ],
)
def test_refusals(wrong):
    with pytest.raises(InvalidInput, match="expected"):
        wrong()


def test_errors_below_a_curve_refute_it():
    """1-GDP: at the middle threshold both errors are Φ(−½) = .309; 2,000 a side tell .309 from .2."""
    inverse = trade_off.gaussian_inverse(1.0)
    allowed = Errors(false_positives=617, negatives=2000, false_negatives=617, positives=2000)
    better = Errors(false_positives=400, negatives=2000, false_negatives=400, positives=2000)
    assert not trade_off.refutes(allowed, inverse, alpha=0.05)
    assert trade_off.refutes(better, inverse, alpha=1e-6)


@pytest.mark.parametrize("truth", [0.03, 0.4, 1.0, 1.7])
def test_where_refutation_ends(truth):
    found = trade_off.strength_bound(lambda strength: strength <= truth, start=1.0)
    assert found == pytest.approx(truth, rel=0.012)
    assert found <= truth


def test_refutation_beyond_all_bounds_and_none():
    assert trade_off.strength_bound(lambda _: True, start=1.5) == 3.0
    assert trade_off.strength_bound(lambda _: False, start=1.5) == 0.0


def test_one_limit_proves_more_than_two_and_all_guesses_more_than_few():
    seen = Errors(false_positives=160, negatives=1000, false_negatives=155, positives=1000)
    assert mu_bound(seen, alpha=0.05) < balanced_mu_bound(seen, alpha=0.05) < 2 * special.ndtri(0.8425)
    # 1,685 of 2,000 right: P[Bin(2000, p) >= 1685] = α defines the limit.
    limit = special.ndtr(balanced_mu_bound(seen, alpha=0.05) / 2)
    assert stats.binom.sf(1684, 2000, limit) == pytest.approx(0.05)
    guesses = Guesses(canaries=2000, made=2000, right=1685)
    assert one_run.refutes_apart(guesses, total_variation=2 * limit - 1 - 1e-6, alpha=0.05)
    assert not one_run.refutes_apart(guesses, total_variation=2 * limit - 1 + 1e-6, alpha=0.05)


def test_right_guesses_on_two_equal_sides_raise_no_false_alarm():
    """Exact, for two binomials of unequal rates whose mean is Φ(μ/2): Hoeffding's tail, term by term."""
    n, mu, alpha = 60, 1.0, 0.05
    fpr = 0.02
    fnr = float(special.ndtr(special.ndtri(1 - fpr) - mu))
    right_one, right_other = (
        stats.binom.pmf(range(n + 1), n, 1 - fnr),
        stats.binom.pmf(range(n + 1), n, 1 - fpr),
    )
    chance = np.convolve(right_one, right_other)
    alarm = [
        balanced_mu_bound(
            Errors(false_positives=0, negatives=n, false_negatives=0, positives=n)
            if wrong == 0
            else Errors(
                false_positives=wrong // 2, negatives=n, false_negatives=wrong - wrong // 2, positives=n
            ),
            alpha=alpha,
        )
        > mu
        for wrong in range(2 * n, -1, -1)
    ]
    assert float(chance @ np.array(alarm)) <= alpha
