"""What a budget buys, before it is spent: releases planned together, priced together and one by one."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato import _validate
from sfumato.accounting import (
    Budget,
    DpEvent,
    PrivacyFilter,
    Relation,
    attacker_true_positive_rate,
    check_affordable,
    compose,
    epsilon,
    in_words,
)
from sfumato.errors import InvalidInput, NotPrivate, SfumatoError
from sfumato.governance.planning.releases import PlannedRelease, Terms, planned_release
from sfumato.ledger import Charge, Ledger
from sfumato.ledger.rule import OUT_OF_NUMBERS
from sfumato.policy import Policy, load_policy

if TYPE_CHECKING:
    from sfumato.query import Table

MOST_RELEASES = 200
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Rates of false positives at which the attacker's best is told."""

_FIELDS = {"name", "epsilon", "delta", "unit", "relation", "releases"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Releases fixed in advance, and the budget that they are planned for.

    Attributes:
        name: How the ledger will name it.
        budget: What it must fit; its ε may be what the plan itself costs.
        releases: The lines.

    >>> plan = Plan.from_settings({"delta": 1e-6, "releases": [
    ...     {"name": "visits by month", "kind": "counts", "epsilon": 0.05, "times": 12, "noise": "gaussian"}]})
    >>> price = plan.price()
    >>> price.together < price.one_by_one < price.added_up
    True
    """

    name: str
    budget: Budget
    releases: tuple[PlannedRelease, ...]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan from a TOML file; policies that it names lie beside it.

        Args:
            path: The file.

        Returns:
            The plan.

        Raises:
            InvalidInput: If a field is missing, odd, or out of its range.
        """
        place = Path(path)
        try:
            settings = tomllib.loads(place.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"expected TOML in {place.name!r}, got a text that is none: {error}") from error
        settings = {"name": place.stem, **settings}
        return cls.from_settings(settings, policy=lambda name: load_policy(place.parent / name))

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, Any], *, policy: Callable[[str], Policy | Table] | None = None
    ) -> Plan:
        """A plan from a dictionary, as a file or a web page gives it.

        Args:
            settings: name, epsilon, delta, unit, relation and the list `releases`.
            policy: Gives the policy that a release names, or its table, which chooses the noise as its ledger
                has it; None refuses every name.

        Returns:
            The plan.
        """
        odd = sorted(set(settings) - _FIELDS)
        if odd:
            raise InvalidInput(f"expected only {', '.join(sorted(_FIELDS))} in a plan, got {', '.join(odd)}")
        lines = settings.get("releases")
        if not isinstance(lines, list) or not lines or len(lines) > MOST_RELEASES:
            raise InvalidInput(
                f"expected 1 to {MOST_RELEASES} [[releases]] in a plan, got {_validate.shown(lines)}"
            )
        if not all(isinstance(line, Mapping) for line in lines):
            raise InvalidInput("expected each of [[releases]] to be a table of fields, got another value")
        delta = _validate.delta("delta", settings.get("delta", 0.0))
        relation = Relation(
            _validate.one_of(
                "relation", str(settings.get("relation", "add-remove")), [str(r) for r in Relation]
            )
        )
        unit = str(settings.get("unit", "person"))
        terms = Terms(delta=delta, relation=relation, unit=unit, policy=policy or _no_policy)
        releases = tuple(planned_release(line, terms) for line in lines)
        whole = compose(*(release.whole for release in releases))
        check_affordable(whole)
        limit = settings.get("epsilon")
        if limit is None:
            limit = max(_priced(whole, delta, relation), 1e-9)
        if not math.isfinite(float(limit)):
            raise InvalidInput("expected a plan with a finite ε at its delta, got none; state a delta > 0")
        budget = Budget(epsilon=float(limit), delta=delta, unit=unit, relation=relation)
        return cls(name=str(settings.get("name", "plan"))[:100], budget=budget, releases=releases)

    def event(self) -> DpEvent:
        """All releases as one event.

        Returns:
            The event.
        """
        return compose(*(release.whole for release in self.releases))

    def price(self) -> PlanPrice:
        """What it costs together, one by one, and what an attacker could gain.

        Returns:
            The prices.

        Raises:
            InvalidInput: If floating point ends before the price does.
        """
        try:
            return self._priced()
        except SfumatoError:
            raise
        except OUT_OF_NUMBERS:
            raise InvalidInput(
                "expected releases whose price is a number, got an ε that is too small or too large; check them"
            ) from None

    def _priced(self) -> PlanPrice:
        event, budget = self.event(), self.budget
        rule = PrivacyFilter(budget, fine=True)  # as new ledgers count
        spending = rule.nothing
        for release in self.releases:
            spending = spending + rule.spending(release.whole)
        each = tuple(_priced(release.event, budget.delta, budget.relation) for release in self.releases)
        return PlanPrice(
            plan=self,
            together=_priced(event, budget.delta, budget.relation),
            one_by_one=rule.epsilon(spending),
            added_up=math.fsum(
                value * release.times for value, release in zip(each, self.releases, strict=True)
            ),
            each=each,
            attacker={
                rate: attacker_true_positive_rate(event, false_positive_rate=rate, relation=budget.relation)
                for rate in RATES
            },
        )

    def charge(self, ledger: Ledger, *, allocation: str | None = None) -> Charge:
        """Charge the whole plan as one; its releases are then drawn from it by its name.

        Args:
            ledger: Where.
            allocation: The share that pays.

        Returns:
            The charge.

        Raises:
            BudgetExceeded: If it does not fit.
        """
        return ledger.prepay(
            self.name,
            self.event(),
            purpose=f"plan {self.name}: {', '.join(release.name for release in self.releases)}"[:400],
            relation=self.budget.relation,
            unit=self.budget.unit,
            allocation=allocation,
        )


