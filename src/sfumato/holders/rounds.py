"""One round of a masked sum (Bonawitz et al. 2017, figure 4, the variant against a coordinator that cheats).

Each holder adds a mask of its own and one mask for each partner; masks of partners cancel in the sum. Shamir
shares of a holder's secrets let its partners remove its own mask if it survives, or its partner masks if it is
lost. Messages have one order, and each is sent once. A message that is out of order, of another round, not
signed, or different from the one that other holders got, ends the round for the holder that receives it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sfumato.errors import InvalidInput, NotVerified, Refused
from sfumato.holders import masks
from sfumato.holders.masks import Modulus, Words, agree, derive
from sfumato.holders.parties import Parties, partners
from sfumato.ledger.signing import PrivateKey, PublicKey, signer
from sfumato.mechanisms.grid import Integers
from sfumato.randomness import Sampler

KEYS, SURVIVORS = "holders keys", "holders survivors"
"""Purposes of signatures; a signature for one is not valid for the other."""

Signed = Mapping[str, Any]
Contribution = Callable[[], Integers]
_NONCE = bytes(12)  # each sealing key seals one envelope


# Messages


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of one round: study, number and holders, the same for all parties.

    `places` are the holders' signing keys, by their place in the study: 1, 2, …
    """

    study: str  # digest of the signed study
    number: int
    parties: Parties
    places: Mapping[int, PublicKey]
    dimension: int
    bits: int

    @cached_property
    def id(self) -> str:
        """The digest of the terms, from which every key of the round is derived."""
        known = [self.study, self.number, self.dimension, self.bits, self.parties.threshold, self.parties.least]
        keys = [[place, key.id] for place, key in sorted(self.places.items())]
        return hashlib.sha256(json.dumps([known, keys]).encode()).hexdigest()

    def partners(self, place: int) -> Collection[int]:
        """Return the places with which a holder shares masks and secrets in this round."""
        return partners(self.id, place, places=self.places, count=self.parties.degree.partners)

    @property
    def share_threshold(self) -> int:
        """The number of shares that give a holder's secret back; the holder itself has one of them."""
        return self.parties.degree.share_threshold

    def context(self, purpose: str, sender: int, receiver: int) -> bytes:
        return f"{purpose}\n{self.id}\n{sender}\n{receiver}".encode()

    def pair_context(self, one: int, other: int) -> bytes:
        return self.context("pair mask", min(one, other), max(one, other))

    def check_signature(self, purpose: str, message: Signed, place: int) -> None:
        """Raise unless the holder at `place` signed the message, for this round."""
        expected = self.places.get(place)
        if expected is None or message.get("round") != self.id or message.get("place") != place:
            raise NotVerified(f"expected a message of holder {place} for this round, got another")
        if signer(purpose, message) != expected:
            raise NotVerified(f"expected the signature of holder {place}, got another; stop the study")

    def check_advert(self, advert: Signed, place: int) -> None:
        """Raise unless the holder at `place` signed these keys, and each is written as 64 digits."""
        self.check_signature(KEYS, advert, place)
        for name in ("mask", "seal", "own"):
            value = advert.get(name)
            if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
                raise NotVerified(f"expected keys of 64 hexadecimal digits from holder {place}, got others")


@dataclass(frozen=True)
class Envelope:
    """Two shares from one holder for another, encrypted for the receiver."""

    sender: int
    receiver: int
    sealed: bytes


@dataclass(frozen=True)
class Masked:
    """A holder's masked input: uniform to every party without its masks."""

    sender: int
    words: Words


@dataclass(frozen=True)
class Opening:
    """A holder's shares that open the round: of survivors' own masks, and of lost holders' keys."""

    sender: int
    own_masks: Mapping[int, bytes]
    keys: Mapping[int, bytes]


@dataclass(frozen=True)
class Opened:
    """The result of a round that was not abandoned.

    Attributes:
        total: The noisy sum in grid steps, one whole number for each parameter.
        holders: The number of holders whose inputs are in it.

    >>> Opened(np.zeros(3, dtype=np.int64), holders=9).holders
    9
    """

    total: Integers
    holders: int


# A holder


class Turn(Enum):
    """The next action of a holder in a round; they follow in this order."""

    ADVERTISE = "advertise keys"
    SHARE = "share secrets"
    MASK = "send the masked input"
    AGREE = "agree on who is left"
    OPEN = "open the round"
    OVER = "do nothing more"


