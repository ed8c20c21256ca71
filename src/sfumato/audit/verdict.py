"""A claim beside what an attack proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from sfumato.audit.bounds import DISPLAY_ALPHA, VERDICT_ALPHA
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
        untested: What the attack did not look at, in words.
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
