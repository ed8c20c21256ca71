"""Ways to release more than a ledger has on record: a second process, a stale file, a forgotten argument."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from sfumato import accounting
from sfumato import ledger as ledgers
from sfumato.accounting import Budget, NoEvent, Relation, pure, repeat
from sfumato.datasets import Dataset
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerError, Refused, RelationMismatch, SfumatoError
from sfumato.learn import DIGITS, tuning
from sfumato.ledger import Certificate, Ledger, Reservation
from sfumato.pate import VotePlan, Voting, aggregate
from sfumato.query import Column, Policy, Table
from sfumato.randomness import SecretStream
from sfumato.training import PrivateTrainer, TrainingPlan, checkpoint, resume, save_checkpoint, train

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=6, noise_multiplier=1.0)
TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}
DIGEST = "0" * 64


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 5, generator=generator), torch.randint(0, 3, (20,), generator=generator)


def trainer_of(ledger: Ledger | None, *, seed: int | None = None) -> PrivateTrainer:
    model = nn.Linear(5, 3)
    sampler = None if seed is None else SecretStream(test_seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivateTrainer(model, optimizer, PLAN, ledger=ledger, sampler=sampler)


def take(trainer: PrivateTrainer, until: int) -> PrivateTrainer:
    for batch in trainer.batches(rows()):
        trainer.step(batch, lambda out, target: F.cross_entropy(out, target, reduction="none"))
        if trainer.steps_done == until:
            break
    return trainer


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "ledger.db", budget=Budget(epsilon=50, delta=1e-5))


# A step is released once


@pytest.mark.keeps_out("One checkpoint continued twice, by two processes or from an older copy")
def test_two_processes_that_resume_one_checkpoint_do_not_both_finish(tmp_path: Path, ledger: Ledger) -> None:
    save_checkpoint(take(trainer_of(ledger), 3), tmp_path / "c")
    one, other = trainer_of(ledger), trainer_of(Ledger.open(tmp_path / "ledger.db"))
    resume(one, tmp_path / "c")
    resume(other, tmp_path / "c")
    finished = 0
    for trainer in (one, other):
        try:
            take(trainer, 6).finish()
            finished += 1
        except LedgerError as error:
            assert "another process" in str(error)  # noqa: PT017
    assert finished == 1
    ledger.verify()


@pytest.mark.keeps_out("One checkpoint continued twice, by two processes or from an older copy")
def test_a_fenced_process_cannot_replace_the_checkpoint(tmp_path: Path, ledger: Ledger) -> None:
    path = tmp_path / "c"
    first = take(trainer_of(ledger), 3)
    save_checkpoint(first, path)
    second = trainer_of(ledger)
    resume(second, path)
    take(second, 5)
    save_checkpoint(second, path)
    newest = path.read_bytes()
    with pytest.raises(LedgerError, match="another process"):
        save_checkpoint(first, path)
    assert path.read_bytes() == newest


@pytest.mark.keeps_out("A refund below what was released")
def test_nothing_is_given_back_below_a_durable_step(tmp_path: Path, ledger: Ledger) -> None:
    """Five steps are on disk; a settlement to one of them would refund what was released."""
    trainer = take(trainer_of(ledger), 5)
    save_checkpoint(trainer, tmp_path / "c")
    for low in (NoEvent(), PLAN.event(1), PLAN.event(4)):
        with pytest.raises(SfumatoError, match="durable"):
            trainer.reservation.settle(low)
    trainer.reservation.settle(PLAN.event(5))


@pytest.mark.keeps_out("A refund below what was released")
def test_whoever_takes_a_run_up_cannot_say_that_less_ran(ledger: Ledger) -> None:
    """The first process may have shown its steps; nothing durable tells how many there were."""
    head = ledger.reserve(repeat(pure(0.1), 4), purpose="crashed", **TERMS).head
    taken = ledger.reservation(head)
    with pytest.raises(SfumatoError, match="durable mark"):
        taken.settle(NoEvent())
    taken.settle()
    assert ledger.epsilon_spent == pytest.approx(0.4, rel=1e-3)


def test_a_parent_does_not_go_on_with_what_its_forked_child_marked(ledger: Ledger) -> None:
    """Both have the token; the second to mark did not see the first's mark."""
    reservation = ledger.reserve(repeat(pure(0.1), 4), purpose="forked", **TERMS)
    if (child := os.fork()) == 0:
        try:
            reservation.mark(pure(0.1), steps=1, digest="1" * 64)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(LedgerError, match="second process"):
        reservation.mark(pure(0.1), steps=1, digest="2" * 64)
    with pytest.raises(LedgerError, match="second process"):
        reservation.begin()  # must not take the child's mark for one that it saw
    with pytest.raises(LedgerError, match="second process"):
        reservation.settle()


