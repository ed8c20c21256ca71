"""Releases of scores and their prices: values, priced before anything runs.

The privacy unit is *one contact-day message*: the message of a person's phone about one day to one contact, in
all its versions (a message is updated for as long as its day is in the window). Neighbours differ in one
message, arbitrarily. Beside it stands the cost for *one person*: all messages that one of their tests changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sfumato import _validate, accounting
from sfumato.errors import InvalidInput
from sfumato_lab.tracing.disease import Disease
from sfumato_lab.tracing.telling import MOST_OVERLAP

Span = Literal["release", "lifetime"]
DAYS_AFTER_TEST = 7
"""On which someone who tested positive is still infectious, should they meet anyone: a public guess."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to turn messages into scores, as far as its price is concerned.

    `sensitivity` is by how much one message moves one day's release. The two norms say, in units of it, how
    far all releases together move (L2) when one message changes, or all messages that a person's test changes;
    both shrink by √(1 − overlap) for the method that can tell a message over its life. `repeated` has them for
    the method that can also tell every message in full on each day.
    """

    summary: str
    sensitivity: Callable[[Disease], float] | None
    life_norm: Callable[[Disease], float] = lambda disease: 0.0
    person_norm: Callable[[Disease, float], float] = lambda disease, contacts: 0.0
    overlaps: bool = False
    repeated: Method | None = None


def _every_day(disease: Disease) -> float:
    """A message enters the releases of `window` days in full."""
    return math.sqrt(disease.window)


def _raised_once(disease: Disease) -> float:
    """A message can only rise, by 1 in all: increments a, b ≥ 0 of sum ≤ 1 have ‖a − b‖² ≤ ‖a‖² + ‖b‖² ≤ 2.

    With an overlap λ ≤ ½ between different days it is 2 (1 − λ): see `telling`.
    """
    return math.sqrt(2)


def _fading(disease: Disease) -> float:
    """A message on a day `lag` days back moves the score by at most max(k, 1 − k)·Δ, k = P(I by now)."""
    chance = disease.infectious_after(disease.window)
    return float(np.linalg.norm(np.maximum(chance, 1 - chance)))


def _messages_apart(disease: Disease, contacts: float) -> float:
    """Every message of the window moves a release of its own, every day of its life."""
    return disease.window * math.sqrt(contacts)


def _messages_raised(disease: Disease, contacts: float) -> float:
    """Messages to one receiver add up in their news; worst case, the same contacts every day.

    A test changes messages about the days of the window before it, and about some days after it.
    """
    return (disease.window + min(DAYS_AFTER_TEST, disease.window - 1)) * math.sqrt(2 * contacts)


def _messages_repeated(disease: Disease, contacts: float) -> float:
    """As `_messages_raised`, each told on every day in the window: W on some days, then W − 1, … 1."""
    days = min(DAYS_AFTER_TEST, disease.window - 1)
    shared = np.concatenate([np.full(days, disease.window), np.arange(disease.window - 1, 0, -1)])
    return float(np.linalg.norm(shared)) * math.sqrt(contacts)


def _messages_together(disease: Disease, contacts: float) -> float:
    """Messages to one receiver add up in a release: all W days of the window, on W days after the test."""
    return disease.window * math.sqrt(disease.window * contacts)


METHODS: dict[str, Method] = {
    "dpfn": Method(
        summary="factorised neighbours; each day's news, by kind of contact, noised once and booked",
        sensitivity=lambda disease: 1.0,  # a message is a number in [0, 1]
        life_norm=_raised_once,
        person_norm=_messages_raised,
        overlaps=True,
        repeated=Method(
            summary="factorised neighbours; all news of the window, by kind of contact, noised anew each day",
            sensitivity=lambda disease: 1.0,
            life_norm=_every_day,
            person_norm=_messages_repeated,
        ),
    ),
    "dpfn-daily": Method(
        summary="factorised neighbours; log Π of every day in the window noised anew each day (published)",
        sensitivity=lambda disease: disease.sensitivity,
        life_norm=_every_day,
        person_norm=_messages_apart,
    ),
    "dpfn-s": Method(
        summary="factorised neighbours; the final score noised, own tests kept out of it",
        sensitivity=lambda disease: disease.message_bound * disease.transmission,
        life_norm=_fading,
        person_norm=_messages_together,
    ),
    "per-message": Method(
        summary="factorised neighbours; every single message noised",
        sensitivity=lambda disease: disease.message_bound,
        life_norm=_every_day,
        person_norm=_messages_apart,
    ),
    "traditional": Method(
        summary="noisy count of contacts with people who tested positive",
        sensitivity=lambda disease: 1.0,
        life_norm=_every_day,
        person_norm=_messages_together,
    ),
    "random": Method(summary="test anyone", sensitivity=None),
    "none": Method(summary="test nobody", sensitivity=None),
}


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a release, as events: on one day, over a message's life, and for one person.

    Attributes:
        release: The event of one day.
        lifetime: The event of a message's whole life.
        person: The event of one person: of all messages that one of their tests changes.
    """

    release: accounting.DpEvent
    lifetime: accounting.DpEvent
    person: accounting.DpEvent

    def epsilons(self, delta: float) -> dict[str, float]:
        """ε at δ for the day, the message's life and the person.

        >>> daily = Release(method="dpfn-daily", noise_multiplier=3.847).price(Disease(), contacts_per_day=10)
        >>> round(daily.epsilons(1e-3)["lifetime"], 2)  # fourteen releases, not one
        3.03
        """
        events = {"release": self.release, "lifetime": self.lifetime, "person": self.person}
        return {name: accounting.epsilon(event, delta) for name, event in events.items()}


