"""Two-input attacks prove nearly the true ε of a randomiser, and never much more."""

import math
from functools import partial

import numpy as np
import pytest

from sfumato.audit import (
    channel_score,
    distinguish,
    epsilon_bound,
    frequency_score,
    gaussian_score,
    mu_bound,
)
from sfumato.mechanisms import KaryResponse
from sfumato.randomness import SecretStream

PURE = lambda errors, alpha: epsilon_bound(errors, delta=0.0, alpha=alpha)  # noqa: E731


@pytest.mark.parametrize("known", [True, False])
def test_label_channel(known):
    mechanism, stream = KaryResponse(classes=4, epsilon=2.0), SecretStream(test_seed=1)
    draw = [lambda n, a=answer: mechanism.release(np.full(n, a), stream) for answer in (0, 1)]
    score = channel_score(mechanism.channel(), 0, 1) if known else None
    found = PURE(distinguish(*draw, PURE, trials=20_000, score=score), 1e-6)
    assert 1.7 < found < 2.0


def test_gaussian_vectors():
    stream = SecretStream(test_seed=2)
    one, other = np.array([1.0, 0.0]), np.array([-1.0, 0.0])

    def draws(centre, count):
        return centre + 2 * stream.normal(2 * count).reshape(count, 2)

    errors = distinguish(
        partial(draws, one),
        partial(draws, other),
        lambda errors, alpha: mu_bound(errors, alpha=alpha),
        trials=20_000,
        score=gaussian_score(one, other),
    )
    assert 0.9 < mu_bound(errors, alpha=1e-6) < 1.0  # two apart, σ = 2


def test_frequencies():
    score = frequency_score(np.array([0, 0, 0, 1]), np.array([1, 1, 1, 0]))
    assert score(np.array([0, 1, 7])).tolist() == pytest.approx([math.log(3.5 / 1.5), math.log(1.5 / 3.5), 0.0])
