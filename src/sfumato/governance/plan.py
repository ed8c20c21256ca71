"""Plans: the releases that a budget pays for, priced together and one by one before it is spent."""

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

if TYPE_CHECKING:
    from sfumato.query import Table


MOST_TIMES = 10_000


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """One line of a plan.

    Attributes:
        name: Its name, in a few words.
        kind: One of `KINDS`.
        times: How often it is made.
        event: The event of one of them.
        errors: Half the width of the 95% interval of each figure, by name.
        relation: The relation under which `event` is priced.

    >>> PlannedRelease(name="a count", kind="counts", times=12, event=pure(0.1), errors={"count": 30.0}).times
    12
    """

    name: str
    kind: str
    times: int
    event: DpEvent
    errors: dict[str, float]
    relation: Relation = Relation.ADD_REMOVE

    @property
    def whole(self) -> DpEvent:
        """All times together."""
        return repeat(self.event, self.times)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Hold the terms of every line of a plan, and the folder of its policies."""

    delta: float
    relation: Relation
    unit: str
    policy: Callable[[str], Policy | Table]


class Fields:
    """Read the fields of one release; missing, odd and unused ones are refused."""

    def __init__(self, values: Mapping[str, Any], terms: Terms) -> None:
        self._values = dict(values)
        self._asked = {"name", "kind", "times"}
        self.policy = terms.policy
        self.delta = terms.delta
        self.unit = terms.unit
        self.name = str(values.get("name", values.get("kind", "release")))[:100]

    def get(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        value = self._values.get(name, default)
        if value is None:
            raise InvalidInput(f"expected {name} in the release {self.name!r}, got none")
        return value

    def has(self, name: str) -> bool:
        self._asked.add(name)
        return name in self._values

    def positive(self, name: str, default: float | None = None) -> float:
        return _validate.positive(name, self.get(name, default))

    def whole(self, name: str, default: int | None = None) -> int:
        return _validate.integer(name, self.get(name, default), least=1)

    def check(self) -> None:
        odd = sorted(set(self._values) - self._asked)
        if odd:
            raise InvalidInput(
                f"expected only {', '.join(sorted(self._asked))} in the release {self.name!r}, got "
                f"{', '.join(odd)}"
            )


Made = tuple[DpEvent, dict[str, float]]


def _counts(fields: Fields) -> Made:
    """A table of counts, a person in at most `per_person` cells: Laplace at ε, or Gaussian at (ε, δ)."""
    cells, epsilon = fields.whole("per_person", 1), fields.positive("epsilon")
    if _validate.one_of("noise", str(fields.get("noise", "laplace")), ["laplace", "gaussian"]) == "gaussian":
        multiplier = gaussian_noise_multiplier(epsilon, fields.delta)
        return GaussianEvent(multiplier), {"count": 1.96 * multiplier * math.sqrt(cells)}
    # P(|X| > t) = e^{−t/b} for the Laplace law of scale b
    return pure(epsilon), {"count": cells / epsilon * math.log(20)}


def _average(fields: Fields) -> Made:
    """The average of a column with bounds over about `people`: half of ε for the sum, half for the count."""
    lower, upper = (_validate.real(name, fields.get(name)) for name in ("lower", "upper"))
    if not lower < upper:
        raise InvalidInput(
            f"expected lower < upper in the release {fields.name!r}, got {lower:g} and {upper:g}"
        )
    epsilon, people = fields.positive("epsilon"), fields.whole("people")
    # Centred, a person moves the sum by at most half the range.
    return pure(epsilon), {"average": (upper - lower) / 2 * 2 / epsilon * math.log(20) / people}


def _survey(fields: Fields) -> Made:
    """Randomised response by `people` people (Kairouz et al. 2016): the error of the share of one answer."""
    epsilon, answers, people = fields.positive("epsilon"), fields.whole("answers", 2), fields.whole("people")
    honest = math.exp(epsilon) / (math.exp(epsilon) + answers - 1)
    other = (1 - honest) / (answers - 1) if answers > 1 else 0.0
    if honest - other <= 0:
        raise InvalidInput(
            f"expected at least two answers in the survey {fields.name!r}, got answers={answers}"
        )
    return pure(epsilon), {"share": 1.96 * math.sqrt(0.25 / people) / (honest - other)}


def _model(fields: Fields) -> Made:
    """A model by DP-SGD: the noise on the mean gradient, in units of the clip norm."""
    from sfumato.training import TrainingPlan

    size, batch = fields.whole("size"), fields.whole("batch")
    settings: dict[str, Any] = {
        "public_size": size,
        "expected_batch": batch,
        "epochs": fields.positive("epochs"),
    }
    if fields.has("noise_multiplier"):
        rate = batch / size
        plan = TrainingPlan(
            sample_rate=rate,
            steps=math.ceil(settings["epochs"] / rate - 1e-9),
            noise_multiplier=fields.positive("noise_multiplier"),
            expected_batch=batch,
            clip_norm=1.0,
        )
    else:
        plan = TrainingPlan.calibrated(epsilon=fields.positive("epsilon"), delta=fields.delta, **settings)
    return plan.event(), {"noise on the mean gradient, of the clip norm": plan.noise_multiplier / batch}


def _query(fields: Fields) -> Made:
    """A question in SQL, planned as it would be asked of its table; no row is read.

    Its noise is the one that the table would choose, unless the release says which.
    """
    from sfumato.query import Table

    known = fields.policy(str(fields.get("policy")))
    table = Table(known, None) if isinstance(known, Policy) else known
    unit = table.policy.budget.unit
    if unit != fields.unit:
        raise InvalidInput(
            f"expected unit = {unit!r} in the plan, as in the policy of {fields.name!r}, got "
            f"{fields.unit!r}; the policy names it in [budget] unit, or by the column in [unit]"
        )
    noise = str(fields.get("noise")) if fields.has("noise") else None
    planned = table.plan(str(fields.get("sql")), epsilon=fields.positive("epsilon"), noise=noise)
    return planned.price.event(), {item.column: item.half_width for item in table.expected(planned)}


KINDS: dict[str, Callable[[Fields], Made]] = {
    "counts": _counts,
    "average": _average,
    "query": _query,
    "model": _model,
    "survey": _survey,
}


def planned_release(values: Mapping[str, Any], terms: Terms) -> PlannedRelease:
    """One release of a plan, checked."""
    fields = Fields(values, terms)
    kind = _validate.one_of("kind", str(fields.get("kind")), list(KINDS))
    times = _validate.integer("times", values.get("times", 1), least=1)
    if times > MOST_TIMES:
        raise InvalidInput(f"expected times <= {MOST_TIMES} in the release {fields.name!r}, got times={times}")
    expected = Relation.REPLACE_ONE if kind == "survey" else Relation.ADD_REMOVE
    if terms.relation is not expected:  # the same noise costs more, or less, under another one
        raise InvalidInput(
            f"expected relation = '{expected}' for {fields.name!r}, as each {kind} is priced, got "
            f"'{terms.relation}'; plan it under a budget of its own"
        )
    try:
        event, errors = KINDS[kind](fields)
    except ArithmeticError:
        raise InvalidInput(
            f"expected figures that can be priced in the release {fields.name!r}, got some too large or too "
            "small; check them"
        ) from None
    fields.check()
    return PlannedRelease(
        name=fields.name, kind=kind, times=times, event=event, errors=errors, relation=terms.relation
    )


MOST_RELEASES = 200
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Rates of false positives at which the attacker's best is told."""

_FIELDS = {"name", "epsilon", "delta", "unit", "relation", "releases"}


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
        """Describe the most that an attacker could gain, in one sentence.

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
