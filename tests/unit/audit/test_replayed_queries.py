"""Queries on two tables that differ by one person, with the same noise: nothing public may differ."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from sfumato.audit import ReplayedRelease, ReplayOutcome, replay
from sfumato.ledger import Ledger
from sfumato.query import Table, policy_from_dict
from sfumato.randomness import SecretStream

POLICY = policy_from_dict(
    {
        "table": {"name": "people", "source": "people.csv"},
        "unit": {},
        "budget": {"epsilon": 10, "delta": 1e-5},
        "columns": {
            "age": {"type": "integer", "lower": 0, "upper": 100},
            "income": {"type": "real", "lower": 0, "upper": 1000},
            "city": {"type": "text", "categories": ["Delft", "Utrecht", "Nowhere"]},
            "town": {"type": "text"},
        },
    }
)


def people(rows=300, *, last=None):
    i = np.arange(rows)
    table = pd.DataFrame(
        {
            "age": i % 100,
            "income": i * 2.5 % 1000,
            "city": np.where(i % 4 == 0, "Delft", "Utrecht"),
            "town": np.where(i % 2 == 0, "x", "y"),
        }
    )
    return table if last is None else pd.concat([table[:-1], pd.DataFrame([last])], ignore_index=True)


def asked(table, sampler, *, query, ledger_path, sensitivity=None):
    """Shape, names, keys and charges are public; numbers are compared where their sensitivity is known."""
    ledger_path.unlink(missing_ok=True)
    with Ledger.open(ledger_path, budget=POLICY.budget) as ledger:
        subject = Table(POLICY, ledger, data=table, sampler=sampler)
        answer = subject.ask(query, epsilon=1.0)
        public = {
            "columns": answer.columns,
            "keys": [
                [value for value, interval in zip(*pair, strict=True) if interval is None]
                for pair in zip(answer.rows, answer.intervals, strict=True)
            ],
            "spent": ledger.epsilon_spent,
            "charges": [(repr(charge.event), charge.purpose) for charge in ledger.charges],
        }
    if sensitivity is None:
        return ReplayOutcome(public=public)
    numbers = [value for row in answer.rows for value in row if isinstance(value, int | float)]
    return ReplayOutcome(public=public, released={"numbers": ReplayedRelease(numbers, sensitivity, norm=1)})


ABROAD = {"age": 40, "income": 10.0, "city": "Paris", "town": "x"}
BROKEN = {"age": -(2**40), "income": float("nan"), "city": None, "town": "x"}
NEIGHBOURS = {"gone": people()[:-1], "abroad": people(last=ABROAD), "broken": people(last=BROKEN)}
QUERIES = {
    "SELECT COUNT(*) FROM people": 1.0,
    "SELECT city, COUNT(*) FROM people GROUP BY city": 1.0,
    "SELECT AVG(age), SUM(income) FROM people WHERE age >= 18": None,
    "SELECT city, MEDIAN(income), STDDEV(age) FROM people GROUP BY city": None,
    "SELECT town, COUNT(*) FROM people GROUP BY town": 1.0,
}


@pytest.mark.parametrize("change", NEIGHBOURS)
@pytest.mark.parametrize("query", QUERIES)
def test_nothing_public_differs(tmp_path, query, change):
    """Declared groups appear whoever is there; towns of 150 people are kept by the same draw."""
    pipeline = partial(asked, query=query, ledger_path=tmp_path / "ledger.db", sensitivity=QUERIES[query])
    report = replay(pipeline, people(), NEIGHBOURS[change], sampler=SecretStream(test_seed=1))
    assert report.differences == ()
    assert all(share <= 1 for share in report.movements.values())


def test_an_answer_without_bounds_is_caught():
    """The same comparison sees one person's income in a sum that nobody clipped."""

    def unbounded(table, sampler):
        noisy = float(table.income.sum()) + float(sampler.laplace(1)[0]) * 1000
        return ReplayOutcome(released={"sum": ReplayedRelease(noisy, 1000.0, norm=1)})

    rich = people(last={**ABROAD, "income": 1e6})
    assert not replay(unbounded, people(), rich, sampler=SecretStream(test_seed=1)).holds


def test_an_undeclared_key_of_one_person_would_be_seen():
    def listed(table, sampler):
        return ReplayOutcome(public=sorted(table.city.dropna().unique()))

    assert not replay(listed, people(), NEIGHBOURS["abroad"]).holds
