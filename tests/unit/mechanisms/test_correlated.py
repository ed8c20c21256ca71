"""Draws of correlated noise: exactly what their guarantee says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.audit import noise_checks
from sfumato.errors import Refused
from sfumato.mechanisms import Banded, Independent, LambdaCGD, correlated_noise
from sfumato.mechanisms.factorisation import COEFFICIENT_BITS
from sfumato.randomness import SecretStream, keyed_normal

KINDS = [Banded(bands=1), Banded(bands=2), Banded(bands=5, momentum=0.9), LambdaCGD(cancelled=0.75)]


class Recorder(SecretStream):
    """Keeps what it drew."""

    def __init__(self, seed=0):
        super().__init__(test_seed=seed)
        self.draws = []

    def rounded_normal(self, scale, size):
        self.draws.append(super().rounded_normal(scale, size))
        return self.draws[-1]

    def integers(self, high, size):
        self.draws.append(super().integers(high, size))
        return self.draws[-1]


@pytest.mark.keeps_out("Correlated noise in floating point, whose low bits tell the noise before")
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.floats(0, 0.95), st.floats(0.5, 2.0**20), st.integers(1, 9), st.integers(0, 2**31))
def test_all_that_banded_noise_releases_is_computed_from_one_gaussian_release(
    bands, momentum, scale, steps, seed
):
    """y from r = Cx + z and from earlier y alone, in whole numbers: nothing of x is needed besides."""
    noise, stream = Banded(bands=bands, momentum=momentum), Recorder(seed)
    source, one = correlated_noise(noise, stream), 2**COEFFICIENT_BITS
    weights = [int(c * one) for c in noise.column(bands)]
    assert [w / one for w in weights] == noise.column(bands).tolist()
    sums = np.random.default_rng(seed).integers(-(2**40), 2**40, size=(steps, 3)).tolist()
    released = [[x + int(w) for x, w in zip(row, source.rounded_normal(scale, 3), strict=True)] for row in sums]
    for place in range(3):
        again = []
        for step in range(steps):
            lags = range(min(step + 1, bands))
            gaussian = sum(weights[i] * sums[step - i][place] for i in lags) + int(stream.draws[step][place])
            known = sum(weights[i] * again[step - i] for i in lags[1:])
            again.append((2 * (gaussian - known) + one) // (2 * one))
        assert again == [row[place] for row in released]


def test_lambda_cgd_takes_back_a_share_of_the_last_draw():
    stream = Recorder()
    source = correlated_noise(LambdaCGD(cancelled=0.75), stream)
    found = [source.rounded_normal(1000.0, 50) for _ in range(4)]
    drawn = [keyed_normal(key.astype(np.uint8).tobytes(), 50) for key in stream.draws]
    assert len({key.tobytes() for key in stream.draws}) == 4  # a key for each step
    assert np.abs(found[0] - 1000 * drawn[0]).max() <= 0.5 + 1e-9
    for before, now, noise in zip(drawn, drawn[1:], found[1:], strict=False):
        assert np.abs(noise - 1000 * (now - 0.75 * before)).max() <= 0.5 + 1e-9


def _independent_parts(noise, found):
    """C·w: the independent draws behind correlated noise."""
    column = noise.column(len(found))
    return {
        f"step {t}": sum(column[i] * found[t - i] for i in range(min(t + 1, len(column))))
        for t in range(len(found))
    }


@pytest.mark.parametrize("noise", KINDS)
def test_the_draws_behind_it_are_fresh_and_large_enough(noise):
    """False alarms: 1e-6. Correlations of the noise itself are seen, so a repeated draw would be."""
    source = correlated_noise(noise, SecretStream())
    found = [source.rounded_normal(100.0, 20_000).astype(float) for _ in range(6)]
    checks = noise_checks(_independent_parts(noise, found), sigma=100.0)
    assert not [check.name for check in checks if check.fails(1e-6)]
    if noise != Banded(bands=1):
        as_if_fresh = noise_checks({str(t): part for t, part in enumerate(found)}, sigma=100.0)
        assert [check.name for check in as_if_fresh if check.fails(1e-6)] == ["repeated noise"]


@pytest.mark.parametrize("noise", KINDS)
def test_a_run_that_goes_on_has_the_noise_of_one_that_never_stopped(noise):
    whole, stream = correlated_noise(noise, SecretStream(test_seed=1)), SecretStream(test_seed=1)
    expected = [whole.rounded_normal(50.0, 7) for _ in range(9)]
    first = correlated_noise(noise, stream)
    found = [first.rounded_normal(50.0, 7) for _ in range(4)]
    second = correlated_noise(noise, stream)
    second.go_on(first.past(), first.drawn)
    found += [second.rounded_normal(50.0, 7) for _ in range(5)]
    assert np.array_equal(np.stack(found), np.stack(expected))


@pytest.mark.parametrize("noise", KINDS)
def test_another_scale_or_size_is_refused(noise):
    """Steps of different clipping norms cannot share noise: what one costs would not be what was priced."""
    for scale, size in ((51.0, 7), (50.0, 8)):
        source = correlated_noise(noise, SecretStream())
        source.rounded_normal(50.0, 7)
        with pytest.raises(Refused, match="one scale"):
            source.rounded_normal(scale, size)


@pytest.mark.parametrize("noise", KINDS)
def test_what_was_forgotten_draws_no_more(noise):
    source = correlated_noise(noise, SecretStream())
    source.rounded_normal(50.0, 7)
    source.forget()
    with pytest.raises(Refused, match="destroyed"):
        source.rounded_normal(50.0, 7)


def test_independent_noise_is_the_samplers_own():
    assert correlated_noise(Independent(), SecretStream()) is None
