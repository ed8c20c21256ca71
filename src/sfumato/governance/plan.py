"""Plans: the releases that a budget pays for, priced together and one by one before it is spent."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from sfumato import _validate
from sfumato.accounting import (
    Budget,
    DpEvent,
    GaussianEvent,
    PrivacyFilter,
    Relation,
    attacker_true_positive_rate,
    check_affordable,
    compose,
    epsilon,
    gaussian_noise_multiplier,
    in_words,
    pure,
    repeat,
)
from sfumato.errors import InvalidInput, NotPrivate, SfumatoError
from sfumato.ledger import Charge, Ledger
from sfumato.ledger.rule import OUT_OF_NUMBERS
from sfumato.policy import Policy, load_policy
from sfumato.schema import Delta, Model, Positive, Whole, Words, read, read_file

if TYPE_CHECKING:
    from sfumato.query import Table


MOST_TIMES, MOST_RELEASES = 10_000, 200
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Rates of false positives at which the attacker's best is told."""

Made = tuple[DpEvent, dict[str, float]]
"""The event of one release, and half the width of the 95% interval of each of its figures."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Hold the terms of every release of a plan; `policy` gives the policy, or the table, that one names."""

    delta: float
    relation: Relation
    unit: str
    policy: Callable[[str], Policy | Table]


class Line(Model, tag_field="kind"):
    """One line of a plan as a file states it; a kind of release is a subclass."""

    relation: ClassVar[Relation] = Relation.ADD_REMOVE
    name: Words | None = None
    times: Annotated[int, Meta(ge=1, le=MOST_TIMES)] = 1

    @property
    def title(self) -> str:
        return (self.name or str(type(self).__struct_config__.tag))[:100]

    @abstractmethod
    def made(self, terms: Terms) -> Made:
        """Return the event and the expected errors of one release."""


class Counts(Line, tag="counts"):
    """A table of counts, a person in at most `per_person` cells: Laplace at ε, or Gaussian at (ε, δ)."""

    epsilon: Positive
    per_person: Whole = 1
    noise: Literal["laplace", "gaussian"] = "laplace"

    def made(self, terms: Terms) -> Made:
        if self.noise == "gaussian":
            multiplier = gaussian_noise_multiplier(self.epsilon, terms.delta)
            return GaussianEvent(multiplier), {"count": 1.96 * multiplier * math.sqrt(self.per_person)}
        # P(|X| > t) = e^{−t/b} for the Laplace law of scale b
        return pure(self.epsilon), {"count": self.per_person / self.epsilon * math.log(20)}


class Average(Line, tag="average"):
    """The average of a column with bounds over about `people`: half of ε for the sum, half for the count."""

    epsilon: Positive
    lower: float
    upper: float
    people: Whole

    def made(self, terms: Terms) -> Made:
        if not self.lower < self.upper:
            raise InvalidInput(
                f"expected lower < upper in the release {self.title!r}, got {self.lower:g} and {self.upper:g}"
            )
        # Centred, a person moves the sum by at most half the range.
        half = (self.upper - self.lower) / 2
        return pure(self.epsilon), {"average": half * 2 / self.epsilon * math.log(20) / self.people}


class Survey(Line, tag="survey"):
    """Randomised response by `people` people (Kairouz et al. 2016): the error of the share of one answer."""

    relation: ClassVar[Relation] = Relation.REPLACE_ONE
    epsilon: Positive
    people: Whole
    answers: Annotated[int, Meta(ge=2)] = 2

    def made(self, terms: Terms) -> Made:
        honest = math.exp(self.epsilon) / (math.exp(self.epsilon) + self.answers - 1)
        other = (1 - honest) / (self.answers - 1)
        return pure(self.epsilon), {"share": 1.96 * math.sqrt(0.25 / self.people) / (honest - other)}


class Training(Line, tag="model"):
    """A model by DP-SGD: the noise on the mean gradient, in units of the clip norm."""

    size: Whole
    batch: Whole
    epochs: Positive
    epsilon: Positive | None = None
    noise_multiplier: Positive | None = None

    def made(self, terms: Terms) -> Made:
        from sfumato.training import TrainingPlan

        if self.noise_multiplier is not None:
            rate = self.batch / self.size
            plan = TrainingPlan(
                sample_rate=rate,
                steps=math.ceil(self.epochs / rate - 1e-9),
                noise_multiplier=self.noise_multiplier,
                expected_batch=self.batch,
                clip_norm=1.0,
            )
        elif self.epsilon is not None:
            plan = TrainingPlan.calibrated(
                epsilon=self.epsilon,
                delta=terms.delta,
                public_size=self.size,
                expected_batch=self.batch,
                epochs=self.epochs,
            )
        else:
            raise InvalidInput(f"expected epsilon in the release {self.title!r}, got none")
        return plan.event(), {
            "noise on the mean gradient, of the clip norm": plan.noise_multiplier / self.batch
        }


