"""Votes that are odd: the right answer, or a clear error before anything is spent."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting import Budget
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import Ledger
from sfumato.pate import (
    MISSING,
    VotePlan,
    Voting,
    aggregate,
    assign,
    count_votes,
    draw_key,
    read_votes,
    shard_table,
)
from sfumato.randomness import SecretStream


def gnmax(teachers, queries, **changes):
    return VotePlan(**{"mechanism": "gnmax", "teachers": teachers, "queries": queries, "sigma": 1.0, **changes})


class Watched(SecretStream):
    """Remembers that noise was asked for."""

    drawn = 0

    def discrete_gaussian(self, scale, size):
        type(self).drawn += size
        return super().discrete_gaussian(scale, size)


def test_missing_teachers_leave_the_others_to_decide():
    votes = np.full((60, 3), MISSING)
    votes[:30] = [4, 5, 6]
    assert aggregate(votes, gnmax(60, 3)).labels.tolist() == [4, 5, 6]
    assert aggregate(np.where(votes < 0, np.nan, votes), gnmax(60, 3)).labels.tolist() == [4, 5, 6]


def test_one_class_has_one_answer():
    plan = gnmax(5, 2, classes=1)
    assert aggregate(np.zeros((5, 2), int), plan).labels.tolist() == [0, 0]


def test_one_teacher_is_hidden_by_noise():
    # With σ = 100 the vote of one teacher hardly shows: each of ten classes wins about a tenth of the time.
    # Binomial(2000, ~.1): below 310 except with chance < 1e-9 (Chernoff, even at p = .105).
    labels = aggregate(np.full((1, 2000), 7), gnmax(1, 2000, sigma=100.0)).labels
    assert 60 < (labels == 7).sum() < 310


def test_ties_are_broken_by_noise_and_not_by_class_id():
    # Two classes with 50 votes each: a fair coin 2000 times. |wins − 1000| ≤ 117 except with chance
    # 2·e^(−2·117²/2000) < 2.5e-6/2; a tie-break by id would give 2000.
    votes = np.concatenate([np.full((50, 2000), 3), np.full((50, 2000), 8)])
    labels = aggregate(votes, gnmax(100, 2000, sigma=2.0)).labels
    assert set(labels) == {3, 8}
    assert abs((labels == 3).sum() - 1000) <= 120


@pytest.mark.parametrize(
    "votes",
    [
        np.full((4, 3), 10),
        np.full((4, 3), -2),
        np.full((4, 3), 0.5),
        np.full((4, 3), np.inf),
        np.zeros((0, 3), int),
        np.zeros((4, 0), int),
        np.zeros(4, int),
        np.array([["a"] * 3] * 4),
        np.zeros((4, 3), bool),
        np.zeros((3, 3), int),  # a teacher too few
        np.zeros((4, 4), int),  # a query too many
    ],
)
def test_wrong_votes_are_refused_before_anything_is_spent(votes, tmp_path):
    Watched.drawn = 0
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=50, delta=1e-5)) as ledger:
        with pytest.raises(InvalidInput, match="expected"):
            aggregate(votes, gnmax(4, 3), ledger=ledger, unit="record", sampler=Watched())
        assert ledger.epsilon_spent == 0
    assert Watched.drawn == 0


def test_the_message_shows_no_vote():
    with pytest.raises(InvalidInput) as caught:
        count_votes(np.array([[1, 77]]), classes=10)
    assert "77" not in str(caught.value)
    assert "classes=10" in str(caught.value)


def test_the_ledger_holds_the_plan_before_the_first_answer(tmp_path):
    plan = gnmax(50, 4, sigma=20.0)
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=3, delta=1e-5)) as ledger:
        voting = Voting(plan, ledger=ledger, unit="record")
        assert ledger.epsilon_spent == pytest.approx(plan.epsilon(1e-5), rel=1e-6)
        assert [charge.settled for charge in ledger.charges()] == [False]
        voting.ask(count_votes(np.ones((50, 3), int), classes=10))
        voting.close()
        # A query fewer was asked than planned; that changes nothing.
        assert ledger.epsilon_spent == pytest.approx(plan.epsilon(1e-5), rel=1e-6)
        with pytest.raises(InvalidInput, match="closed"):
            voting.ask(count_votes(np.ones((50, 1), int), classes=10))


def test_a_plan_that_does_not_fit_is_refused_without_noise(tmp_path):
    Watched.drawn = 0
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=0.1, delta=1e-5)) as ledger:
        with pytest.raises(BudgetExceeded):
            aggregate(
                np.ones((50, 4), int),
                gnmax(50, 4, sigma=2.0),
                ledger=ledger,
                unit="record",
                sampler=Watched(),
            )
        assert ledger.epsilon_spent == 0
    assert Watched.drawn == 0


def test_more_queries_than_planned_are_refused():
    voting = Voting(gnmax(3, 2))
    voting.ask(count_votes(np.zeros((3, 2), int), classes=10))
    with pytest.raises(InvalidInput, match="queries=0"):
        voting.ask(count_votes(np.zeros((3, 1), int), classes=10))


def confident(**changes):
    base = {"mechanism": "confident", "teachers": 100, "queries": 6, "sigma": 1.0, "threshold": 60}
    base |= {"sigma_threshold": 1.0}
    return VotePlan(**{**base, "answers": 6, **changes})


def test_confident_answers_only_where_teachers_agree():
    clear, unclear = np.full((100, 3), 2), np.arange(100)[:, None].repeat(3, 1) % 10
    answers = aggregate(np.concatenate([clear, unclear], axis=1), confident())
    assert answers.labels.tolist() == [2, 2, 2, -1, -1, -1]
    assert (answers.asked, answers.answered) == (6, 3)


def test_the_cap_ends_the_asking():
    answers = aggregate(np.full((100, 6), 2), confident(answers=2))
    assert answers.labels.tolist() == [2, 2, -1, -1, -1, -1]
    assert (answers.asked, answers.answered) == (2, 2)
    voting = Voting(confident(answers=2))
    voting.ask(count_votes(np.full((100, 3), 2), classes=10))
    assert voting.done
    assert voting.ask(count_votes(np.full((100, 1), 2), classes=10)).tolist() == [-1]


def test_interactive_skips_what_the_student_knows():
    plan = confident(mechanism="interactive")
    known, wrong = np.eye(10)[[2] * 3], np.eye(10)[[5] * 3]
    answers = aggregate(np.full((100, 6), 2), plan, predictions=np.concatenate([known, wrong]))
    assert answers.labels.tolist() == [-1, -1, -1, 2, 2, 2]


@pytest.mark.parametrize(
    "predictions", [None, np.full((6, 10), 2.0), np.zeros((5, 10)), np.full((6, 10), np.nan)]
)
def test_interactive_needs_probabilities(predictions):
    with pytest.raises(InvalidInput, match="predictions"):
        aggregate(np.full((100, 6), 2), confident(mechanism="interactive"), predictions=predictions)


def test_noise_is_not_cut_to_whole_votes():
    # Laplace noise of scale 1/4 on equal counts: were it truncated to whole numbers, most draws would be 0 and
    # the first class would win nearly always. A fair coin: |wins − 1000| ≤ 120 except with chance < 2e-6.
    plan = VotePlan(mechanism="laplace", teachers=2, queries=2000, classes=2, gamma=4.0)
    votes = np.array([[0], [1]]).repeat(2000, axis=1)
    assert abs((aggregate(votes, plan).labels == 0).sum() - 1000) <= 120


def test_votes_from_files_need_no_torch(tmp_path):
    votes = np.full((40, 3), 1)
    np.save(tmp_path / "votes.npy", votes)
    (tmp_path / "votes.csv").write_text("1,1,\n" * 40)
    assert read_votes(tmp_path / "votes.npy").tolist() == votes.tolist()
    assert read_votes(tmp_path / "votes.csv")[0].tolist() == [1, 1, -1]
    code = (
        "import sys; from sfumato import pate\n"
        f"votes = pate.read_votes({str(tmp_path / 'votes.npy')!r})\n"
        "plan = pate.VotePlan(mechanism='confident', teachers=40, queries=3, sigma=1, sigma_threshold=1,"
        " threshold=20, answers=3)\n"
        "assert pate.aggregate(votes, plan).labels.tolist() == [1, 1, 1]\n"
        "pate.analyze(pate.count_votes(votes, classes=10), plan, delta=1e-5)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_file_that_is_no_votes_is_refused(tmp_path):
    (tmp_path / "x.npy").write_bytes(b"not numpy")
    for place in (tmp_path / "x.npy", tmp_path / "none.npy"):
        with pytest.raises(InvalidInput, match="expected"):
            read_votes(place)


@pytest.mark.parametrize(
    "fields",
    [
        {"mechanism": "median"},
        {"mechanism": "laplace"},
        {"mechanism": "laplace", "gamma": 0.1, "sigma": 2.0},
        {"mechanism": "laplace", "gamma": -1.0},
        {"mechanism": "gnmax", "sigma": 0.0},
        {"mechanism": "gnmax", "sigma": float("nan")},
        {"mechanism": "confident", "sigma": 1.0},
        {"mechanism": "gnmax", "sigma": 1.0, "queries": 0},
        {"mechanism": "gnmax", "sigma": 1.0, "teachers": 0},
        {"mechanism": "confident", "sigma": 1.0, "sigma_threshold": 1.0, "threshold": 1.0, "answers": 9},
    ],
)
def test_plans_that_make_no_sense(fields):
    with pytest.raises(InvalidInput, match="expected"):
        VotePlan(**{"teachers": 3, "queries": 4, **fields})


KEY = bytes(range(32))
IDS = st.lists(st.text(max_size=8), min_size=1, max_size=40, unique=True)


@settings(max_examples=50, deadline=None)
@given(ids=IDS, teachers=st.integers(1, 9), gone=st.integers(0, 39), order=st.randoms(use_true_random=False))
def test_no_record_moves_another(ids, teachers, gone, order):
    before = dict(zip(ids, assign(ids, teachers=teachers, key=KEY), strict=True))
    others = [unit for position, unit in enumerate(ids) if position != gone % len(ids)]
    order.shuffle(others)
    if others:
        after = dict(zip(others, assign(others, teachers=teachers, key=KEY), strict=True))
        assert all(before[unit] == after[unit] for unit in others)


@settings(max_examples=50, deadline=None)
@given(owner=st.lists(st.integers(0, 4), min_size=1, max_size=60), capacity=st.integers(1, 70))
def test_shards_are_disjoint_and_hold_their_own_rows(owner, capacity):
    owner = np.array(owner)
    table = shard_table(owner, teachers=5, capacity=capacity)
    rows = table[table >= 0]
    assert len(set(rows.tolist())) == len(rows)
    for teacher in range(5):
        own = table[teacher][table[teacher] >= 0]
        assert (owner[own] == teacher).all()
        assert len(own) == min(capacity, (owner == teacher).sum())


def test_rows_of_one_unit_have_one_teacher_and_keys_change_who():
    ids = ["ann", "bob", "ann", "ann"]
    owner = assign(ids, teachers=1000, key=KEY)
    assert owner[0] == owner[2] == owner[3] != owner[1]
    people = [f"person {number}" for number in range(200)]
    one, other = draw_key(SecretStream()), draw_key(SecretStream())
    assert (assign(people, teachers=50, key=one) != assign(people, teachers=50, key=other)).mean() > 0.8


@pytest.mark.parametrize("arguments", [{"teachers": 0, "key": KEY}, {"teachers": 3, "key": b"short"}])
def test_wrong_arguments(arguments):
    with pytest.raises(InvalidInput, match="expected"):
        assign(["a"], **arguments)
    with pytest.raises(InvalidInput, match="one unit id"):
        assign([["a", "b"]], teachers=2, key=KEY)