class HolderRound:
    """One holder's secrets and turns in one round; made anew for every round.

    *Guarantees*: a holder sends its masked input, once; and then a share of another holder's own mask or one of
    its key, never both, only after `threshold` holders signed the same list of survivors with at least
    `parties.least` names, so that the sum that opens has the declared noise. To all others the masked input is
    uniform unless `share_threshold` of the holder's partners help.
    """

    def __init__(self, terms: Terms, place: int, key: PrivateKey) -> None:
        if terms.places.get(place) != key.public:
            raise InvalidInput(f"expected the signing key of holder {place} of the study, got another")
        self.terms, self.place, self.turn = terms, place, Turn.ADVERTISE
        self._key = key
        self._mask_key, self._seal_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._own_mask = secrets.token_bytes(masks.SECRET_BYTES)
        self._partners = terms.partners(place)
        self._advertised: frozenset[int] = frozenset()
        self._peers: Mapping[int, Signed] = {}  # partners, and this holder
        self._received: dict[int, tuple[bytes, bytes]] = {}
        self._survivors: tuple[int, ...] = ()

    @contextmanager
    def _in_turn(self, now: Turn) -> Iterator[None]:
        """Allow one action in its turn; while it runs, and after it raised, the round is over."""
        expected, self.turn = self.turn, Turn.OVER
        if expected is not now:
            raise Refused(
                f"expected to {expected.value}, was asked to {now.value}; a message is answered once, in its "
                "turn, and this round is over"
            )
        yield
        order = list(Turn)
        self.turn = order[order.index(now) + 1]

    def advertise(self) -> Signed:
        """Return this round's public keys and a commitment to the own mask, signed."""
        with self._in_turn(Turn.ADVERTISE):
            return self._key.sign(
                KEYS,
                {
                    "round": self.terms.id,
                    "place": self.place,
                    "mask": _public(self._mask_key),
                    "seal": _public(self._seal_key),
                    "own": hashlib.sha256(self._own_mask).hexdigest(),
                },
            )

    def share(self, adverts: Sequence[Signed]) -> list[Envelope]:
        """Return shares of the own secrets for every partner that advertised keys."""
        with self._in_turn(Turn.SHARE):
            found = self._checked(adverts)
            near = {*self._partners, self.place}
            self._advertised = frozenset(found)
            self._peers = {place: advert for place, advert in found.items() if place in near}
            own, of_key = (
                masks.split(secret, threshold=self.terms.share_threshold, points=self._peers)
                for secret in (self._own_mask, self._mask_key.private_bytes_raw())
            )
            self._received[self.place] = own[self.place], of_key[self.place]
            return [
                Envelope(self.place, place, self._sealer(self.place, place).encrypt(_NONCE, shares, None))
                for place, shares in ((place, own[place] + of_key[place]) for place in self._peers)
                if place != self.place
            ]

    def mask(self, contribution: Contribution, envelopes: Sequence[Envelope]) -> Masked:
        """Return the masked input; `contribution` is called, and the data read, after all checks.

        Masks are shared with every partner from whom shares arrived: its key can be recovered if it is lost.
        """
        with self._in_turn(Turn.MASK):
            for envelope in envelopes:
                self._received[envelope.sender] = self._unsealed(envelope)
            away = len(self._partners) + 1 - len(self._received)
            self._check_enough(self.terms.parties.holders - away, "shared its secrets")
            values = contribution()
            if values.shape != (self.terms.dimension,):
                raise InvalidInput(f"expected {self.terms.dimension} numbers as agreed, got {values.shape}")
            modulus = Modulus(self.terms.bits)
            words = modulus.reduce(values)
            modulus.add_stream(words, self._own_key(), sign=1)
            for place in sorted(set(self._received) - {self.place}):
                modulus.add_stream(words, self._pair_key(place), sign=1 if self.place < place else -1)
            return Masked(self.place, words)

    def agree(self, survivors: Collection[int]) -> Signed:
        """Sign the list of holders whose input arrived, as the coordinator states it."""
        with self._in_turn(Turn.AGREE):
            names = tuple(sorted(survivors))
            near = set(names) & (set(self._partners) | {self.place})
            if len(set(names)) != len(names) or not set(names) <= self._advertised or self.place not in names:
                raise Refused("expected survivors who advertised keys, this holder among them, got others")
            if not near <= set(self._received):
                raise Refused("expected of every partner that survived its shares, got none of one")
            self._check_enough(len(names), "sent its input")
            self._survivors = names
            said = {"round": self.terms.id, "place": self.place, "survivors": list(names)}
            return self._key.sign(SURVIVORS, said)

    def open(self, agreements: Mapping[int, Signed]) -> Opening:
        """Return the shares that open the sum over the survivors, if enough holders signed the same list."""
        with self._in_turn(Turn.OPEN):
            for place, message in agreements.items():
                self.terms.check_signature(SURVIVORS, message, place)
                if message.get("survivors") != list(self._survivors):
                    raise NotVerified(
                        f"expected holder {place} to have been told of the same survivors, got others; the "
                        "coordinator tells different stories, so stop the study"
                    )
            if len(set(agreements) & set(self._survivors)) < self.terms.parties.threshold:
                raise Refused(
                    f"expected threshold={self.terms.parties.threshold} holders who agree on the survivors, "
                    f"got {len(agreements)}; the round is abandoned"
                )
            survived = {place: place in self._survivors for place in self._received}
            return Opening(
                self.place,
                {place: self._received[place][0] for place, stayed in survived.items() if stayed},
                {place: self._received[place][1] for place, stayed in survived.items() if not stayed},
            )

    def _checked(self, adverts: Sequence[Signed]) -> dict[int, Signed]:
        found: dict[int, Signed] = {}
        for advert in adverts:
            place: Any = advert.get("place")
            if not isinstance(place, int) or place in found:
                raise NotVerified("expected one advert of each holder, got several or none; stop the study")
            self.terms.check_advert(advert, place)
            found[place] = advert
        if found.get(self.place, {}).get("mask") != _public(self._mask_key):
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

    def _unsealed(self, envelope: Envelope) -> tuple[bytes, bytes]:
        sender = envelope.sender
        if envelope.receiver != self.place or sender in self._received or sender not in self._peers:
            raise Refused("expected one envelope for this holder from each other one, got another")
        try:
            content = self._sealer(sender, self.place).decrypt(_NONCE, envelope.sealed, None)
        except InvalidTag as error:
            raise NotVerified(
                f"expected shares of holder {sender} for this round, got altered ones or those of another"
            ) from error
        if len(content) != 2 * masks.SHARE_BYTES:
            raise NotVerified(f"expected two shares from holder {sender}, got something else")
        return content[: masks.SHARE_BYTES], content[masks.SHARE_BYTES :]

    def _own_key(self) -> bytes:
        return derive(self._own_mask, self.terms.context("own mask", self.place, self.place))

    def _pair_key(self, place: int) -> bytes:
        public = bytes.fromhex(self._peers[place]["mask"])
        return agree(self._mask_key, public, self.terms.pair_context(self.place, place))

    def _sealer(self, sender: int, receiver: int) -> AESGCM:
        other = receiver if sender == self.place else sender
        public = bytes.fromhex(self._peers[other]["seal"])
        return AESGCM(agree(self._seal_key, public, self.terms.context("seal", sender, receiver)))