POINTS = ("nothing written", "half written", "staged", "marked", "renamed")


def dies_while_saving(ledger: Ledger, path: Path, point: str) -> None:
    """A process takes two more steps than the checkpoint holds, and dies at a point of saving them."""
    trainer = trainer_of(ledger)
    resume(trainer, path)
    take(trainer, 4)
    mark, rename = trainer.reservation.mark, checkpoint.rename

    def half(place: Path, content: bytes) -> None:
        if point == "half written":
            place.with_name(f".{place.name}.x.part").write_bytes(b"cut off")
        os._exit(9)

    def no_mark(*words: object, **terms: object) -> None:
        if point == "staged":
            os._exit(9)
        mark(*words, **terms)

    def no_rename(*words: object) -> None:
        if point == "renamed":
            rename(*words)
        os._exit(9)

    if point in ("nothing written", "half written"):
        checkpoint.write_whole = half
    trainer.reservation.mark, checkpoint.rename = no_mark, no_rename
    save_checkpoint(trainer, path)


@pytest.mark.keeps_out("One checkpoint continued twice, by two processes or from an older copy")
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_while_saving_is_recovered(tmp_path: Path, ledger: Ledger, point: str) -> None:
    path = tmp_path / "c"
    save_checkpoint(take(trainer_of(ledger), 2), path)
    if (child := os.fork()) == 0:
        try:
            dies_while_saving(ledger, path, point)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    again = trainer_of(ledger)
    resume(again, path)
    assert again.steps_done == again.reservation.marked == (4 if point in ("marked", "renamed") else 2)
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".c.")] == []
    assert hashlib.sha256(path.read_bytes()).hexdigest() == again.reservation.lease.digest
    take(again, 6).finish()
    assert ledger.epsilon_spent == pytest.approx(PLAN.epsilon(1e-5))
    ledger.verify()


def test_the_first_checkpoint_is_found_before_it_has_its_name(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c"
    trainer = take(trainer_of(ledger), 2)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(trainer, path)
    assert not path.exists()
    assert checkpoint.can_resume(path, ledger)
    again = trainer_of(ledger)
    resume(again, path)
    assert again.steps_done == 2


def test_a_changed_checkpoint_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    """Weights put in by hand, under the step and the reservation of the true file."""
    path = tmp_path / "c"
    save_checkpoint(take(trainer_of(ledger), 2), path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) + 1 for name in file.keys()}  # noqa: SIM118
        record = file.metadata()
    save_file(tensors, path, metadata=record)
    with pytest.raises(Refused, match="newest checkpoint"):
        resume(trainer_of(ledger), path)


def classes(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out, target, reduction="none")


def dies_in_its_first_epoch(ledger: Ledger, out: Path, seeds: list[int]) -> None:
    def crash(trainer: PrivateTrainer) -> None:
        if trainer.steps_done == 1:
            raise KeyboardInterrupt

    torch.manual_seed(seeds.pop())
    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=out, loss_fn=classes, on_step=crash)


