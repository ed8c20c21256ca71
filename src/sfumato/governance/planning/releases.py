"""Kinds of release that a plan may hold: what each costs and how wrong it will be, from public facts alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato import _validate
from sfumato.accounting import DpEvent, GaussianEvent, Relation, gaussian_noise_multiplier, pure, repeat
from sfumato.errors import InvalidInput
from sfumato.policy import Policy

if TYPE_CHECKING:
    from sfumato.query import Table

MOST_TIMES = 10_000


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """One line of a plan.

    Attributes:
        name: What it is, in a few words.
        kind: One of `KINDS`.
        times: How often it is made.
        event: What one of them releases.
        errors: What each figure of it is, and half the width of its 95% interval.
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
    """What holds for every line of a plan, and where the policies are that it names."""

    delta: float
    relation: Relation
    unit: str
    policy: Callable[[str], Policy | Table]


class Fields:
    """The fields of one release as somebody wrote them; what is missing, odd or never asked for is refused."""

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
