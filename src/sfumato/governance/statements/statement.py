"""What was promised and what was spent, as one signed object: the source of every page that is made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from sfumato.accounting import (
    attacker_true_positive_rate,
    in_words,
    largest_true_positive_rate,
    protection_warning,
)
from sfumato.accounting.events import atoms
from sfumato.errors import NotPrivate, NotVerified
from sfumato.ledger import Budget, Charge, Ledger, PrivateKey, PublicKey
from sfumato.ledger.charge import Exceeded
from sfumato.ledger.signing import signer
from sfumato.ledger.state import State
from sfumato.ledger.statement import as_json, only_plan

PURPOSE = "statement"
"""What a signature under a statement says that it is under."""

FORMAT = 1


@dataclass(frozen=True)
class Statement:
    """A ledger as of one moment, in figures and in words, with or without a signature.

    Attributes:
        data: The whole statement, as JSON.

    >>> import tempfile; from sfumato.ledger import Budget
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.open(f"{folder}/l.db", budget=Budget(epsilon=1)) as ledger:
    ...         Statement.of(ledger).data["promise"][:29]
    'All releases together cost at'
    """

    data: Mapping[str, Any]

    @classmethod
    def of(cls, ledger: Ledger, *, holder: str | None = None, key: PrivateKey | None = None) -> Statement:
        """Make the statement of a ledger, after every entry and sum was checked.

        Args:
            ledger: The ledger.
            holder: Who answers for it, in a few words.
            key: Signs the statement.

        Returns:
            The statement.

        Raises:
            LedgerTampered: If an entry or a sum does not hold.
        """
        ledger.verify()
        book = as_json(ledger)
        data = {
            "format": FORMAT,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "holder": holder,
            "software": f"sfumato {metadata.version('sfumato')}",
            "name": ledger.dataset or f"ledger {ledger.name[:8]}",
            "promise": _promise(ledger),
            "meaning": _meaning(ledger),
            "warnings": _warnings(ledger, book),
            "mechanisms": _mechanisms(ledger),
            **{name: _finite(book[name]) for name in _TAKEN},
            "charges": [{name: line[name] for name in _OF_A_CHARGE} for line in book["charges"]],
        }
        return cls(key.sign(PURPOSE, data) if key is not None else data)

    @property
    def signer(self) -> PublicKey | None:
        """Whose signature it carries; NotVerified where that does not fit."""
        return signer(PURPOSE, self.data)

    def check(self, key: PublicKey) -> None:
        """Raise unless `key` signed it.

        Args:
            key: The public key of the holder.

        Raises:
            NotVerified: If it is unsigned, was changed, or another key signed it.
        """
        if self.signer != key:
            raise NotVerified("expected a statement signed by this key, got another or none; ask the holder")


_TAKEN = (
    "ledger", "dataset", "unit", "people", "relation", "epsilon", "delta", "epsilon_spent", "epsilon_set_aside",
    "epsilon_left", "epsilon_surcharge", "balance", "epsilon_if_fixed_in_advance", "private", "exceeded_by",
    "head",
)  # fmt: skip
_OF_A_CHARGE = ("entry", "time", "purpose", "allocation", "epsilon", "status", "private", "drawn_from_plan")


def _finite(value: Any) -> Any:
    """Infinity is no JSON; what is owed without a bound is None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _promise(ledger: Ledger) -> str:
    budget, broken = ledger.budget, ledger.exceeded
    if broken is not None:
        return (
            f"The promise of ε = {budget.epsilon:g} at δ = {budget.delta:g} for each {budget.unit} was broken "
            f"by a release outside the ledger: {_owed(broken)} is owed in all (neighbours by "
            f"{budget.relation}). Nothing more can be charged."
        )
    return (
        f"All releases together cost at most ε = {budget.epsilon:g} at δ = {budget.delta:g} for each "
        f"{budget.unit} (neighbours by {budget.relation}). Every charge is on record before the data are "
        "touched."
    )


def _owed(broken: Exceeded) -> str:
    return f"ε = {broken.owed:.4g}" if math.isfinite(broken.owed) else "more than any ε"


def _meaning(ledger: Ledger) -> str | None:
    """What an attacker who sees everything could gain, by now and in the end; None where nothing holds."""
    if ledger.exceeded is not None:
        return None
    charges, state, _ = ledger.snapshot()
    budget = ledger.budget
    most = largest_true_positive_rate(budget.epsilon, budget.delta)
    if not charges:
        return f"Nothing has been released so far. Once the whole budget is spent, {_lowered(most, budget)}"
    so_far = _lowered(_rate_so_far(charges, state), budget)
    return f"From what has been released so far, {so_far} Once the whole budget is spent, at most {most:.1%}."


def _lowered(rate: float, budget: Budget) -> str:
    sentence = in_words(rate, budget.relation)
    return sentence[0].lower() + sentence[1:]


def _rate_so_far(charges: list[Charge], state: State) -> float:
    """By what the ledger has spent; better, where one plan alone was charged, by the plan's own noise.

    Several charges may have been chosen on answers, so that no exact price of all of them holds. Of a run that
    was stopped early the whole plan counts.
    """
    rate = largest_true_positive_rate(state.spent, state.budget.delta)
    plan = only_plan(charges, state)
    if plan is None:
        return rate
    try:
        return min(rate, attacker_true_positive_rate(plan, relation=state.budget.relation))
    except (NotPrivate, ArithmeticError, ValueError):
        return rate


def _warnings(ledger: Ledger, book: Mapping[str, Any]) -> list[str]:
    found = []
    if book["exceeded_by"] is not None:
        found.append(f"The budget was exceeded outside the ledger, by: {book['exceeded_by']}.")
    if not book["private"]:
        found.append("A charge was made with seeded noise, which whoever knows the seed can subtract.")
    weak = protection_warning(ledger.budget.epsilon, ledger.budget.delta, ledger.people)
    if weak is not None:
        found.append(f"The budget {weak}.")
    if any(not charge.settled for charge in ledger.charges()):
        found.append("Some charges are reserved and not settled: their runs go on. They count in full.")
    return found


def _mechanisms(ledger: Ledger) -> list[str]:
    names = {
        type(getattr(part, "event", part)).__name__.removesuffix("DpEvent").removesuffix("Event")
        for charge in ledger.charges()
        for part, _ in atoms(charge.counted)
    }
    return sorted(names)
