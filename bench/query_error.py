"""How wrong private answers are: ours beside OpenDP's and Tumult's, at one ε.

    python bench/query_error.py
    TUMULT_PYTHON=/path/to/python python bench/query_error.py    an interpreter that has tmlt.analytics

First twenty averages by group: root mean square errors over many releases of the same sums. Then expected
errors of the fifteen questions of docs/how-to/questions.md, from public facts.

The others' noise is what each of them calibrates for as many rows a person. A mean is a noisy sum over a noisy
count, half of ε each, of values about the middle of their bounds: so Tumult makes it, and OpenDP is used.

Tumult (pip install tmlt.analytics, 0.21) runs on Spark and pins other versions than ours, so that it needs an
interpreter of its own. Without one its column is left out.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import opendp.prelude as dp
import pandas as pd

from sfumato.query import Table, parse_query, policy_from_dict
from sfumato.query.aggregates import estimate
from sfumato.query.release import add_noise
from sfumato.query.shaping import by_group
from sfumato.randomness import SecretStream, public_generator

dp.enable_features("contrib")
EPSILON = 1.0
GROUPS, PEOPLE, RELEASES = 20, 1000, 200
COPIES = 10  # of the groups, in place of as many releases: those of Spark are slow
ROWS, M = 6000, 4
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
    exact = by_group(table.exact_sums(plan, salt="").sums, groups, ["key0"])
    truth = data.groupby("city").age.mean().loc[[group[0] for group in groups]].to_numpy()
    cost = table.plan(plan, epsilon=EPSILON).price
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


@dataclass(frozen=True)
class Other:
    """What another system is asked for: of so many rows a person, with a part of ε."""

    kind: str  # count, distinct (people), sum, or mean of one row
    low: float = 0.0
    high: float = 1.0
    rows: int = M
    parts: int = 1

    def opendp(self) -> float:
        """± at 95%. Of a mean, the noise on the sum; the count's adds a little, left out in its favour."""
        reach = {
            "count": 1.0,
            "distinct": 1.0 / self.rows,
            "sum": max(abs(self.low), abs(self.high)),
            "mean": self.high - self.low,  # half of it about the middle, with half of ε
        }[self.kind]
        space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
        moved, epsilon = self.rows * reach, EPSILON / self.parts
        scale = dp.binary_search_param(lambda scale: dp.m.make_laplace(*space, scale), moved, epsilon)
        return float(dp.laplacian_scale_to_accuracy(scale, _QUANTILE))


