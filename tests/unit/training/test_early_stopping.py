"""Stopping by what is kept out: every look is charged, and a run that was stopped is priced as such."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from sfumato.accounting import Budget
from sfumato.datasets import Dataset
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import Ledger
from sfumato.results import EpochReport
from sfumato.training import EarlyStopping, Optimization, TrainingPlan, keep_out, train

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=400, steps=40, noise_multiplier=8.0)  # 20 epochs


@pytest.fixture
def rows():
    drawn = np.random.default_rng(0)
    inputs = drawn.standard_normal((1000, 4)).astype(np.float32)
    return Dataset(
        inputs=inputs, targets=(inputs[:, 0] > 0).astype(np.int64), name="toy", visibility="private",
        public_size=1000, classes=2,
    )  # fmt: skip


def told(*figures):
    return [
        EpochReport(epoch=n, step=n, epsilon=1.0, held_out_accuracy=figure)
        for n, figure in enumerate(figures, 1)
    ]


@pytest.mark.parametrize(
    ("figures", "over"),
    [
        ([0.5, 0.6], False),
        ([0.6, 0.5, 0.5], True),
        ([0.6, 0.5, 0.7], False),
        ([0.5, 0.6, 0.6, 0.6], True),
        ([0.6, None, 0.5, None, 0.5], True),
    ],
)
def test_when_it_is_over(rows, figures, over):
    stopping = EarlyStopping(held=keep_out(rows, 0.2)[1], epsilon=0.1)
    assert stopping.is_over(told(*figures)) is over


def test_a_gain_within_the_noise_may_be_no_gain(rows):
    held = keep_out(rows, 0.2)[1]
    history = told(0.6, 0.61, 0.61)
    assert not EarlyStopping(held=held, epsilon=0.1).is_over(history)
    assert EarlyStopping(held=held, epsilon=0.1, least_gain=0.02).is_over(history)


def test_a_stopped_run_is_charged_for_its_looks_and_priced_as_stopped(rows, tmp_path):
    training, held = keep_out(rows, 0.2)
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=12, delta=1e-5)) as ledger:
        result = train(
            nn.Linear(4, 2), training, PLAN, ledger=ledger, out=tmp_path / "run",
            optimization=Optimization(learning_rate=1e-9),  # so that nothing is gained
            stopping=EarlyStopping(held=held, epsilon=0.2, patience=1, least_gain=0.3),
        )  # fmt: skip
        measured = [one.held_out_accuracy for one in result.history]
        assert len(measured) == 2  # the second gained nothing
        assert None not in measured
        charges = ledger.charges()
        assert [charge.purpose for charge in charges].count("accuracy on records kept out") == 2
        (run,) = [charge for charge in charges if charge.purpose == "private training"]
        assert run.stopped_early
    assert result.certificate.planned is not None
    assert any("stopped early" in caveat for caveat in result.certificate.caveats)
    assert PLAN.epsilon(1e-5, 4) < result.epsilon <= PLAN.epsilon(1e-5)  # not that of a shorter plan
    result.certificate.verify()


def test_a_run_without_room_for_all_its_looks_does_not_start(rows, tmp_path):
    training, held = keep_out(rows, 0.2)
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=3, delta=1e-5)) as ledger:
        with pytest.raises(BudgetExceeded):
            train(
                nn.Linear(4, 2), training, PLAN, ledger=ledger, stopping=EarlyStopping(held=held, epsilon=1.0)
            )
        assert ledger.epsilon_spent == 0


def test_public_rows_are_no_records_kept_out(rows):
    with pytest.raises(InvalidInput, match="keep_out"):
        EarlyStopping(held=rows, epsilon=0.1)
