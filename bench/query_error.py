"""How wrong private answers are: ours beside OpenDP's, at one ε.

    python bench/query_error.py

First twenty averages by group: root mean square errors over many releases of the same sums. Then expected
errors of the fifteen questions of docs/how-to/questions.md, from public facts. OpenDP's noise is what OpenDP
calibrates for as many rows a person; a mean is its noisy sum over its noisy count, half of ε each, of values
about the middle of their bounds, which is twice as good as about 0.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import numpy as np
import opendp.prelude as dp
import pandas as pd

from sfumato.query import Table, parse_query, policy_from_dict
from sfumato.query.aggregates import estimate
from sfumato.query.release import add_noise
from sfumato.query.table import _by_group
from sfumato.randomness import SecretStream, public_generator

dp.enable_features("contrib")
EPSILON = 1.0
GROUPS, PEOPLE, RELEASES = 20, 1000, 200
LOWER, UPPER = 0, 100
_QUANTILE = 0.05  # 95% intervals


def averages() -> pd.DataFrame:
    draw = public_generator(5)
    group = np.repeat(np.arange(GROUPS), PEOPLE)
    age = np.clip(np.rint(draw.normal(30 + 2 * group, 15)), LOWER, UPPER).astype(int)
    return pd.DataFrame({"city": [f"city{i}" for i in group], "age": age})


def ours(data: pd.DataFrame) -> float:
    """Our root mean square error: exact sums once, noise in each release."""
    rule = policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "budget": {"epsilon": 1, "delta": 1e-6},
            "columns": {
                "age": {"type": "integer", "lower": LOWER, "upper": UPPER},
                "city": {"type": "text", "categories": [f"city{i}" for i in range(GROUPS)]},
            },
        }
    )
    table = Table(rule, None, data=data)
    plan = parse_query("SELECT city, AVG(age) FROM t GROUP BY city", rule)
    groups: list[Any] = [(f"city{i}",) for i in range(GROUPS)]
    exact = _by_group(table.exact_sums(plan, salt="").sums, groups, ["key0"])
    truth = data.groupby("city").age.mean().loc[[group[0] for group in groups]].to_numpy()
    cost = table.price(plan, epsilon=EPSILON)
    errors = [
        estimate(plan.aggregates[0], add_noise(cost, exact, [], SecretStream())).values - truth
        for _ in range(RELEASES)
    ]
    return float(np.sqrt(np.mean(np.square(errors))))


def opendp_mean(half_range: int, contributions: int, epsilon: float) -> Callable[[np.ndarray], float]:
    """OpenDP's mean of values within ± half_range: its noisy sum over its noisy count."""
    metric = dp.symmetric_distance()
    bounded = dp.vector_domain(dp.atom_domain(bounds=(-half_range, half_range)))
    total = dp.binary_search_chain(
        lambda scale: (bounded, metric) >> dp.t.then_sum() >> dp.m.then_laplace(scale),
        d_in=contributions,
        d_out=epsilon / 2,
    )
    count = dp.binary_search_chain(
        lambda scale: (bounded, metric) >> dp.t.then_count() >> dp.m.then_laplace(scale),
        d_in=contributions,
        d_out=epsilon / 2,
    )
    return lambda values: total(values.tolist()) / max(count(values.tolist()), 1)


