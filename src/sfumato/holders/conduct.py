"""The coordinator of a study: it asks holders for the parts of each round, and keeps the outcomes on the disk.

Keys and shares are asked for some rounds ahead, as they do not depend on data; three letters a round are left.
A holder that does not answer in time is lost until keys are asked for again. The number of a round is written
to the disk before the first input is asked for: after a crash that round counts as abandoned, and no number is
used twice.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sfumato.errors import InvalidInput, Refused, SfumatoError
from sfumato.holders.letters import (
    Kind,
    Letter,
    read_envelopes,
    read_masked,
    read_numbered,
    read_opening,
    write_envelopes,
    write_numbered,
    write_outcomes,
)
from sfumato.holders.rounds import CoordinatorRound, Opened
from sfumato.holders.study import Study
from sfumato.storage import make_folder

AHEAD = 20
ROUNDS = "rounds.db"
_MOST_WORDS = 2**26  # bytes of sums in one letter
_NOTHING: Mapping[str, Any] = {}
Read = Callable[[int, Letter], None]


class Log:
    """The rounds of one study, in a file: those that were started, and the noisy sums, which are public.

    A sum is on the disk before a holder is told of it. A second coordinator cannot open the file.
    """

    def __init__(self, path: Path, *, study: str, dimension: int) -> None:
        self._dimension = dimension
        self._file = sqlite3.connect(path, isolation_level=None, timeout=1.0, check_same_thread=False)
        try:
            self._file.execute("PRAGMA synchronous = EXTRA")
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._file.execute("BEGIN EXCLUSIVE")
            self._file.execute("CREATE TABLE IF NOT EXISTS study (digest TEXT)")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS rounds (number INTEGER PRIMARY KEY, holders INTEGER, total BLOB)"
            )
            found = self._file.execute("SELECT digest FROM study").fetchone()
            if found is None:
                self._file.execute("INSERT INTO study VALUES (?)", (study,))
            self._file.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._file.close()
            raise Refused(
                f"expected the rounds of a study at {path}, which no other coordinator uses, got another file "
                "or one that is in use; stop the other, or choose another --out"
            ) from error
        if found is not None and found[0] != study:
            self._file.close()
            raise InvalidInput(
                f"expected rounds of this study at {path}, got those of another; choose another --out"
            )

    @property
    def next_round(self) -> int:
        """One more than the last that was started."""
        last: int | None = self._file.execute("SELECT max(number) FROM rounds").fetchone()[0]
        return 1 if last is None else last + 1

    @property
    def abandoned(self) -> int:
        count: int = self._file.execute("SELECT count(*) FROM rounds WHERE total IS NULL").fetchone()[0]
        return count

    def start(self, number: int) -> None:
        """Note that inputs are about to be asked for; the round is abandoned unless an outcome follows."""
        if number != self.next_round:
            raise Refused(f"expected round {self.next_round} to be next, got {number}")
        self._file.execute("INSERT INTO rounds VALUES (?, 0, NULL)", (number,))

    def write(self, number: int, opened: Opened | None) -> None:
        if opened is not None:
            total = opened.total.astype("<i8").tobytes()
            self._file.execute(
                "UPDATE rounds SET holders = ?, total = ? WHERE number = ?", (opened.holders, total, number)
            )

    def outcome(self, number: int) -> Opened | None:
        """Return the sum of a round that was started; None if it was abandoned."""
        holders, total = self._file.execute(
            "SELECT holders, total FROM rounds WHERE number = ?", (number,)
        ).fetchone()
        if total is None:
            return None
        return Opened(np.frombuffer(total, dtype="<i8").astype(np.int64).reshape(self._dimension), holders)

    def close(self) -> None:
        self._file.close()


class Post(Protocol):
    """Sends letters to holders by their places, and returns the answers that arrive in time."""

    def ask(self, letters: Mapping[int, bytes], *, patience: float) -> Mapping[int, bytes]: ...


class Conductor:
    """Goes through the rounds of a study, from the first one that the log does not have.

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
        on_round: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._study, self._post, self._log = study, post, log
        self._patience, self._waiting, self._on_round = patience, waiting, on_round
        self._places = frozenset(range(1, study.parties.holders + 1))
        self._known = dict.fromkeys(self._places, 0)
        self._done = log.next_round - 1  # rounds whose outcome is final; one that a crash cut off is abandoned

    def run(self) -> None:
        """Go through all rounds that are left, and end the study at every holder.

        Raises:
            Refused: If too few holders answer for too long, or more rounds were abandoned than declared.
        """
        while (number := self._done + 1) <= self._study.plan.steps:
            numbers = range(number, min(number + AHEAD, self._study.plan.steps + 1))
            self._hold_all(self._set_up(numbers))
        self._check_spare()
        waiting, ends = set(self._places), time.monotonic() + self._patience
        while waiting and time.monotonic() < ends:
            self._catch_up()
            waiting -= self._ask(waiting, Kind.END)
            if waiting:
                self._pause()

    def _hold_all(self, rounds: Mapping[int, CoordinatorRound]) -> None:
        """Hold the rounds that were set up, until one of them is abandoned."""
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

    def _pause(self) -> None:
        """Wait a little before absent holders are asked again."""
        time.sleep(min(1.0, self._patience / 10))

    def _check_spare(self) -> None:
        if self._log.abandoned > self._study.spare:
            raise Refused(
                f"expected at most spare={self._study.spare} abandoned rounds, got more; the study ends, and "
                "the holders' charges stay"
            )

    # Keys and shares

    def _set_up(self, numbers: range) -> Mapping[int, CoordinatorRound]:
        """Set up rounds for which enough holders share their secrets; no data is touched for them."""
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
            self._pause()

    def _catch_up(self) -> None:
        """Send outcomes until the holders that answer know all; a large history takes several letters."""
        behind = {place for place in self._places if self._known[place] < self._done}
        while behind:
            before = dict(self._known)
            self._ask(behind, Kind.KEYS, said={"numbers": []})
            behind = {place for place in behind if before[place] < self._known[place] < self._done}

    def _advertised(self, rounds: Mapping[int, CoordinatorRound]) -> set[int]:
        def read(place: int, answer: Letter) -> None:
            adverts = read_numbered(answer.said, "rounds", dict)
            for number, part in rounds.items():
                part.terms.check_advert(adverts[number], place)
            for number, part in rounds.items():
                part.take_advert(adverts[number])

        return self._ask(self._places, Kind.KEYS, said={"numbers": list(rounds)}, read=read)

    def _shared(self, rounds: Mapping[int, CoordinatorRound], ready: Collection[int]) -> bool:
        signed = {number: [dict(one) for one in part.adverts] for number, part in rounds.items()}

        def read(place: int, answer: Letter) -> None:
            sealed = read_numbered(answer.said, "rounds", read_envelopes)
            for number, part in rounds.items():
                part.check_envelopes(place, sealed[number])
            for number, part in rounds.items():
                part.take_envelopes(place, sealed[number])

        return (
            len(self._ask(ready, Kind.SHARES, said=write_numbered("rounds", signed), read=read))
            >= self._study.parties.least
        )

    # One round

    def _hold(self, part: CoordinatorRound, present: set[int]) -> Opened | None:
        """Return the sum, or None if the round is abandoned; lost holders leave `present`."""
        terms = part.terms

        def masked(place: int, answer: Letter) -> None:
            part.take_masked(read_masked(answer, place, bits=terms.bits, dimension=terms.dimension))

        def agreed(place: int, answer: Letter) -> None:
            part.take_agreement(place, dict(answer.said["agreement"]))

        def opened(place: int, answer: Letter) -> None:
            part.take_opening(read_opening(answer.said, place))

        def envelopes(place: int) -> dict[str, Any]:
            return {"envelopes": write_envelopes(part.envelopes_for(place))}

        present &= self._ask(set(present), Kind.INPUT, terms.number, said=envelopes, read=masked)
        if len(present) < terms.parties.least:
            return None
        count = len(present)
        said: dict[str, Any] = {"survivors": part.survivors}
        ready = self._ask(present, Kind.AGREE, terms.number, said=said, read=agreed)
        said = write_numbered("agreements", {place: dict(one) for place, one in part.agreements.items()})
        present &= self._ask(ready, Kind.OPEN, terms.number, said=said, read=opened)
        try:
            return Opened(part.total(), count)
        except SfumatoError:  # too few helped, or their shares were wrong
            return None

    # Letters

    def _ask(
        self,
        places: Collection[int],
        kind: Kind,
        number: int = 0,
        *,
        said: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] = _NOTHING,
        read: Read = lambda place, answer: None,
    ) -> set[int]:
        """Return the places that answered as expected; a late, refused or unreadable answer is none."""
        letters = {
            place: self._letter(place, kind, number, said(place) if callable(said) else said)
            for place in places
        }
        done = set()
        for place, content in self._post.ask(letters, patience=self._patience).items():
            try:
                answer = Letter.from_bytes(content)
                self._note_known(place, answer)
                if answer.kind is kind and answer.number == number and answer.study == self._study.digest:
                    read(place, answer)
                    done.add(place)
            except (SfumatoError, LookupError, TypeError, ValueError, AttributeError):
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


@dataclass(frozen=True, kw_only=True)
class Coordinated:
    """A coordinator's outcome; its folder holds the sums of the rounds, and nothing else."""

    rounds: int
    abandoned: int
    seconds: float


def coordinate(
    study: Study,
    post: Post,
    *,
    out: Path,
    patience: float,
    waiting: float,
    on_round: Callable[[int], None] = lambda number: None,
) -> Coordinated:
    """Go through the rounds of a study that are left, and end it, as `Conductor.run`."""
    started = time.perf_counter()
    make_folder(out, readable=False)
    log = Log(out / ROUNDS, study=study.digest, dimension=study.noise.dimension)
    try:
        Conductor(study, post, log, patience=patience, waiting=waiting, on_round=on_round).run()
        return Coordinated(
            rounds=study.plan.steps, abandoned=log.abandoned, seconds=time.perf_counter() - started
        )
    finally:
        log.close()
