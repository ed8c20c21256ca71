"""What one unit moves under correlated noise, against every way in which it could take part."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz

from sfumato.errors import InvalidInput
from sfumato.mechanisms.factorisation import (
    INDEPENDENT,
    Banded,
    LambdaCGD,
    chosen_noise,
    noise_from_json,
    pass_norms,
    prefix_error,
    sensitivity,
)

KINDS = [INDEPENDENT, Banded(bands=3), Banded(bands=8, momentum=0.9), LambdaCGD(cancelled=0.8)]


def strategy(noise, steps):
    """C as a whole matrix."""
    column = np.zeros(steps)
    given = noise.column(steps)[:steps]
    column[: given.size] = given
    return toeplitz(column, np.zeros(steps))


@pytest.mark.keeps_out(
    "Correlated noise priced for one participation where a unit has several, or without its own echoes"
)
@pytest.mark.parametrize("noise", KINDS)
@pytest.mark.parametrize(("steps", "steps_a_pass"), [(6, 1), (8, 2), (9, 3), (10, 4), (7, 7), (5, 50)])
def test_no_pattern_of_steps_and_signs_moves_more(noise, steps, steps_a_pass):
    matrix, worst = strategy(noise, steps), 0.0
    for block in range(min(steps, steps_a_pass)):
        own = range(block, steps, steps_a_pass)
        for signs in itertools.product((-1.0, 0.0, 1.0), repeat=len(own)):
            moved = np.zeros(steps)
            moved[list(own)] = signs
            worst = max(worst, float(np.linalg.norm(matrix @ moved)))
    bound = sensitivity(noise, steps=steps, steps_a_pass=steps_a_pass)
    assert worst <= bound * (1 + 1e-12)
    # All steps of the first block, the same way: exact, but for what the last pass has no more steps for.
    whole = steps % min(steps, steps_a_pass) == 0
    assert not whole or worst == pytest.approx(bound, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(0, 5),
    st.integers(0, 2**32 - 1),
)
def test_no_vectors_move_a_pass_by_more_than_its_norm(noise, steps, steps_a_pass, block, seed):
    """Also pass by pass, which is what the ledger counts of a run that is stopped."""
    vectors = np.random.default_rng(seed).normal(size=(steps, 3))
    vectors /= np.maximum(1.0, np.linalg.norm(vectors, axis=1, keepdims=True))
    vectors[np.arange(steps) % steps_a_pass != block % steps_a_pass] = 0
    moved = strategy(noise, steps) @ vectors
    norms = pass_norms(noise, steps=steps, steps_a_pass=steps_a_pass)
    for number, bound in enumerate(norms):
        part = moved[number * steps_a_pass : (number + 1) * steps_a_pass]
        assert np.linalg.norm(part) <= bound * (1 + 1e-12)
    assert list(norms) == sorted(norms)


def test_one_participation_is_less_than_several():
    """√k·‖c‖ for k passes of at least as many steps as bands (Choquette-Choo et al. 2023, theorem 2)."""
    noise = Banded(bands=4)
    column = math.sqrt(1 + 0.5**2 + 0.375**2 + 0.3125**2)
    assert sensitivity(noise, steps=4, steps_a_pass=4) == pytest.approx(column)
    assert sensitivity(noise, steps=40, steps_a_pass=4) == pytest.approx(column * math.sqrt(10))
    # Bands that reach into the next pass are dearer than that.
    assert sensitivity(noise, steps=40, steps_a_pass=2) > column * math.sqrt(20)


def test_lambda_cgd_in_closed_form():
    """v in pass k is λⁱ·(1 + λᵖ + … + λᵏᵖ): the geometric series of a unit's own echoes."""
    share, width = 0.9, 5
    norms = pass_norms(LambdaCGD(cancelled=share), steps=15, steps_a_pass=width)
    column = math.sqrt(sum(share ** (2 * i) for i in range(width)))
    echoes = [sum(share ** (width * j) for j in range(k + 1)) for k in range(3)]
    assert norms == pytest.approx([column * echo for echo in echoes])


@pytest.mark.parametrize("noise", KINDS)
def test_the_inverse_is_the_inverse(noise):
    steps = 30
    column = np.zeros(steps)
    inverse = noise.inverse(steps)
    column[: inverse.size] = inverse
    product = strategy(noise, steps) @ toeplitz(column, np.zeros(steps))
    assert np.allclose(product, np.eye(steps), atol=1e-9)


def test_bands_are_those_of_the_square_root():
    """C·C of enough bands is the matrix of prefix sums with momentum, to the 2⁻¹² of the coefficients."""
    steps, momentum = 12, 0.5
    matrix = strategy(Banded(bands=steps, momentum=momentum), steps)
    weights = np.cumsum(momentum ** np.arange(steps))
    assert np.allclose(matrix @ matrix, toeplitz(weights, np.zeros(steps)), atol=2e-2)


def test_noise_that_knows_the_past_errs_less_and_the_choice_is_the_best_of_its_list():
    plan = {"steps": 1000, "steps_a_pass": 100}
    plain = prefix_error(INDEPENDENT, **plan)
    for kind in ("banded", "lambda-cgd"):
        assert prefix_error(chosen_noise(kind, **plan), **plan) < plain / 3
    assert prefix_error(chosen_noise("banded", **plan), **plan) <= prefix_error(Banded(bands=4), **plan)


@pytest.mark.parametrize(
    "data",
    [
        None,
        "banded",
        {"kind": "quiet"},
        {"kind": "banded"},
        {"kind": "banded", "bands": 0, "momentum": 0.0, "decay": 1.0},
        {"kind": "banded", "bands": 2.5, "momentum": 0.0, "decay": 1.0},
        {"kind": "banded", "bands": 10**9, "momentum": 0.0, "decay": 1.0},
        {"kind": "banded", "bands": 4, "momentum": -0.9, "decay": 1.0},
        {"kind": "banded", "bands": 4, "momentum": 0.0, "decay": 1.0, "sensitivity": 0.1},
        {"kind": "lambda-cgd", "cancelled": 1.0},
        {"kind": "lambda-cgd", "cancelled": -0.5},
        {"kind": "lambda-cgd", "cancelled": float("nan")},
    ],
)
def test_noise_from_outside_is_checked(data):
    with pytest.raises(InvalidInput, match="expected"):
        noise_from_json(data)