@dataclass(frozen=True, kw_only=True)
class PlanPrice:
    """What a plan costs.

    Attributes:
        plan: The plan.
        together: ε as one plan that is fixed in advance.
        one_by_one: ε as the ledger's filter counts the same releases, charged one after another.
        added_up: The sum of the releases' own ε.
        each: The ε of one release of each line.
        attacker: Rate of false positives → the most true positives that any attacker can have.
    """

    plan: Plan
    together: float
    one_by_one: float
    added_up: float
    each: tuple[float, ...]
    attacker: dict[float, float]

    @property
    def fits(self) -> bool:
        """Whether the plan fits the ε that it was planned for."""
        return self.together <= self.plan.budget.epsilon * (1 + 1e-9)

    def in_words(self) -> str:
        """What an attacker could gain, in one sentence.

        Returns:
            The sentence.
        """
        return in_words(self.attacker[0.01], self.plan.budget.relation)

    def to_json(self) -> dict[str, Any]:
        """All of it as one JSON object.

        Returns:
            The dictionary.
        """
        budget = self.plan.budget
        return {
            "name": self.plan.name,
            "epsilon": self.together,
            "delta": budget.delta,
            "unit": budget.unit,
            "relation": str(budget.relation),
            "epsilon_budget": budget.epsilon,
            "fits": self.fits,
            "epsilon_one_by_one": self.one_by_one,
            "epsilon_added_up": self.added_up,
            "releases": [
                {
                    "name": release.name,
                    "kind": release.kind,
                    "times": release.times,
                    "epsilon_each": each,
                    "expected_errors": release.errors,
                }
                for release, each in zip(self.plan.releases, self.each, strict=True)
            ],
            "attacker": [{"false_positives": x, "true_positives": y} for x, y in self.attacker.items()],
            "meaning": self.in_words(),
        }


def _no_policy(name: str) -> Policy:
    raise InvalidInput(f"expected a policy that is known here, got policy={_validate.shown(name)}")


def _priced(event: DpEvent, delta: float, relation: Relation) -> float:
    try:
        return epsilon(event, delta, relation=relation)
    except (NotPrivate, ArithmeticError):
        return math.inf
