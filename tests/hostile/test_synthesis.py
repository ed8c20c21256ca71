"""A synthetic table against a holder's mistakes and a saboteur's: each of these would break the guarantee."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sfumato.errors import InvalidInput, Refused
from sfumato.mechanisms import NoisyMax
from sfumato.policy import Policy, policy_from_dict
from sfumato.query.engines import open_engine
from sfumato.query.expressions import column_name
from sfumato.randomness import SecretStream
from sfumato.synthesis import EngineMarginals, PaidTable, SynthesisPlan, Synthesizer, cell_columns
from sfumato.synthesis.cells import Buckets

PLAN = SynthesisPlan(columns=2, picks=(1,), single_sigma=9.0, joint_sigma=9.0, choice_scale=9.0, rows=1)
APART = {name: Buckets(np.arange(2), np.eye(2), name) for name in "ab"}


class Counts:
    def __init__(self, rows: int = 1) -> None:
        self.rows = rows

    def prepare(self) -> None:
        pass

    def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
        return np.full([2] * len(clique), 100)


def paid() -> PaidTable:
    return PaidTable(PLAN, Counts(), SecretStream())


@pytest.mark.keeps_out("A synthesizer that makes one round, choice or measurement more than it charged for")
def test_nothing_is_measured_or_chosen_more_often_than_was_paid_for():
    """A loop that runs one round too many, or measures a column twice, stops at the table itself."""
    table = paid()
    for name in "ab":
        table.single(name)
    with pytest.raises(Refused, match="single"):
        table.single("a")
    table.choose({("a", "b"): np.zeros((2, 2))}, APART, 0.0)
    with pytest.raises(Refused, match="choice"):
        table.choose({("a", "b"): np.zeros((2, 2))}, APART, 0.0)
    table.joint(("a", "b"), APART)
    with pytest.raises(Refused, match="joint"):
        table.joint(("a", "b"), APART)


def test_a_run_that_wants_more_than_was_charged_is_stopped():
    """The synthesizer's own loop believes in three columns, and two were paid for."""
    columns, _ = cell_columns(rules({name: {"type": "boolean"} for name in "ab"}))
    run = Synthesizer(PaidTable(PLAN, Three(), SecretStream()), columns, [("a", "b")])
    run.plan = replace(PLAN, columns=3)
    run.columns = [*columns, columns[0]]
    with pytest.raises(Refused):
        run.run()


class Three(Counts):
    def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
        return np.full([3] * len(clique), 100)


@pytest.mark.keeps_out("Several rows of a person behind noise for one")
def test_a_plan_for_fewer_rows_of_a_person_than_are_counted_is_refused():
    """Noise for one row of a person, and five of them counted."""
    with pytest.raises(InvalidInput, match="rows=5"):
        PaidTable(PLAN, Counts(rows=5), SecretStream())


def test_a_choice_without_noise_has_no_plan():
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidInput):
            replace(PLAN, choice_scale=scale)
    with pytest.raises(InvalidInput):
        replace(PLAN, choice_scale=1e-9).choice(3)


@pytest.mark.keeps_out("A synthesizer that chooses what to measure without noise")
def test_a_choice_goes_through_the_mechanism(monkeypatch):
    """A choice by argmax alone, however it is written, does not call the mechanism and is found here."""
    seen: list[tuple[float, float]] = []
    real = NoisyMax.release

    def watched(self: NoisyMax, counts: np.ndarray, sampler: SecretStream) -> int:
        assert counts.dtype == np.int64  # whole scores: their sensitivity is exact
        seen.append((self.scale, self.sensitivity))
        return real(self, counts, sampler)

    monkeypatch.setattr(NoisyMax, "release", watched)
    paid().choose({("a",): np.zeros(2), ("b",): np.zeros(2)}, APART, 0.0)
    assert seen == [(PLAN.choice_scale, 1.0)]


def rules(columns: dict[str, dict[str, object]]) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "budget": {"epsilon": 1, "delta": 1e-6},
            "columns": columns,
        }
    )


def counted(policy: Policy, data: pd.DataFrame) -> tuple[EngineMarginals, list[str]]:
    engine = open_engine(policy, data=data)
    columns = cell_columns(policy)[0]
    statements: list[str] = []

    def fetch(text: str) -> list[dict[str, object]]:
        statements.append(text)
        return engine.fetch(text)

    found = EngineMarginals(
        engine.declared(policy),
        columns,
        names={column.name: column_name(column.name, policy) for column in columns},
        unit=None,
        rows=1,
        salt="s",
        prepare=engine.prepare,
        fetch=fetch,
        keep=True,
    )
    return found, statements


@pytest.mark.keeps_out("Bins and categories of a synthetic table read off the data")
def test_bounds_and_categories_are_never_read_off_the_data():
    """Two tables without a value in common: the shapes of their counts, and every statement, are the same."""
    policy = rules(
        {
            "age": {"type": "integer", "lower": 0, "upper": 10_000},
            "city": {"type": "text", "categories": ["Delft", "Gouda"]},
            "x": {"type": "real", "lower": 0, "upper": 1},
        }
    )
    tables = [
        pd.DataFrame({"age": [1, 2, 3], "city": ["Delft"] * 3, "x": [0.1, 0.2, 0.3]}),
        pd.DataFrame({"age": [10**9, -(10**9), 77], "city": ["Urk", None, "Gouda"], "x": [9e300, -9e300, 0.5]}),
    ]
    found = [counted(policy, table) for table in tables]
    cliques = [("age",), ("city",), ("age", "city", "x")]
    shapes = [[table.marginal(clique).shape for clique in cliques] for table, _ in found]
    assert shapes[0] == shapes[1]
    assert found[0][1] == found[1][1]
    for table, _ in found:
        assert all(table.marginal(clique).sum() == 3 for clique in cliques)  # every row is in one cell


@pytest.mark.parametrize("name", ['a"; DROP TABLE x; --', "code0", "synthesis_count", "unit", "SELECT"])
def test_names_and_categories_cannot_become_sql(name):
    policy = rules(
        {
            name: {"type": "text", "categories": ["it's", 'a"b', "'); DROP TABLE raw; --"]},
            "other": {"type": "boolean"},
        }
    )
    data = pd.DataFrame({name: ["it's", "'); DROP TABLE raw; --", "?"], "other": [True, False, True]})
    table, statements = counted(policy, data)
    assert table.marginal((name, "other")).tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert not any(name in text for text in statements[1:] if name.startswith("a"))


def test_hostile_numbers_fall_into_a_cell_and_stop_nothing():
    policy = rules(
        {"x": {"type": "real", "lower": -1, "upper": 1}, "n": {"type": "integer", "lower": 0, "upper": 99}}
    )
    values = [float("nan"), float("inf"), -float("inf"), 5e-324, 1e308, -0.0, 1.0, -1.0]
    whole = [2**63 - 1, -(2**63), 0, 99, 100, -1, 50, 7]
    table, _ = counted(policy, pd.DataFrame({"x": values, "n": whole}))
    counts = table.marginal(("x",))
    assert counts.sum() == len(values)
    assert (counts[-1], counts[0], counts[-2]) == (1, 2, 3)  # missing; −∞ and −1; ∞, 1e308 and 1
    assert table.marginal(("n",)).sum() == len(whole)
