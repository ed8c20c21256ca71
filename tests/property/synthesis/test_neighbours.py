"""One person more or less: every marginal, and every score of a choice, moves by at most the declared rows."""

from __future__ import annotations

import datetime
import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.policy import policy_from_dict
from sfumato.query.engines import open_engine
from sfumato.query.expressions import column_name
from sfumato.query.measures import UNIT
from sfumato.randomness import SecretStream, public_generator
from sfumato.synthesis import EngineMarginals, PaidTable, Request, SynthesisPlan, Synthesizer, cell_columns
from sfumato.synthesis import synthesizer as synthesizing
from sfumato.synthesis.cells import merge_table, merged
from sfumato.synthesis.fidelity import report

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


@pytest.mark.keeps_out("Several rows of a person behind noise for one")
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


DAYS = {"type": "date", "lower": datetime.date(2000, 1, 1), "upper": datetime.date(2029, 12, 31)}
columns = st.one_of(
    st.just({"type": "boolean"}),
    st.just(DAYS),
    st.integers(1, 500).map(lambda upper: {"type": "integer", "lower": 0, "upper": upper}),
    st.just({"type": "real", "lower": 0, "upper": 1}),
    st.integers(1, 700).map(lambda size: {"type": "text", "categories": [f"v{one}" for one in range(size)]}),
)


class Rows:
    """Counts of made-up rows of cells, some of them missing."""

    rows = 1

    def __init__(self, request: Request, people: int, missing: float, seed: int) -> None:
        draw = public_generator(seed)
        self.sizes = {column.name: column.size for column in request.columns}
        self.cells = {
            column.name: np.where(
                draw.random(people) < missing, column.missing, draw.integers(0, column.missing, people)
            )
            for column in request.columns
        }

    def prepare(self) -> None:
        pass

    def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
        counts = np.zeros([self.sizes[name] for name in clique], dtype=np.int64)
        np.add.at(counts, tuple(self.cells[name] for name in clique), 1)
        return counts


@pytest.mark.keeps_out("Pairs with the target that have too many cells, dropped without a word")
@settings(max_examples=40, deadline=None)
@given(
    declared=st.lists(columns, min_size=2, max_size=6),
    people=st.sampled_from([50, 2000, 50_000]),
    missing=st.sampled_from([0.0, 0.02, 0.7]),
    targeted=st.booleans(),
    seed=st.integers(0, 5),
)
def test_a_pair_that_is_asked_for_is_measured_or_listed(declared, people, missing, targeted, seed):
    names = [f"c{place}" for place in range(len(declared))]
    policy = policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "budget": {"epsilon": 1, "delta": 1e-6},
            "columns": dict(zip(names, declared, strict=True)),
        }
    )
    target = names[-1] if targeted else None
    request = Request.of(policy, rows=5, epsilon=1.0, target=target)
    found = _run(request, Rows(request, people, missing, seed))
    told = report(found, request.asked, (), target=target)
    measured = [tuple(item["columns"]) for item in told["measured"]]
    listed = [tuple(clique) for clique in told["not_measured"]]
    assert {*measured, *listed} == set(itertools.combinations(names, 2))
    for clique in set(measured) & set(listed):  # only whether there is a value
        ways = [item.clique for item in found.measurements if found.columns_of(item.clique) == clique]
        assert any(found.buckets[name].size == 2 and name != found.buckets[name].column for name in ways[0])
    for order in (measured, listed):
        with_target = [target in clique for clique in order]
        assert with_target == sorted(with_target, reverse=True)
    if people == 50_000 and targeted:  # enough rows for coarse pairs, whatever the columns are
        assert {clique for clique in itertools.combinations(names, 2) if target in clique} <= set(measured)


def _run(request: Request, table: Any) -> Any:
    """The run without its fits, which do not decide what of the target is measured and take seconds each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthesizing, "fit", lambda measurements, *, start, **rest: start)
        paid = PaidTable(request.plan, table, SecretStream())
        return Synthesizer(paid, request.columns, request.candidates, fixed=request.fixed).run()
