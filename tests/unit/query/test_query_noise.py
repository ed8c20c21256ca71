"""Which noise a query gets, how ε is shared, and that the price is what was asked."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import accounting
from sfumato.errors import InvalidInput
from sfumato.ledger import Ledger
from sfumato.query import KeptAnswers, Policy, Query, Table, parse_query, policy_from_dict
from sfumato.query.aggregates import measures_for
from sfumato.query.noise import Family, WholeGaussian, ratio_interval
from sfumato.query.pricing import NOISES, Price, Spending, price

NAMES = [f"x{i}" for i in range(20)]


def policy(*, rows: int = 1, groups: int = 1, delta: float = 1e-6, epsilon: float = 1.0) -> Policy:
    unit = {"column": "person", "rows": rows, "groups": groups}
    return policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv", "version": "1"},
            "unit": unit,
            "budget": {"epsilon": epsilon, "delta": delta},
            "columns": {
                **{name: {"type": "integer", "lower": 0, "upper": 100} for name in NAMES},
                "town": {"type": "text"},
            },
        }
    )


def averages(count: int) -> str:
    return f"SELECT {', '.join(f'AVG({name})' for name in NAMES[:count])} FROM t"


def priced(rule: Policy, sql: str, **asked: Any) -> Price:
    return Table(rule, None).plan(parse_query(sql, rule), **{"epsilon": 0.5, **asked}).price


def family(cost: Price) -> Family:
    (found,) = {noise.family for noise in cost.noises}
    return found


def test_a_ledger_of_pure_epsilon_stays_one(tmp_path: Path) -> None:
    """Two answers of 0.1 never show more than 0.2, though Gaussian noise would err less."""
    rule = policy()
    laplace, gaussian = (priced(rule, averages(20), noise=name) for name in ("laplace", "gaussian"))
    assert gaussian.noises[0].deviation < laplace.noises[0].deviation
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        table = Table(rule, ledger, data=people(20))
        for number in (1, 2, 3):
            assert table.ask(averages(20), epsilon=0.1).epsilon_spent <= 0.1 * number * (1 + 1e-9)


def test_the_noise_taken_is_the_smaller_one_where_it_costs_no_more() -> None:
    rule, spending = policy(), Spending(epsilon=0.5, noise_delta=1e-6)
    for count in range(1, 21):
        measures = measures_for(parse_query(averages(count), rule), rule)
        options = [price(measures, rule.unit, replace(spending, noise=name)) for name in NOISES]
        least = min(cost.noises[0].deviation for cost in options)
        assert price(measures, rule.unit, spending, cost=lambda event: 1.0).noises[0].deviation == least
        dear = price(measures, rule.unit, spending, cost=lambda event: float("Gaussian" in repr(event)))
        assert family(dear) is Family.LAPLACE


def test_gaussian_deviations_grow_with_the_root_of_the_numbers() -> None:
    one, sixteen = (priced(policy(), averages(n), noise="gaussian").noises[0].deviation for n in (1, 16))
    assert sixteen / one == pytest.approx(4)


def test_a_budget_without_delta_has_laplace_noise_only() -> None:
    assert family(priced(policy(delta=0.0), averages(20))) is Family.LAPLACE
    with pytest.raises(InvalidInput, match="delta > 0"):
        priced(policy(delta=0.0), averages(20), noise="gaussian")


@pytest.mark.keeps_out(
    "Gaussian noise priced by the distance in one group where a person is in many, or the other way round"
)
def test_units_in_many_groups_move_by_the_root_of_them() -> None:
    """COUNT(DISTINCT person) by a column: k groups move by one each, which is √k and not k in L2."""
    sql = "SELECT x0, COUNT(DISTINCT person) FROM t GROUP BY x0"
    few, many = (priced(policy(rows=k, groups=k), sql, noise="gaussian") for k in (1, 16))
    assert many.noises[0].deviation / few.noises[0].deviation == pytest.approx(4, rel=0.01)
    laplace = priced(policy(rows=16, groups=16), sql, noise="laplace")
    assert many.noises[0].deviation < laplace.noises[0].deviation


@pytest.mark.keeps_out(
    "Gaussian noise priced by the distance in one group where a person is in many, or the other way round"
)
def test_rows_of_one_unit_may_all_lie_in_one_group() -> None:
    """No discount for groups there: COUNT(*) of one group moves by all of the unit's rows."""
    for sql in ("SELECT x0, COUNT(*) FROM t GROUP BY x0", "SELECT COUNT(*) FROM t"):
        (noise,) = priced(policy(rows=16, groups=16), sql, noise="gaussian").noises
        assert isinstance(noise, WholeGaussian)
        assert (noise.sensitivity, noise.moved) == (16, 1)


