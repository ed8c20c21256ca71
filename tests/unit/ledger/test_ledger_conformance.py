"""What holds for every store: charging, settling, refusing, finding tampering."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import lru_cache

import pytest

from sfumato.accounting import (
    ApproximateEvent,
    GaussianEvent,
    LaplaceEvent,
    NoEvent,
    NonPrivateEvent,
    Relation,
    calibrate,
    compose,
    epsilon,
    poisson_sampled,
    pure,
    repeat,
)
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerError, LedgerTampered, RelationMismatch
from sfumato.ledger import Budget, Certificate, Head, Ledger

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}

PURE = Budget(epsilon=1)
APPROXIMATE = Budget(epsilon=3, delta=1e-5)


@lru_cache
def calibrated(make_event: Callable) -> float:
    return calibrate(make_event, APPROXIMATE, guess=6.0)


def test_pure_charges_add_up_and_the_last_that_does_not_fit_writes_nothing(place: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    for _ in range(10):
        ledger.charge(pure(0.1), purpose="a tenth", **TERMS)
    head = ledger.head
    with pytest.raises(BudgetExceeded, match="epsilon_left=0") as refusal:
        ledger.charge(pure(0.1), purpose="one too many", **TERMS)
    assert refusal.value.epsilon_spent == pytest.approx(1)
    assert refusal.value.epsilon_left == pytest.approx(0, abs=1e-9)
    assert ledger.head == head
    assert ledger.epsilon_spent == pytest.approx(1)


def test_a_second_opener_sees_the_same(place: str) -> None:
    Ledger.open(place, budget=APPROXIMATE).charge(LaplaceEvent(2.0), purpose="mean", **TERMS)
    again = Ledger.open(place)
    assert again.budget == APPROXIMATE
    assert [charge.purpose for charge in again.charges()] == ["mean"]
    assert Ledger.open(place, budget=APPROXIMATE).head == again.head


def test_another_budget_is_refused(place: str) -> None:
    Ledger.open(place, budget=PURE)
    with pytest.raises(LedgerError, match="epsilon=2"):
        Ledger.open(place, budget=Budget(epsilon=2))


def test_create_refuses_what_is_there_and_open_what_is_not(place: str) -> None:
    with pytest.raises(LedgerError, match="no ledger at"):
        Ledger.open(place)
    Ledger.create(place, PURE)
    with pytest.raises(LedgerError, match="expected no ledger"):
        Ledger.create(place, PURE)


@pytest.mark.parametrize(
    "make_event",
    [
        GaussianEvent,
        lambda sigma: repeat(poisson_sampled(0.8, GaussianEvent(sigma)), 20),
        lambda scale: repeat(LaplaceEvent(scale), 30),
    ],
    ids=["gaussian", "sampled", "laplace"],
)
def test_a_plan_calibrated_to_the_whole_budget_fits_an_empty_ledger(place: str, make_event: Callable) -> None:
    event = make_event(calibrated(make_event))
    ledger = Ledger.open(place, budget=APPROXIMATE)
    charge = ledger.charge(event, purpose="everything", **TERMS)
    assert charge.epsilon_spent == pytest.approx(epsilon(event, 1e-5))
    assert 0.99 * 3 <= ledger.epsilon_spent <= 3
    with pytest.raises(BudgetExceeded):
        ledger.charge(pure(0.1), purpose="more", **TERMS)


def test_a_list_is_one_plan_but_the_same_charged_one_by_one_must_pass_the_filter(place: str) -> None:
    sigma = calibrate(lambda value: repeat(GaussianEvent(value), 2), APPROXIMATE)
    parts = [GaussianEvent(sigma), GaussianEvent(sigma)]
    apart = Ledger.open(place, budget=APPROXIMATE)
    apart.charge(parts[0], purpose="first", **TERMS)
    with pytest.raises(BudgetExceeded):
        apart.charge(parts[1], purpose="second, chosen after seeing the first", **TERMS)
    other = Ledger.open(place + "-2", budget=APPROXIMATE)
    other.charge(parts, purpose="both", **TERMS)
    assert 2.97 <= other.epsilon_spent <= 3


@pytest.mark.parametrize("budget", [PURE, APPROXIMATE])
def test_epsilon_left_is_what_fits(place: str, budget: Budget) -> None:
    ledger = Ledger.open(place, budget=budget)
    assert ledger.epsilon_left == budget.epsilon
    ledger.charge(LaplaceEvent(4.0), purpose="first", **TERMS)
    left = ledger.epsilon_left
    with pytest.raises(BudgetExceeded):
        ledger.charge(pure(left * 1.001), purpose="a little more", **TERMS)
    ledger.charge(pure(left), purpose="the rest", **TERMS)
    assert ledger.epsilon_spent == pytest.approx(budget.epsilon)


def test_nothing_without_noise_ever_fits(place: str) -> None:
    ledger = Ledger.open(place, budget=APPROXIMATE)
    for event in (NonPrivateEvent(), GaussianEvent(0.0), compose(pure(0.1), NonPrivateEvent())):
        with pytest.raises(BudgetExceeded):
            ledger.charge(event, purpose="the data", **TERMS)
    with pytest.raises(BudgetExceeded):
        Ledger.open(place + "-2", budget=PURE).charge(
            GaussianEvent(100.0), purpose="Gaussian at δ = 0", **TERMS
        )


def test_approximate_charges_add_their_failure_probabilities(place: str) -> None:
    # A tenth of δ is set aside for them; a third charge of 0.04 δ exceeds it.
    ledger = Ledger.open(place, budget=APPROXIMATE)
    for _ in range(2):
        ledger.charge(ApproximateEvent(0.1, 4e-7), purpose="known by (ε, δ) only", **TERMS)
    with pytest.raises(BudgetExceeded):
        ledger.charge(ApproximateEvent(0.1, 4e-7), purpose="known by (ε, δ) only", **TERMS)
    ledger.charge(pure(0.1), purpose="pure", **TERMS)


def test_what_is_reserved_is_spent_until_settled_lower(place: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    reservation = ledger.reserve(repeat(pure(0.1), 9), purpose="nine steps", **TERMS)
    assert ledger.epsilon_spent == pytest.approx(0.9)
    charge = reservation.settle(repeat(pure(0.1), 4))
    assert charge.settled
    assert ledger.epsilon_spent == pytest.approx(0.4)
    assert [charge.event for charge in ledger.charges()] == [repeat(pure(0.1), 4)]
    ledger.verify()


def test_a_settlement_is_once_and_never_above_the_reserved(place: str) -> None:
    ledger = Ledger.open(place, budget=APPROXIMATE)
    reservation = ledger.reserve(repeat(GaussianEvent(20.0), 5), purpose="five steps", **TERMS)
    for dearer in (
        repeat(GaussianEvent(20.0), 6),
        GaussianEvent(30.0),
        compose(GaussianEvent(20.0), pure(0.1)),
    ):
        with pytest.raises(InvalidInput, match="the same steps"):
            reservation.settle(dearer)
    reservation.settle()
    with pytest.raises(LedgerError, match="settled already"):
        reservation.settle(NoEvent())
    assert ledger.charges()[0].event == repeat(GaussianEvent(20.0), 5)


def test_a_reservation_is_found_again_after_a_crash(place: str) -> None:
    head = Ledger.open(place, budget=PURE).reserve(repeat(pure(0.2), 2), purpose="crashed", **TERMS).head
    ledger = Ledger.open(place)
    assert ledger.epsilon_spent == pytest.approx(0.4)
    assert [charge.head for charge in ledger.open_reservations()] == [head]
    with pytest.raises(InvalidInput, match="durable mark"):
        ledger.reservation(head).settle(pure(0.2))
    ledger.reservation(head).settle()
    assert ledger.epsilon_spent == pytest.approx(0.4)
    assert ledger.open_reservations() == []
    with pytest.raises(LedgerError, match="open reservation"):
        ledger.reservation(head)


def test_a_plan_that_never_started_leaves_an_empty_ledger(place: str) -> None:
    plan = GaussianEvent(calibrate(GaussianEvent, APPROXIMATE))
    ledger = Ledger.open(place, budget=APPROXIMATE)
    ledger.reserve(plan, purpose="cancelled", **TERMS).settle(NoEvent())
    assert ledger.epsilon_spent == 0
    ledger.charge(plan, purpose="once more", **TERMS)
    ledger.verify()


def test_a_lowered_first_plan_leaves_room_but_only_with_the_delta_it_left(place: str) -> None:
    """Whether the plan was stopped may depend on its answers, so its own δ stays taken."""
    step = GaussianEvent(calibrate(lambda sigma: repeat(GaussianEvent(sigma), 100), APPROXIMATE))
    ledger = Ledger.open(place, budget=APPROXIMATE)
    ledger.reserve(repeat(step, 100), purpose="train", **TERMS).settle(repeat(step, 20))
    assert epsilon(repeat(step, 20), 1e-5) < ledger.epsilon_spent < epsilon(repeat(step, 100), 1e-5)
    fresh = Ledger.open(place + "-2", budget=APPROXIMATE)
    fresh.charge(repeat(step, 20), purpose="the same, planned so", **TERMS)
    assert 0 < ledger.epsilon_left < fresh.epsilon_left
    ledger.charge(pure(ledger.epsilon_left), purpose="the rest", **TERMS)
    ledger.verify()


def test_relations_are_converted_in_the_open_or_refused(place: str) -> None:
    budget = Budget(epsilon=4, delta=1e-5, relation=Relation.REPLACE_ONE, unit="person")
    ledger = Ledger.open(place, budget=budget)
    charge = ledger.charge(LaplaceEvent(2.0), purpose="half", relation=Relation.ADD_REMOVE, unit="person")
    assert charge.counted == pure(1.0)
    assert charge.relation is Relation.ADD_REMOVE
    assert ledger.epsilon_spent == pytest.approx(1.0, abs=1e-4)
    converted = ledger.charge(
        GaussianEvent(20.0), purpose="Gaussian", relation=Relation.ADD_REMOVE, unit="person"
    ).counted
    assert isinstance(converted, ApproximateEvent)
    assert converted.delta <= 1e-7
    # (2ε, (1+e^ε)δ): what the event costs at the δ that was used for it, twice
    half = converted.epsilon / 2
    used = converted.delta / (1 + 2.718281828459045**half)
    assert epsilon(GaussianEvent(20.0), used) == pytest.approx(half)
    with pytest.raises(RelationMismatch, match="zero-out"):
        ledger.charge(pure(0.1), purpose="zero-out", relation=Relation.ZERO_OUT, unit="person")
    with pytest.raises(RelationMismatch, match=r"got unit='record'; .* say so \(unit='person' in Python"):
        ledger.charge(pure(0.1), purpose="records", unit="record", relation=Relation.REPLACE_ONE)
    with pytest.raises(RelationMismatch, match="add-remove can be converted"):
        Ledger.open(place + "-2", budget=PURE).charge(
            pure(0.1), purpose="x", relation=Relation.REPLACE_ONE, unit="record"
        )
    ledger.verify()


def test_a_converted_reservation_settles_below_what_was_reserved(place: str) -> None:
    budget = Budget(epsilon=4, delta=1e-5, relation=Relation.REPLACE_ONE)
    ledger = Ledger.open(place, budget=budget)
    reservation = ledger.reserve(
        repeat(GaussianEvent(30.0), 9), purpose="steps", relation=Relation.ADD_REMOVE, unit="record"
    )
    before = ledger.epsilon_spent
    reservation.settle(repeat(GaussianEvent(30.0), 3))
    assert 0 < ledger.epsilon_spent < before
    ledger.verify()


def test_shares_are_caps_and_nobody_spends_anothers(place: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    ledger.allocate("research", 0.5)
    ledger.allocate("marketing", 0.3)
    with pytest.raises(InvalidInput, match="neither spent nor claimed"):
        ledger.allocate("sales", 0.3)
    with pytest.raises(InvalidInput, match="no share yet"):
        ledger.allocate("research", 0.1)
    ledger.charge(pure(0.3), purpose="survey", allocation="marketing", **TERMS)
    with pytest.raises(BudgetExceeded, match="share of 'marketing'"):
        ledger.charge(pure(0.1), purpose="survey", allocation="marketing", **TERMS)
    with pytest.raises(BudgetExceeded, match="no share claims"):
        ledger.charge(pure(0.3), purpose="no share", **TERMS)
    with pytest.raises(InvalidInput, match="'marketing', 'research'"):
        ledger.charge(pure(0.1), purpose="x", allocation="resaerch", **TERMS)
    assert ledger.epsilon_left == pytest.approx(0.2)
    ledger.charge(pure(0.2), purpose="no share", **TERMS)
    reservation = ledger.reserve(repeat(pure(0.25), 2), purpose="study", allocation="research", **TERMS)
    reservation.settle(pure(0.25))
    assert ledger.state.left("research") == pytest.approx(0.25)
    assert ledger.epsilon_spent == pytest.approx(0.75)
    ledger.verify()


def test_shares_hold_at_positive_delta_too(place: str) -> None:
    ledger = Ledger.open(place, budget=APPROXIMATE)
    ledger.allocate("research", 1.0)
    plan = GaussianEvent(calibrate(GaussianEvent, Budget(epsilon=1, delta=1e-5)))
    ledger.charge(plan, purpose="first plan of the share", allocation="research", **TERMS)
    with pytest.raises(BudgetExceeded, match="share of 'research'"):
        ledger.charge(pure(0.5), purpose="second", allocation="research", **TERMS)
    ledger.charge(pure(0.5), purpose="others", **TERMS)
    ledger.verify()


def test_seeded_runs_are_marked_in_ledger_and_certificate(place: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    assert ledger.private
    charge = ledger.charge(pure(0.1), purpose="a test", private=False, **TERMS)
    assert not ledger.private
    certificate = ledger.certificate(charge)
    assert not certificate.private
    assert any("not private" in caveat for caveat in certificate.caveats)


def test_entries_cannot_be_changed_by_ordinary_means(place: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    ledger.charge(pure(0.1), purpose="a", **TERMS)
    table = "public.sfumato_ledger" if place.startswith("postgresql") else "entries"
    for sql in (f"UPDATE {table} SET settles = 5", f"DELETE FROM {table}"):
        with pytest.raises(Exception, match=r"never (changed|deleted)"):
            ledger._store._connect().execute(sql)
    assert len(ledger.charges()) == 1


@pytest.mark.parametrize("position", range(0, 400, 37))
def test_a_changed_byte_is_found(place: str, tamper: Callable[[str], None], position: int) -> None:
    ledger = Ledger.open(place, budget=PURE)
    for _ in range(3):
        ledger.charge(pure(0.1), purpose="a tenth", **TERMS)
    text = bytearray(ledger._store.find("sequence", 2).text)
    text[position] ^= 1 << (position % 8)
    literal = f"'\\x{text.hex()}'::bytea" if place.startswith("postgresql") else f"x'{text.hex()}'"
    ledger.close()
    tamper(f"UPDATE {{table}} SET text = {literal} WHERE {{mine}} AND sequence = 2")
    with pytest.raises(LedgerTampered, match="entry 2"):
        Ledger.open(place).verify()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM {table} WHERE {mine} AND sequence = 2",
        "UPDATE {table} SET sequence = 9 WHERE {mine} AND sequence = 3",
        "UPDATE {table} SET settles = 1 WHERE {mine} AND sequence = 3",
    ],
)
def test_missing_and_moved_entries_are_found(place: str, tamper: Callable[[str], None], sql: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    for _ in range(4):
        ledger.charge(pure(0.1), purpose="a tenth", **TERMS)
    ledger.close()
    tamper(sql)
    with pytest.raises(LedgerTampered):
        Ledger.open(place).verify()


def test_a_cut_off_tail_shows_against_head_and_certificate_only(
    place: str, tamper: Callable[[str], None]
) -> None:
    ledger = Ledger.open(place, budget=PURE)
    ledger.charge(pure(0.1), purpose="a", **TERMS)
    old = ledger.head
    charge = ledger.charge(pure(0.2), purpose="b", **TERMS)
    certificate, exported = ledger.certificate(charge), Head.from_json(ledger.export()["head"])
    assert ledger.verify(certificate=certificate, head=exported) == exported
    ledger.close()
    tamper("DELETE FROM {table} WHERE {mine} AND sequence = 2")
    cut = Ledger.open(place)
    assert cut.verify(head=old) == old  # by itself the shorter chain is valid
    for evidence in ({"head": exported}, {"certificate": certificate}):
        with pytest.raises(LedgerTampered, match="lost entry 2"):
            cut.verify(**evidence)
        with pytest.raises(LedgerTampered, match="lost entry 2"):
            Ledger.open(place, **evidence)
    cut.charge(pure(0.2), purpose="another b", **TERMS)
    for evidence in ({"head": exported}, {"certificate": certificate}):
        with pytest.raises(LedgerTampered, match="rolled back"):
            cut.verify(**evidence)


def test_a_certificate_of_another_release_or_of_none_is_no_evidence(place: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    charge = ledger.charge(pure(0.2), purpose="b", **TERMS)
    other = Certificate.of(pure(0.1), purpose="b", delta=0, head=charge.head)
    with pytest.raises(LedgerTampered, match="does not say what entry 1 says"):
        ledger.verify(certificate=other)
    with pytest.raises(InvalidInput, match="unrecorded"):
        ledger.verify(certificate=Certificate.of(pure(0.2), purpose="b", delta=0))


def test_a_ledger_open_before_a_fork_is_used_by_the_child_on_its_own(place: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    ledger.charge(pure(0.1), purpose="parent", **TERMS)
    child = os.fork()
    if child == 0:
        ledger.charge(pure(0.2), purpose="child", **TERMS)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    ledger.charge(pure(0.3), purpose="parent", **TERMS)
    assert [charge.purpose for charge in ledger.charges()] == ["parent", "child", "parent"]
    ledger.verify()


def test_threads_share_one_ledger(place: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    accepted: list[int] = []

    def spend() -> None:
        for _ in range(5):
            try:
                ledger.charge(pure(0.1), purpose="thread", **TERMS)
                accepted.append(1)
            except BudgetExceeded:
                return

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(accepted) == 10
    ledger.verify()


def test_a_purpose_is_required(place: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    for purpose in ("", "  ", "a\x1b[2Jb", None):
        with pytest.raises(InvalidInput, match="purpose"):
            ledger.charge(pure(0.1), purpose=purpose, **TERMS)
    assert ledger.charges() == []


def test_zero_delta_budgets_add_pure_epsilon_only(place: str) -> None:
    ledger = Ledger.open(place, budget=PURE)
    ledger.charge([LaplaceEvent(4.0), LaplaceEvent(4.0)], purpose="two means", **TERMS)
    assert ledger.epsilon_spent == pytest.approx(0.5)
    with pytest.raises(BudgetExceeded):
        ledger.charge(ApproximateEvent(0.1, 1e-9), purpose="some δ", **TERMS)
    ledger.charge(LaplaceEvent(2.0), purpose="the rest", **TERMS)
    assert ledger.epsilon_left == 0
