"""By whose draws rows were chosen among others; whatever is released of them must say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfumato.caveats import Code
from sfumato.randomness import OWN_NOISE, draws_by_own_code

SEEDED_CHOICE = Code.SEEDED_CHOICE()


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """By whose draws something was chosen; without any, and by secret ones, nothing is to be said.

    Args:
        private: False if a seeded stream drew. Coins that start anew at the first row give every row that of
            another once a record has left, and neighbours differ in many records.
        own_code: Whether a sampler of the user's own drew.

    >>> Chosen().joined(Chosen(private=False)).caveats == (SEEDED_CHOICE,)
    True
    """

    private: bool = True
    own_code: bool = False

    @classmethod
    def by(cls, sampler: Any) -> Chosen:
        """Of what a sampler draws; None stands for a fresh secret stream."""
        if sampler is None:
            return cls()
        return cls(private=bool(sampler.private), own_code=draws_by_own_code(sampler))

    def joined(self, *others: Chosen) -> Chosen:
        """Of what was chosen in several ways: private only if each is."""
        every = (self, *others)
        return Chosen(private=all(one.private for one in every), own_code=any(one.own_code for one in every))

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the certificate of a release of such rows says."""
        return (() if self.private else (SEEDED_CHOICE,)) + ((OWN_NOISE,) if self.own_code else ())

    def caveats_with(self, sampler: Any) -> tuple[str, ...]:
        """The same where the noise comes from this sampler; of a seeded one the certificate says so itself."""
        return self.joined(Chosen(own_code=draws_by_own_code(sampler))).caveats

    def private_with(self, sampler: Any) -> bool:
        """Whether nobody could predict either the choice or the noise."""
        return self.private and bool(sampler.private)


AS_THEY_ARE = Chosen()