QUESTIONS: list[tuple[str, list[Other | None]]] = [
    ("SELECT DATE_TRUNC('month', day) AS month, COUNT(*) AS n FROM visits GROUP BY month", [Other("count")]),
    ("SELECT ward, AVG(cost) AS cost FROM visits GROUP BY ward", [Other("mean", high=2000)]),
    (
        "SELECT AVG(urgent) AS urgent, COUNT_IF(urgent AND days > 7) AS long FROM visits",
        [Other("mean", parts=2), Other("count", parts=2)],
    ),
    (
        "SELECT CASE WHEN age < 18 THEN 'child' WHEN age < 65 THEN 'adult' ELSE 'senior' END AS ages, "
        "AVG(days) AS days, COUNT(*) FILTER (WHERE ward = 'heart') AS heart FROM visits GROUP BY ages",
        [Other("mean", high=30, parts=2), Other("count", parts=2)],
    ),
    (
        "SELECT FLOOR(LEAST(cost, 1000) / 200) * 200 AS band, COUNT(*) AS n FROM visits GROUP BY band",
        [Other("count")],
    ),
    ("SELECT EXTRACT(dow FROM day) AS weekday, COUNT(*) AS n FROM visits GROUP BY weekday", [Other("count")]),
    ("SELECT MEDIAN(days) AS half, QUANTILE(days, 0.9) AS most FROM visits", [None, None]),
    (
        "SELECT COUNT(DISTINCT village) AS villages, COUNT(DISTINCT person) AS people FROM visits",
        [Other("count", parts=2), Other("distinct", parts=2)],
    ),
    ("SELECT COVAR_POP(age, days) AS covariance FROM visits", [None]),
    ("SELECT ward, SUM(cost) AS cost FROM visits GROUP BY ward", [Other("sum", high=2000)]),
    (
        "SELECT ward, SUM(cost) AS cost, SUM(days) AS days FROM visits GROUP BY ward",
        [Other("sum", high=2000, parts=2), Other("sum", high=30, parts=2)],
    ),
    ("SELECT ward, COUNT(*) AS visits FROM visits GROUP BY ward", [Other("count")]),
    (
        "SELECT AVG(n) AS visits, COUNT_IF(n >= 3) AS often "
        "FROM (SELECT person, LEAST(COUNT(*), 10) AS n FROM visits GROUP BY person)",
        [Other("mean", high=10, rows=1, parts=2), Other("count", rows=1, parts=2)],
    ),
    (
        "SELECT first, COUNT(*) AS people "
        "FROM (SELECT person, ARG_MIN(ward, day) AS first FROM visits GROUP BY person) GROUP BY first",
        [Other("count", rows=1)],
    ),
    (
        "SELECT AVG(DATE_DIFF('day', began, ended)) AS days "
        "FROM (SELECT person, MIN(day) AS began, MAX(day) AS ended FROM visits GROUP BY person)",
        [Other("mean", low=-365, high=365, rows=1)],
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


def tumult(data: pd.DataFrame) -> dict[str, Any] | None:
    """What Tumult's own interpreter finds; None where the environment names none."""
    interpreter = os.environ.get("TUMULT_PYTHON")
    if interpreter is None:
        return None
    copies = [data.assign(city=[f"{city}/{copy}" for city in data.city]) for copy in range(COPIES)]
    many = pd.concat(copies, ignore_index=True)
    others = [other for _, found in QUESTIONS for other in found if other is not None]
    with tempfile.TemporaryDirectory(prefix="sfumato-bench-") as name:
        path = Path(name) / "averages.parquet"
        many.to_parquet(path, index=False)
        request = {
            "epsilon": EPSILON,
            "questions": [asdict(other) for other in others],
            "path": str(path),
            "cities": sorted(many.city.unique()),
            "bounds": [LOWER, UPPER],
        }
        work = subprocess.run(
            [interpreter, str(Path(__file__).resolve().parent / "tumult.py")],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=True,
            cwd=name,  # Spark leaves files where it runs
            env={**os.environ, "PYSPARK_PYTHON": interpreter, "PYTHONPATH": ""},
        )
    found: dict[str, Any] = json.loads(work.stdout.splitlines()[-1])
    truth = data.groupby("city").age.mean()
    errors = [value - truth[city.partition("/")[0]] for city, value in found["averages"].items()]
    found["error"] = float(np.sqrt(np.mean(np.square(errors))))
    found["widths"] = dict(zip(others, found["widths"], strict=True))
    return found


def beside(other: Other | None, width: float | None, rows: float | None, half_width: float) -> str:
    """A figure of another system, for a group of the same size, and how many times ours it is."""
    if other is None or width is None:
        return "no figure"
    found = width / (rows or 1.0) if other.kind == "mean" else width
    return f"{found:,.4g} ({found / half_width:.2f}x)"


def show_questions(theirs: dict[Other, float]) -> None:
    table = visits()
    print(f"expected error of the fifteen questions, ± at 95%, ε = {EPSILON:g}; {ROWS:,} rows, {M} a person")
    for number, (sql, others) in enumerate(QUESTIONS, start=1):
        found = table.dry_run(sql, epsilon=EPSILON)
        for item, other in zip(found, others, strict=True):
            unit = "" if item.in_units_of == "value" else f" {item.in_units_of}"
            opendp = beside(other, None if other is None else other.opendp(), item.rows, item.half_width)
            line = f"  {number:2} {item.column:<12} ours {item.half_width:>12,.4g}{unit:<12} OpenDP {opendp}"
            if theirs and other is not None:
                line += f", Tumult {beside(other, theirs[other], item.rows, item.half_width)}"
            print(line)


def main() -> None:
    dp.enable_features("contrib")
    print(f"opendp {importlib.metadata.version('opendp')}")
    data = averages()
    one, other, third = ours(data), theirs(data), tumult(data)
    print(f"root mean square error of {GROUPS} averages of {PEOPLE} people, ε = {EPSILON:g}")
    print(f"  ours {one:.4f}, OpenDP {other:.4f} ({other / one:.2f}x)")
    if third is None:
        print("  Tumult: left out, TUMULT_PYTHON names no interpreter that has tmlt.analytics")
    else:
        print(f"  tmlt.analytics {third['version']}: {third['error']:.4f} ({third['error'] / one:.2f}x)")
    show_questions({} if third is None else third["widths"])


if __name__ == "__main__":
    main()
