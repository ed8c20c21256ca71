"""Letters: the messages of a study between machines, and how a holder answers them.

A letter is a JSON object, preceded by its length, and after it numbers as they lie in memory. Bytes that cannot
be read as one are refused; nothing in them can run.

A holder's training waits in `Correspondence.exchange` for the outcome of its step's round. While it waits,
letters are answered: keys and shares for rounds to come, which do not touch data, and the letters of the round
itself. Each letter brings the outcomes that this holder does not know yet, so that a holder that was away, or
was started again, takes the same steps as all others and ends with the same model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from sfumato.errors import InvalidInput, NotVerified, Refused, SfumatoError
from sfumato.holders.node import Node
from sfumato.holders.rounds import (
    Contribution,
    Envelope,
    HolderRound,
    Masked,
    Opened,
    Opening,
    Signed,
    Terms,
)
from sfumato.holders.study import Study
from sfumato.holders.tasks import Material
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.signing import PrivateKey
from sfumato.mechanisms.grid import Integers
from sfumato.runs import Training, write_run
from sfumato.storage import RunFolder
from sfumato.training import PrivateTrainer

MOST_AHEAD = 64
"""Rounds for which keys may be asked in advance; their secrets stay in memory."""

WITNESS = "ledger.json"  # the newest entry of the holder's ledger

_R = TypeVar("_R")
_LENGTH = 4
_LARGEST_TEXT = 2**28
_WORDS = {4: "<u4", 8: "<u8"}


@contextmanager
def readable() -> Iterator[None]:
    """Raise InvalidInput for contents that cannot be read."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidInput(
            "expected a letter of a study, got unreadable bytes; nothing was answered"
        ) from error


class Kind(Enum):
    """The request of a letter; its answer has the same kind, or is a refusal."""

    KEYS = "keys"  # adverts for some rounds, in advance
    SHARES = "shares"  # the envelopes for them
    INPUT = "input"  # the masked input of one round
    AGREE = "agree"  # a signature under its survivors
    OPEN = "open"  # shares that open it
    END = "end"  # nothing more
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Letter:
    """One message. `number` is a round; `words` are numbers as they lie in memory, little end first."""

    kind: Kind
    study: str
    number: int = 0
    said: Mapping[str, Any] = field(default_factory=dict)
    words: bytes = b""

    def to_bytes(self) -> bytes:
        head = {"kind": self.kind.value, "study": self.study, "number": self.number, "said": self.said}
        text = json.dumps(head, separators=(",", ":")).encode()
        return len(text).to_bytes(_LENGTH, "big") + text + self.words

    @classmethod
    def from_bytes(cls, content: bytes) -> Letter:
        length = int.from_bytes(content[:_LENGTH], "big")
        with readable():
            if len(content) < _LENGTH + length or length > _LARGEST_TEXT:
                raise ValueError("cut off, or too long")
            head = json.loads(content[_LENGTH : _LENGTH + length])
            kind, study, number, said = (head[name] for name in ("kind", "study", "number", "said"))
            if not isinstance(study, str) or type(number) is not int or not isinstance(said, dict):
                raise ValueError("of other types")
            words = content[_LENGTH + length :]
            return cls(kind=Kind(kind), study=study, number=number, said=said, words=words)


# Contents of letters, as writers and readers


def write_numbered(name: str, parts: Mapping[int, Any]) -> dict[str, Any]:
    return {name: {str(number): part for number, part in parts.items()}}


@readable()
def read_numbered(said: Mapping[str, Any], name: str, read: Callable[[Any], _R]) -> dict[int, _R]:
    """Read an object with a part for each round, or for each holder."""
    return {int(number): read(part) for number, part in dict(said[name]).items()}


def read_signed(value: Any) -> list[Signed]:
    return [dict(one) for one in list(value)]


def write_envelopes(envelopes: Iterable[Envelope]) -> list[list[Any]]:
    return [[one.sender, one.receiver, one.sealed.hex()] for one in envelopes]


@readable()
def read_envelopes(written: Any) -> list[Envelope]:
    return [
        Envelope(_place(sender), _place(receiver), bytes.fromhex(sealed))
        for sender, receiver, sealed in written
    ]


def write_masked(masked: Masked) -> bytes:
    return masked.words.astype(masked.words.dtype.newbyteorder("<")).tobytes()