def theirs(data: pd.DataFrame) -> float:
    middle, half = (LOWER + UPPER) // 2, (UPPER - LOWER) // 2
    mean = opendp_mean(half, 1, EPSILON)
    errors = []
    for _, group in data.groupby("city"):
        values = group.age.to_numpy() - middle
        errors += [mean(values) - values.mean() for _ in range(RELEASES // 10)]
    return float(np.sqrt(np.mean(np.square(errors))))


def opendp_scale(sensitivity: float, epsilon: float) -> float:
    """The scale that OpenDP calibrates for a number that one person moves by so much."""
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    return float(dp.binary_search_param(lambda scale: dp.m.make_laplace(*space, scale), sensitivity, epsilon))


def accuracy(scale: float) -> float:
    return float(dp.laplacian_scale_to_accuracy(scale, _QUANTILE))


ROWS, M = 6000, 4


def count(parts: int = 1) -> float:
    return accuracy(opendp_scale(M, EPSILON / parts))


def mean(reach: float, *, contributions: int = M, parts: int = 1) -> float:
    """Of one row: noise on the sum about the middle; the count's adds a little, left out in its favour."""
    return accuracy(opendp_scale(contributions * reach / 2, EPSILON / 2 / parts))


QUESTIONS: list[tuple[str, list[float | None]]] = [
    ("SELECT DATE_TRUNC('month', day) AS month, COUNT(*) AS n FROM visits GROUP BY month", [count()]),
    ("SELECT ward, AVG(cost) AS cost FROM visits GROUP BY ward", [mean(2000)]),
    (
        "SELECT AVG(urgent) AS urgent, COUNT_IF(urgent AND days > 7) AS long FROM visits",
        [mean(1, parts=2), count(2)],
    ),
    (
        "SELECT CASE WHEN age < 18 THEN 'child' WHEN age < 65 THEN 'adult' ELSE 'senior' END AS ages, "
        "AVG(days) AS days, COUNT(*) FILTER (WHERE ward = 'heart') AS heart FROM visits GROUP BY ages",
        [mean(30, parts=2), count(2)],
    ),
    ("SELECT FLOOR(LEAST(cost, 1000) / 200) * 200 AS band, COUNT(*) AS n FROM visits GROUP BY band", [count()]),
    ("SELECT EXTRACT(dow FROM day) AS weekday, COUNT(*) AS n FROM visits GROUP BY weekday", [count()]),
    ("SELECT MEDIAN(days) AS half, QUANTILE(days, 0.9) AS most FROM visits", [None, None]),
    (
        "SELECT COUNT(DISTINCT village) AS villages, COUNT(DISTINCT person) AS people FROM visits",
        [None, accuracy(opendp_scale(1, EPSILON / 2))],
    ),
    ("SELECT COVAR_POP(age, days) AS covariance FROM visits", [None]),
    ("SELECT ward, SUM(cost) AS cost FROM visits GROUP BY ward", [accuracy(opendp_scale(M * 2000, EPSILON))]),
    (
        "SELECT ward, SUM(cost) AS cost, SUM(days) AS days FROM visits GROUP BY ward",
        [accuracy(opendp_scale(M * 2000, EPSILON / 2)), accuracy(opendp_scale(M * 30, EPSILON / 2))],
    ),
    ("SELECT ward, COUNT(*) AS visits FROM visits GROUP BY ward", [count()]),
    (
        "SELECT AVG(n) AS visits, COUNT_IF(n >= 3) AS often "
        "FROM (SELECT person, LEAST(COUNT(*), 10) AS n FROM visits GROUP BY person)",
        [mean(10, contributions=1, parts=2), accuracy(opendp_scale(1, EPSILON / 2))],
    ),
    (
        "SELECT first, COUNT(*) AS people "
        "FROM (SELECT person, ARG_MIN(ward, day) AS first FROM visits GROUP BY person) GROUP BY first",
        [None],
    ),
    (
        "SELECT AVG(DATE_DIFF('day', began, ended)) AS days "
        "FROM (SELECT person, MIN(day) AS began, MAX(day) AS ended FROM visits GROUP BY person)",
        [mean(730, contributions=1)],
    ),
]


def visits() -> Table:
    return Table(
        policy_from_dict(
            {
                "table": {"name": "visits", "source": "visits.parquet", "public_size": ROWS},
                "unit": {"column": "person", "rows": M, "groups": 2},
                "budget": {"epsilon": 50, "delta": 1e-6},
                "columns": {
                    "day": {
                        "type": "date",
                        "lower": pd.Timestamp("2024-01-01").date(),
                        "upper": pd.Timestamp("2024-12-31").date(),
                    },
                    "ward": {"type": "text", "categories": ["heart", "lung", "eye"]},
                    "village": {"type": "text"},
                    "age": {"type": "integer", "lower": 0, "upper": 100},
                    "days": {"type": "integer", "lower": 0, "upper": 30},
                    "cost": {"type": "real", "lower": 0, "upper": 2000},
                    "urgent": {"type": "boolean"},
                },
            }
        ),
        None,
    )


def show_questions() -> None:
    table = visits()
    print(f"expected error of the fifteen questions, ± at 95%, ε = {EPSILON:g}; {ROWS:,} rows, {M} a person")
    for number, (sql, others) in enumerate(QUESTIONS, start=1):
        found = table.dry_run(sql, epsilon=EPSILON)
        for item, other in zip(found, others, strict=True):
            unit = "" if item.in_units_of == "value" else f" {item.in_units_of}"
            other = None if other is None else other / (item.rows or 1.0)  # of a group of the same size
            beside = "no figure" if other is None else f"{other:,.4g} ({other / item.half_width:.2f}x)"
            print(f"  {number:2} {item.column:<12} ours {item.half_width:>12,.4g}{unit:<12} OpenDP {beside}")


def main() -> None:
    dp.enable_features("contrib")
    print(f"opendp {importlib.metadata.version('opendp')}")
    data = averages()
    one, other = ours(data), theirs(data)
    print(f"root mean square error of {GROUPS} averages of {PEOPLE} people, ε = {EPSILON:g}")
    print(f"  ours {one:.4f}, OpenDP {other:.4f} ({other / one:.2f}x)")
    show_questions()


if __name__ == "__main__":
    main()
