"""One person more or less: every marginal, and every score of a choice, moves by at most the declared rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.policy import policy_from_dict
from sfumato.query.engines import open_engine
from sfumato.query.expressions.base import column_name
from sfumato.query.measures import UNIT
from sfumato.randomness import SecretStream
from sfumato.synthesis import EngineMarginals, PaidTable, SynthesisPlan, cell_columns
from sfumato.synthesis.cells import merge_table, merged

COLUMNS = {
    "age": {"type": "integer", "lower": 0, "upper": 200},
    "city": {"type": "text", "categories": ["Delft", "Gouda"]},
    "income": {"type": "real", "lower": -1, "upper": 1},
    "ill": {"type": "boolean"},
}
CLIQUES = [("age",), ("city",), ("income",), ("ill",), ("age", "city"), ("city", "income", "ill")]

persons = st.sampled_from(["ann", "ben", "cas", None])
lines = st.tuples(
    persons,
    st.one_of(st.none(), st.integers(-5, 400)),
    st.sampled_from(["Delft", "Gouda", "Urk", "", None]),
    st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)),
    st.sampled_from([True, False, None]),
)


def marginals(rows: list[tuple[Any, ...]], most: int | None) -> EngineMarginals:
    unit = {} if most is None else {"column": "person", "rows": most}
    policy = policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "unit": unit,
            "budget": {"epsilon": 1, "delta": 1e-6},
            "columns": COLUMNS,
        }
    )
    frame = pd.DataFrame(rows, columns=["person", *COLUMNS]).astype(
        {"person": "string", "age": "Int64", "city": "string", "income": "float64", "ill": "boolean"}
    )
    engine = open_engine(policy, data=frame)
    return EngineMarginals(
        engine.declared(policy),
        cell_columns(policy)[0],
        names={name: column_name(name, policy) for name in COLUMNS},
        unit=None if most is None else UNIT,
        rows=most or 1,
        salt="a secret",
        prepare=engine.prepare,
        fetch=engine.fetch,
        keep=True,
    )


@settings(max_examples=15, deadline=None)
@given(others=st.lists(lines, max_size=8), own=st.lists(lines, min_size=1, max_size=6), most=st.integers(1, 3))
def test_a_person_moves_a_marginal_by_at_most_their_rows(others, own, most):
    own = [("eve", *line[1:]) for line in own]
    without, with_eve = marginals(others, most), marginals(others + own, most)
    for clique in CLIQUES:
        moved = with_eve.marginal(clique) - without.marginal(clique)
        assert (moved >= 0).all()  # nobody else's rows are pushed out
        assert moved.sum() == min(most, len(own))
        assert np.square(moved).sum() <= most**2


@settings(max_examples=10, deadline=None)
@given(others=st.lists(lines, max_size=8), own=lines)
def test_where_a_row_is_a_person_one_cell_moves_by_one(others, own):
    without, with_eve = marginals(others, None), marginals([*others, own], None)
    for clique in CLIQUES:
        moved = with_eve.marginal(clique) - without.marginal(clique)
        assert sorted(moved.reshape(-1).tolist())[-2:] == [0, 1]
        assert moved.sum() == 1


class Counts:
    """Marginals that were counted elsewhere."""

    def __init__(self, counts: np.ndarray, rows: int) -> None:
        self.counts, self.rows = counts, rows

    def prepare(self) -> None:
        pass

    def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
        return self.counts


@given(
    counts=st.lists(st.integers(0, 500), min_size=27, max_size=27),
    added=st.lists(st.integers(0, 26), min_size=1, max_size=4),
    expected=st.lists(st.floats(0, 600), min_size=27, max_size=27),
    noisy=st.lists(st.floats(-50, 300), min_size=27, max_size=27),
)
def test_a_person_moves_a_score_by_at_most_their_rows_to_the_last_bit(counts, added, expected, noisy):
    cities = cell_columns(
        policy_from_dict(
            {
                "table": {"name": "t", "source": "t.csv"},
                "budget": {"epsilon": 1, "delta": 1e-6},
                "columns": {"c": {"type": "integer", "categories": list(range(26))}},
            }
        )
    )[0][0]
    bucket = merged(cities, np.array(noisy), sigma=10.0)
    before = np.array(counts)
    after = before + np.bincount(added, minlength=27)
    rows = len(added)
    plan = SynthesisPlan(columns=1, picks=(1,), single_sigma=9.0, joint_sigma=9.0, choice_scale=9.0, rows=rows)
    model = bucket.counts(np.array(expected))
    scores = [
        PaidTable(plan, Counts(table, rows), SecretStream())._score(("c",), model, {"c": bucket}, 0.3)
        for table in (before, after)
    ]
    assert abs(scores[1] - scores[0]) <= rows
    assert np.abs(merge_table(after, [bucket]) - merge_table(before, [bucket])).sum() == rows
