"""The attacks that averages and minimum group sizes do not stop, and that a budget does.

Differencing: AVG(age) over the 96 people called Peter or Jan Kees is 49.5, over the 95 called Peter 49; the
attacker knows both numbers of people, and 96·49.5 − 95·49 = 97 is the age of the one Jan Kees. Reconstruction:
the sums of many random subsets, each a little noisy, give away nearly every single value (Dinur & Nissim 2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sfumato import _validate
from sfumato.accounting import Budget
from sfumato.errors import BudgetExceeded
from sfumato.policy import Column, Policy
from sfumato.query.aggregates import estimate
from sfumato.query.release import add_noise
from sfumato.query.sql import parse_query
from sfumato.query.table import Charged, Table
from sfumato.randomness import Sampler, SecretStream, public_generator
from sfumato.storage import write_figure

Floats = npt.NDArray[np.float64]

VICTIM_AGE = 97
MINIMUM_GROUP = 50
AGES = (0, 120)  # that people can have
LARGE = "SELECT AVG(age) FROM people WHERE name = 'Peter' OR name = 'Jan Kees'"
SMALL = "SELECT AVG(age) FROM people WHERE name = 'Peter'"
_SIZES = (96, 95)


def village() -> pd.DataFrame:
    """95 Peters of 49 years on average, from 4 to 94, and one Jan Kees of 97.

    >>> people = village()
    >>> float(people.age.mean()), float(people[people.name == "Peter"].age.mean())
    (49.5, 49.0)
    """
    ages = [49 + offset for offset in range(-45, 46)] + [48, 50, 44, 54]
    names = ["Peter"] * len(ages) + ["Jan Kees"]
    return pd.DataFrame({"name": names, "age": [*ages, VICTIM_AGE]})


def village_policy(epsilon: float) -> Policy:
    columns = {
        "name": Column(name="name", type="text"),
        "age": Column(name="age", type="integer", lower=AGES[0], upper=AGES[1]),
    }
    return Policy(
        table="people", source="people.csv", columns=columns, budget=Budget(epsilon=epsilon, unit="person")
    )


@dataclass(frozen=True)
class Differencing:
    """The victim's age as the attacker makes it out, under three protections."""

    truth: int
    averages_only: float
    minimum_group: float
    private: Floats  # one estimate for each try
    epsilon: float

    def buried(self, within: float = 5.0) -> float:
        """The share of tries in which the private answers put the age within so many years of the truth."""
        return float(np.mean(np.abs(self.private - self.truth) <= within))

    def to_json(self) -> dict[str, Any]:
        low, high = np.quantile(self.private, [0.025, 0.975])
        return {
            "truth": self.truth,
            "averages_only": self.averages_only,
            "minimum_group": self.minimum_group,
            "private_median": float(np.median(self.private)),
            "private_95": [float(low), float(high)],
            "share_within_5_years": self.buried(),
            "tries": len(self.private),
            "epsilon": self.epsilon,
        }


def differencing(*, epsilon: float = 1.0, tries: int = 1000, sampler: Sampler | None = None) -> Differencing:
    """Ask both averages under each protection, and take them apart; ε is spent on each of the two answers."""
    _validate.integer("tries", tries, least=1)
    people = village()
    large = _average(people, ["Peter", "Jan Kees"], minimum=1), _average(people, ["Peter"], minimum=1)
    guarded = tuple(
        _average(people, names, minimum=MINIMUM_GROUP) for names in (["Peter", "Jan Kees"], ["Peter"])
    )
    table = Table(village_policy(2 * epsilon), None, data=people)
    sampler = sampler if sampler is not None else SecretStream()
    noisy = tuple(_private_averages(table, query, epsilon, tries, sampler) for query in (LARGE, SMALL))
    return Differencing(
        truth=VICTIM_AGE,
        averages_only=float(_taken_apart(*large)),
        minimum_group=float(_taken_apart(*guarded)),
        private=np.asarray(_taken_apart(*noisy)),
        epsilon=epsilon,
    )


def _taken_apart(large: Any, small: Any) -> Any:
    return _SIZES[0] * large - _SIZES[1] * small


