"""Two-input attacks prove nearly the true ε of a randomiser, and never much more."""

import math
from functools import partial

import numpy as np
import pytest

from sfumato.audit import (
    attack_pairs,
    channel_score,
    distinguish,
    epsilon_bound,
    frequency_score,
    gaussian_score,
    mu_bound,
    vote_attack,
    worst_votes,
)
from sfumato.mechanisms import KaryResponse, TwoCoinResponse
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


def test_two_coins():
    """ln 3 = 1.0986 for fair coins; 20,000 answers a side prove most of it."""
    mechanism, stream = TwoCoinResponse(), SecretStream(test_seed=3)
    attack = attack_pairs(
        lambda answer, n: mechanism.release(np.full(n, answer), stream), [(0, 1)], PURE, trials=20_000
    )
    assert 0.95 < attack.bound(PURE, 1e-6) < math.log(3)


def test_the_worst_pair_of_a_broken_channel_is_found():
    """A channel that never lies by one step down: only neighbouring answers show it."""
    stream = SecretStream(test_seed=4)

    def broken(answer, count):
        lies = stream.bernoulli(0.6, count)
        return np.where(lies, (answer + stream.integers(3, count)) % 4, answer)  # never answer − 1

    pairs = [(one, other) for one in range(4) for other in range(one)]
    attack = attack_pairs(broken, pairs, PURE, trials=4000)
    # An answer of p = .6 that the neighbour never gives: ln(.6 / (1 − (1e-6/12)^(1/4000))) is about 4.9.
    assert attack.bound(PURE, 1e-6) > 4
    assert len(attack.errors) == 6


def test_pairs_share_alpha():
    stream = SecretStream(test_seed=5)
    attack = attack_pairs(lambda mean, n: stream.integers(2, n), [(0, 1)] * 5, PURE, trials=500)
    assert attack.bound(PURE, 0.05) == max(PURE(errors, 0.01) for errors in attack.errors)


@pytest.mark.parametrize("replaced", [False, True])
def test_votes_differ_by_one_voter(replaced):
    pairs = worst_votes(5, replaced=replaced)
    assert len(pairs) == 4
    for one, other in pairs:
        assert np.abs(one - other).sum() == (2 if replaced else 1)
        assert one.min() >= 0
        assert other.min() >= 0


def noisy_vote(stream, *, truncated):
    def vote(rounds):
        noise = 0.5 * stream.laplace(rounds.size).reshape(rounds.shape)
        return np.argmax(rounds + (np.trunc(noise) if truncated else noise), axis=1)

    return vote


def test_vote_noise_cut_to_whole_numbers_is_found():
    """Report noisy max with Laplace noise of ½ vote is 2-DP; truncated, the last of ten wins ties never."""
    bounds = {}
    for truncated in (False, True):
        attack = vote_attack(
            noisy_vote(SecretStream(test_seed=6), truncated=truncated),
            candidates=10,
            replaced=False,
            bound=PURE,
            trials=20_000,
        )
        bounds[truncated] = attack.bound(PURE, 1e-6)
    assert 1.2 < bounds[False] < 2.0
    assert bounds[True] > 2.2