class Question(Line, tag="query"):
    """A question in SQL, planned as it would be asked of its table; no row is read.

    Its noise is the one that the table would choose, unless the release names one.
    """

    policy: str
    sql: str
    epsilon: Positive
    noise: str | None = None

    def made(self, terms: Terms) -> Made:
        from sfumato.query import Table

        known = terms.policy(self.policy)
        table = Table(known, None) if isinstance(known, Policy) else known
        unit = table.policy.budget.unit
        if unit != terms.unit:
            raise InvalidInput(
                f"expected unit = {unit!r} in the plan, as in the policy of {self.title!r}, got "
                f"{terms.unit!r}; the policy names it in [budget] unit, or by the column in [unit]"
            )
        planned = table.plan(self.sql, epsilon=self.epsilon, noise=self.noise)
        return planned.price.event(), {item.column: item.half_width for item in table.expected(planned)}


class PlanFile(Model):
    """A plan as a TOML file or a web page states it."""

    name: Words = "plan"
    epsilon: Positive | None = None
    delta: Delta = 0.0
    unit: Words = "person"
    relation: Relation = Relation.ADD_REMOVE
    releases: Annotated[
        tuple[Counts | Average | Question | Training | Survey, ...],
        Meta(min_length=1, max_length=MOST_RELEASES, description=f"1 to {MOST_RELEASES} [[releases]]"),
    ]


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """One line of a plan, priced.

    Attributes:
        name: Its name, in a few words.
        kind: Its kind: counts, average, query, model or survey.
        times: How often it is made.
        event: The event of one of them.
        errors: Half the width of the 95% interval of each figure, by name.

    >>> PlannedRelease(name="a count", kind="counts", times=12, event=pure(0.1), errors={"count": 30.0}).times
    12
    """

    name: str
    kind: str
    times: int
    event: DpEvent
    errors: dict[str, float]

    @classmethod
    def of(cls, line: Line, terms: Terms) -> PlannedRelease:
        kind = str(type(line).__struct_config__.tag)
        if terms.relation is not line.relation:  # the same noise costs more, or less, under another one
            raise InvalidInput(
                f"expected relation = '{line.relation}' for {line.title!r}, as each {kind} is priced, got "
                f"'{terms.relation}'; plan it under a budget of its own"
            )
        try:
            event, errors = line.made(terms)
        except ArithmeticError:
            raise InvalidInput(
                f"expected figures that can be priced in the release {line.title!r}, got some too large or too "
                "small; check them"
            ) from None
        return cls(name=line.title, kind=kind, times=line.times, event=event, errors=errors)

    @property
    def whole(self) -> DpEvent:
        """All times together."""
        return repeat(self.event, self.times)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Releases fixed in advance, and the budget that they are planned for.

    Attributes:
        name: How the ledger will name it.
        budget: The budget that it must fit; its ε may be the price of the plan itself.
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
        settings = {"name": place.stem, **read_file(place, "a plan")}
        return cls.from_settings(settings, policy=lambda name: load_policy(place.parent / name))

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, Any], *, policy: Callable[[str], Policy | Table] | None = None
    ) -> Plan:
        """Return a plan from a dictionary, as a file or a web page gives it.

        Args:
            settings: name, epsilon, delta, unit, relation and the list `releases`.
            policy: Gives the policy that a release names, or its table, which chooses the noise as its ledger
                has it; None refuses every name.

        Returns:
            The plan.
        """
        said: PlanFile = read(PlanFile, settings, name="the plan")
        terms = Terms(delta=said.delta, relation=said.relation, unit=said.unit, policy=policy or _no_policy)
        releases = tuple(PlannedRelease.of(line, terms) for line in said.releases)
        whole = compose(*(release.whole for release in releases))
        check_affordable(whole)
        limit = said.epsilon
        if limit is None:
            limit = max(_priced(whole, said.delta, said.relation), 1e-9)
        if not math.isfinite(limit):
            raise InvalidInput("expected a plan with a finite ε at its delta, got none; state a delta > 0")
        budget = Budget(epsilon=limit, delta=said.delta, unit=said.unit, relation=said.relation)
        return cls(name=said.name[:100], budget=budget, releases=releases)

    def event(self) -> DpEvent:
        """Return all releases as one event."""
        return compose(*(release.whole for release in self.releases))

    def price(self) -> PlanPrice:
        """Compute its price together, one by one, and the most that an attacker could gain.

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
        rule = PrivacyFilter(budget)
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
    """State the price of a plan.

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
        """Describe the most that an attacker could gain, in one sentence."""
        return in_words(self.attacker[0.01], self.plan.budget.relation)

    def to_json(self) -> dict[str, Any]:
        """Return the price as one JSON object."""
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