def read_masked(letter: Letter, place: int, *, bits: int, dimension: int) -> Masked:
    words = np.frombuffer(letter.words, dtype=_WORDS[bits // 8])
    if words.shape != (dimension,):
        raise ValueError("another number of words")
    return Masked(place, words.astype(f"u{bits // 8}"))


def write_opening(opening: Opening) -> dict[str, Any]:
    own, keys = (
        {place: share.hex() for place, share in shares.items()} for shares in (opening.own_masks, opening.keys)
    )
    return {**write_numbered("own_masks", own), **write_numbered("keys", keys)}


def read_opening(said: Mapping[str, Any], place: int) -> Opening:
    own, keys = (read_numbered(said, name, bytes.fromhex) for name in ("own_masks", "keys"))
    return Opening(place, own, keys)


@readable()
def read_places(values: Any) -> list[int]:
    return [_place(value) for value in list(values)]


def write_outcomes(outcomes: Mapping[int, Opened | None]) -> tuple[list[list[int]], bytes]:
    """Return the number of holders in each round's sum, 0 for an abandoned one, and the sums as bytes."""
    listed = [[number, 0 if one is None else one.holders] for number, one in outcomes.items()]
    sums = [one.total.astype("<i8").tobytes() for one in outcomes.values() if one is not None]
    return listed, b"".join(sums)


@readable()
def read_outcomes(letter: Letter, *, dimension: int, holders: range) -> dict[int, Opened | None]:
    sums = iter(np.frombuffer(letter.words, dtype="<i8").reshape(-1, dimension).astype(np.int64))
    found: dict[int, Opened | None] = {}
    for number, count in letter.said["outcomes"]:
        if count != 0 and count not in holders:
            raise ValueError("fewer holders than are needed")
        total = next(sums, None) if count else None
        if count and total is None:
            raise ValueError("fewer sums than outcomes")
        found[_place(number)] = None if total is None else Opened(total, count)
    return found


def _place(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("expected a whole number from 1")
    return value


# A holder's side


class Line(Protocol):
    """A holder's connection: letters arrive, and each gets one answer."""

    def receive(self) -> bytes: ...

    def reply(self, letter: bytes) -> None: ...


class Correspondence:
    """A `Channel` over a line to the coordinator.

    *Guarantees*: a letter of another study, or out of its turn, is refused and changes nothing; a refusal does
    not depend on data. A coordinator that tells different stories about a round gets no more answers: the study
    ends.
    """

    def __init__(self, study: Study, key: PrivateKey, line: Line) -> None:
        self._study, self._key, self._line = study, key, line
        self._place = study.place_of(key.public)
        self._rounds: dict[int, HolderRound] = {}
        self._outcomes: dict[int, Opened | None] = {}
        self._known = 0  # outcomes up to this round
        self._waiting: Letter | None = None
        self._ended = False

    def exchange(self, terms: Terms, place: int, contribution: Contribution) -> Opened | None:
        while self._known < terms.number:
            self._handle(self._next(), terms, contribution)
        return self._outcomes.pop(terms.number)

    def finish(self) -> None:
        """Answer the coordinator until it ends the study."""
        while not self._ended:
            self._handle(self._next(), None, _no_round)

    def _next(self) -> Letter | None:
        """Return the next letter of this study; a letter that is refused is None."""
        letter, self._waiting = self._waiting, None
        if letter is not None:
            return letter
        content = self._line.receive()
        try:
            found = Letter.from_bytes(content)
            if found.study != self._study.digest:
                raise Refused("expected a letter of the study that was signed, got one of another")
            self._take_outcomes(found)
        except SfumatoError:
            self._reply(Kind.REFUSED)
            return None
        return found

    def _take_outcomes(self, letter: Letter) -> None:
        parties = self._study.parties
        found = read_outcomes(
            letter, dimension=self._study.noise.dimension, holders=range(parties.least, parties.holders + 1)
        )
        for number in sorted(found):
            if number == self._known + 1 and number <= self._study.plan.steps:
                self._outcomes[number], self._known = found[number], number
                self._rounds.pop(number, None)

    def _handle(self, letter: Letter | None, terms: Terms | None, contribution: Contribution) -> None:
        if letter is None:
            return
        now = 0 if terms is None else terms.number
        if letter.number > now and self._known >= now > 0:
            self._waiting = letter  # of a later round, which the training has yet to reach
            return
        try:
            said, words = self._answer(letter, terms, contribution)
        except (Refused, InvalidInput) as error:
            self._reply(Kind.REFUSED)
            if isinstance(error, NotVerified):
                raise
            return
        self._reply(letter.kind, letter.number, said, words)

    def _answer(
        self, letter: Letter, terms: Terms | None, contribution: Contribution
    ) -> tuple[dict[str, Any], bytes]:
        if letter.kind is Kind.END:
            self._ended = True
            return {}, b""
        if letter.kind is Kind.KEYS:
            return self._advertise(read_places(letter.said.get("numbers"))), b""
        if letter.kind is Kind.SHARES:
            adverts = read_numbered(letter.said, "rounds", read_signed)
            shared = {
                number: write_envelopes(self._part(number).share(all_)) for number, all_ in adverts.items()
            }
            return write_numbered("rounds", shared), b""
        if terms is None or letter.number != terms.number:
            raise Refused(f"expected a letter of the round at hand, got one of round {letter.number}")
        part = self._part(letter.number)
        if letter.kind is Kind.INPUT:
            masked = part.mask(contribution, read_envelopes(letter.said.get("envelopes")))
            return {}, write_masked(masked)
        if letter.kind is Kind.AGREE:
            return {"agreement": dict(part.agree(read_places(letter.said.get("survivors"))))}, b""
        if letter.kind is Kind.OPEN:
            return write_opening(part.open(read_numbered(letter.said, "agreements", dict))), b""
        raise Refused("expected a letter that asks for something, got a refusal")

    def _advertise(self, numbers: list[int]) -> dict[str, Any]:
        if len(numbers) > MOST_AHEAD:
            raise Refused(f"expected keys to be asked for at most {MOST_AHEAD} rounds, got more")
        self._rounds = {  # earlier adverts are void
            number: HolderRound(self._study.terms(number), self._place, self._key)
            for number in numbers
            if number > self._known
        }
        adverts = {number: dict(part.advertise()) for number, part in self._rounds.items()}
        return write_numbered("rounds", adverts)

    def _part(self, number: int) -> HolderRound:
        if number not in self._rounds:
            raise Refused(f"expected a round whose keys were advertised, got round {number}")
        return self._rounds[number]

    def _reply(
        self, kind: Kind, number: int = 0, said: Mapping[str, Any] | None = None, words: bytes = b""
    ) -> None:
        told = {**(said or {}), "known": self._known}
        answer = Letter(kind=kind, study=self._study.digest, number=number, said=told, words=words)
        self._line.reply(answer.to_bytes())


def _no_round() -> Integers:
    raise Refused("expected no further round, got one; the study is over")


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A holder's outcome of a study; `measured` has figures on public rows, if there are any."""

    certificate: Certificate
    abandoned: int
    measured: dict[str, float | None]
    seconds: float


def join(
    study: Study,
    *,
    key: PrivateKey,
    signatures: Collection[Signed],
    line: Line,
    material: Material,
    ledger: Ledger,
    out: Path,
    on_step: Callable[[PrivateTrainer], None] | None = None,
) -> Joined:
    """Take part in a study as one holder, to its end; the run folder then holds the common model.

    Raises:
        NotVerified: If a holder has not signed, or the coordinator tells different stories.
        BudgetExceeded: If the ledger has no room; nothing was read.
        LedgerTampered: If the ledger is older than the entry that the run folder keeps.
    """
    started = time.perf_counter()
    letters = Correspondence(study, key, line)
    folder = RunFolder.begin(out, resumes=True)
    node = Node(study, key, signatures, letters, ledger=ledger, witness=folder.private / WITNESS)
    certificate = node.train(material.network, material.read, caveats=material.caveats, on_step=on_step)
    letters.finish()
    measured = material.measure()
    result = Training(
        epsilon=study.plan.epsilon(study.delta),
        delta=study.delta,
        **{"test_accuracy": None, **measured},  # type: ignore[arg-type]  # each is a figure of its own
    )
    seconds = time.perf_counter() - started
    write_run(
        folder,
        result,
        certificate=certificate,
        plan=study.plan.to_json(),
        model=material.release(),
        seconds=seconds,
    )
    return Joined(certificate=certificate, abandoned=node.abandoned, measured=measured, seconds=seconds)
