"""The coordinator of a study: it asks holders for what each round needs, and writes down what came of it.

Keys and shares are asked for some rounds ahead, as they do not depend on data; three letters a round are left.
A holder that does not answer in time is lost until keys are asked for again. The number of a round is written
to the disk before the first input is asked for: after a crash that round counts as abandoned, and no number is
used twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from sfumato.errors import InvalidInput, Refused, SfumatoError
from sfumato.holders.coordinator_round import CoordinatorRound
from sfumato.holders.letters import (
    Kind,
    Letter,
    read_envelopes,
    read_masked,
    read_opening,
    read_rounds,
    read_signed,
    write_envelopes,
    write_outcomes,
    write_rounds,
)
from sfumato.holders.log import Log
from sfumato.holders.node import Opened
from sfumato.holders.study import Study

AHEAD = 20
_MOST_WORDS = 2**26  # bytes of sums in one letter
Read = Callable[[int, Letter], None]


class Post(Protocol):
    """How letters reach holders, by their places, and which answers come back in time."""

    def ask(self, letters: Mapping[int, bytes], *, patience: float) -> Mapping[int, bytes]: ...


class Conductor:
    """Goes through the rounds of a study, from the first one of which nothing is written down.

    It holds no secret and is trusted with nothing: a round opens to the noisy sum, or not at all.
    """

    def __init__(
        self,
        study: Study,
        post: Post,
        log: Log,
        *,
        patience: float = 60.0,
        waiting: float = 3600.0,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        self._study, self._post, self._log = study, post, log
        self._patience, self._waiting = patience, waiting
        self._on_round = on_round or (lambda number: None)
        self._places = frozenset(range(1, study.parties.holders + 1))
        self._known = dict.fromkeys(self._places, 0)
        self._done = log.next_round - 1  # rounds whose outcome is final; one that a crash cut off is abandoned

    def run(self) -> None:
        """All rounds that are left, and then the good news to every holder.

        Raises:
            Refused: If too few holders answer for too long, or more rounds were abandoned than declared.
        """
        while (number := self._done + 1) <= self._study.plan.steps:
            numbers = range(number, min(number + AHEAD, self._study.plan.steps + 1))
            self._hold_all(self._set_up(numbers))
        self._check_spare()
        self._end()

    def _hold_all(self, rounds: Mapping[int, CoordinatorRound]) -> None:
        """The rounds that were set up, until one of them is abandoned."""
        present = set(next(iter(rounds.values())).sharers)
        for number, part in rounds.items():
            self._log.start(number)
            opened = self._hold(part, present)
            self._log.write(number, opened)
            self._done = number
            self._on_round(number)
            if opened is None:
                self._check_spare()
                return

    def _check_spare(self) -> None:
        if self._log.abandoned > self._study.spare:
            raise Refused(
                f"expected at most spare={self._study.spare} abandoned rounds, got more; the study ends, and "
                "what the holders were charged stays charged"
            )

    # Keys and shares

    def _set_up(self, numbers: range) -> Mapping[int, CoordinatorRound]:
        """Rounds for which enough holders have shared their secrets; nobody's data was touched for them."""
        ends = time.monotonic() + self._waiting
        while True:
            rounds = {number: CoordinatorRound(self._study.terms(number)) for number in numbers}
            self._catch_up()
            ready = self._advertised(rounds)
            if len(ready) >= self._study.parties.least and self._shared(rounds, ready):
                return rounds
            if time.monotonic() > ends:
                raise Refused(
                    f"expected answers of at least {self._study.parties.least} holders within "
                    f"{self._waiting:g} seconds, got {len(ready)}; ask them to join, and start again: rounds "
                    "that are done stay done"
                )
            time.sleep(min(1.0, self._patience / 10))

    def _catch_up(self) -> None:
        """Ask nothing, until those who answer know all outcomes; a large history takes several letters."""
        behind = {place for place in self._places if self._known[place] < self._done}
        while behind:
            before = dict(self._known)
            self._ask(behind, Kind.KEYS, 0, lambda place: {"numbers": []}, lambda place, answer: None)
            behind = {place for place in behind if before[place] < self._known[place] < self._done}

    def _advertised(self, rounds: Mapping[int, CoordinatorRound]) -> set[int]:
        def read(place: int, answer: Letter) -> None:
            adverts = read_rounds(answer.said)
            for number, part in rounds.items():
                part.terms.check_advert(read_signed(adverts[number]), place)
            for number, part in rounds.items():
                part.take_advert(adverts[number])

        return self._ask(self._places, Kind.KEYS, 0, lambda place: {"numbers": list(rounds)}, read)

    def _shared(self, rounds: Mapping[int, CoordinatorRound], ready: Collection[int]) -> bool:
        adverts = write_rounds({number: [dict(one) for one in part.adverts] for number, part in rounds.items()})

        def read(place: int, answer: Letter) -> None:
            sealed = {number: read_envelopes(one) for number, one in read_rounds(answer.said).items()}
            for number, part in rounds.items():
                part.check_envelopes(place, sealed[number])
            for number, part in rounds.items():
                part.take_envelopes(place, sealed[number])

        done = self._ask(ready, Kind.SHARES, 0, lambda place: adverts, read)
        return len(done) >= self._study.parties.least

    # One round

    def _hold(self, part: CoordinatorRound, present: set[int]) -> Opened | None:
        """The sum, or None if the round is abandoned; who is lost in it leaves `present`."""
        number, parties = part.terms.number, part.terms.parties
        asked = set(present)

        def masked(place: int, answer: Letter) -> None:
            words = read_masked(answer, place, bits=part.terms.bits, dimension=part.terms.dimension)
            part.take_masked(words)

        def envelopes(place: int) -> dict[str, Any]:
            return {"envelopes": write_envelopes(part.envelopes_for(place))}

        present &= self._ask(asked, Kind.INPUT, number, envelopes, masked)
        if len(present) < parties.least:
            return None
        survivors = {"survivors": part.survivors}
        agreed = self._ask(
            present,
            Kind.AGREE,
            number,
            lambda place: survivors,
            lambda place, answer: part.take_agreement(place, read_signed(answer.said.get("agreement"))),
        )
        agreements = {"agreements": {str(place): dict(one) for place, one in part.agreements.items()}}
        opened = self._ask(
            agreed,
            Kind.OPEN,
            number,
            lambda place: agreements,
            lambda place, answer: part.take_opening(read_opening(answer.said, place)),
        )
        count = len(present)
        present &= opened
        try:
            return Opened(part.total(), count)
        except SfumatoError:  # too few helped, or their shares were wrong
            return None

    # Letters

    def _end(self) -> None:
        waiting, ends = set(self._places), time.monotonic() + self._patience
        while waiting and time.monotonic() < ends:
            self._catch_up()
            waiting -= self._ask(waiting, Kind.END, 0, lambda place: {}, lambda place, answer: None)

    def _ask(
        self,
        places: Collection[int],
        kind: Kind,
        number: int,
        said: Callable[[int], Mapping[str, Any]],
        read: Read,
    ) -> set[int]:
        """Who answered as expected; an answer that is late, refused or cannot be read is none."""
        letters = {place: self._letter(place, kind, number, said(place)) for place in places}
        done = set()
        for place, content in self._post.ask(letters, patience=self._patience).items():
            try:
                answer = Letter.from_bytes(content)
                self._note_known(place, answer)
                if answer.kind is kind and answer.number == number and answer.study == self._study.digest:
                    read(place, answer)
                    done.add(place)
            except (SfumatoError, KeyError):
                continue
        return done

    def _letter(self, place: int, kind: Kind, number: int, said: Mapping[str, Any]) -> bytes:
        size = 8 * self._study.noise.dimension
        first, most = self._known[place] + 1, max(1, _MOST_WORDS // size)
        news = {one: self._log.outcome(one) for one in range(first, min(first + most, self._done + 1))}
        listed, sums = write_outcomes(news)
        return Letter(
            kind=kind, study=self._study.digest, number=number, said={**said, "outcomes": listed}, words=sums
        ).to_bytes()

    def _note_known(self, place: int, answer: Letter) -> None:
        known = answer.said.get("known")
        if type(known) is not int or not 0 <= known <= self._done:
            raise InvalidInput(f"expected holder {place} to say which outcomes it knows, got none")
        self._known[place] = known
