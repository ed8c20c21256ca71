"""Trade-off functions: how small both errors of any attacker can be, and which of them an attack refutes.

A price says more than its ε at one δ: a whole curve that no attacker passes (Dong, Roth & Su 2022). It is
handled by its inverse blow-up f̄⁻¹.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

from sfumato import accounting
from sfumato.audit.bounds import Errors

InverseBlowUp = Callable[[float], float]
"""y ↦ the least probability with the record absent of an event that has probability y with it present."""

_LARGEST_EPSILON = 60.0
_SMALLEST = 1 / 128  # of the strength that is claimed; less is called nothing
_ORDERS = np.array([*range(2, 64), 128, 256, 512])  # whole ones, whose divergences are short sums
_LITTLE = 1e-9


def gaussian_inverse(mu: float) -> InverseBlowUp:
    """f̄⁻¹(y) = Φ(Φ⁻¹(y) − μ) of μ-GDP."""
    return lambda y: float(special.ndtr(special.ndtri(y) - mu))


def event_inverse(
    event: accounting.DpEvent, *, relation: accounting.Relation = accounting.Relation.ADD_REMOVE
) -> InverseBlowUp:
    """maxₑ max((y − δₑ)/e^ε, 1 − δₑ − e^ε(1 − y)) over a grid of ε: fewer of them refute less, never more."""
    levels, failures = _price(event, relation, 201)
    grown = np.exp(levels)
    return lambda y: float(max(0.0, ((y - failures) / grown).max(), (1 - failures - grown * (1 - y)).max()))


def total_variation(
    event: accounting.DpEvent, *, relation: accounting.Relation = accounting.Relation.ADD_REMOVE
) -> float:
    """δ at ε = 0, never too small: by how much any event's probability differs with and without the record."""
    return float(_price(event, relation, 2)[1][0])


def _price(
    event: accounting.DpEvent, relation: accounting.Relation, points: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """ε from 0 to where little is left, and δ at each."""
    from sfumato.accounting.pld import deltas
    from sfumato.accounting.rdp import to_epsilon

    divergences = accounting.rdp(event, _ORDERS.tolist(), relation=relation)
    reach = float(to_epsilon(_ORDERS, divergences, _LITTLE).min())
    levels = np.linspace(0, min(max(reach, 1e-3), _LARGEST_EPSILON), points)
    return levels, deltas(event, levels.tolist(), relation=relation)


def refutes(errors: Errors, inverse: InverseBlowUp, *, alpha: float) -> bool:
    """Whether so few errors have chance below α: the upper limits of both rates lie below the curve."""
    fpr, fnr = errors.upper(alpha)
    return fpr < inverse(1 - fnr)


def strength_bound(refuted: Callable[[float], bool], *, start: float) -> float:
    """The largest strength up to which an ordered family of trade-off functions is refuted, to one percent.

    The family must hide less as the strength grows. Both tests, of errors here and of one run's guesses, refute
    more where f̄⁻¹ is larger, so that the refuted range has one end. It is looked for from 0 to twice `start`:
    who claims `start` is refuted there beyond doubt, and numbers for less noise take ever longer.
    """
    if refuted(start):
        low, high = start, 2 * start
        if refuted(high):
            return high
    else:
        low, high = start / 2, start
        while not refuted(low):
            low, high = low / 2, low
            if low < start * _SMALLEST:
                return 0.0
    for _ in range(6):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
