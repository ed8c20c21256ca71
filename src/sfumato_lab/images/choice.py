"""Which drawings of a pen are kept: those that give each class the mean that noisy sums say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sfumato_lab.images.moves import believed
from sfumato_lab.images.statistics import Statistics
from sfumato_lab.images.styles import Floats, Integers, Styles

KEPT = 0.2
"""The share of the drawings that is kept."""

SLACK = 0.3
"""By how much the mean may fall short: this times the weights, in standard deviations of the drawings."""

_ROUNDS, _CLOSE = 50, 1e-6
_LONGEST = 4.0  # by how much a round changes a drawing's logit at most


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """A logistic chance for each place and class: σ(w·x + b).

    Of all chances that keep a share of the drawings and give those kept a mean m, these have the greatest
    entropy, so that they change the drawings no more than m asks for. They minimise the convex function
    E softplus(w·x + b) − KEPT (w·m + b) + ½ KEPT slack |w|², with x in standard deviations of the drawings.
    """

    weights: Floats  # (classes, directions)
    offsets: Floats  # (classes,)

    @classmethod
    def of(cls, statistics: Statistics, styles: Styles) -> Choice:
        """For the private means; a class whose mean the noise hides keeps its drawings as they are."""
        found = []
        for label, places in enumerate(styles.places):
            centre, scale = styles.centres[label], places.std(axis=0) + 1e-9
            people = statistics.people[label]
            apart = styles.reach * statistics.sums[label] / people / scale
            noise = float(np.square(styles.reach * statistics.sum_sigma / people / scale).sum())
            wanted = believed(apart, noise) if statistics.known[label] else 0.0 * apart
            weights, offset = fitted((places - centre) / scale, wanted)
            found.append((weights / scale, offset - weights @ (centre / scale)))
        return cls(
            weights=np.stack([weights for weights, _ in found]),
            offsets=np.array([offset for _, offset in found]),
        )

    def chances(self, places: Floats, labels: Integers) -> Floats:
        """The chance of each drawing to be kept."""
        return _logistic(np.einsum("nd,nd->n", places, self.weights[labels]) + self.offsets[labels])


def fitted(rows: Floats, wanted: Floats) -> tuple[Floats, float]:
    """Newton's method for the weights and the offset of one class, on drawings of unit variance.

    >>> rows = np.random.default_rng(1).standard_normal((20_000, 1))
    >>> weights, offset = fitted(rows, np.array([1.0]))
    >>> chances = _logistic(rows @ weights + offset)
    >>> round(float(chances.mean()), 2), round(float(chances @ rows[:, 0] / chances.sum()), 1)
    (0.2, 0.7)
    """
    inputs = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    target = KEPT * np.append(wanted, 1.0)
    slack = KEPT * np.append(np.full(len(wanted), SLACK), 1e-9)
    weights = np.append(np.zeros(len(wanted)), np.log(KEPT / (1 - KEPT)))
    for _ in range(_ROUNDS):
        chances = _logistic(inputs @ weights)
        slope = chances @ inputs / len(inputs) - target + slack * weights
        curve = (inputs * (chances * (1 - chances))[:, np.newaxis]).T @ inputs / len(inputs)
        step = np.linalg.solve(curve + np.diag(slack + 1e-9), slope)
        weights = weights - step * min(1.0, _LONGEST / max(1e-9, float(np.abs(inputs @ step).max())))
        if float(np.abs(slope).max()) < _CLOSE:
            break
    return weights[:-1], float(weights[-1])


def _logistic(values: Floats) -> Floats:
    found: Floats = 0.5 * (1.0 + np.tanh(0.5 * values))
    return found
