"""Letters that are lost, late, doubled, forged or out of order; coordinators that die, or are two."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.errors import InvalidInput, Refused
from sfumato.holders import Opened, Parties
from sfumato.holders.conduct import Conductor, Log
from sfumato.holders.letters import MOST_AHEAD, Correspondence, Kind, Letter
from sfumato.holders.rounds import Terms
from sfumato.ledger.signing import PrivateKey

KEYS = {place: PrivateKey(Ed25519PrivateKey.generate()) for place in range(1, 6)}
DIMENSION, ROUNDS = 3, 4


class Agreed:
    """As much of a study as letters need."""

    digest = "d" * 64
    noise = SimpleNamespace(dimension=DIMENSION)
    plan = SimpleNamespace(steps=ROUNDS)

    def __init__(self, *, dropped=1, spare=ROUNDS, digest="d" * 64):
        self.parties = Parties(holders=5, dropped=dropped)
        self.spare, self.digest = spare, digest

    def place_of(self, key):
        return next(place for place, one in KEYS.items() if one.public == key)

    def terms(self, number):
        if not 1 <= number <= ROUNDS:
            raise InvalidInput("no such round")
        return Terms(
            study=self.digest,
            number=number,
            parties=self.parties,
            places={place: key.public for place, key in KEYS.items()},
            dimension=DIMENSION,
            bits=64,
        )


class Holder:
    """One holder whose input in round r is (r, r, r); a thread of its own, fed one letter at a time."""

    def __init__(self, study, place, known=0):
        self.study, self.place = study, place
        self.sums, self.inputs, self.failure = [], [], None
        self._answered = known
        self._asked, self._free = threading.Semaphore(0), threading.Semaphore(0)
        self.letter = self.answer = None
        self._over = self._done = False
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        letters = Correspondence(self.study, KEYS[self.place], self)
        try:
            for number in range(1, ROUNDS + 1):
                self.sums.append(letters.exchange(self.study.terms(number), self.place, self._input(number)))
            letters.finish()
        except Exception as error:
            self.failure = error
        finally:
            self._done = True
            self._free.release()

    def _input(self, number):
        def contribution():
            if number <= self._answered:  # as a node does, whose ledger has the mark
                raise Refused("answered before")
            self._answered = number
            self.inputs.append(number)
            return np.full(DIMENSION, number, dtype=np.int64)

        return contribution

    # The line

    def receive(self):
        self._free.release()  # whatever came before is done with
        self._asked.acquire()
        if self._over:
            raise Refused("gone")
        return self.letter

    def reply(self, letter):
        self.answer = letter

    def ask(self, letter):
        """The answer; None if this holder gives none."""
        assert self._free.acquire(timeout=10)
        if self._done:
            self._free.release()
            return None
        self.letter, self.answer = letter, None
        self._asked.release()
        assert self._free.acquire(timeout=10)
        self._free.release()
        return self.answer

    def leave(self):
        self._over = True
        self._asked.release()
        self.thread.join(10)


class Post:
    """Passes letters; `lost(place, kind, number)` says which answer does not arrive, and `seen` keeps all."""

    def __init__(
        self, holders, *, lost=lambda place, kind, number: False, changed=lambda place, answer: answer
    ):
        self.holders, self.lost, self.changed = holders, lost, changed
        self.seen, self.sent = [], []

    def ask(self, letters, *, patience):
        answers = {}
        for place, letter in letters.items():
            if place not in self.holders:
                continue
            self.sent.append((place, letter))
            answer = self.holders[place].ask(letter)
            if answer is None:
                continue
            self.seen.append((place, answer))
            what = Letter.from_bytes(letter)
            if not self.lost(place, what.kind, what.number):
                answers[place] = self.changed(place, answer)
        return answers


@pytest.fixture
def party():
    made = []

    def make(study, places=range(1, 6)):
        made.extend(Holder(study, place) for place in places)
        return {holder.place: holder for holder in made if holder.study is study}

    yield make
    for holder in made:
        holder.leave()


@pytest.fixture
def log(tmp_path):
    opened = Log(tmp_path / "rounds.db", study="d" * 64, dimension=DIMENSION)
    yield opened
    opened.close()


def conduct(study, post, log):
    Conductor(study, post, log, patience=0.2, waiting=0.0).run()


def totals(holder):
    return [None if one is None else (one.total.tolist(), one.holders) for one in holder.sums]


WHOLE = [([5 * number] * DIMENSION, 5) for number in range(1, ROUNDS + 1)]


def test_all_letters_arrive_and_all_holders_learn_the_same_sums(party, log):
    holders = party(Agreed())
    conduct(Agreed(), Post(holders), log)
    for holder in holders.values():
        holder.thread.join(10)
        assert holder.failure is None
        assert totals(holder) == WHOLE
        assert holder.inputs == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", [Kind.INPUT, Kind.AGREE, Kind.OPEN])
def test_an_answer_lost_in_one_round_is_made_up_for(party, log, kind):
    """Holder 3 is lost in round 2, and away until keys are asked for again; its masks are taken off."""
    holders = party(Agreed())
    conduct(
        Agreed(), Post(holders, lost=lambda place, what, number: (place, what, number) == (3, kind, 2)), log
    )
    for holder in holders.values():
        holder.thread.join(10)
        assert holder.failure is None
    assert totals(holders[3]) == totals(holders[1])  # who was away learned what came of it
    lost_in_2 = kind is Kind.INPUT
    assert totals(holders[1])[1] == ([8] * DIMENSION, 4) if lost_in_2 else ([10] * DIMENSION, 5)
    assert totals(holders[1])[2:] == [([12] * DIMENSION, 4), ([16] * DIMENSION, 4)]
    assert 1 in holders[3].inputs
    assert len(set(holders[3].inputs)) == len(holders[3].inputs)


@pytest.mark.parametrize("kind", [Kind.INPUT, Kind.AGREE, Kind.OPEN])
def test_more_lost_than_declared_and_the_round_is_abandoned_by_all(party, log, kind):
    holders = party(Agreed())
    conduct(
        Agreed(),
        Post(holders, lost=lambda place, what, number: place <= 3 and (what, number) == (kind, 2)),
        log,
    )
    for holder in holders.values():
        holder.thread.join(10)
        assert totals(holder) == [WHOLE[0], None, *WHOLE[2:]]  # all are back when keys are asked for again
        assert holder.inputs.count(2) <= 1
    assert log.abandoned == 1


@pytest.mark.parametrize("kind", [Kind.KEYS, Kind.SHARES])
def test_nothing_is_spent_on_rounds_that_were_never_begun(party, log, kind):
    holders = party(Agreed())
    with pytest.raises(Refused, match="start again"):
        conduct(Agreed(), Post(holders, lost=lambda place, what, number: place <= 2 and what is kind), log)
    assert log.next_round == 1
    assert all(holder.inputs == [] for holder in holders.values())
    conduct(Agreed(), Post(holders), log)
    assert totals(holders[1]) == WHOLE


def test_more_abandoned_rounds_than_declared_end_the_study(party, log):
    study = Agreed(spare=0)
    holders = party(study)
    with pytest.raises(Refused, match="spare=0"):
        conduct(study, Post(holders, lost=lambda place, what, number: what is Kind.INPUT), log)


def test_a_coordinator_that_dies_goes_on_and_its_open_round_is_abandoned(party, log):
    """It dies after the inputs of round 2 have left."""
    holders = party(Agreed())

    class Died(BaseException):
        pass

    def dies(place, kind, number):
        if (kind, number) == (Kind.AGREE, 2):
            raise Died

    with pytest.raises(Died):
        conduct(Agreed(), Post(holders, lost=dies), log)
    conduct(Agreed(), Post(holders), log)
    for holder in holders.values():
        holder.thread.join(10)
        assert totals(holder) == [WHOLE[0], None, *WHOLE[2:]]
        assert holder.inputs == [1, 2, 3, 4]


def test_two_coordinators_get_one_input_of_each_holder(party, log, tmp_path):
    """The second has no log of the first; holders answer no round twice, whoever asks."""
    holders = party(Agreed())

    class Died(BaseException):
        pass

    def dies(place, kind, number):
        if (kind, number) == (Kind.OPEN, 2):
            raise Died

    with pytest.raises(Died):
        conduct(Agreed(), Post(holders, lost=dies), log)
    other = Log(tmp_path / "other.db", study="d" * 64, dimension=DIMENSION)
    post = Post(holders)
    with pytest.raises(Refused):
        Conductor(Agreed(spare=1), post, other, patience=0.2, waiting=0.0).run()
    other.close()
    assert all(len(set(holder.inputs)) == len(holder.inputs) for holder in holders.values())
    sent = [(place, Letter.from_bytes(one)) for place, one in post.seen]
    assert not [one for _, one in sent if one.kind in (Kind.INPUT, Kind.OPEN) and one.number <= 1]


def test_a_second_coordinator_cannot_open_the_log(log, tmp_path):
    with pytest.raises(Refused, match="in use"):
        Log(tmp_path / "rounds.db", study="d" * 64, dimension=DIMENSION)


def test_the_log_of_another_study_is_refused(log, tmp_path):
    log.close()
    with pytest.raises(InvalidInput, match="another"):
        Log(tmp_path / "rounds.db", study="e" * 64, dimension=DIMENSION)


def test_a_file_that_is_no_log_is_refused(tmp_path):
    (tmp_path / "x.db").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(Refused):
        Log(tmp_path / "x.db", study="d" * 64, dimension=DIMENSION)


def test_doubled_letters_are_answered_once(party, log):
    holders = party(Agreed())
    post = Post(holders)
    conduct(Agreed(), post, log)
    inputs = [(place, letter) for place, letter in post.sent if Letter.from_bytes(letter).kind is Kind.INPUT]
    study = Agreed()
    again = party(study, [1])[1]
    for place, letter in inputs[:5]:
        if place == 1:
            assert Letter.from_bytes(again.ask(letter)).kind is Kind.REFUSED
    assert again.inputs == []


@pytest.mark.parametrize("wrong", ["study", "bytes", "kind", "many keys", "no such round", "outcomes", "few"])
def test_what_is_not_in_the_study_is_refused_and_changes_nothing(party, log, wrong):
    study = Agreed()
    holders = party(study)
    said = {"numbers": [1], "outcomes": []}
    letter = Letter(kind=Kind.KEYS, study=study.digest, said=said)
    sent = {
        "study": replace(letter, study="e" * 64).to_bytes(),
        "bytes": b"\x00\x00\x00\x05hello",
        "kind": replace(letter, kind=Kind.REFUSED).to_bytes(),
        "many keys": replace(letter, said={**said, "numbers": list(range(1, MOST_AHEAD + 2))}).to_bytes(),
        "no such round": replace(letter, said={**said, "numbers": [ROUNDS + 1]}).to_bytes(),
        "outcomes": replace(letter, said={**said, "outcomes": [[1, 5]]}).to_bytes(),  # without its sum
        "few": replace(
            letter, said={**said, "outcomes": [[1, 2]]}, words=bytes(8 * DIMENSION)
        ).to_bytes(),  # of two holders, where four are needed
    }[wrong]
    assert Letter.from_bytes(holders[1].ask(sent)).kind is Kind.REFUSED
    conduct(study, Post(holders), log)
    assert totals(holders[1]) == WHOLE


@pytest.mark.parametrize("seed", range(12))
def test_hostile_letters_never_stop_a_holder_or_touch_its_data(party, log, seed):
    """Bytes of real letters, cut, flipped and shuffled."""
    study = Agreed()
    holders = party(study)
    random = np.random.default_rng(seed)
    post = Post(holders)
    conduct(study, post, log)
    victim = party(Agreed(), [2])
    victim = next(holder for holder in victim.values() if not holder.inputs)
    for _, letter in post.sent[:40]:
        broken = bytearray(letter)
        for spot in random.integers(len(broken), size=random.integers(1, 6)):
            broken[spot] ^= int(random.integers(1, 256))
        answer = victim.ask(bytes(broken[: random.integers(1, len(broken) + 1)]))
        if answer is None:  # it was shown something that only a cheat sends, and left
            break
        assert Letter.from_bytes(answer).kind in (Kind.REFUSED, Kind.KEYS, Kind.END, Kind.SHARES)
    assert victim.inputs == []


@pytest.mark.parametrize("change", ["words", "refused", "garbage", "number", "signature"])
def test_a_holder_that_answers_anything_is_left_out(party, log, change):
    holders = party(Agreed())

    def changed(place, answer):
        letter = Letter.from_bytes(answer)
        if place != 2:
            return answer
        if change == "words" and letter.kind is Kind.INPUT:
            return replace(letter, words=letter.words[:-8]).to_bytes()
        if change == "refused":
            return replace(letter, kind=Kind.REFUSED).to_bytes()
        if change == "garbage":
            return b"garbage"
        if change == "number" and letter.kind is Kind.INPUT:
            return replace(letter, number=99).to_bytes()
        if change == "signature" and letter.kind is Kind.KEYS:
            rounds = {
                number: {**advert, "mask": "0" * 64} for number, advert in letter.said.get("rounds", {}).items()
            }
            return replace(letter, said={**letter.said, "rounds": rounds}).to_bytes()
        return answer

    Conductor(Agreed(), Post(holders, changed=changed), log, patience=0.2, waiting=0.0).run()
    for number in range(1, ROUNDS + 1):
        opened = log.outcome(number)
        assert isinstance(opened, Opened)
        assert (opened.total.tolist(), opened.holders) == ([4 * number] * DIMENSION, 4)
