"""The moments bounds that early PATE analyses print, kept for comparison: not the price that is charged.

As in the analysis of Papernot et al. 2017 and in libraries after it: moments l = 1…8, for each query the least
of ½(2γ)²l(l+1), 2γl and, given the votes, the data-dependent moment; ε = min_l (Σ − ln δ) / l.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sfumato import _validate

MOMENTS = np.arange(1, 9, dtype=np.float64)
Floats = npt.NDArray[np.float64]


def moments_epsilon(*, gamma: float, queries: int, delta: float) -> float:
    """Compute ε by the moments accountant of Papernot et al. 2017, whatever the votes.

    Args:
        gamma: γ, the inverse scale of the Laplace noise.
        queries: How many are answered.
        delta: The δ.

    Returns:
        ε.

    >>> round(moments_epsilon(gamma=0.1, queries=9000, delta=1e-5), 4)  # printed as 371.5 by its users
    371.5129
    """
    gamma = _validate.positive("gamma", gamma)
    total = _validate.integer("queries", queries, least=1) * _everywhere(gamma)
    return _to_epsilon(total, delta)


def moments_epsilon_of(counts: npt.NDArray[np.int64], *, gamma: float, delta: float) -> float:
    """Compute ε for given counts by the moments accountant of Papernot et al. 2017, as its authors wrote it.

    It asks for q < ½ only. That condition is too weak (q < 1/(1+e^{2γ}) is needed), and kept as it was.

    Args:
        counts: (queries, classes), the votes for each class.
        gamma: γ, the inverse scale of the Laplace noise.
        delta: The δ.

    Returns:
        ε, for these votes only.

    >>> clear = np.array([[100, 0, 0]] * 10)
    >>> moments_epsilon_of(clear, gamma=0.1, delta=1e-5) <= moments_epsilon(gamma=0.1, queries=10, delta=1e-5)
    True
    """
    gamma = _validate.positive("gamma", gamma)
    q = _error_chances(counts, gamma)[:, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = (1 - q) / (1 - np.exp(2 * gamma) * q)
        given = np.log((1 - q) * ratio**MOMENTS + q * np.exp(2 * gamma * MOMENTS))
    given = np.where((q < 0.5) & np.isfinite(given), given, np.inf)
    return _to_epsilon(np.minimum(given, _everywhere(gamma)).sum(axis=0), delta)


def _everywhere(gamma: float) -> Floats:
    return np.minimum(0.5 * (2 * gamma) ** 2 * MOMENTS * (MOMENTS + 1), 2 * gamma * MOMENTS)


def _error_chances(counts: npt.NDArray[np.int64], gamma: float) -> Floats:
    ordered = -np.sort(-counts, axis=1)
    gaps = gamma * (ordered[:, :1] - ordered[:, 1:])
    return np.minimum(((2 + gaps) / (4 * np.exp(gaps))).sum(axis=1), 1 - 1 / counts.shape[1])


def _to_epsilon(total: Floats, delta: float) -> float:
    delta = _validate.probability("delta", delta, remedy="a moments bound needs delta > 0")
    return float(np.min((total - math.log(delta)) / MOMENTS))