QUERIES = [
    averages(3),
    averages(20),
    "SELECT MEDIAN(x0), AVG(x1), COUNT(DISTINCT x3) FROM t",
    "SELECT town, COUNT(*), COUNT(DISTINCT person) FROM t GROUP BY town",
    "SELECT x0, COUNT(DISTINCT person), STDDEV(x1), SUM(x2) FROM t GROUP BY x0",
]


@pytest.mark.keeps_out("Shares of ε that do not add up to what is charged")
@settings(max_examples=30, deadline=None)
@given(
    sql=st.sampled_from(QUERIES),
    epsilon=st.floats(0.01, 5),
    rows=st.integers(1, 40),
    groups=st.integers(1, 40),
    noise=st.sampled_from([None, "laplace", "gaussian"]),
    data=st.data(),
)
def test_the_event_costs_what_was_asked(
    sql: str, epsilon: float, rows: int, groups: int, noise: str | None, data: st.DataObject
) -> None:
    rule = policy(rows=rows, groups=groups)
    count = len(parse_query(sql, rule).aggregates)
    split = data.draw(st.none() | st.lists(st.floats(0.1, 10), min_size=count, max_size=count))
    cost = priced(rule, sql, epsilon=epsilon, noise=noise, split=split)
    releases = 1 + sum(measure.levels for measure in cost.measures)
    rounding = epsilon * 1e-3 + releases * 1e-4  # PLD errs upward, by less than a step of its grid for each
    assert accounting.epsilon(cost.event(), rule.budget.delta) <= epsilon + rounding
    assert cost.delta <= rule.budget.delta
    if family(cost) is Family.GAUSSIAN:  # and it is not wasted
        assert accounting.epsilon(cost.event(), rule.budget.delta) >= epsilon * 0.999


def test_weights_share_epsilon_in_proportion() -> None:
    first, second = priced(policy(), averages(2), split=(3, 1)).noises
    assert second.scale / first.scale == pytest.approx(3)
    assert 1 / first.scale + 1 / second.scale == pytest.approx(
        1 / priced(policy(), averages(1)).noises[0].scale
    )
    first, second = priced(policy(), averages(2), split=(3, 1), noise="gaussian").noises
    assert second.scale / first.scale == pytest.approx(3)


def test_a_measure_that_answers_more_gets_more() -> None:
    """AVG, COUNT and SUM of one column are one measure: n^⅓ of the weight, and so less noise than another's."""
    shared, alone = priced(policy(), "SELECT AVG(x0), COUNT(x0), SUM(x0), AVG(x1) FROM t").noises
    assert alone.scale / shared.scale == pytest.approx(3 ** (1 / 3))


@pytest.mark.parametrize("split", [(1,), (1, 2, 3), (0, 1), (-1, 1), (math.nan, 1), (math.inf, 1), (1e-9, 1)])
def test_a_split_that_says_nothing_is_refused(split: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInput):
        priced(policy(), averages(2), split=split)


def people(count: int = 400) -> pd.DataFrame:
    i = np.arange(count)
    return pd.DataFrame(
        {
            "person": i.astype(str),
            **{name: i * (3 + 2 * place) % 101 for place, name in enumerate(NAMES)},
            "town": "a",
        }
    )


