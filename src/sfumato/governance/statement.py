"""Statements of promise and spending, as one signed object, and as an entry of the public registry.

Names and levels of the entry are those of the registry's own template (opendp/deployments-registry-data;
Nanayakkara, Ghazi & Vadhan 2025, arXiv 2509.13509). Facts that no ledger has are left as questions.
"""

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
"""The purpose of a signature under a statement."""

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
    """Replace an infinite ε by None, as JSON has no infinity."""
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
    """Describe the most that an attacker could gain, by now and in the end; None where the budget is broken."""
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
    """Bound the attacker's rate by the ε spent, or by the noise of the only plan where one alone was charged.

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


ASK = "PLEASE FILL IN: "


def registry_entry(statement: Statement) -> dict[str, Any]:
    """The entry as the registry's YAML files hold it.

    Args:
        statement: The statement.

    Returns:
        The entry; fields that only a person can answer begin with `ASK`.

    >>> import tempfile; from sfumato.ledger import Budget, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.open(f"{folder}/l.db", budget=Budget(epsilon=1)) as ledger:
    ...         registry_entry(Statement.of(ledger))["deployment"]["dp_variant"]["variant_name"]
    'Pure DP'
    """
    book = statement.data
    return {
        "url_slug": ASK + "a short name in lower case",
        "deployment": {
            "basic": _basic(book),
            "dp_variant": {
                "variant_name": "Pure DP" if book["delta"] == 0 else "Approximate DP",
                "data_domain": f"neighbours by {book['relation']}",
                "unprotected_quantities": "what the policy declares: columns, bounds, categories, size",
            },
            "privacy_loss": _loss(book),
            "deployment_model": _model(book),
            "implementation": _implementation(book),
            "administrative": {"status": "Draft", "registry_authors": [ASK + "your name"], "tier": 3},
        },
    }


def _basic(book: Mapping[str, Any]) -> dict[str, Any]:
    released = "; ".join(charge["purpose"] for charge in book["charges"])[:2000]
    return {
        "name": book["dataset"] or ASK + "what the data are",
        "data_curators": [
            {
                "data_curator_name": book["holder"] or ASK + "who holds the data",
                "data_curator_type": ASK + "Government, Industry, Academia or Nonprofit",
            }
        ],
        "description": released or ASK + "what is released",
        "intended_use": ASK + "what the releases are for",
        "data_product_type": ASK + "such as Summary statistics, Machine learning model or Synthetic data",
        "data_product_region": ASK + "where the people live",
        "data_product_sector": ASK + "such as Health or Technology",
        "publication_date": str(book["made"])[:10],
    }


def _loss(book: Mapping[str, Any]) -> dict[str, Any]:
    """Return the budget; where it was broken, the ε owed."""
    unit, breach = book["unit"], book["exceeded_by"]
    epsilon = book["epsilon"] if breach is None else book["epsilon_spent"]
    if breach is None:
        details = f"a lifetime budget; ε = {book['epsilon_spent']:.6g} is spent"
    else:
        details = (
            f"a lifetime budget of ε = {book['epsilon']:g}, broken by a release outside the ledger: {breach}"
        )
    return {
        "privacy_unit": unit,
        "privacy_unit_details": f"each {unit}, all of its rows up to the declared bound",
        "privacy_parameters": {"epsilon": epsilon, **({"delta": book["delta"]} if book["delta"] else {})},
        "privacy_parameters_details": details,
    }


def _model(book: Mapping[str, Any]) -> dict[str, Any]:
    count = len(book["charges"])
    return {
        "model_name": "Central",
        "model_name_details": "noise is added by the holder of the data",
        "trust_assumptions": "the holder's machine and the people who may use it",
        "actors": ASK + "who may ask, who approves",
        "release_type": "Many releases" if count > 1 else "One-time release",
        "release_type_details": f"{count} charges so far",
        "data_source_type": ASK + "Static or Dynamic",
        "access_type": ASK + "Non-interactive or Interactive",
    }


def _implementation(book: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "preprocessing_and_hyperparameter_tuning": ASK + "what was tuned on what; Sfumato charges `tune`",
        "mechanisms": ", ".join(book["mechanisms"]) or "none yet",
        "composition": "exact (privacy loss distributions) for a plan fixed in advance, a Rényi filter for all "
        "later charges",
        "post_processing": ASK + "such as rounding, or HAVING over an answer",
        "justification": ASK + "why this ε",
        "utility": ASK + "what accuracy was needed, and reached",
        "additional_information": f"{book['software']}; head of the ledger {book['head']['hash']}",
    }
