"""The best split of a person's ε between a noised vector and a noised label."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scipy import optimize

from sfumato import _validate, accounting
from sfumato.accounting import Budget, Relation
from sfumato.local.bounded import GaussianVector
from sfumato.mechanisms import KaryResponse


@dataclass(frozen=True, kw_only=True)
class GaussianSplit:
    """Gaussian noise on a unit vector, and k-ary randomized response on its label, priced together.

    Vector and label of one person are composed by privacy loss distributions under replace-one. Each share of
    the label leaves a largest share to the vector; the split has the least variance of a debiased class mean,
    (σ² + 1/d) times the squared entries of a row of the inverse channel.

    Args:
        vector: The noise on the vector.
        label: The randomised response on the label.

    >>> split = GaussianSplit.best(classes=10, dimension=40, epsilon=8.0, delta=1e-5)
    >>> 7.99 < split.epsilon(1e-5) <= 8
    True
    """

    vector: GaussianVector
    label: KaryResponse

    @classmethod
    def best(cls, *, classes: int, dimension: int, epsilon: float, delta: float) -> GaussianSplit:
        _validate.positive("epsilon", epsilon)
        share = _best_share(classes, dimension, epsilon, delta)
        return _with_label_share(classes, dimension, epsilon, delta, share)

    def event(self) -> accounting.DpEvent:
        return accounting.compose(self.vector.event(), self.label.event())

    def epsilon(self, delta: float) -> float:
        return accounting.epsilon(self.event(), delta, relation=Relation.REPLACE_ONE)

    @property
    def class_mean_variance(self) -> float:
        """Of one value of a debiased class mean, times the number of people, all classes being as large."""
        classes = self.label.classes
        lie = (1.0 - self.label.keep_probability) / (classes - 1)
        gain = self.label.keep_probability - lie
        # The inverse channel is (I − lie·J)/gain: its row's squares, each met by 1/k of the people.
        squares = (1.0 - lie) ** 2 + (classes - 1) * lie**2
        spread = self.vector.sigma**2 + 1.0 / self.vector.dimension
        return spread * classes * squares / gain**2


@lru_cache(maxsize=64)
def _best_share(classes: int, dimension: int, epsilon: float, delta: float) -> float:
    def cost(share: float) -> float:
        return _with_label_share(classes, dimension, epsilon, delta, float(share)).class_mean_variance

    found = optimize.minimize_scalar(cost, bounds=(0.1, 0.9), method="bounded", options={"xatol": 0.02})
    return float(found.x)


@lru_cache(maxsize=64)
def _with_label_share(
    classes: int, dimension: int, epsilon: float, delta: float, share: float
) -> GaussianSplit:
    label = KaryResponse(classes=classes, epsilon=share * epsilon)
    multiplier = accounting.calibrate(
        lambda value: accounting.compose(accounting.GaussianEvent(value), label.event()),
        Budget(epsilon=epsilon, delta=delta, unit="person", relation=Relation.REPLACE_ONE),
        guess=accounting.gaussian_noise_multiplier((1.0 - share) * epsilon, delta),
    )
    return GaussianSplit(vector=GaussianVector(dimension=dimension, noise_multiplier=multiplier), label=label)
