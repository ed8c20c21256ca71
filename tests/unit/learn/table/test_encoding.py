"""Cells follow from the policy alone."""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from sfumato.accounting import GaussianEvent, epsilon
from sfumato.errors import InvalidInput
from sfumato.learn.table import Encoding, TablePlan, Target
from sfumato.learn.table.encoding import FINE, Encoder
from sfumato.learn.table.sums import MOST_BINS, Design, join_cells
from sfumato.policy import Column


def encoded(column: Column, values: list[object], kind: pa.DataType) -> list[int]:
    return Encoder(column=column).encode(pa.chunked_array([pa.array(values, type=kind)])).tolist()


def test_numbers_are_clipped_to_their_bounds_and_missing_ones_have_a_cell_of_their_own():
    whole = Column(name="n", type="integer", lower=-1, upper=2)
    assert encoded(whole, [-1, 2, 7, -9, None], pa.int64()) == [0, 3, 3, 0, 4]
    real = Column(name="x", type="real", lower=0, upper=1)
    assert encoded(real, [0.0, 0.5, 1.0, 5.0, None], pa.float64()) == [0, FINE // 2, FINE - 1, FINE - 1, FINE]


def test_categories_booleans_and_days_have_a_cell_each(tables):
    assert encoded(tables.columns["city"], ["Mons", "Rome", None], pa.string()) == [2, 3, 3]
    assert encoded(tables.columns["member"], [True, False, None], pa.bool_()) == [1, 0, 2]
    first = datetime.date(2024, 1, 1)
    day = Column(name="d", type="date", lower=first, upper=datetime.date(2024, 1, 10))
    assert encoded(day, [first, datetime.date(2030, 1, 1), None], pa.date32()) == [0, 9, 10]
    named = Column(name="d", type="date", categories=("2024-01-02",))
    assert encoded(named, [first, datetime.date(2024, 1, 2)], pa.date32()) == [1, 0]


@pytest.mark.keeps_out("A model whose bounds, categories or size are read off the table")
def test_what_has_neither_bounds_nor_categories_is_refused_or_left_out_on_purpose(tables):
    policy = tables.policy(columns=tables.undeclared)
    with pytest.raises(
        InvalidInput, match=r"categories for note \(text\); lower and upper for weight \(real\)"
    ):
        Encoding.of(policy, "ill")
    with pytest.raises(InvalidInput, match=r"--leave-out weight"):
        Encoding.of(policy, "ill", leave_out=["note"])
    found = Encoding.of(policy, "ill", leave_out=["Note", "weight", "age"])
    assert {"note", "weight", "age"}.isdisjoint(found.names)
    assert found.left_out == ("note", "weight", "age")
    with pytest.raises(InvalidInput, match="other columns than the target"):
        Encoding.of(policy, "ill", leave_out=["note", "weight", "ill"])
    with pytest.raises(InvalidInput, match="a column of the policy, got 'nose'"):
        Encoding.of(policy, "ill", leave_out=["nose"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("illness", "one of age, income"),
        ("note", "categories or bounds of the target note, got neither"),
        ("weight", "lower and upper of a number"),
    ],
)
def test_a_target_that_cannot_be_learned_is_refused(tables, target, message):
    with pytest.raises(InvalidInput, match=message):
        Target.of(tables.policy(columns=tables.undeclared), target)


def test_one_class_and_no_columns_are_refused(tables):
    one = {"ill": Column(name="ill", type="text", categories=("yes",)), "note": tables.undeclared["note"]}
    with pytest.raises(InvalidInput, match="at least two categories"):
        Target.of(tables.policy(columns=one), "ill")
    with pytest.raises(InvalidInput, match="a column beside ill to learn from"):
        Encoding.of(tables.policy(columns=one), "ill", leave_out=["note"])


def test_fine_cells_are_joined_where_few_rows_are(tables):
    encoder = Encoder(column=tables.columns["income"])
    counts = np.zeros(encoder.cells)
    counts[:8] = 1000.0
    bins = join_cells(encoder, counts)
    assert len(set(bins[:8])) == 8
    assert bins.max() <= MOST_BINS
    assert bins[-1] == bins[:-1].max() + 1
    assert (np.diff(bins[:-1]) >= 0).all()


def test_a_design_from_noise_alone_is_sound(tables):
    encoders = Encoding.of(tables.policy(), "ill").encoders
    for counts in (-50.0, 0.0, 1e9):
        design = Design.of(encoders, [np.full(one.cells, counts) for one in encoders], size=10)
        assert design.centre.min() >= 0
        assert design.centre.max() <= 1 << 12
        assert design.exponent.min() >= 0


@pytest.mark.parametrize(
    ("column", "texts", "values"),
    [
        (
            Column(name="x", type="integer", lower=0, upper=9),
            ["3", "4.0", "x", None, "9" * 30],
            [3, 4] + [None] * 3,
        ),
        (Column(name="x", type="integer", categories=(1, 5)), ["5", " 1", "2", ""], [5, 1, 2, None]),
        (Column(name="x", type="real", lower=0, upper=1), ["0.25", "1e9", "?"], [0.25, 1e9, None]),
        (Column(name="x", type="boolean"), ["True", "f", "1", "maybe"], [True, False, True, None]),
        (
            Column(name="x", type="date", lower=datetime.date(2020, 1, 1), upper=datetime.date(2021, 1, 1)),
            ["2020-05-01", "2020-02-31"],
            [datetime.date(2020, 5, 1), None],
        ),
    ],
)
def test_texts_of_a_file_are_read_as_the_column_is_declared(column, texts, values):
    encoder = Encoder(column=column)
    read = encoder.encode(pa.chunked_array([pa.array(texts, pa.string())]))
    assert read.tolist() == encoder.encode(pa.chunked_array([pa.array(values)])).tolist()


@pytest.mark.parametrize("visits", [0, 30])
@pytest.mark.parametrize("budget", [0.3, 3.0])
def test_all_of_the_budget_is_used_and_no_more(visits, budget):
    plan = TablePlan.calibrated(epsilon=budget, delta=1e-6, public_size=1000, columns=4, visits=visits)
    assert 0.995 * budget <= plan.epsilon(1e-6) <= budget
    precision = plan.counts_noise**-2 + plan.steps * plan.step_noise**-2 + visits * plan.pair_noise**-2
    assert epsilon(GaussianEvent(precision**-0.5), 1e-6) == pytest.approx(plan.epsilon(1e-6), rel=2e-3)


def test_less_noise_in_any_release_costs_more():
    plan = TablePlan.calibrated(epsilon=1, delta=1e-6, public_size=1000, columns=4, visits=10)
    for name in ("counts_noise", "step_noise", "pair_noise"):
        assert replace(plan, **{name: getattr(plan, name) * 0.7}).epsilon(1e-6) > 1.01


def test_a_plan_comes_back_from_json_and_refuses_nonsense():
    plan = TablePlan.calibrated(epsilon=1, delta=1e-6, public_size=1000, columns=4)
    assert TablePlan.from_json(plan.to_json()) == plan
    for change in ({"steps": 0}, {"step_noise": 0.0}, {"model": "forest"}, {"public_size": 0}):
        with pytest.raises(InvalidInput):
            replace(plan, **change)
