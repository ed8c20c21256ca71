"""A claim beside the lower bound of an attack."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from sfumato import _validate
from sfumato.audit.bounds import DISPLAY_ALPHA, VERDICT_ALPHA, Floats
from sfumato.runs import Audit


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The claimed ε at δ, the ε that an attack proved, and whether the claim is refuted.

    `sure_bound` alone decides `refuted`, so that a true claim fails one build in a million.

    Args:
        claimed_epsilon: The claim.
        delta: Its δ.
        lower_bound: The ε that was proved with 95% confidence, for reading.
        sure_bound: The ε that was proved with confidence 1 − 1e-6.
        untested: The parts that the attack did not test, in words.
        details: Further figures.

    >>> Verdict(claimed_epsilon=1.0, delta=1e-5, lower_bound=0.8, sure_bound=0.6).refuted
    False
    """

    claimed_epsilon: float
    delta: float
    lower_bound: float
    sure_bound: float
    untested: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        bound: Callable[[float], float],
        *,
        claimed_epsilon: float,
        delta: float,
        untested: tuple[str, ...] = (),
        details: dict[str, Any] | None = None,
    ) -> Verdict:
        """`bound(α)` is a lower bound of ε at δ that holds with probability 1 − α."""
        return cls(
            claimed_epsilon=claimed_epsilon,
            delta=delta,
            lower_bound=bound(DISPLAY_ALPHA),
            sure_bound=bound(VERDICT_ALPHA),
            untested=untested,
            details=details or {},
        )

    @property
    def refuted(self) -> bool:
        return self.sure_bound > self.claimed_epsilon

    @property
    def in_words(self) -> str:
        if self.refuted:
            claim = f"above the claim of {self.claimed_epsilon:.3g}"
            return f"refuted: an attack proves ε ≥ {self.sure_bound:.3g}, {claim}"
        share = self.lower_bound / self.claimed_epsilon if self.claimed_epsilon else 0.0
        return f"not refuted: the attack proves ε ≥ {self.lower_bound:.3g}, {share:.0%} of the claim"

    @property
    def result(self) -> Audit:
        """For run folders."""
        return Audit(
            claimed_epsilon=self.claimed_epsilon,
            delta=self.delta,
            lower_bound=self.lower_bound,
            sure_bound=self.sure_bound,
            alpha=DISPLAY_ALPHA,
            sure_alpha=VERDICT_ALPHA,
            refuted=self.refuted,
            verdict=self.in_words,
            untested=self.untested,
            details=self.details,
        )

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        values = asdict(self)
        details = values.pop("details")
        return {
            **values,
            "ratio": self.lower_bound / self.claimed_epsilon if self.claimed_epsilon else 0.0,
            "refuted": self.refuted,
            "verdict": self.in_words,
            **details,
        }


@dataclass(frozen=True)
class Check:
    """The chance of seeing this, or worse, where the claim is true; already counts all looks of its kind.

    Attributes:
        name: The name of the test.
        p_value: The chance of seeing this, or worse, where the claim is true.
    """

    name: str
    p_value: float

    def fails(self, alpha: float) -> bool:
        return self.p_value < alpha


def noise_checks(parts: Mapping[str, Floats], *, sigma: float) -> list[Check]:
    """Vectors of pure noise (several steps, several layers), each claimed to be fresh N(0, ≥σ²).

    Too little noise: n·s²/σ² against χ²ₙ, of every part. Repeated noise: the correlation of every two parts of
    one length, √n·ρ against a normal.

    Args:
        parts: Vectors of pure noise, by name.
        sigma: The claimed standard deviation.

    Returns:
        One check for each kind of fault.

    >>> from sfumato.randomness import SecretStream
    >>> checks = noise_checks({"step 1": SecretStream().normal(1000)}, sigma=1.0)
    >>> any(check.fails(1e-9) for check in checks)
    False
    """
    values = {name: np.asarray(part, dtype=np.float64).reshape(-1) for name, part in parts.items()}
    small = [stats.chi2.cdf((part**2).sum() / sigma**2, part.size) for part in values.values()]
    pairs = [
        (one, other) for one, other in itertools.combinations(values.values(), 2) if one.size == other.size
    ]
    repeated = [2 * stats.norm.sf(_correlation(one, other)) for one, other in pairs]
    return [Check("too little noise", _least(small)), Check("repeated noise", _least(repeated))]


def poisson_checks(samples: Sequence[npt.NDArray[np.int64]], *, units: int, rate: float) -> list[Check]:
    """Samples of units, each claimed to hold every unit by an independent coin of the given rate.

    The number of units in a sample, and of samples that a unit is in, are binomial: their mean square around
    the claimed mean, over the claimed variance, is against χ² with one degree for each. Batches of one
    size, and passes that take every unit once, are far too even.

    Args:
        samples: The units in each sample.
        units: How many units there are.
        rate: The claimed chance of a unit to be in a sample.

    Returns:
        One check for each kind of fault.

    >>> passes = [np.arange(100) for _ in range(20)]  # every unit, every time
    >>> any(check.fails(1e-6) for check in poisson_checks(passes, units=100, rate=0.5))
    True
    """
    rate, steps = _validate.probability("rate", rate), len(samples)
    taken = np.zeros((steps, units), dtype=np.bool_)
    repeats = sum(sample.size - np.unique(sample).size for sample in samples)
    for row, sample in zip(taken, samples, strict=True):
        row[sample] = True
    sizes = _dispersion(taken.sum(1), units, rate)
    turns = _dispersion(taken.sum(0), steps, rate)
    return [
        Check("a unit twice in one sample", 0.0 if repeats else 1.0),
        Check("sizes of samples", sizes),
        Check("turns of units", turns),
    ]


def _dispersion(counts: npt.NDArray[np.int64], trials: int, rate: float) -> float:
    variance = trials * rate * (1 - rate)
    if variance == 0:
        return 1.0 if (counts == trials).all() else 0.0
    square = float(((counts - trials * rate) ** 2).sum() / variance)
    return min(1.0, 2 * min(stats.chi2.cdf(square, counts.size), stats.chi2.sf(square, counts.size)))


def _correlation(one: Floats, other: Floats) -> float:
    spread = np.sqrt((one**2).sum() * (other**2).sum())
    return float(abs(one @ other) / spread * np.sqrt(one.size)) if spread else np.inf


def _least(p_values: Sequence[float]) -> float:
    """The smallest of several p-values, times their number (Bonferroni)."""
    return min(1.0, float(min(p_values)) * len(p_values)) if p_values else 1.0
