"""Statistics by SQL under a budget, on DuckDB by default, PostgreSQL or Spark when it grows.

>>> import tempfile; import pandas as pd
>>> from sfumato.ledger import Budget, Ledger
>>> age = Column(name="age", type="integer", lower=0, upper=120)
>>> policy = Policy(table="people", source="people.csv", columns={"age": age}, budget=Budget(epsilon=3))
>>> folder = tempfile.TemporaryDirectory()
>>> with Ledger.open(f"{folder.name}/people.db", budget=policy.budget) as ledger:
...     people = Table(policy, ledger, data=pd.DataFrame({"age": [20, 30, 40] * 1000}))
...     answer = people.ask("SELECT AVG(age) FROM people WHERE age >= 18", epsilon=0.5)
>>> abs(answer.rows[0][0] - 30) < 5, round(answer.epsilon_left, 6)
(True, 2.5)
>>> folder.cleanup()
"""

from sfumato.policy import Column, Policy, PublicTable, Unit, load_policy, policy_from_dict
from sfumato.query.answer import Answer, KeptAnswers
from sfumato.query.draft import draft_policy
from sfumato.query.dry_run import ExpectedError, Trial
from sfumato.query.magnitudes import ApproximateBounds
from sfumato.query.plan import Aggregate, GroupKey, Query
from sfumato.query.reading import QueryRefused
from sfumato.query.sql import (
    count,
    count_units,
    deviation,
    mean,
    median,
    parse_query,
    quantile,
    select,
    total,
    variance,
)
from sfumato.query.table import Table

__all__ = [
    "Aggregate",
    "Answer",
    "ApproximateBounds",
    "Column",
    "ExpectedError",
    "GroupKey",
    "KeptAnswers",
    "Policy",
    "PublicTable",
    "Query",
    "QueryRefused",
    "Table",
    "Trial",
    "Unit",
    "count",
    "count_units",
    "deviation",
    "draft_policy",
    "load_policy",
    "mean",
    "median",
    "parse_query",
    "policy_from_dict",
    "quantile",
    "select",
    "total",
    "variance",
]
