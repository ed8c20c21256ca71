"""A holder's side of the letters: it answers those of its study, in their turn, and no others.

The training waits in `exchange` for the outcome of its step's round. While it waits, letters are answered: keys
and shares for rounds to come, which do not touch data; and what belongs to the round itself. Each letter brings
the outcomes that this holder does not know yet, so that one that was away, or was started again, goes through
the same steps as all others and ends with the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sfumato.errors import InvalidInput, NotVerified, Refused, SfumatoError
from sfumato.holders.holder_round import HolderRound
from sfumato.holders.letters import (
    Kind,
    Letter,
    read_adverts,
    read_agreements,
    read_envelopes,
    read_outcomes,
    read_places,
    write_envelopes,
    write_masked,
    write_opening,
    write_rounds,
)
from sfumato.holders.messages import Terms
from sfumato.holders.node import Opened
from sfumato.holders.study import Study
from sfumato.ledger.signing import PrivateKey
from sfumato.mechanisms.grid import Integers

MOST_AHEAD = 64
"""Rounds for which keys may be asked in advance; their secrets stay in memory."""


class Line(Protocol):
    """How letters come and answers go; one answer for each letter."""

    def receive(self) -> bytes: ...

    def reply(self, letter: bytes) -> None: ...


class Correspondence:
    """A `Channel` over a line to the coordinator.

    *Guarantees*: a letter of another study, or out of its turn, is refused and changes nothing; what a refusal
    says does not depend on data. A coordinator that tells different stories about a round is not answered any
    more: the study ends.
    """

    def __init__(self, study: Study, key: PrivateKey, line: Line) -> None:
        self._study, self._key, self._line = study, key, line
        self._place = study.place_of(key.public)
        self._rounds: dict[int, HolderRound] = {}
        self._outcomes: dict[int, Opened | None] = {}
        self._known = 0  # outcomes up to this round
        self._waiting: Letter | None = None
        self._ended = False

    def exchange(self, terms: Terms, place: int, contribution: Callable[[], Integers]) -> Opened | None:
        while self._known < terms.number:
            letter = self._next()
            if letter is not None:
                self._handle(letter, terms, contribution)
        return self._outcomes.pop(terms.number)

    def finish(self) -> None:
        """Wait until the coordinator says that all is done, so that it need not wait for this holder."""
        while not self._ended:
            letter = self._next()
            if letter is not None:
                self._handle(letter, None, _nothing)

    def _next(self) -> Letter | None:
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
            self._refuse()
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

    def _handle(self, letter: Letter, terms: Terms | None, contribution: Callable[[], Integers]) -> None:
        now = 0 if terms is None else terms.number
        if letter.number and letter.number > now and self._known >= now > 0:
            self._waiting = letter  # of a later round, which the training has yet to reach
            return
        try:
            said, words = self._answer(letter, terms, contribution)
        except NotVerified:
            self._refuse()
            raise
        except (Refused, InvalidInput):
            self._refuse()
            return
        answer = Letter(
            kind=letter.kind,
            study=letter.study,
            number=letter.number,
            said={**said, "known": self._known},
            words=words,
        )
        self._line.reply(answer.to_bytes())

    def _answer(
        self, letter: Letter, terms: Terms | None, contribution: Callable[[], Integers]
    ) -> tuple[dict[str, Any], bytes]:
        if letter.kind is Kind.END:
            self._ended = True
            return {}, b""
        if letter.kind is Kind.KEYS:
            return self._advertise(read_places(letter.said.get("numbers"))), b""
        if letter.kind is Kind.SHARES:
            adverts = read_adverts(letter.said)
            shared = {
                number: write_envelopes(self._part(number).share(all_)) for number, all_ in adverts.items()
            }
            return write_rounds(shared), b""
        if terms is None or letter.number != terms.number:
            raise Refused(f"expected a letter of the round at hand, got one of round {letter.number}")
        part = self._part(letter.number)
        if letter.kind is Kind.INPUT:
            masked = part.mask(contribution, read_envelopes(letter.said.get("envelopes")))
            return {}, write_masked(masked)
        if letter.kind is Kind.AGREE:
            return {"agreement": dict(part.agree(read_places(letter.said.get("survivors"))))}, b""
        if letter.kind is Kind.OPEN:
            return write_opening(part.open(read_agreements(letter.said))), b""
        raise Refused("expected a letter that asks for something, got a refusal")

    def _advertise(self, numbers: list[int]) -> dict[str, Any]:
        if len(numbers) > MOST_AHEAD:
            raise Refused(f"expected keys to be asked for at most {MOST_AHEAD} rounds, got more")
        parts = {
            number: HolderRound(self._study.terms(number), self._place, self._key)
            for number in numbers
            if number > self._known
        }
        self._rounds = parts  # what was advertised before is over
        return write_rounds({number: dict(part.advertise()) for number, part in parts.items()})

    def _part(self, number: int) -> HolderRound:
        if number not in self._rounds:
            raise Refused(f"expected a round whose keys were advertised, got round {number}")
        return self._rounds[number]

    def _refuse(self) -> None:
        refusal = Letter(kind=Kind.REFUSED, study=self._study.digest, said={"known": self._known})
        self._line.reply(refusal.to_bytes())


def _nothing() -> Integers:
    raise Refused("expected no further round, got one; the study is over")