def test_gaussian_answers_say_so_and_are_right(tmp_path: Path) -> None:
    rule, data = policy(epsilon=1e5), people()
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        answer = Table(rule, ledger, data=data).ask(averages(20), epsilon=1e3, noise="gaussian")
    assert answer.delta == 1e-6
    assert any("Gaussian" in note for note in answer.notes)
    for name, value, interval in zip(NAMES, answer.rows[0], answer.intervals[0], strict=True):
        assert value == pytest.approx(data[name].mean(), abs=1)
        assert interval is not None
        assert interval[0] < value < interval[1]  # type: ignore[operator]


def test_an_answer_is_kept_under_its_split_and_noise(tmp_path: Path) -> None:
    rule = policy(epsilon=100)
    kept = KeptAnswers(tmp_path / "answers")
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        table = Table(rule, ledger, data=people(), kept=kept)
        table.ask(averages(2), epsilon=0.1)
        assert not table.ask(averages(2), epsilon=0.1, split=(2, 1), again=True).again
        assert not table.ask(averages(2), epsilon=0.1, noise="gaussian", again=True).again
        assert table.ask(averages(2), epsilon=0.1, split=(2, 1), again=True).again


@pytest.mark.keeps_out("A sum that means something else when an average is asked beside it")
@pytest.mark.parametrize("by", ["", "x5"])
def test_sum_over_count_is_the_average(tmp_path: Path, by: str) -> None:
    """One person with more rows than count: each of the three, asked alone, is about the same rows.

    Clipped for each person, as it once was, the sum would hold 5·90 of p0 and not 2·90.
    """
    rule = policy(rows=2, groups=2, epsilon=1e5)
    rows = pd.concat([people(60)] * 2 + [people(1).assign(x0=90)] * 5)
    rows["x5"] = 7
    key, group = (f"{by}, ", f" GROUP BY {by}") if by else ("", "")
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        table = Table(rule, ledger, data=rows)
        total, count, mean = (
            next(row[-1] for row in table.ask(sql, epsilon=4e3).rows if not by or row[0] == 7)
            for sql in (
                f"SELECT {key}{item} AS v FROM t{group}" for item in ("SUM(x0)", "COUNT(x0)", "AVG(x0)")
            )
        )
    if by:  # the rows of a person are chosen anew for each question: 60 people, of whom one has a choice
        assert total / count == pytest.approx(mean, abs=2 * 100 / 60)  # type: ignore[operator]
    else:
        assert total / count == pytest.approx(mean, abs=0.1)  # type: ignore[operator]
    assert count == 120


def test_sql_is_kept_for_the_same_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question is compiled once, and anew when the file was written anew."""
    compiled: list[object] = []
    original = Table._compile

    def compile_(table: Table, plan: Query, *of: Any) -> Any:
        compiled.append(plan)
        return original(table, plan, *of)

    monkeypatch.setattr(Table, "_compile", compile_)
    place = tmp_path / "t.csv"
    rule = policy_from_dict(
        {
            "table": {"name": "t", "source": str(place)},
            "budget": {"epsilon": 1e5},
            "columns": {"x0": {"type": "integer", "lower": 0, "upper": 100}},
        }
    )
    people(40).to_csv(place, index=False)
    with Ledger.open(tmp_path / "l.db", budget=rule.budget) as ledger:
        table = Table(rule, ledger)
        counts = [table.ask("SELECT COUNT(*) FROM t", epsilon=4e3).rows[0][0] for _ in range(3)]
        assert (counts, len(compiled)) == ([40] * 3, 1)
        people(50).to_csv(place, index=False)
        assert table.ask("SELECT COUNT(*) FROM t", epsilon=4e3).rows[0][0] == 50
    assert len(compiled) == 2


def test_an_interval_that_reaches_an_end_has_that_end() -> None:
    """Not 2⁻⁴⁹ beside it, where halving stopped."""
    parts = np.array([[50.0, 3.0], [3.0, 50.0]])
    low, high = ratio_interval(
        parts, np.array([0.0, 1.0]), SimpleNamespace(family=Family.LAPLACE, scale=5.0, discrete=False)
    )
    assert low[0] == 0.0
    assert high[1] == 1.0
    assert 0 < high[0] < 1 > low[1] > 0