@dataclass(frozen=True, kw_only=True)
class Release:
    """A method with its noise: σ = noise_multiplier · Δ on each day's release; 0 is no protection.

    Args:
        method: A name of `METHODS`.
        noise_multiplier: σ divided by the sensitivity Δ; 0 is no protection.
        rounds: Exchanges of beliefs a day, each noised with √rounds · σ and averaged, at the price of one
            release with σ. "per-message" and "traditional" exchange once.
        overlap: λ of `telling`, for "dpfn": 0 tells a message at once, ½ over its life, which makes a life as
            cheap as one release.
        repeat: For "dpfn": tell every message in full on each day of its life. A day's release costs the same,
            a life √window of it; contacts can average the noise of several days.

    >>> release = Release.calibrated(method="dpfn", epsilon=1.0, delta=1e-3, disease=Disease())
    >>> release.noise_multiplier > 1
    True
    """

    method: str = "dpfn"
    noise_multiplier: float = 0.0
    rounds: int = 5
    overlap: float = 0.0
    repeat: bool = False

    def __post_init__(self) -> None:
        _validate.one_of("method", self.method, METHODS)
        _validate.non_negative("noise_multiplier", self.noise_multiplier)
        _validate.integer("rounds", self.rounds, least=1)
        _validate.one_of("repeat", self.repeat, [True, False] if METHODS[self.method].repeated else [False])
        most = MOST_OVERLAP if METHODS[self.method].overlaps and not self.repeat else 0.0
        if not 0 <= _validate.real("overlap", self.overlap) <= most:
            raise InvalidInput(
                f"expected overlap between 0 and {most:g} for method={self.method!r},"
                f' got overlap={self.overlap!r}; only "dpfn" without repeat tells messages over their life'
            )

    @classmethod
    def calibrated(
        cls, *, method: str, epsilon: float, delta: float, disease: Disease, span: Span = "lifetime"
    ) -> Release:
        """The least noise at which a day's release, or all releases of a message's life, are (ε, δ)-DP."""
        plain = cls(method=method)
        _validate.one_of("span", span, ["release", "lifetime"])
        if METHODS[method].sensitivity is None:
            return plain
        if METHODS[method].overlaps and span == "lifetime":
            plain = replace(plain, overlap=MOST_OVERLAP)
        if METHODS[method].repeated and span == "release":
            plain = replace(plain, repeat=True)
        norm = plain.life_norm(disease) if span == "lifetime" else 1.0
        multiplier = accounting.gaussian_noise_multiplier(epsilon, delta) * norm
        return replace(plain, noise_multiplier=multiplier)

    def sensitivity(self, disease: Disease) -> float:
        """Return the sensitivity of one day's release to one message."""
        measure = METHODS[self.method].sensitivity
        return 0.0 if measure is None else measure(disease)

    def life_norm(self, disease: Disease) -> float:
        """How far all releases together move when one message changes, in units of the sensitivity."""
        return self._told_how().life_norm(disease) * math.sqrt(1 - self.overlap)

    def _told_how(self) -> Method:
        method = METHODS[self.method]
        return method.repeated if self.repeat and method.repeated else method

    def price(self, disease: Disease, *, contacts_per_day: float) -> Price:
        """Events of a day, of a message's life, and of a person who meets `contacts_per_day` people daily."""
        method = self._told_how()
        if method.sensitivity is None:
            nothing = accounting.NoEvent()
            return Price(release=nothing, lifetime=nothing, person=nothing)
        life = self.life_norm(disease)
        person = max(method.person_norm(disease, contacts_per_day) * math.sqrt(1 - self.overlap), life)
        return Price(
            release=accounting.GaussianEvent(self.noise_multiplier),
            lifetime=accounting.GaussianEvent(self.noise_multiplier / life),
            person=accounting.GaussianEvent(self.noise_multiplier / person),
        )
