"""Stopping by what is kept out: every look is charged, and a run that was stopped is priced as such."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from torch import nn

from sfumato import runs as results
from sfumato.accounting import Budget, Relation, compose, epsilon, pure, repeat
from sfumato.caveats import Code
from sfumato.datasets import Dataset
from sfumato.datasets.dataset import SEEDED_CHOICE
from sfumato.errors import BudgetExceeded, InvalidInput, Refused
from sfumato.fitting import evaluate
from sfumato.ledger import Ledger
from sfumato.ledger.rule import same_releases
from sfumato.randomness import SecretStream
from sfumato.runs import EpochReport, read_history, read_run
from sfumato.storage import RunFolder
from sfumato.training import EarlyStopping, Optimization, TrainingPlan, keep_out, train
from sfumato.training.hold_out import price

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=400, steps=40, noise_multiplier=8.0)  # 20 epochs
SHORT = replace(PLAN, steps=6)  # 3 epochs


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
        EpochReport(epoch=n, step=n, epsilon_if_fixed_in_advance=1.0, held_out_accuracy=figure)
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


@pytest.mark.parametrize("sampler", [None, SecretStream(test_seed=1)])
def test_looks_at_rows_that_seeded_coins_chose_make_the_run_not_private(rows, sampler):
    """When to stop is then decided by figures whose price does not hold."""
    held = keep_out(rows, 0.2, sampler=sampler)[1]
    plan = replace(PLAN, steps=2)
    found = train(nn.Linear(4, 2), rows, plan, stopping=EarlyStopping(held=held, epsilon=0.1))
    assert found.certificate.private == (sampler is None)
    assert (SEEDED_CHOICE in found.certificate.caveats) == (sampler is not None)


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
    trained = min(result.certificate.prices.pld, result.certificate.prices.rdp)
    assert PLAN.epsilon(1e-5, 4) < trained <= PLAN.epsilon(1e-5)  # not that of a shorter plan
    assert trained < result.epsilon  # with the looks
    result.certificate.verify()


def test_a_run_without_room_for_all_its_looks_does_not_start(rows, tmp_path):
    training, held = keep_out(rows, 0.2)
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=3, delta=1e-5)) as ledger:
        with pytest.raises(BudgetExceeded):
            train(
                nn.Linear(4, 2), training, PLAN, ledger=ledger, stopping=EarlyStopping(held=held, epsilon=1.0)
            )
        assert ledger.epsilon_spent == 0


def looked(rows, *, plan=SHORT, epsilon=0.5, patience=99, gain=0.0, **more):
    training, held = keep_out(rows, 0.2)
    stopping = EarlyStopping(held=held, epsilon=epsilon, patience=patience, least_gain=gain)
    return train(nn.Linear(4, 2), training, plan, stopping=stopping, **more)


@pytest.mark.keeps_out("Looks at records kept out that the stated ε does not count")
@pytest.mark.parametrize("patience", [99, 1])
def test_without_a_ledger_result_and_certificate_count_every_look(rows, tmp_path, patience):
    result = looked(rows, patience=patience, gain=0.9, out=tmp_path / "run")
    looks = len(result.history)
    assert looks == (3 if patience == 99 else 2)
    assert all(one.held_out_epsilon == 0.5 for one in result.history)
    whole = compose(SHORT.event(2 * looks), repeat(price(0.5), looks))
    assert same_releases(result.certificate.event, whole)
    stated = result.certificate.verify()
    assert epsilon(whole, 1e-5) <= result.epsilon == pytest.approx(min(stated.pld, stated.rdp))
    if patience == 1:
        assert same_releases(result.certificate.planned, compose(SHORT.event(), repeat(price(0.5), 3)))
    assert read_run(tmp_path / "run").result.epsilon == result.epsilon


def test_with_a_ledger_the_result_counts_the_looks_and_the_certificate_speaks_of_them(rows, tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=12, delta=1e-5)) as ledger:
        result = looked(rows, ledger=ledger)
    assert result.epsilon == pytest.approx(epsilon(compose(SHORT.event(), repeat(price(0.5), 3)), 1e-5))
    assert any(caveat.code is Code.MEASURED_BESIDE for caveat in result.certificate.caveats)
    assert result.certificate.verify().pld == pytest.approx(SHORT.epsilon(1e-5))


@pytest.mark.keeps_out("Looks at records kept out that the stated ε does not count")
@pytest.mark.parametrize("relation", [Relation.ZERO_OUT, Relation.REPLACE_ONE])
@pytest.mark.parametrize("recorded", [True, False])
def test_looks_are_priced_under_the_relation_of_the_plan(rows, tmp_path, relation, recorded):
    """A record that changes may leave one count and enter the other."""
    plan = replace(SHORT, sampling="shuffle", relation=relation)
    budget = Budget(epsilon=20, delta=1e-5, relation=relation)
    ledger = Ledger.open(tmp_path / "l.db", budget=budget) if recorded else None
    result = looked(rows, plan=plan, ledger=ledger)
    assert result.epsilon == pytest.approx(
        epsilon(compose(plan.event(), repeat(price(0.5, relation), 3)), 1e-5, relation=relation)
    )
    assert epsilon(price(0.5, relation), 0, relation=relation) == pytest.approx(0.5, rel=1e-3)
    assert price(0.5, relation).sensitivity == 2
    assert [one.held_out_accuracy is not None for one in result.history] == [True] * 3


@pytest.mark.parametrize("recorded", [True, False])
def test_looks_at_records_are_refused_where_the_plan_is_about_persons(rows, tmp_path, recorded):
    """A person may have several of them; the price of a look is for one."""
    plan = replace(SHORT, unit="person", rows_per_unit=2)
    budget = Budget(epsilon=20, delta=1e-5, unit="person")
    ledger = Ledger.open(tmp_path / "l.db", budget=budget) if recorded else None
    training, held = keep_out(rows, 0.2)
    with pytest.raises(InvalidInput, match="kept out that are one person each"):
        train(
            nn.Linear(4, 2), (training.inputs, training.targets), plan, units=np.arange(len(training)) // 2,
            ledger=ledger, stopping=EarlyStopping(held=held, epsilon=0.5),
        )  # fmt: skip
    assert ledger is None or ledger.epsilon_spent == 0


class Died(BaseException):
    pass


def dies_at(monkeypatch, epoch):
    """The process ends when the steps of an epoch are durable, and before its line is."""
    intact = results.write_history

    def dying(folder, history):
        if len(history) == epoch:
            raise Died
        intact(folder, history)

    monkeypatch.setattr(results, "write_history", dying)


@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.parametrize("recorded", [True, False])
def test_an_epoch_that_was_lost_with_the_process_is_told_again(rows, tmp_path, monkeypatch, epoch, recorded):
    budget = Budget(epsilon=20, delta=1e-5)
    ledger = Ledger.open(tmp_path / "l.db", budget=budget) if recorded else None
    training, held = keep_out(rows, 0.2)
    test, told = replace(rows, visibility="public"), []
    run = partial(
        train, nn.Linear(4, 2), training, SHORT, test=test, ledger=ledger, out=tmp_path / "run",
        stopping=EarlyStopping(held=held, epsilon=0.5, patience=99), on_epoch=told.append,
    )  # fmt: skip
    with monkeypatch.context() as dying:
        dies_at(dying, epoch)
        with pytest.raises(Died):
            run()
    result = run()
    assert [one.step for one in result.history] == [2, 4, 6]
    assert list(result.history) == told == read_history(RunFolder(tmp_path / "run"))
    assert result.test_accuracy == evaluate(result.model, test).accuracy
    assert None not in [one.held_out_accuracy for one in result.history]
    if recorded:  # the figure that nobody saw was paid for, and so is that in its place
        assert sum("kept out" in charge.purpose for charge in ledger.charges()) == 4


def test_a_lost_epoch_ends_a_run_whose_ledger_has_no_room_for_another_look(rows, tmp_path, monkeypatch):
    need = [SHORT.event(), repeat(price(0.5), 3)]
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=20, delta=1e-5)) as ledger:
        training, held = keep_out(rows, 0.2)
        run = partial(
            train, nn.Linear(4, 2), training, SHORT, ledger=ledger, out=tmp_path / "run",
            stopping=EarlyStopping(held=held, epsilon=0.5, patience=99),
        )  # fmt: skip
        with monkeypatch.context() as dying:
            dies_at(dying, 3)
            with pytest.raises(Died):
                run()
        ledger.charge(
            pure(ledger.epsilon_left - 0.1), purpose="others", relation=Relation.ADD_REMOVE, unit="record"
        )
        with pytest.warns(UserWarning, match="not measured"):
            result = run()
    assert [one.step for one in result.history] == [2, 4, 6]
    assert result.history[-1].held_out_accuracy is None
    assert result.epsilon < epsilon(compose(*need), 1e-5)


@pytest.mark.parametrize("other", [None, 0.25])
def test_without_a_ledger_a_run_measures_alike_until_its_end(rows, tmp_path, monkeypatch, other):
    training, held = keep_out(rows, 0.2)
    first = EarlyStopping(held=held, epsilon=0.5)
    with monkeypatch.context() as dying:
        dies_at(dying, 2)
        with pytest.raises(Died):
            train(nn.Linear(4, 2), training, SHORT, out=tmp_path / "run", stopping=first)
    stopping = None if other is None else EarlyStopping(held=held, epsilon=other)
    with pytest.raises(Refused, match="measures alike"):
        train(nn.Linear(4, 2), training, SHORT, out=tmp_path / "run", stopping=stopping)


def test_public_rows_are_no_records_kept_out(rows):
    with pytest.raises(InvalidInput, match="keep_out"):
        EarlyStopping(held=rows, epsilon=0.1)
