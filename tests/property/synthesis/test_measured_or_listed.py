"""Over random tables: each pair that is asked for is measured by its values, or the report lists it."""

from __future__ import annotations

import datetime
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.policy import policy_from_dict
from sfumato.randomness import SecretStream, public_generator
from sfumato.synthesis import PaidTable, Request, Synthesizer
from sfumato.synthesis import synthesizer as synthesizing
from sfumato.synthesis.fidelity import report

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
