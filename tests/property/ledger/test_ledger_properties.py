"""Whatever is charged, reserved and settled in whatever order: never overspent, and only settling lowers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.accounting import (
    ApproximateEvent,
    Budget,
    DpEvent,
    GaussianEvent,
    LaplaceEvent,
    Relation,
    RepeatedEvent,
    compose,
    epsilon,
    poisson_sampled,
    pure,
    repeat,
)
from sfumato.accounting.filter import Spending
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Ledger, Reservation
from sfumato.ledger.rule import Tally

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}

budgets = st.builds(Budget, epsilon=st.sampled_from([0.5, 1.0, 4.0]), delta=st.sampled_from([0.0, 1e-6, 1e-3]))
steps = st.sampled_from(
    [
        pure(0.07),
        LaplaceEvent(5.0),
        GaussianEvent(8.0),
        ApproximateEvent(0.05, 1e-8),
        poisson_sampled(0.1, GaussianEvent(3.0)),
    ]
)
plans = st.builds(repeat, steps, st.integers(0, 6))
actions = st.lists(
    st.tuples(st.sampled_from(["charge", "reserve", "settle"]), plans, st.integers(0, 6)), max_size=12
)


@settings(max_examples=25, deadline=None)
@given(budget=budgets, actions=actions)
def test_never_overspent_and_only_settling_lowers(
    budget: Budget, actions: list[tuple[str, DpEvent, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder) / "l.db", budget=budget) as ledger:
        reservations: list[tuple[Reservation, DpEvent]] = []
        for action, plan, count in actions:
            before = ledger.epsilon_spent
            act(ledger, reservations, action, plan, count)
            after = ledger.epsilon_spent
            assert after <= budget.epsilon * (1 + 1e-9)
            assert after <= before * (1 + 1e-9) if action == "settle" else after >= before * (1 - 1e-9)
            if ledger.epsilon_left > 0:
                assert fits(ledger, ledger.epsilon_left * (1 - 1e-9))
        ledger.verify()
        check_total(ledger)


def act(ledger: Ledger, reservations: list, action: str, plan: DpEvent, count: int) -> None:
    try:
        if action == "charge":
            ledger.charge(plan, purpose="p", **TERMS)
        elif action == "reserve":
            reservations.append((ledger.reserve(plan, purpose="p", **TERMS), plan))
        elif reservations:
            reservation, reserved = reservations.pop()
            repeated = isinstance(reserved, RepeatedEvent)
            reservation.settle(repeat(reserved.event, min(count, reserved.count)) if repeated else None)
    except BudgetExceeded:
        return


def fits(ledger: Ledger, value: float) -> bool:
    return ledger.state.of_whole.admit(ledger.state.whole, pure(value)) is not None


def check_total(ledger: Ledger) -> None:
    """Had all of it been fixed in advance, it would fit as well."""
    total = compose(*(charge.counted for charge in ledger.charges()))
    assert epsilon(total, ledger.budget.delta) <= ledger.budget.epsilon * (1 + 1e-6)


numbers = st.one_of(st.floats(0, 1e6), st.just(float("inf")))
spendings = st.lists(numbers, min_size=2, max_size=2)


@given(one=spendings, other=spendings)
def test_a_tally_takes_back_exactly_what_was_added(one: list[float], other: list[float]) -> None:
    first, second = (Tally.of(Spending((values[0],), values[1])) for values in (one, other))
    assert first + second - second == first
    assert first <= first + second
    total = (first + second).spending()
    assert total.divergences[0] >= max(one[0], other[0]) * (1 - 1e-12)