@pytest.mark.keeps_out("A crash in the first epoch that charges the plan twice")
def test_a_run_that_dies_in_its_first_epoch_is_charged_once(tmp_path: Path, ledger: Ledger) -> None:
    seeds = [3, 2, 1]
    for _ in range(2):
        dies_in_its_first_epoch(ledger, tmp_path / "run", seeds)
    result = train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run", loss_fn=classes)
    assert len(ledger.charges()) == 1
    assert ledger.epsilon_spent == pytest.approx(PLAN.epsilon(1e-5))
    assert [report.step for report in result.history] == [2, 4, 6]
    ledger.verify(certificate=result.certificate)


@pytest.mark.keeps_out("A crash in the first epoch that charges the plan twice")
def test_a_first_checkpoint_that_cannot_be_written_costs_nothing(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write_whole", full)
        with pytest.raises(OSError, match="No space"):
            train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run", loss_fn=classes)
    assert ledger.epsilon_spent == 0
    train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run", loss_fn=classes)
    assert ledger.epsilon_spent == pytest.approx(PLAN.epsilon(1e-5))


def test_a_first_checkpoint_whose_reservation_was_given_back_is_no_checkpoint(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before it begins; the holder gives the reservation back and starts again."""
    with monkeypatch.context() as patched:
        patched.setattr(Reservation, "begin", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run", loss_fn=classes)
    ledger.give_back(ledger.open_reservations()[0].head.sequence)
    train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run", loss_fn=classes)
    assert ledger.epsilon_spent == pytest.approx(PLAN.epsilon(1e-5))
    ledger.verify()


def test_a_later_file_does_not_pass_for_the_first_checkpoint(tmp_path: Path, ledger: Ledger) -> None:
    """The ledger was told of no step; a file that holds some was never released."""
    trainer = take(trainer_of(ledger), 2)
    (tmp_path / "c").write_bytes(checkpoint._content(trainer, trainer.state, None, None))
    with pytest.raises(Refused, match="which it was not"):
        resume(trainer_of(ledger), tmp_path / "c")


# Seeded stays seeded


@pytest.mark.keeps_out("A seeded run that comes back as private")
@pytest.mark.parametrize("recorded", [True, False])
def test_two_resumes_do_not_make_a_seeded_run_private(tmp_path: Path, ledger: Ledger, recorded: bool) -> None:
    book = ledger if recorded else None
    save_checkpoint(take(trainer_of(book, seed=1), 2), tmp_path / "c")
    for until in (3, 4):
        trainer = trainer_of(book)
        resume(trainer, tmp_path / "c")
        assert not take(trainer, until).private
        save_checkpoint(trainer, tmp_path / "c")
    take(trainer, 6).finish()
    assert not trainer.certificate(delta=1e-5).private


def test_a_run_that_is_resumed_with_a_seed_is_not_private(tmp_path: Path, ledger: Ledger) -> None:
    save_checkpoint(take(trainer_of(ledger), 2), tmp_path / "c")
    seeded = trainer_of(ledger, seed=1)
    resume(seeded, tmp_path / "c")
    save_checkpoint(take(seeded, 3), tmp_path / "c")
    assert not ledger.private
    last = trainer_of(ledger)
    resume(last, tmp_path / "c")
    take(last, 6).finish()
    assert not last.certificate(delta=1e-5).private
    assert not ledger.private


@pytest.mark.keeps_out("A seeded run that comes back as private")
def test_a_record_that_says_private_is_not_believed(tmp_path: Path, ledger: Ledger) -> None:
    """The file is re-written to deny the seed, and even the ledger is told its digest."""
    path = tmp_path / "c"
    trainer = take(trainer_of(ledger, seed=1), 2)
    save_checkpoint(trainer, path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        record = json.loads(file.metadata()["sfumato"])
    save_file(tensors, path, metadata={"sfumato": json.dumps({**record, "private": True})})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    trainer.reservation.mark(PLAN.event(2), steps=2, digest=digest)
    again = trainer_of(ledger)
    resume(again, path)
    assert not again.private


# Nothing is spent on what never ran, and nothing is given back that did


@pytest.mark.keeps_out("A refund of what ran, or none for what never did")
def test_a_reservation_under_which_nothing_ran_is_given_back(ledger: Ledger) -> None:
    reservation = ledger.reserve(pure(0.5), purpose="cannot be trained", begun=False, **TERMS)
    ledger.give_back(reservation.head.sequence)
    assert ledger.epsilon_spent == 0
    with pytest.raises(LedgerError, match="given back"):
        reservation.begin()  # the process was only slow
    ledger.verify()


@pytest.mark.keeps_out("A refund of what ran, or none for what never did")
def test_a_run_that_touched_rows_is_not_given_back(tmp_path: Path, ledger: Ledger) -> None:
    trainer = trainer_of(ledger)
    take(trainer, until=1)
    with pytest.raises(Refused, match="stays spent"):
        ledger.give_back(trainer.reservation.head.sequence)
    charge = ledger.charge(pure(0.1), purpose="a count", **TERMS)
    with pytest.raises(LedgerError, match="open reservation"):
        ledger.give_back(charge.head.sequence)


def test_who_makes_no_promise_to_begin_cannot_be_given_back(ledger: Ledger) -> None:
    reservation = ledger.reserve(pure(0.5), purpose="reserve, look, settle", **TERMS)
    with pytest.raises(Refused, match="stays spent"):
        ledger.give_back(reservation.head.sequence)


def test_work_without_begin_is_refused(ledger: Ledger) -> None:
    reservation = ledger.reserve(repeat(pure(0.1), 2), purpose="promised", begun=False, **TERMS)
    with pytest.raises(SfumatoError, match="begin"):
        reservation.mark(pure(0.1), steps=1, digest=DIGEST)
    with pytest.raises(SfumatoError, match="begin"):
        reservation.settle()
    reservation.begin()
    reservation.settle()


def test_teachers_that_were_never_asked_cost_nothing_and_others_stay_charged(ledger: Ledger) -> None:
    plan = VotePlan(mechanism="laplace", teachers=3, queries=2, gamma=0.1)
    voting = Voting(plan, ledger=ledger, unit="record")
    ledger.give_back(ledger.open_reservations()[0].head.sequence)
    with pytest.raises(LedgerError, match="given back"):
        voting.ask(np.full((1, 10), 0) + np.eye(10, dtype=int)[:1] * 3)


# A stop that was decided on answers


@pytest.mark.keeps_out("A run that was stopped on what was seen, priced as a shorter plan")
def test_a_stopped_run_is_not_priced_as_a_shorter_plan(ledger: Ledger) -> None:
    trainer = take(trainer_of(ledger), 1)
    trainer.finish()
    short, whole = PLAN.epsilon(1e-5, steps=1), PLAN.epsilon(1e-5)
    certificate = trainer.certificate(delta=1e-5)
    assert certificate.prices.pld == pytest.approx(whole)
    assert certificate.prices.rdp > short
    assert any("decided while it ran" in caveat for caveat in certificate.caveats)
    assert short < ledger.epsilon_spent <= whole
    assert certificate.verify() == certificate.prices
    ledger.verify(certificate=certificate)


def test_a_stop_cannot_be_kept_quiet() -> None:
    certificate = take(trainer_of(None), 2).certificate(delta=1e-5)
    assert certificate.planned == PLAN.event()
    with pytest.raises(Refused, match="stopped early"):
        replace(certificate, caveats=()).verify()
    other = Certificate.of(pure(0.3), purpose="x", delta=1e-5, planned=repeat(pure(0.1), 4))
    with pytest.raises(Refused, match="part of its plan"):
        other.verify()


# Prices beyond what floating point holds

EXTREME = st.one_of(
    st.sampled_from([1e-300, 1e-30, 1e-3, 0.03, 1.0, 700.0, 1000.0, 1e6, 1e154, 1e300, math.inf, math.nan]),
    st.floats(0, allow_nan=False, exclude_min=True),
)
RELEASES = st.one_of(
    st.builds(accounting.GaussianEvent, EXTREME),
    st.builds(accounting.LaplaceEvent, EXTREME),
    EXTREME.map(lambda value: lambda: pure(value)),
    st.builds(lambda delta: lambda: accounting.ApproximateEvent(1.0, delta), EXTREME),
    st.builds(lambda noise: lambda: accounting.poisson_sampled(0.5, accounting.GaussianEvent(noise)), EXTREME),
)


@pytest.mark.keeps_out("A price beyond floating point that breaks the ledger instead of being refused")
@given(
    release=RELEASES,
    count=st.sampled_from([1, 3, 10**9]),
    epsilon=st.sampled_from([1e-300, 1.0, 1000.0, 1e6, 1e300]),
    delta=st.sampled_from([0.0, 1e-300, 1e-5, 0.5]),
    relation=st.sampled_from(list(Relation)),
    first=st.sampled_from([None, 1e-9, 0.1]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whatever_is_asked_for_is_charged_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory,
    release: object,
    count: int,
    epsilon: float,
    delta: float,
    relation: Relation,
    first: float | None,
) -> None:
    """An ε of a thousand, or an infinite one, is no crash of the accountant, and leaves a ledger that holds."""
    place = tmp_path_factory.mktemp("ledger") / "l.db"
    book = Ledger.create(place, Budget(epsilon=epsilon, delta=delta, relation=relation))
    terms = {"relation": Relation.ADD_REMOVE, "unit": "record", "purpose": "x"}
    for make in (None if first is None else lambda: pure(first), release):
        if make is None:
            continue
        try:
            event = make() if callable(make) else make
            reservation = book.reserve(repeat(event, count), **terms)
            reservation.settle(event)
        except SfumatoError as refusal:
            assert str(refusal)  # noqa: PT017
    assert math.isfinite(book.epsilon_spent)
    assert book.epsilon_left >= 0
    assert book.epsilon_spent <= epsilon * (1 + 1e-6)
    book.verify()
    book.close()


@pytest.mark.keeps_out("A price beyond floating point that breaks the ledger instead of being refused")
def test_a_charge_of_a_thousand_epsilon_is_refused_by_the_budget(ledger: Ledger) -> None:
    weak = accounting.GaussianEvent(0.03)
    for event in (pure(1000.0), accounting.GaussianEvent(1e-300), weak, repeat(weak, 10**9)):
        for spend in (ledger.charge, ledger.reserve):
            with pytest.raises(BudgetExceeded):
                spend(event, purpose="far too much", **TERMS)
    assert ledger.epsilon_spent == 0


# Relation and unit


def replace_one(tmp_path: Path, *, unit: str = "record", epsilon: float = 40) -> Ledger:
    budget = Budget(epsilon=epsilon, delta=1e-5, relation=Relation.REPLACE_ONE, unit=unit)
    return Ledger.open(tmp_path / f"replace-{unit}.db", budget=budget)


@pytest.mark.keeps_out("A charge under the wrong relation or unit by default")
def test_silence_about_relation_or_unit_is_refused(ledger: Ledger) -> None:
    for spend in (ledger.charge, ledger.reserve):
        for missing in TERMS:
            with pytest.raises(TypeError, match=missing):
                spend(pure(0.1), purpose="x", **{key: TERMS[key] for key in TERMS if key != missing})
            with pytest.raises(SfumatoError, match=missing):
                spend(pure(0.1), purpose="x", **{**TERMS, missing: None})
    with pytest.raises(TypeError, match="relation"):
        ledger.check(pure(0.1))
    assert ledger.epsilon_spent == 0


def people() -> tuple[Policy, pd.DataFrame]:
    age = Column(name="age", type="integer", lower=0, upper=120)
    policy = Policy(table="people", source="p.csv", columns={"age": age}, budget=Budget(epsilon=9))
    return policy, pd.DataFrame({"age": [30, 40] * 50})


def test_queries_cost_twice_where_people_are_replaced(tmp_path: Path) -> None:
    ledger, (policy, data) = replace_one(tmp_path), people()
    Table(policy, ledger, data=data).ask("SELECT COUNT(*) FROM people", epsilon=0.5)
    assert ledger.charges()[0].counted == pure(1.0)
    assert ledger.epsilon_spent == pytest.approx(1.0, rel=1e-3)


@pytest.mark.keeps_out("A charge under the wrong relation or unit by default")
def test_teachers_cost_twice_where_records_are_replaced(tmp_path: Path) -> None:
    ledger = replace_one(tmp_path)
    plan = VotePlan(mechanism="gnmax", teachers=50, queries=4, sigma=20.0)
    aggregate(np.ones((50, 4), int), plan, ledger=ledger, unit="record")
    assert ledger.epsilon_spent > 2 * plan.epsilon(1e-5)
    assert ledger.charges()[0].relation is Relation.ADD_REMOVE


def test_a_search_costs_twice_where_records_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Charged(Exception):
        pass

    def stop(*words: object, **terms: object) -> None:
        raise Charged

    monkeypatch.setattr(tuning, "best_trial", stop)
    ledger = replace_one(tmp_path)
    data = Dataset(
        inputs=np.zeros((60, 1, 28, 28), np.float32),
        targets=np.zeros(60, np.int64),
        name="strokes",
        visibility="private",
        classes=10,
        public_size=1200,
    )
    recipe = replace(DIGITS, steps=20, sample_rate=0.5, drawn=100, directions=16)
    with pytest.raises(Charged):
        tuning.run(data, None, epsilon=2, recipe=recipe, ledger=ledger)
    (charge,) = ledger.charges()
    assert charge.relation is Relation.ADD_REMOVE
    assert charge.counted.epsilon >= 2 * accounting.rdp_epsilon(charge.event, 1e-5)
    assert ledger.epsilon_spent == pytest.approx(charge.counted.epsilon, rel=0.05)


@pytest.mark.keeps_out("A charge under the wrong relation or unit by default")
def test_a_table_refuses_a_ledger_of_another_unit(tmp_path: Path) -> None:
    policy, data = people()
    with pytest.raises(RelationMismatch, match="unit='person'"):
        Table(policy, replace_one(tmp_path, unit="person"), data=data)
    with pytest.raises(RelationMismatch, match="unit='person'"):
        aggregate(
            np.ones((50, 4), int),
            VotePlan(mechanism="gnmax", teachers=50, queries=4, sigma=20.0),
            ledger=replace_one(tmp_path, unit="person"),
            unit="record",
        )


def test_votes_do_not_guess_their_unit(ledger: Ledger) -> None:
    plan = VotePlan(mechanism="gnmax", teachers=50, queries=4, sigma=20.0)
    with pytest.raises(InvalidInput, match="unit"):
        aggregate(np.ones((50, 4), int), plan, ledger=ledger)


# Files


@pytest.mark.keeps_out("A copied ledger that opens as a new one, or has lost its newest entries")
def test_a_copy_of_an_open_ledger_is_the_whole_ledger(tmp_path: Path, ledger: Ledger) -> None:
    for number in range(5):
        ledger.charge(pure(0.1), purpose=f"query {number}", **TERMS)
        shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")  # while `ledger` has it open
        with Ledger.open(tmp_path / "copy.db", budget=ledger.budget) as copy:
            assert copy.head == ledger.head


@pytest.mark.keeps_out("A copied ledger that opens as a new one, or has lost its newest entries")
def test_a_copy_in_the_middle_of_a_commit_is_whole_or_refused(tmp_path: Path, ledger: Ledger) -> None:
    """Another process charges all the time; no copy has lost what was on record when it was begun."""
    if (child := os.fork()) == 0:
        try:
            while True:
                ledger.charge(pure(1e-6), purpose="busy", **TERMS)
                time.sleep(0.002)  # or the reader below waits for its lock nearly all the time
        finally:
            os._exit(1)
    try:
        opened = 0
        for _ in range(100):
            before = ledger.head
            shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")
            try:
                with Ledger.open(tmp_path / "copy.db", budget=ledger.budget) as copy:
                    assert copy.head.sequence >= before.sequence
                    opened += 1
            except LedgerError:
                continue
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert opened


@pytest.mark.keeps_out("A copied ledger that opens as a new one, or has lost its newest entries")
@pytest.mark.parametrize("content", ["no bytes", "no tables", "no entries"])
def test_a_file_without_entries_is_no_new_ledger(tmp_path: Path, content: str) -> None:
    path = tmp_path / "copy.db"
    path.touch()
    if content != "no bytes":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 1")
            if content == "no entries":
                connection.execute("CREATE TABLE entries (sequence, digest, text, settles, about)")
        connection.close()
    for make in (Ledger.open, Ledger.create):
        with pytest.raises(LedgerError, match="without entries"):
            make(path, budget=Budget(epsilon=1))


def test_a_new_ledger_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any moment of its making, there is none; so that none is ever taken for a new one."""
    monkeypatch.setattr(os, "link", lambda *_: os._exit(9))
    if (child := os.fork()) == 0:
        try:
            Ledger.open(tmp_path / "new.db", budget=Budget(epsilon=1))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not (tmp_path / "new.db").exists()


@pytest.mark.keeps_out("Two ledgers for one data set")
def test_a_second_ledger_for_one_data_set_is_noticed(tmp_path: Path) -> None:
    policy, data = people()
    policy = replace(policy, dataset="people-2026")
    ledger = Ledger.open(tmp_path / "one.db", budget=policy.budget, dataset="people-2026")
    Table(policy, ledger, data=data).ask("SELECT COUNT(*) FROM people", epsilon=1)
    with pytest.raises(LedgerError, match="one data set has one ledger"):
        Ledger.open(tmp_path / "two.db", budget=policy.budget, dataset="people-2026")
    other = Ledger.open(tmp_path / "other.db", budget=policy.budget, dataset="pets")
    for wrong in (other, Ledger.open(tmp_path / "unnamed.db", budget=policy.budget)):
        with pytest.raises(LedgerError, match="one data set has one ledger"):
            Table(policy, wrong, data=data)
    assert ledger.certificate(ledger.charges()[0]).dataset == "people-2026"


@pytest.mark.keeps_out("Two ledgers for one data set")
def test_a_moved_ledger_cannot_be_charged_where_it_was(tmp_path: Path, ledger: Ledger) -> None:
    waiting = ledger.reserve(pure(0.1), purpose="under way", **TERMS)
    with ledgers.move(tmp_path / "ledger.db", tmp_path / "elsewhere.db") as moved:
        for attempt in (
            lambda: ledger.charge(pure(0.1), purpose="twice", **TERMS),
            lambda: ledger.reserve(pure(0.1), purpose="twice", **TERMS),
            lambda: ledger.check(pure(0.1), **TERMS),
            lambda: ledger.allocate("team", 1),
            lambda: ledger.reservation(waiting.head),
            waiting.settle,
            waiting.begin,
        ):
            with pytest.raises(LedgerError, match="moved to"):
                attempt()
        moved.reservation(waiting.head).settle()
        assert moved.verify(head=ledger.head).sequence > ledger.head.sequence
