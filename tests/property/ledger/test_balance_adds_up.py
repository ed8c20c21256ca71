"""What is shown of a budget adds up, whatever was charged, set aside, given back or released outside."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting import GaussianEvent, pure, repeat
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import Budget
from sfumato.ledger.state import Balance, State
from sfumato.ledger.statement import balances

EVENTS = st.one_of(
    st.sampled_from([0.001, 0.01, 0.1, 0.3, 1.0]).map(pure),
    st.sampled_from([1.0, 2.5, 6.0, 20.0, 300.0]).map(GaussianEvent),
    st.sampled_from([5.0, 40.0]).map(lambda noise: repeat(GaussianEvent(noise), 10)),
)
NAMES = st.sampled_from([None, "a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("charge"), NAMES, EVENTS),
    st.tuples(st.just("outside"), st.none(), EVENTS),
    st.tuples(st.just("lower"), NAMES, EVENTS),
    st.tuples(st.just("allocate"), st.sampled_from(["a", "b"]), st.floats(0.01, 2)),
)


def after(state: State, step: tuple[str, str | None, object]) -> State:
    """The state after one step; the same where it is refused."""
    kind, name, what = step
    try:
        if kind == "allocate":
            return state.allocate(str(name), float(what))  # type: ignore[arg-type]
        if kind == "outside":
            return state.take(what) or state  # type: ignore[arg-type]
        charged = state.admit(what, name)  # type: ignore[arg-type]
        if kind == "charge":
            return charged
        return charged.lower(state.price(what, name), pure(0.0005), name)  # type: ignore[arg-type]
    except (BudgetExceeded, InvalidInput):
        return state


def half_a_digit(shown: str) -> float:
    mantissa, _, exponent = shown.partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - max(4, len(mantissa.partition(".")[2])))


def check(balance: Balance) -> None:
    sentence = balance.in_words()
    parts, total = sentence.removesuffix(" in all.").split(": ε = ")
    shown = [
        (-1 if "less" in part else 1, re.findall(r"\d[\d.]*(?:e-\d+)?", part)) for part in parts.split(", ")
    ]
    assert all(len(found) == 1 for _, found in shown)
    figures = [found[0] for _, found in shown]
    added = sum(sign * float(found[0]) for sign, found in shown)
    assert added == pytest.approx(float(total), abs=sum(map(half_a_digit, [*figures, total])))
    exact = (balance.spent, balance.set_aside, balance.left, balance.surcharge)
    assert sum(exact) == pytest.approx(balance.total, rel=1e-12)
    assert min(balance.spent, balance.set_aside, balance.left) >= 0
    table = [float(figure.replace("−", "-")) for _, figure in balance.parts()]  # as tables and pages show them
    assert sum(table) == pytest.approx(added)


@pytest.mark.keeps_out("Spent and left of a budget, shown without what is set aside between them")
@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.sampled_from([0.02, 0.5, 1.0, 3.0, 6.0, 40.0]),
    delta=st.sampled_from([0.0, 1e-6]),
    steps=st.lists(STEPS, max_size=8),
)
def test_the_shown_parts_add_up_to_the_shown_total(epsilon: float, delta: float, steps: list[tuple]) -> None:
    state = State.empty(Budget(epsilon=epsilon, delta=delta))
    for step in steps:
        state = after(state, step)
        check(Balance.of(state))
        for name, balance in balances(state).items():
            if not balance.broken:  # what no share claims can be overdrawn by a release outside
                check(balance)
            assert name in (*state.shares, "(unclaimed)")


def test_the_gap_between_spent_and_left_is_named() -> None:
    """A team of six holds 4.3 of a budget of 6 and has spent none of it."""
    state = State.empty(Budget(epsilon=6)).allocate("team", 4.3).admit(pure(0.7), None)
    assert Balance.of(state).in_words() == "Spent 0.7, set aside 4.3, left 1: ε = 6 in all."


def test_of_a_broken_budget_no_sum_is_shown() -> None:
    for owed, words in ((7.0, "ε = 7"), (float("inf"), "more than any ε")):
        assert Balance(total=6.0, spent=owed, left=0.0).in_words() == (
            f"{words} is owed in all, of a budget of ε = 6; nothing is left."
        )