def _average(people: pd.DataFrame, names: list[str], *, minimum: int) -> float:
    """The answer of a system that refuses groups of fewer than `minimum`: both groups here are large enough."""
    ages = people.age[people.name.isin(names)]
    if len(ages) < minimum:
        raise AssertionError("the village is too small for this attack")
    return float(ages.mean())


def _private_averages(table: Table, query: str, epsilon: float, tries: int, sampler: Sampler) -> Floats:
    """The same private answer drawn afresh in `tries` worlds: exact sums once, then noise for each."""
    plan = parse_query(query, table.policy)
    (row,) = table.exact_sums(plan, salt="").sums
    exact = {name: np.full(tries, int(value), dtype=np.int64) for name, value in row.items()}
    cost = table.price(plan, epsilon=epsilon)
    found = estimate(plan.aggregates[0], add_noise(cost, exact, [], sampler))
    return np.asarray(found.values, dtype=float)


def draw_differencing(result: Differencing, path: str | Path) -> None:
    """The attacker's estimates over all tries, against the age itself."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.hist(result.private, bins=60, color="#7a8ca3", label=f"private answers, ε = {result.epsilon:g}")
    axes.axvline(result.averages_only, color="#b3402e", linewidth=2, label="averages only: exactly right")
    axes.axvline(
        result.minimum_group,
        color="#222222",
        linewidth=2,
        linestyle=":",
        label="groups of 50 or more: the same",
    )
    axes.axvspan(0, 120, color="#e9dfc8", alpha=0.5, zorder=0, label="ages people have")
    axes.set_xlabel("the victim's age, as the attacker makes it out")
    axes.set_ylabel(f"of {len(result.private):,} tries")
    axes.legend(frameon=False, fontsize=8)
    write_figure(path, figure, readable=True, dpi=150)


@dataclass(frozen=True)
class Reconstruction:
    """How many of the people's secret bits the attacker gets right after so many answered queries."""

    people: int
    answered: int
    refused: int
    right: float
    guessing: float


def reconstruction(
    ledger: Charged,
    *,
    people: int = 64,
    queries: int = 256,
    epsilon: float = 1.0,
    sampler: Sampler | None = None,
) -> Reconstruction:
    """Ask for the sick in random subsets until the ledger refuses; solve for each person by least squares."""
    chance = public_generator(7)
    secret = chance.random(people) < 0.5
    table = Table(_ward_policy(people), ledger, data=_ward(secret), sampler=sampler)
    rows: list[npt.NDArray[np.bool_]] = []
    answers: list[float] = []
    refused = 0
    for _ in range(queries):
        subset = chance.random(people) < 0.5
        beds = ", ".join(map(str, np.flatnonzero(subset))) or str(people)  # a bed without a patient
        try:
            answer = table.ask(f"SELECT COUNT(*) FROM ward WHERE sick AND bed IN ({beds})", epsilon=epsilon)
        except BudgetExceeded:
            refused = queries - len(answers)
            break
        rows.append(subset)
        answers.append(float(answer.rows[0][0] or 0))
    return Reconstruction(
        people=people,
        answered=len(answers),
        refused=refused,
        right=float(np.mean(_solved(rows, answers, people) == secret)),
        guessing=float(max(secret.mean(), 1 - secret.mean())),
    )


def _ward(secret: npt.NDArray[np.bool_]) -> pd.DataFrame:
    return pd.DataFrame({"bed": np.arange(len(secret)), "sick": secret})


def _ward_policy(people: int) -> Policy:
    columns = {
        "bed": Column(name="bed", type="integer", lower=0, upper=people),
        "sick": Column(name="sick", type="boolean"),
    }
    return Policy(table="ward", source="ward.csv", columns=columns, budget=Budget(epsilon=1.0))


def _solved(rows: list[npt.NDArray[np.bool_]], answers: list[float], people: int) -> npt.NDArray[np.bool_]:
    """Least squares around ½ for everybody, then the nearer of sick and not sick."""
    if not rows:
        return np.zeros(people, dtype=bool)
    asked = np.array(rows, dtype=float)
    surplus = np.array(answers) - asked @ np.full(people, 0.5)
    found = np.linalg.lstsq(asked, surplus, rcond=None)[0]
    solved: npt.NDArray[np.bool_] = found > 0
    return solved
