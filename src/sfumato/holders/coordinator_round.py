"""The coordinator's part in one round: it passes messages on, and opens nothing but the sum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sfumato.errors import InvalidInput, NotVerified, Refused
from sfumato.holders import shamir
from sfumato.holders.holder_round import pair_context
from sfumato.holders.masks import Modulus, Words, agree, derive
from sfumato.holders.messages import Envelope, Masked, Opening, Signed, Terms
from sfumato.mechanisms.grid import Integers


class CoordinatorRound:
    """Collects what the holders of one round send; who is late is lost for the round.

    It holds no secret. Each message of a holder is taken once; a second one, or one of a holder that was lost
    before, is refused and changes nothing.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._modulus = Modulus(terms.bits)
        self._total: Words = self._modulus.reduce(np.zeros(terms.dimension, dtype=np.int64))
        self._adverts: dict[int, Signed] = {}
        self._envelopes: dict[int, dict[int, Envelope]] = {}  # by sender and receiver
        self._arrived: set[int] = set()
        self._agreements: dict[int, Signed] = {}
        self._openings: dict[int, Opening] = {}

    def take_advert(self, advert: Signed) -> None:
        place = int(advert["place"])
        self._check_new(place, self._adverts, self.terms.places)
        self._adverts[place] = advert

    @property
    def adverts(self) -> list[Signed]:
        return list(self._adverts.values())

    def check_envelopes(self, place: int, envelopes: Sequence[Envelope]) -> None:
        self._check_new(place, self._envelopes, self._adverts)
        if {(envelope.sender, envelope.receiver) for envelope in envelopes} != {
            (place, other) for other in self.terms.partners(place) if other in self._adverts
        }:
            raise Refused(f"expected of holder {place} an envelope for each of its partners, got others")

    def take_envelopes(self, place: int, envelopes: Sequence[Envelope]) -> None:
        self.check_envelopes(place, envelopes)
        self._envelopes[place] = {envelope.receiver: envelope for envelope in envelopes}

    @property
    def sharers(self) -> list[int]:
        """Those who shared their secrets: who of them is lost from here on can be made up for."""
        return sorted(self._envelopes)

    def envelopes_for(self, place: int) -> list[Envelope]:
        return [
            self._envelopes[sender][place] for sender in self._envelopes if place in self._envelopes[sender]
        ]

    def take_masked(self, masked: Masked) -> None:
        self._check_new(masked.sender, self._arrived, self._envelopes)
        if masked.words.shape != self._total.shape or masked.words.dtype != self._total.dtype:
            raise Refused(f"expected of holder {masked.sender} the agreed numbers, got others")
        self._total += masked.words
        self._arrived.add(masked.sender)

    @property
    def survivors(self) -> list[int]:
        return sorted(self._arrived)

    def take_agreement(self, place: int, agreement: Signed) -> None:
        self._check_new(place, self._agreements, self._arrived)
        self._agreements[place] = agreement

    @property
    def agreements(self) -> Mapping[int, Signed]:
        return dict(self._agreements)

    def take_opening(self, opening: Opening) -> None:
        self._check_new(opening.sender, self._openings, self._arrived)
        self._openings[opening.sender] = opening

    def total(self) -> Integers:
        """The sum of what the survivors added: exact modulo the power of two.

        Raises:
            Refused: If too few holders helped; nothing is opened.
            NotVerified: If shares do not give back what a holder had committed to.
        """
        threshold = self.terms.parties.threshold
        if len(self._openings) < threshold:
            raise Refused(
                f"expected threshold={threshold} holders who open the round, got {len(self._openings)}; it is "
                "abandoned, and counts as released"
            )
        total = self._total.copy()
        for place in self._arrived:
            self._modulus.add_stream(total, self._own_key(place), sign=-1)
        for lost in set(self._envelopes) - self._arrived:
            self._take_off(total, lost)
        return self._modulus.signed(total)

    def _take_off(self, total: Words, lost: int) -> None:
        """Of the masks that survivors share with a lost holder: those that its input would have cancelled."""
        key = self._mask_key(lost)
        for place in self._arrived & set(self.terms.partners(lost)):
            public = bytes.fromhex(self._adverts[place]["mask"])
            pair = agree(key, public, pair_context(self.terms, lost, place))
            self._modulus.add_stream(total, pair, sign=-1 if place < lost else 1)

    def _own_key(self, place: int) -> bytes:
        secret = self._joined({sender: said.own_masks for sender, said in self._openings.items()}, place)
        if hashlib.sha256(secret).hexdigest() != self._adverts[place]["own"]:
            raise _wrong_shares(place)
        return derive(secret, self.terms.context("own mask", place, place))

    def _mask_key(self, place: int) -> X25519PrivateKey:
        secret = self._joined({sender: said.keys for sender, said in self._openings.items()}, place)
        key = X25519PrivateKey.from_private_bytes(secret)
        if key.public_key().public_bytes_raw().hex() != self._adverts[place]["mask"]:
            raise _wrong_shares(place)
        return key

    def _joined(self, said: Mapping[int, Mapping[int, bytes]], place: int) -> bytes:
        shares = {sender: shares[place] for sender, shares in said.items() if place in shares}
        try:
            return shamir.join(shares, threshold=self.terms.share_threshold)
        except InvalidInput as error:
            raise _wrong_shares(place) from error

    def _check_new(self, place: int, taken: object, before: object) -> None:
        if place in taken or place not in before:  # type: ignore[operator]
            raise Refused(
                f"expected one message of holder {place} in its turn, got a second or late one; it is left out"
            )


def _wrong_shares(place: int) -> NotVerified:
    return NotVerified(
        f"expected shares of what holder {place} had committed to, got others; the round is abandoned"
    )
