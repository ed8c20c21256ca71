"""Our own small randomisers, attacked by likelihood tests on their worst inputs: votes, answers, vectors.

sfumato audit randomisers
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import accounting
from sfumato.audit import (
    Bound,
    Errors,
    PairAttack,
    Verdict,
    attack_pairs,
    epsilon_bound,
    gaussian_score,
    gdp_epsilon_bound,
    vote_attack,
)
from sfumato.mechanisms import Gaussian, KaryResponse, NoisyMax, TwoCoinResponse
from sfumato.pate import VotePlan, Voting
from sfumato.randomness import SecretStream

DELTA = 1e-5
_ROUNDS = 8_000  # of a vote; its exact discrete noise is the slowest of all
_REPORTS = 10_000


def laplace_vote() -> Verdict:
    """Winners of a vote of ten with Laplace noise, with and without one voter."""
    subject = NoisyMax(noise="laplace", candidates=10, sensitivity=1, scale=0.5, monotone=True)
    claimed = accounting.epsilon(subject.event(), 0.0)
    attack = vote_attack(
        lambda rounds: subject.release_each(rounds, SecretStream()),
        candidates=subject.candidates,
        replaced=False,
        bound=_pure,
        trials=_ROUNDS,
    )
    return _verdict(attack, _pure, claimed, delta=0.0)


def gaussian_vote() -> Verdict:
    """Labels that teachers vote for, four classes and Gaussian noise, one teacher of another mind."""
    plan = VotePlan(mechanism="gnmax", teachers=100, queries=_ROUNDS, classes=4, sigma=1.0)
    claimed = accounting.epsilon(plan.answer_event(), DELTA)
    return _verdict(teachers_vote(plan), _gdp, claimed, delta=DELTA)


def teachers_vote(plan: VotePlan) -> PairAttack:
    """One query of the plan, answered again and again by the aggregator; no answer is an answer too."""
    return vote_attack(
        lambda rounds: Voting(plan).ask(rounds),
        candidates=plan.classes,
        replaced=True,
        bound=_gdp,
        trials=plan.queries,
    )


def labels() -> Verdict:
    """Reports of ten labels by k-ary randomized response, every two of them."""
    subject = KaryResponse(classes=10, epsilon=1.0)
    return _verdict(_answers(subject.release, 10), _pure, subject.epsilon, delta=0.0)


def coins() -> Verdict:
    """Yes and no by two coins."""
    subject = TwoCoinResponse()
    return _verdict(_answers(subject.release, 2), _pure, subject.epsilon, delta=0.0)


def vectors() -> Verdict:
    """A unit vector noised by the Gaussian mechanism, against its opposite."""
    epsilon, axis = 2.0, np.array([1.0, 0.0, 0.0])

    def released(vector: npt.NDArray[np.float64], count: int) -> npt.NDArray[Any]:
        subject = Gaussian.calibrated(
            sensitivity=unit_sphere_sensitivity(), epsilon=epsilon, delta=DELTA, dimension=3 * count
        )
        return subject.release(np.tile(vector, (count, 1)), SecretStream())

    attack = attack_pairs(released, [(axis, -axis)], _gdp, trials=_REPORTS, score=gaussian_score)
    return _verdict(attack, _gdp, epsilon, delta=DELTA)


def unit_sphere_sensitivity() -> float:
    """Return the largest distance of two unit vectors: the sensitivity to replacing one."""
    return 2.0


RANDOMISERS: Mapping[str, Callable[[], Verdict]] = {
    "Laplace vote": laplace_vote,
    "Gaussian vote": gaussian_vote,
    "labels": labels,
    "coins": coins,
    "vectors": vectors,
}


def _answers(release: Callable[..., npt.NDArray[Any]], classes: int) -> PairAttack:
    def drawn(answer: int, count: int) -> npt.NDArray[Any]:
        return release(np.full(count, answer), SecretStream())

    return attack_pairs(drawn, itertools.combinations(range(classes), 2), _pure, trials=_REPORTS)


def _verdict(attack: PairAttack, bound: Bound, claimed: float, *, delta: float) -> Verdict:
    return Verdict.of(partial(attack.bound, bound), claimed_epsilon=claimed, delta=delta)


def _pure(errors: Errors, alpha: float) -> float:
    return epsilon_bound(errors, delta=0.0, alpha=alpha)


def _gdp(errors: Errors, alpha: float) -> float:
    return gdp_epsilon_bound(errors, delta=DELTA, alpha=alpha)
