"""Parameters of the disease and of its tests: public numbers, the same for everyone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of contact.

    Args:
        name: Its common name.
        closeness: The chance of infection, as a multiple of p1.
        recurrence: The share of days on which one meets the same people again; 0 for never.

    >>> Kind(name="household", closeness=2.0, recurrence=1.0).name
    'household'
    """

    name: str = "any"
    closeness: float = 1.0
    recurrence: float = 0.5

    def __post_init__(self) -> None:
        _validate.positive("closeness", self.closeness)
        _validate.probability("recurrence", self.recurrence)


@dataclass(frozen=True, kw_only=True)
class Disease:
    """S → E → I → R, day by day, as the score assumes it (Romijnders et al. 2024, §3).

    Args:
        background: p0, the daily chance of infection from nowhere.
        transmission: p1, the chance of infection from one contact with an infectious person.
        onset: g, the daily chance of E → I.
        recovery: h, the daily chance of I → R.
        window: How many days a contact is remembered.
        message_bound: γ, the largest infectiousness that a message may claim.
        kinds: Kinds of contact, which both who met can tell apart.
        prevalence: The share of one's contacts taken to be infectious in the absence of messages.
        susceptibility: How easily people are infected, as a multiple of p1, by age in tens of years; the last
            one is for all who are older. Empty if age does not matter.

    >>> round(Disease().sensitivity, 4)
    0.0513
    """

    background: float = 0.001
    transmission: float = 0.05
    onset: float = 0.99
    recovery: float = 0.1
    window: int = 14
    message_bound: float = 1.0
    kinds: tuple[Kind, ...] = (Kind(),)
    prevalence: float = 0.0
    susceptibility: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("background", "onset", "recovery", "message_bound"):
            _validate.probability(name, getattr(self, name))
        _validate.probability("transmission", self.transmission)
        _validate.non_negative("prevalence", self.prevalence)
        if self.transmission * self.message_bound >= 1:
            _validate.one_of("transmission", self.transmission, ["a number below 1"])
        _validate.integer("window", self.window, least=1)
        for factor in self.susceptibility:
            _validate.positive("susceptibility", factor)

    @property
    def sensitivity(self) -> float:
        """By how much one message moves its receiver's log Π: |ln(1 − γ·p1)|."""
        return -math.log1p(-self.message_bound * self.transmission)

    def susceptibility_at(self, ages: Floats) -> Floats:
        """By person, from their age in years.

        >>> Disease(susceptibility=(0.5, 1.0)).susceptibility_at(np.array([9.0, 10.0, 80.0])).tolist()
        [0.5, 1.0, 1.0]
        """
        if not self.susceptibility:
            return np.ones(ages.shape)
        decade = np.clip(ages // 10, 0, len(self.susceptibility) - 1).astype(np.int64)
        return np.asarray(self.susceptibility, dtype=np.float64)[decade]

    def infectious_after(self, days: int) -> Floats:
        """P(I tomorrow | infected `lag` days ago), by lag = 0 … days − 1."""
        exposed, infectious, chances = 1.0, 0.0, []
        for _ in range(days):
            chances.append(infectious)
            infectious = infectious * (1 - self.recovery) + exposed * self.onset
            exposed *= 1 - self.onset
        return np.array(chances)

    def start(self) -> Floats:
        """Chances of S, E, I, R for someone of whom nothing is known."""
        exposed, infectious = self.background / self.onset, self.background / self.recovery
        scale = min(1.0, 0.5 / (exposed + infectious))
        return np.array([1 - scale * (exposed + infectious), scale * exposed, scale * infectious, 0.0])


@dataclass(frozen=True, kw_only=True)
class TestKit:
    """How people are tested for being infectious: the error rates of a test, and whether it is taken twice.

    Args:
        false_positive_rate: The chance of a positive test if not infectious; may be 0.
        false_negative_rate: The chance of a negative test if infectious; more than 0, so that no two tests
            contradict each other.
        confirm: Whether a person counts as positive only if a second test agrees. It is taken on the same
            day, and its errors are independent of the first one's.

    >>> TestKit().likelihood(np.array([True]))[0].round(3).tolist()
    [0.999]
    """

    __test__ = False  # not a test class

    false_positive_rate: float = 0.01
    false_negative_rate: float = 0.001
    confirm: bool = False

    def __post_init__(self) -> None:
        _validate.probability("false_negative_rate", self.false_negative_rate)
        if _validate.non_negative("false_positive_rate", self.false_positive_rate) > 0:
            _validate.probability("false_positive_rate", self.false_positive_rate)
        _validate.one_of("confirm", self.confirm, [True, False])

    def likelihood(self, positive: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """P(result | infectious) and P(result | not infectious), of one test."""
        infectious = np.where(positive, 1 - self.false_negative_rate, self.false_negative_rate)
        other = np.where(positive, self.false_positive_rate, 1 - self.false_positive_rate)
        return infectious, other

    def counted_positive(self) -> tuple[float, float]:
        """P(counts as positive | infectious) and P(counts as positive | not infectious)."""
        tests = 2 if self.confirm else 1
        return (1 - self.false_negative_rate) ** tests, self.false_positive_rate**tests
