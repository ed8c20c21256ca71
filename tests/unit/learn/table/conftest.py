"""Made tables of nobody, and their policies."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from sfumato.accounting import Budget
from sfumato.policy import Column, Policy, Unit
from sfumato.randomness import public_generator

COLUMNS = {
    "age": Column(name="age", type="integer", lower=0, upper=120),
    "income": Column(name="income", type="real", lower=0, upper=100_000),
    "city": Column(name="city", type="text", categories=("Delft", "Ghent", "Mons")),
    "member": Column(name="member", type="boolean"),
    "ill": Column(name="ill", type="boolean"),
    "stage": Column(name="stage", type="text", categories=("early", "middle", "late")),
    "cost": Column(name="cost", type="real", lower=0, upper=10),
    "either": Column(name="either", type="boolean"),
}

UNDECLARED = {"note": Column(name="note", type="text"), "weight": Column(name="weight", type="real")}


def people(rows: int = 4000, seed: int = 0) -> pd.DataFrame:
    """Illness grows with age and differs by city; `either` is an exclusive or of two columns."""
    draw = public_generator(seed)
    age, income = draw.integers(0, 100, rows), draw.gamma(2, 12_000, rows)
    city, member = draw.choice(["Delft", "Ghent", "Mons"], rows), draw.random(rows) < 0.5
    score = (age - 50) / 8 + 2 * (city == "Ghent") - 1
    risk = score + draw.logistic(size=rows)
    return pd.DataFrame(
        {
            "age": age,
            "income": income,
            "city": city,
            "member": member,
            "note": "nothing",
            "weight": 70.0,
            "ill": risk > 0,
            "stage": np.array(["early", "middle", "late"])[np.digitize(risk, [-2, 2])],
            "cost": np.clip(3 + age / 25 + member + draw.normal(0, 0.3, rows), 0, 10),
            "either": (age >= 50) ^ member,
        }
    )


def policy(
    *, source: str = "people.csv", size: int | None = 4000, unit: Unit | None = None, **changes
) -> Policy:
    fields = {"columns": COLUMNS, "budget": Budget(epsilon=100, delta=1e-6, unit="record")} | changes
    unit = Unit() if unit is None else unit
    return Policy(table="people", source=source, public_size=size, unit=unit, **fields)


@pytest.fixture(scope="session")
def tables() -> SimpleNamespace:
    return SimpleNamespace(people=people, policy=policy, columns=COLUMNS, undeclared=COLUMNS | UNDECLARED)
