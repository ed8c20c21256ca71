"""One holder's part in one round of a masked sum (Bonawitz et al. 2017, figure 4, against who cheats).

The messages go in one order, each once. Whatever is out of order, of another round, not signed, or told
differently to others ends the round for this holder: it then says nothing more in it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sfumato.errors import InvalidInput, NotVerified, Refused
from sfumato.holders import shamir
from sfumato.holders.masks import Modulus, agree, derive
from sfumato.holders.messages import KEYS, SURVIVORS, Envelope, Masked, Opening, Signed, Terms
from sfumato.ledger.signing import PrivateKey
from sfumato.mechanisms.grid import Integers

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NONCE = bytes(12)  # each sealing key seals one envelope


class Turn(Enum):
    """What a holder does next in a round."""

    ADVERTISE = "advertise keys"
    SHARE = "share secrets"
    MASK = "send the masked input"
    AGREE = "agree on who is left"
    OPEN = "open the round"
    OVER = "nothing more"


def _turn(
    now: Turn, following: Turn
) -> Callable[[Callable[Concatenate[HolderRound, _P], _R]], Callable[Concatenate[HolderRound, _P], _R]]:
    """Let a method be called once, in its turn; the round is over if it raises, and until it returns."""

    def decorate(
        method: Callable[Concatenate[HolderRound, _P], _R],
    ) -> Callable[Concatenate[HolderRound, _P], _R]:
        @wraps(method)
        def taken(self: HolderRound, /, *arguments: _P.args, **options: _P.kwargs) -> _R:
            expected, self.turn = self.turn, Turn.OVER
            if expected is not now:
                raise Refused(
                    f"expected to {expected.value}, was asked to {now.value}; a message is answered once, in "
                    "its turn, and this round is over"
                )
            answer = method(self, *arguments, **options)
            self.turn = following
            return answer

        return taken

    return decorate


class HolderRound:
    """One holder's secrets and turns in one round; made anew for every round, a retry included.

    *Guarantees*: what leaves is the masked input, once; and then either a share of a holder's own mask or one
    of its key, never both for the same holder, only after `threshold` holders signed the same list of
    survivors with at least `parties.least` names, so that the sum that opens has the declared noise. To all
    others the masked input is uniform unless `share_threshold` of its partners help.
    """

    def __init__(self, terms: Terms, place: int, key: PrivateKey) -> None:
        if terms.places.get(place) != key.public:
            raise InvalidInput(f"expected the signing key of holder {place} of the study, got another")
        self.terms, self.place, self.turn = terms, place, Turn.ADVERTISE
        self._key = key
        self._mask_key, self._seal_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._own_mask = secrets.token_bytes(shamir.SECRET_BYTES)
        self._partners = terms.partners(place)
        self._advertised: frozenset[int] = frozenset()
        self._peers: Mapping[int, Signed] = {}  # partners, and this holder
        self._received: dict[int, tuple[bytes, bytes]] = {}
        self._survivors: tuple[int, ...] = ()

    @_turn(Turn.ADVERTISE, Turn.SHARE)
    def advertise(self) -> Signed:
        """The public keys of this round, and a commitment to the own mask; signed."""
        return self._key.sign(
            KEYS,
            {
                "round": self.terms.id,
                "place": self.place,
                "mask": self._mask_key.public_key().public_bytes_raw().hex(),
                "seal": self._seal_key.public_key().public_bytes_raw().hex(),
                "own": hashlib.sha256(self._own_mask).hexdigest(),
            },
        )

    @_turn(Turn.SHARE, Turn.MASK)
    def share(self, adverts: Sequence[Signed]) -> list[Envelope]:
        """Shares of the own secrets for every partner that advertised keys."""
        found = self._checked(adverts)
        self._advertised = frozenset(found)
        self._peers = {
            place: advert for place, advert in found.items() if place in self._partners or place == self.place
        }
        threshold = self.terms.share_threshold
        own = shamir.split(self._own_mask, threshold=threshold, points=self._peers)
        of_key = shamir.split(self._mask_key.private_bytes_raw(), threshold=threshold, points=self._peers)
        self._received[self.place] = own[self.place], of_key[self.place]
        return [self._seal(place, own[place] + of_key[place]) for place in self._peers if place != self.place]

    @_turn(Turn.MASK, Turn.AGREE)
    def mask(self, contribution: Callable[[], Integers], envelopes: Sequence[Envelope]) -> Masked:
        """The masked input; `contribution` is called, and the data touched, only when all else is in order.

        Masks are shared with every partner from whom shares arrived: should one be lost, its key can be had.
        """
        for envelope in envelopes:
            self._received[envelope.sender] = self._unseal(envelope)
        away = len(self._partners) + 1 - len(self._received)
        self._check_enough(self.terms.parties.holders - away, "shared its secrets")
        modulus = Modulus(self.terms.bits)
        values = contribution()
        if values.shape != (self.terms.dimension,):
            raise InvalidInput(f"expected {self.terms.dimension} numbers as agreed, got {values.shape}")
        words = modulus.reduce(values)
        modulus.add_stream(words, self._own_key(), sign=1)
        for place in sorted(set(self._received) - {self.place}):
            sign = 1 if self.place < place else -1
            modulus.add_stream(words, self._pair_key(place), sign=sign)
        return Masked(self.place, words)

    @_turn(Turn.AGREE, Turn.OPEN)
    def agree(self, survivors: Collection[int]) -> Signed:
        """A signature under the list of those whose input arrived, as the coordinator tells it."""
        names = tuple(sorted(survivors))
        near = set(names) & (set(self._partners) | {self.place})
        if len(set(names)) != len(names) or not set(names) <= self._advertised or self.place not in names:
            raise Refused("expected survivors who advertised keys, this holder among them, got others")
        if not near <= set(self._received):
            raise Refused("expected of every partner that survived its shares, got none of one")
        self._check_enough(len(names), "sent its input")
        self._survivors = names
        return self._key.sign(
            SURVIVORS, {"round": self.terms.id, "place": self.place, "survivors": list(names)}
        )

    @_turn(Turn.OPEN, Turn.OVER)
    def open(self, agreements: Mapping[int, Signed]) -> Opening:
        """Shares that open the sum over the survivors, if enough holders were told of the same ones."""
        for place, message in agreements.items():
            self.terms.check_signature(SURVIVORS, message, place)
            if message.get("survivors") != list(self._survivors):
                raise NotVerified(
                    f"expected holder {place} to have been told of the same survivors, got others; the "
                    "coordinator tells different stories, so stop the study"
                )
        if len(set(agreements) & set(self._survivors)) < self.terms.parties.threshold:
            raise Refused(
                f"expected threshold={self.terms.parties.threshold} holders who agree on the survivors, got "
                f"{len(agreements)}; the round is abandoned"
            )
        lost = set(self._received) - set(self._survivors)
        return Opening(
            self.place,
            {place: self._received[place][0] for place in self._survivors if place in self._received},
            {place: self._received[place][1] for place in lost},
        )

    # Inside

    def _checked(self, adverts: Sequence[Signed]) -> dict[int, Signed]:
        found: dict[int, Signed] = {}
        for advert in adverts:
            place: Any = advert.get("place")
            if not isinstance(place, int) or place in found:
                raise NotVerified("expected one advert of each holder, got several or none; stop the study")
            self.terms.check_advert(advert, place)
            found[place] = advert
        if found.get(self.place, {}).get("mask") != self._mask_key.public_key().public_bytes_raw().hex():
            raise NotVerified("expected this holder's own keys among the adverts, got others; stop the study")
        public = [advert[name] for advert in found.values() for name in ("mask", "seal")]
        if len(set(public)) != len(public):
            raise NotVerified("expected different keys of all holders, got one twice; stop the study")
        self._check_enough(len(found), "advertised its keys")
        return dict(sorted(found.items()))

    def _check_enough(self, count: int, did: str) -> None:
        least = self.terms.parties.least
        if count < least:
            raise Refused(
                f"expected at least {least} holders of whom each {did}, got {count}; with fewer there "
                "is less noise than declared, and the round is abandoned"
            )

    def _seal(self, place: int, content: bytes) -> Envelope:
        key = self._sealing_key(self.place, place, place)
        return Envelope(self.place, place, AESGCM(key).encrypt(_NONCE, content, None))

    def _unseal(self, envelope: Envelope) -> tuple[bytes, bytes]:
        sender = envelope.sender
        if envelope.receiver != self.place or sender in self._received or sender not in self._peers:
            raise Refused("expected one envelope for this holder from each other one, got another")
        try:
            key = self._sealing_key(sender, self.place, sender)
            content = AESGCM(key).decrypt(_NONCE, envelope.sealed, None)
        except InvalidTag as error:
            raise NotVerified(
                f"expected shares of holder {sender} for this round, got what was changed or is of another"
            ) from error
        if len(content) != 2 * shamir.SHARE_BYTES:
            raise NotVerified(f"expected two shares from holder {sender}, got something else")
        return content[: shamir.SHARE_BYTES], content[shamir.SHARE_BYTES :]

    def _sealing_key(self, sender: int, receiver: int, other: int) -> bytes:
        public = bytes.fromhex(self._peers[other]["seal"])
        return agree(self._seal_key, public, self.terms.context("seal", sender, receiver))

    def _own_key(self) -> bytes:
        return derive(self._own_mask, self.terms.context("own mask", self.place, self.place))

    def _pair_key(self, place: int) -> bytes:
        public = bytes.fromhex(self._peers[place]["mask"])
        return agree(self._mask_key, public, pair_context(self.terms, self.place, place))


def pair_context(terms: Terms, one: int, other: int) -> bytes:
    return terms.context("pair mask", min(one, other), max(one, other))
