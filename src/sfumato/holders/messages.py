"""What holders and coordinator tell each other in one round of a masked sum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sfumato.errors import NotVerified
from sfumato.holders.graph import partners
from sfumato.holders.masks import Words
from sfumato.holders.parties import Parties
from sfumato.ledger.signing import PublicKey, signer

KEYS, SURVIVORS = "holders keys", "holders survivors"
"""What a signature is for; one never passes for the other."""

Signed = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is the same for all in a round: the study, the round's number, and who may take part.

    `places` are the holders' signing keys, by the place they have in the study: 1, 2, …
    """

    study: str  # digest of what all parties signed
    number: int
    parties: Parties
    places: Mapping[int, PublicKey]
    dimension: int
    bits: int

    @cached_property
    def id(self) -> str:
        """Another for each round of each study: every key of a round is derived with it."""
        known = [self.study, self.number, self.dimension, self.bits, self.parties.threshold, self.parties.least]
        keys = [[place, key.id] for place, key in sorted(self.places.items())]
        return hashlib.sha256(json.dumps([known, keys]).encode()).hexdigest()

    def partners(self, place: int) -> Collection[int]:
        """Whom a holder shares masks and secrets with in this round."""
        return partners(self.id, place, places=self.places, count=self.parties.degree.partners)

    @property
    def share_threshold(self) -> int:
        """How many of a holder's partners, itself among them, give its secrets back."""
        return self.parties.degree.share_threshold

    def context(self, what: str, sender: int, receiver: int) -> bytes:
        return f"{what}\n{self.id}\n{sender}\n{receiver}".encode()

    def check_signature(self, purpose: str, message: Signed, place: int) -> None:
        """Raise unless the holder at `place` signed the message, for this round."""
        expected = self.places.get(place)
        if expected is None or message.get("round") != self.id or message.get("place") != place:
            raise NotVerified(f"expected a message of holder {place} for this round, got another")
        if signer(purpose, message) != expected:
            raise NotVerified(f"expected the signature of holder {place}, got another; stop the study")

    def check_advert(self, advert: Signed, place: int) -> None:
        """Raise unless the holder at `place` signed these keys; what it signed may be anything."""
        self.check_signature(KEYS, advert, place)
        for name in ("mask", "seal", "own"):
            value = advert.get(name)
            if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
                raise NotVerified(f"expected keys of 64 hexadecimal digits from holder {place}, got others")


@dataclass(frozen=True)
class Envelope:
    """The shares that one holder gives another, sealed so that only that one can read them."""

    sender: int
    receiver: int
    sealed: bytes


@dataclass(frozen=True)
class Masked:
    """What a holder adds, under masks: uniform to whoever lacks them."""

    sender: int
    words: Words


@dataclass(frozen=True)
class Opening:
    """Shares with which a round is opened: of a survivor's own mask, or of a lost holder's key; never both."""

    sender: int
    own_masks: Mapping[int, bytes]
    keys: Mapping[int, bytes]
