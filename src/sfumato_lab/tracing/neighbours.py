"""Factorised neighbours: one person's belief from contacts and own tests, for the whole population at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sfumato_lab.tracing.disease import Disease, Floats


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that enters the beliefs. Days come first, so that each day is one contiguous row of people.

    Args:
        exposure: (window, people), −log Π of each day, from released messages.
        if_infectious: (window + 1, people), the likelihood of the day's tests, if infectious.
        if_other: (window + 1, people), the same, if not.
        start: (4, people), the chances of S, E, I and R on the window's first morning.

    ```python
    belief = believe(population.evidence(exposure), Disease())
    ```
    """

    exposure: Floats  # (window, people): −log Π of each day
    if_infectious: Floats  # (window + 1, people): likelihood of the day's tests, if infectious
    if_other: Floats  # (window + 1, people): the same, if not
    start: Floats  # (4, people): chances of S, E, I, R on the window's first morning


@dataclass(frozen=True, kw_only=True)
class Belief:
    """Posterior chances; morning `window` is tomorrow's, on which today's contacts already tell.

    Attributes:
        infectious: (window + 1, people), the chance to be infectious on each morning.
        tomorrow: (4, people), the chances of S, E, I and R tomorrow.
        second_morning: (4, people), the chances on morning 1 given the evidence before it: where the next
            window begins.
    """

    infectious: Floats  # (window + 1, people): P(I) on each morning
    tomorrow: Floats  # (4, people): P(S), P(E), P(I), P(R)
    second_morning: Floats  # (4, people): chances on morning 1 given the evidence before it

    @property
    def score(self) -> Floats:
        """P(I) tomorrow: who would test positive."""
        return self.tomorrow[2]


def believe(evidence: Evidence, disease: Disease) -> Belief:
    """Compute everyone's chance to be infectious, exactly.

    It is the sum over all traces S^a E^b I^c R^d of the window, by dynamic programming. A trace weighs start ×
    ∏ₜ [S→S (1−p0)Πₜ; S→E 1−(1−p0)Πₜ; E→I g; I→R h] × likelihood of the tests. The sum factorises over days, so
    forward and backward sums equal the sum over listed traces.

    Romijnders et al. 2024, §3; Rabiner 1989, §III.A for the recursion.

    Args:
        evidence: Tests and exposure.
        disease: How the disease is taken to spread.

    Returns:
        The chances.

    ```python
    belief = believe(population.evidence(exposure), Disease())
    ```
    """
    stay = (1 - disease.background) * np.exp(-evidence.exposure)  # (window, people)
    forward, second_morning = _forward(evidence, disease, stay)
    infectious = _smoothed(evidence, disease, stay, forward)
    tomorrow = forward[-1] / forward[-1].sum(axis=0)
    return Belief(infectious=infectious, tomorrow=tomorrow, second_morning=second_morning)


def foresee(evidence: Evidence, disease: Disease) -> Floats:
    """(4, people): `believe(…).tomorrow` alone, for less."""
    stay = (1 - disease.background) * np.exp(-evidence.exposure)
    last = _forward(evidence, disease, stay)[0][-1]
    return np.asarray(last / last.sum(axis=0), dtype=np.float64)


def second_morning(evidence: Evidence, disease: Disease) -> Floats:
    """(4, people): `believe(…).second_morning` alone, for less."""
    state = evidence.start.copy()
    _observe(state, evidence, 0)
    state = _advance(state, (1 - disease.background) * np.exp(-evidence.exposure[0]), disease)
    return np.asarray(state / state.sum(axis=0), dtype=np.float64)


def _advance(state: Floats, stay: Floats, disease: Disease) -> Floats:
    """One night: (4, people) → (4, people)."""
    susceptible, exposed, infectious, recovered = state
    g, h = disease.onset, disease.recovery
    following = np.empty_like(state)
    np.multiply(susceptible, stay, out=following[0])
    following[1] = susceptible - following[0] + (1 - g) * exposed
    following[2] = g * exposed + (1 - h) * infectious
    following[3] = h * infectious + recovered
    return following


def _observe(state: Floats, evidence: Evidence, day: int) -> None:
    state[2] *= evidence.if_infectious[day]
    other = evidence.if_other[day]
    for row in (0, 1, 3):
        state[row] *= other


def _forward(evidence: Evidence, disease: Disease, stay: Floats) -> tuple[list[Floats], Floats]:
    """Weights of the traces up to each morning, and the chances on morning 1 before its tests."""
    state = evidence.start.copy()
    _observe(state, evidence, 0)
    forward = [state]
    second = state
    for day, chance in enumerate(stay):
        state = _advance(state, chance, disease)
        if day == 0:
            second = state / state.sum(axis=0)
        _observe(state, evidence, day + 1)
        forward.append(state)
    return forward, second


def _smoothed(evidence: Evidence, disease: Disease, stay: Floats, forward: list[Floats]) -> Floats:
    """P(I) on every morning, given the tests before and after it."""
    g, h = disease.onset, disease.recovery
    infectious = np.empty((len(forward), forward[0].shape[1]))
    total = forward[-1].sum(axis=0)
    np.divide(forward[-1][2], total, out=infectious[-1])
    later_s = later_e = later_i = later_r = np.ones_like(total)
    for day in range(len(stay) - 1, -1, -1):
        other, own = evidence.if_other[day + 1], evidence.if_infectious[day + 1]
        next_e, next_i, next_r = other * later_e, own * later_i, other * later_r
        later_s = next_e + stay[day] * (other * later_s - next_e)
        later_e = next_e + g * (next_i - next_e)
        later_i = next_i + h * (next_r - next_i)
        later_r = next_r
        np.multiply(forward[day][2], later_i, out=infectious[day])
        infectious[day] /= total
    return infectious
