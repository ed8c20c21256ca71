"""The attacks that averages and minimum group sizes do not stop, and that a budget does.

Differencing: AVG(age) over the 96 people called Peter or Jan Kees is 49.5, over the 95 called Peter 49; the
attacker knows both numbers of people, and 96·49.5 − 95·49 = 97 is the age of the one Jan Kees. Reconstruction:
the sums of many random subsets, each a little noisy, give away nearly every single value (Dinur & Nissim 2003).
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sfumato import _validate
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Budget, Ledger
from sfumato.query import Column, Policy, Table
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
    people, both, one = village(), ["Peter", "Jan Kees"], ["Peter"]
    averages, guarded = (
        [_average(people, names, minimum=least) for names in (both, one)] for least in (1, MINIMUM_GROUP)
    )
    noisy = _private_averages(people, epsilon, tries, sampler if sampler is not None else SecretStream())
    return Differencing(
        truth=VICTIM_AGE,
        averages_only=float(_taken_apart(*averages)),
        minimum_group=float(_taken_apart(*guarded)),
        private=np.asarray(_taken_apart(*noisy)),
        epsilon=epsilon,
    )


def _taken_apart(large: Any, small: Any) -> Any:
    return _SIZES[0] * large - _SIZES[1] * small


def _average(people: pd.DataFrame, names: list[str], *, minimum: int) -> float:
    """The answer of a system that refuses groups of fewer than `minimum`: both groups here are large enough."""
    ages = people.age[people.name.isin(names)]
    assert len(ages) >= minimum
    return float(ages.mean())


def _private_averages(people: pd.DataFrame, epsilon: float, tries: int, sampler: Sampler) -> list[Floats]:
    """Both private answers in `tries` worlds with the same people: each world is a group with its own noise."""
    columns = {
        "world": Column(name="world", type="integer", lower=0, upper=tries - 1, categories=tuple(range(tries))),
        "name": Column(name="name", type="text"),
        "age": Column(name="age", type="integer", lower=AGES[0], upper=AGES[1]),
    }
    budget = Budget(epsilon=2 * epsilon, unit="person")
    policy = Policy(table="people", source="people.csv", columns=columns, budget=budget)
    worlds = people.loc[people.index.repeat(tries)].assign(world=np.tile(np.arange(tries), len(people)))
    asked = (sql.replace("SELECT", "SELECT world,") + " GROUP BY world" for sql in (LARGE, SMALL))
    place = tempfile.TemporaryDirectory()
    with place as folder, Ledger.open(Path(folder) / "village.db", budget=budget) as ledger:
        table = Table(policy, ledger, data=worlds, sampler=sampler)
        answers = [table.ask(sql, epsilon=epsilon) for sql in asked]
    return [np.array([row[1] for row in answer.rows], dtype=float) for answer in answers]


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
    ledger: Ledger,
    *,
    people: int = 64,
    queries: int = 256,
    epsilon: float = 1.0,
    sampler: Sampler | None = None,
) -> Reconstruction:
    """Ask for the sick in random subsets until the ledger refuses; solve for each person by least squares."""
    chance = public_generator(7)
    secret = chance.random(people) < 0.5
    columns = {
        "bed": Column(name="bed", type="integer", lower=0, upper=people),
        "sick": Column(name="sick", type="boolean"),
    }
    policy = Policy(table="ward", source="ward.csv", columns=columns, budget=Budget(epsilon=1.0))
    ward = pd.DataFrame({"bed": np.arange(people), "sick": secret})
    table = Table(policy, ledger, data=ward, sampler=sampler)
    rows: list[npt.NDArray[np.bool_]] = []
    answers: list[float] = []
    for _ in range(queries):
        subset = chance.random(people) < 0.5
        beds = ", ".join(map(str, np.flatnonzero(subset))) or str(people)  # a bed without a patient
        try:
            answer = table.ask(f"SELECT COUNT(*) FROM ward WHERE sick AND bed IN ({beds})", epsilon=epsilon)
        except BudgetExceeded:
            break
        rows.append(subset)
        answers.append(float(answer.rows[0][0] or 0))
    return Reconstruction(
        people=people,
        answered=len(answers),
        refused=queries - len(answers),
        right=float(np.mean(_solved(rows, answers, people) == secret)),
        guessing=float(max(secret.mean(), 1 - secret.mean())),
    )


def _solved(rows: list[npt.NDArray[np.bool_]], answers: list[float], people: int) -> npt.NDArray[np.bool_]:
    """Least squares around ½ for each person, then the nearer of sick and not sick."""
    if not rows:
        return np.zeros(people, dtype=bool)
    asked = np.array(rows, dtype=float)
    surplus = np.array(answers) - asked @ np.full(people, 0.5)
    found = np.linalg.lstsq(asked, surplus, rcond=None)[0]
    solved: npt.NDArray[np.bool_] = found > 0
    return solved