def _public(key: X25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


# The coordinator


class CoordinatorRound:
    """The coordinator's part in one round: it passes messages on, and opens the sum and nothing else.

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
        self.agreements: dict[int, Signed] = {}
        self._openings: dict[int, Opening] = {}

    def take_advert(self, advert: Signed) -> None:
        place = int(advert["place"])
        _check_new(place, self._adverts, self.terms.places)
        self._adverts[place] = advert

    @property
    def adverts(self) -> list[Signed]:
        return list(self._adverts.values())

    def check_envelopes(self, place: int, envelopes: Sequence[Envelope]) -> None:
        _check_new(place, self._envelopes, self._adverts)
        if {(envelope.sender, envelope.receiver) for envelope in envelopes} != {
            (place, other) for other in self.terms.partners(place) if other in self._adverts
        }:
            raise Refused(f"expected of holder {place} an envelope for each of its partners, got others")

    def take_envelopes(self, place: int, envelopes: Sequence[Envelope]) -> None:
        self.check_envelopes(place, envelopes)
        self._envelopes[place] = {envelope.receiver: envelope for envelope in envelopes}

    @property
    def sharers(self) -> list[int]:
        """The holders that shared their secrets; a later loss of one of them can be made up for."""
        return sorted(self._envelopes)

    def envelopes_for(self, place: int) -> list[Envelope]:
        return [sent[place] for sent in self._envelopes.values() if place in sent]

    def take_masked(self, masked: Masked) -> None:
        _check_new(masked.sender, self._arrived, self._envelopes)
        if masked.words.shape != self._total.shape or masked.words.dtype != self._total.dtype:
            raise Refused(f"expected of holder {masked.sender} the agreed numbers, got others")
        self._total += masked.words
        self._arrived.add(masked.sender)

    @property
    def survivors(self) -> list[int]:
        return sorted(self._arrived)

    def take_agreement(self, place: int, agreement: Signed) -> None:
        _check_new(place, self.agreements, self._arrived)
        self.agreements[place] = agreement

    def take_opening(self, opening: Opening) -> None:
        _check_new(opening.sender, self._openings, self._arrived)
        self._openings[opening.sender] = opening

    def total(self) -> Integers:
        """Return the sum of the survivors' inputs: exact modulo the power of two.

        Raises:
            Refused: If too few holders helped; nothing is opened.
            NotVerified: If shares do not give back the secret that a holder had committed to.
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
            key = self._mask_key(lost)
            for place in self._arrived & set(self.terms.partners(lost)):  # whose masks its input would cancel
                public = bytes.fromhex(self._adverts[place]["mask"])
                pair = agree(key, public, self.terms.pair_context(lost, place))
                self._modulus.add_stream(total, pair, sign=-1 if place < lost else 1)
        return self._modulus.signed(total)

    def _own_key(self, place: int) -> bytes:
        secret = self._joined({sender: said.own_masks for sender, said in self._openings.items()}, place)
        if hashlib.sha256(secret).hexdigest() != self._adverts[place]["own"]:
            raise _wrong_shares(place)
        return derive(secret, self.terms.context("own mask", place, place))

    def _mask_key(self, place: int) -> X25519PrivateKey:
        secret = self._joined({sender: said.keys for sender, said in self._openings.items()}, place)
        key = X25519PrivateKey.from_private_bytes(secret)
        if _public(key) != self._adverts[place]["mask"]:
            raise _wrong_shares(place)
        return key

    def _joined(self, said: Mapping[int, Mapping[int, bytes]], place: int) -> bytes:
        shares = {sender: shares[place] for sender, shares in said.items() if place in shares}
        try:
            return masks.join(shares, threshold=self.terms.share_threshold)
        except InvalidInput as error:
            raise _wrong_shares(place) from error


def _check_new(place: int, taken: Collection[int], before: Collection[int]) -> None:
    if place in taken or place not in before:
        raise Refused(
            f"expected one message of holder {place} in its turn, got a second or late one; it is left out"
        )


def _wrong_shares(place: int) -> NotVerified:
    return NotVerified(
        f"expected shares of the secret to which holder {place} committed, got others; the round is abandoned"
    )


# A whole round in one process


class Lost(IntEnum):
    """The first message of a holder that does not arrive."""

    KEYS = 0
    SHARES = 1
    INPUT = 2
    AGREEMENT = 3
    OPENING = 4
    NEVER = 5


Losses = Callable[[int], Mapping[int, Lost]]
"""The holders that are lost in a round, by its number from 1, and at which message."""


def run_round(
    coordinator: CoordinatorRound,
    holders: Mapping[int, HolderRound],
    contributions: Mapping[int, Contribution],
    *,
    lost: Mapping[int, Lost] | None = None,
) -> Integers:
    """Return the sum over the holders whose input arrived.

    Raises:
        Refused: If too many are lost for the round to be opened; it reveals nothing then.
    """

    def present(message: Lost) -> list[int]:
        return [place for place in holders if (lost or {}).get(place, Lost.NEVER) > message]

    for place in present(Lost.KEYS):
        coordinator.take_advert(holders[place].advertise())
    for place in present(Lost.SHARES):
        coordinator.take_envelopes(place, holders[place].share(coordinator.adverts))
    for place in present(Lost.INPUT):
        envelopes = coordinator.envelopes_for(place)
        coordinator.take_masked(holders[place].mask(contributions[place], envelopes))
    if not coordinator.survivors:
        raise Refused("expected holders who sent their input, got none; the round is abandoned")
    for place in present(Lost.AGREEMENT):
        coordinator.take_agreement(place, holders[place].agree(coordinator.survivors))
    for place in present(Lost.OPENING):
        coordinator.take_opening(holders[place].open(coordinator.agreements))
    return coordinator.total()


def masked_sum(
    terms: Terms,
    keys: Mapping[int, PrivateKey],
    contributions: Mapping[int, Contribution],
    lost: Mapping[int, Lost],
) -> Opened | None:
    """Go through a round of all the holders that contribute; None if it is abandoned."""
    coordinator = CoordinatorRound(terms)
    parts = {place: HolderRound(terms, place, keys[place]) for place in contributions}
    try:
        total = run_round(coordinator, parts, contributions, lost=lost)
    except Refused:
        return None
    return Opened(total, len(coordinator.survivors))


def random_losses(parties: Parties, sampler: Sampler) -> Losses:
    """Lose as many holders as may be lost, each at any message, others in every round."""

    def lost(number: int) -> Mapping[int, Lost]:
        order = np.argsort(sampler.uniform(parties.holders))[: parties.dropped] + 1
        messages = sampler.integers(len(Lost) - 1, parties.dropped)
        return {int(place): Lost(int(message)) for place, message in zip(order, messages, strict=True)}

    return lost
