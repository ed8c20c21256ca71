import io
import os
import pickle
import shutil
import signal
import warnings
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn

import small_runs
from sfumato.accounting import Budget, Relation
from sfumato.datasets import Dataset
from sfumato.errors import BudgetExceeded, DataCorrupted, InvalidInput, LedgerError, Refused, SettingsChanged
from sfumato.ledger import Certificate, Ledger, Reservation
from sfumato.mechanisms import Independent, LambdaCGD
from sfumato.training import (
    EarlyStopping,
    HeldOut,
    Optimization,
    PrivateTrainer,
    TrainingPlan,
    cross_entropy,
    resume,
    run,
    save_checkpoint,
    train,
)
from small_runs import rows, take

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=6, noise_multiplier=1.0, average_decay=0.5)


def make_trainer(ledger=None, plan=PLAN):
    return small_runs.make_trainer(plan, optimizer=torch.optim.Adam, ledger=ledger)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.db", budget=Budget(epsilon=50, delta=1e-5)) as opened:
        yield opened


def test_a_run_goes_on_where_it_was(tmp_path, ledger):
    first = make_trainer(ledger)
    take(first, 3)
    save_checkpoint(first, tmp_path / "c.safetensors")
    second = make_trainer(ledger)
    resume(second, tmp_path / "c.safetensors")
    assert second.steps_done == 3
    assert second.clip_norm == first.clip_norm
    for ours, theirs in zip(second.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    moments = [state["exp_avg"] for state in second.optimizer.state.values()]
    assert all(
        torch.equal(ours, theirs["exp_avg"])
        for ours, theirs in zip(moments, first.optimizer.state.values(), strict=True)
    )
    assert torch.equal(second.average.values["weight"], first.average.values["weight"])
    take(second, 6)
    second.finish()
    assert ledger.epsilon_spent == pytest.approx(PLAN.epsilon(1e-5))  # charged once
    ledger.verify()


@pytest.mark.keeps_out("A predictable generator, a default seed, the same noise twice")
def test_resumed_noise_is_new(tmp_path):
    """Two resumes from one file share no noise: their weights part at once."""
    first = make_trainer()
    take(first, 3)
    save_checkpoint(first, tmp_path / "c.safetensors")
    ends = []
    for _ in range(2):
        again = make_trainer()
        resume(again, tmp_path / "c.safetensors")
        take(again, 4)
        ends.append(again.model.weight.detach().clone())
    assert not torch.equal(*ends)


def test_an_older_copy_is_refused(tmp_path, ledger):
    trainer = make_trainer(ledger)
    take(trainer, 2)
    save_checkpoint(trainer, tmp_path / "old.safetensors")
    batches = trainer.batches(rows())
    trainer.step(next(batches), cross_entropy)
    save_checkpoint(trainer, tmp_path / "new.safetensors")
    with pytest.raises(Refused, match="release them twice"):
        resume(make_trainer(ledger), tmp_path / "old.safetensors")
    resume(make_trainer(ledger), tmp_path / "new.safetensors")


def test_a_copy_that_is_refused_takes_the_run_from_nobody(tmp_path, ledger):
    path = tmp_path / "c.safetensors"
    trainer = make_trainer(ledger)
    take(trainer, 2)
    save_checkpoint(trainer, path)
    shutil.copy(path, tmp_path / "copy.safetensors")
    take(trainer, 3)
    save_checkpoint(trainer, path)
    with pytest.raises(Refused, match="released already"):
        resume(make_trainer(ledger), tmp_path / "copy.safetensors")
    take(trainer, 6)
    assert trainer.finish().event == PLAN.event()


def test_a_settled_run_takes_no_more_steps(tmp_path, ledger):
    trainer = make_trainer(ledger)
    take(trainer, 3)
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    charge = trainer.finish()
    again, entries = make_trainer(ledger), ledger.head.sequence
    resume(again, tmp_path / "c.safetensors")
    with pytest.raises(Refused, match="not finished"):
        take(again, 6)
    assert again.finish() == charge
    assert again.certificate(delta=1e-5) == trainer.certificate(delta=1e-5)
    assert ledger.head.sequence == entries


def test_a_checkpoint_that_holds_less_than_was_settled_is_not_taken_up(tmp_path, ledger):
    trainer = make_trainer(ledger)
    take(trainer, 2)
    save_checkpoint(trainer, tmp_path / "older")
    take(trainer, 4)
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    take(trainer, 6)
    trainer.finish()
    for name in ("older", "c.safetensors"):
        with pytest.raises(LedgerError, match="settled"):
            resume(make_trainer(ledger), tmp_path / name)


def test_a_run_that_died_when_all_its_steps_were_settled_has_none_left(tmp_path, ledger):
    trainer = make_trainer(ledger)
    take(trainer, 6)
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    charge = trainer.finish()
    again = make_trainer(ledger)
    resume(again, tmp_path / "c.safetensors")
    assert list(again.batches(rows())) == []
    assert again.finish() == charge
    for ours, theirs in zip(again.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def refuse_once(monkeypatch, owner, name, error):
    """The first call raises, as if the process had died or the disk were full."""
    whole, calls = getattr(owner, name), []

    def refuse(*args, **settings):
        calls.append(args)
        if len(calls) == 1:
            raise error
        return whole(*args, **settings)

    monkeypatch.setattr(owner, name, refuse)


@pytest.mark.parametrize("place", [(run, "write_run"), (Certificate, "write")])
def test_a_run_that_died_before_its_release_is_released_by_the_same_call(tmp_path, ledger, monkeypatch, place):
    first, told = nn.Linear(5, 3), []
    refuse_once(monkeypatch, *place, OSError("No space left on device"))
    with pytest.raises(OSError, match="No space"):
        train(first, rows(), PLAN, ledger=ledger, out=tmp_path / "run", on_epoch=told.append)
    entries, spent = ledger.head.sequence, ledger.epsilon_spent
    again = train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run")
    assert again.history == tuple(told)
    assert (ledger.head.sequence, ledger.epsilon_spent) == (entries, spent)
    (charge,) = ledger.charges()
    assert again.certificate.head == charge.head
    written = Certificate.read(tmp_path / "run" / "release" / "certificate.json")
    ledger.verify(certificate=written)
    written.verify()
    for ours, theirs in zip(again.model.parameters(), first.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert not any("checkpoint" in path.name for path in (tmp_path / "run" / "private").iterdir())
    with pytest.raises(InvalidInput, match="finished run"):
        train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run")


def test_a_run_killed_after_it_was_settled_is_released_by_the_same_call(tmp_path, ledger):
    child = os.fork()
    if child == 0:
        try:
            PrivateTrainer.finish = lambda trainer, settle=PrivateTrainer.finish: (
                settle(trainer),
                os.kill(os.getpid(), signal.SIGKILL),
            )
            train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (charge,) = ledger.charges()
    assert charge.settled
    train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run")
    assert ledger.charges() == [charge]
    ledger.verify(certificate=Certificate.read(tmp_path / "run" / "release" / "certificate.json"))


@pytest.mark.parametrize(
    ("owner", "last", "charges"),
    [
        (Reservation, "begin", 1),
        (PrivateTrainer, "_note_reservation", 0),
    ],  # after, and before
)
def test_a_run_killed_when_it_reserved_reserves_once(tmp_path, ledger, owner, last, charges):
    child = os.fork()
    if child == 0:
        try:
            whole = getattr(owner, last)
            doomed = lambda *args: (charges or whole(*args), os.kill(os.getpid(), signal.SIGKILL))  # noqa: E731
            setattr(owner, last, doomed)
            train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(ledger.charges()) == charges
    train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "run")
    (charge,) = ledger.charges()
    assert charge.settled
    ledger.verify(certificate=Certificate.read(tmp_path / "run" / "release" / "certificate.json"))


def stops_after_two():
    """No second figure gains as much as is asked for."""
    inputs, targets = rows()
    held = Dataset(inputs=inputs.numpy(), targets=targets.numpy(), name="toy", visibility="private", classes=3)
    return EarlyStopping(held=HeldOut(rows=held), epsilon=0.1, patience=1, least_gain=1.0)


@pytest.mark.parametrize("noise", [Independent(), LambdaCGD(cancelled=0.8)])
def test_an_early_stop_that_died_before_its_release_is_released_as_it_stopped(tmp_path, monkeypatch, noise):
    """The noise of past steps is destroyed when it stops, and is not missed."""
    plan = replace(PLAN, noise=noise, sampling="cyclic", relation=Relation.ZERO_OUT)
    budget = Budget(epsilon=50, delta=1e-5, relation=Relation.ZERO_OUT)
    ledger, more = Ledger.open(tmp_path / "ledger.db", budget), {"stopping": stops_after_two()}
    refuse_once(monkeypatch, run, "write_run", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(5, 3), rows(), plan, ledger=ledger, out=tmp_path / "run", **more)
    again = train(nn.Linear(5, 3), rows(), plan, ledger=ledger, out=tmp_path / "run", **more)
    assert again.certificate.planned == plan.event()
    assert [report.epoch for report in again.history] == [1, 2]
    assert len(ledger.charges()) == 3  # two of them for figures on what is kept out
    ledger.verify(certificate=again.certificate)


def test_a_finished_run_says_where_it_ended_and_what_a_new_one_needs(tmp_path, ledger):
    trainer = make_trainer(ledger)
    take(trainer, 3)
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    trainer.finish()
    again = make_trainer(ledger)
    resume(again, tmp_path / "c.safetensors")
    with pytest.raises(Refused, match=r"ended after 3 of 6 steps.*begin a new run, which is charged anew"):
        take(again, 6)


def test_what_differs_from_the_plan_of_a_checkpoint_is_named(tmp_path, ledger):
    trainer = make_trainer(ledger)
    take(trainer, 3)
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    with pytest.raises(Refused, match="priced with, of steps=6, got one of steps=8; give the same") as refused:
        resume(make_trainer(ledger, plan=replace(PLAN, steps=8)), tmp_path / "c.safetensors")
    assert "sample_rate" not in str(refused.value)


def test_a_checkpoint_that_a_ledger_paid_for_asks_for_it_by_both_names(tmp_path, ledger):
    trainer = make_trainer(ledger)
    take(trainer, 3)
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    with pytest.raises(Refused, match="--ledger in a command, ledger= in Python"):
        resume(make_trainer(), tmp_path / "c.safetensors")


@pytest.fixture
def narrow(tmp_path):
    """A ledger with room for the plan, once."""
    with Ledger.create(tmp_path / "narrow.db", Budget(epsilon=PLAN.epsilon(1e-5) * 1.01, delta=1e-5)) as opened:
        yield opened


def test_a_run_that_is_started_again_is_told_of_the_unfinished_one(narrow):
    take(make_trainer(narrow), 3)
    with pytest.raises(BudgetExceeded, match=r"entry 1, 'private training', holds the same plan.*resume\(\)"):
        take(make_trainer(narrow), 3)


def test_a_refusal_does_not_tell_of_other_runs(narrow):
    take(make_trainer(narrow), 3)
    with pytest.raises(BudgetExceeded) as refused:
        take(make_trainer(narrow, plan=replace(PLAN, steps=8)), 3)
    assert "entry" not in str(refused.value)


def test_a_finished_run_is_no_unfinished_one(narrow):
    trainer = make_trainer(narrow)
    take(trainer, 6)
    trainer.finish()
    with pytest.raises(BudgetExceeded) as refused:
        narrow.reserve(PLAN.event(), purpose="again", relation=PLAN.relation, unit=PLAN.unit)
    assert "entry" not in str(refused.value)


def test_another_plan_is_refused(tmp_path):
    trainer = make_trainer()
    take(trainer, 1)
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    with pytest.raises(Refused, match="plan"):
        resume(make_trainer(plan=replace(PLAN, noise_multiplier=0.5)), tmp_path / "c.safetensors")


@pytest.mark.keeps_out("A checkpoint that runs code")
def test_a_checkpoint_cannot_run_code(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    path = tmp_path / "c.safetensors"
    for content in (pickle.dumps(Bomb()), _torch_saved(Bomb()), b"", b"\x00" * 64):
        path.write_bytes(content)
        with pytest.raises(DataCorrupted):
            resume(make_trainer(), path)
    assert not (tmp_path / "exploded").exists()


def _torch_saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_a_failed_write_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    trainer = make_trainer()
    take(trainer, 1)
    path = tmp_path / "c.safetensors"
    save_checkpoint(trainer, path)
    whole = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(trainer, path)
    assert path.read_bytes() == whole
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.safetensors"]


def test_an_interrupted_run_folder_is_taken_up(tmp_path, ledger):
    """Stopped in the middle, called again: the steps go on, the ledger holds one charge."""
    plan = replace(PLAN, sample_rate=0.5, steps=6)  # two steps an epoch

    def stop_after(epoch):
        def on_epoch(report):
            if report.epoch == epoch:
                raise KeyboardInterrupt

        return on_epoch

    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(5, 3), rows(), plan, ledger=ledger, out=tmp_path / "run", on_epoch=stop_after(2))
    result = train(nn.Linear(5, 3), rows(), plan, ledger=ledger, out=tmp_path / "run")
    assert [report.epoch for report in result.history] == [1, 2, 3]
    assert len(ledger.charges()) == 1
    assert ledger.epsilon_spent == pytest.approx(plan.epsilon(1e-5))
    released = {path.name for path in (tmp_path / "run" / "release").iterdir()}
    assert released >= {"plan.json", "result.json", "history.jsonl", "model.safetensors", "certificate.json"}
    assert not (tmp_path / "run" / "private" / "checkpoint.safetensors").exists()


def test_a_rate_that_moved_on_is_no_other_setting(tmp_path):
    first = make_trainer()
    take(first, 2)
    first.optimizer.param_groups[0]["lr"] = 0.05
    save_checkpoint(first, tmp_path / "c.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SettingsChanged)
        resume(make_trainer(), tmp_path / "c.safetensors")  # an optimizer as at the beginning
        model = nn.Linear(5, 3)  # and one as at the end
        resume(
            PrivateTrainer(model, torch.optim.Adam(model.parameters(), lr=0.05), PLAN),
            tmp_path / "c.safetensors",
        )


def test_the_learning_rate_goes_on_where_the_scheduler_was(tmp_path):
    first = make_trainer()
    schedule = torch.optim.lr_scheduler.StepLR(first.optimizer, step_size=1, gamma=0.5)
    for batch in first.batches(rows()):
        first.step(batch, cross_entropy)
        schedule.step()
        if first.steps_done == 3:
            break
    save_checkpoint(first, tmp_path / "c.safetensors", scheduler=schedule)
    second = make_trainer()
    again = torch.optim.lr_scheduler.StepLR(second.optimizer, step_size=1, gamma=0.5)
    resume(second, tmp_path / "c.safetensors", scheduler=again)
    assert second.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)
    assert again.last_epoch == 3
    assert second.state.step == 3


def test_a_scheduler_that_was_not_kept_is_missed(tmp_path):
    first = make_trainer()
    take(first, 2)
    save_checkpoint(first, tmp_path / "c.safetensors")
    second = make_trainer()
    schedule = torch.optim.lr_scheduler.StepLR(second.optimizer, step_size=1)
    with pytest.raises(Refused, match="scheduler"):
        resume(second, tmp_path / "c.safetensors", scheduler=schedule)


def interrupted(tmp_path, **settings):
    """A run of three epochs, stopped after the first."""
    plan = replace(PLAN, sample_rate=0.5, steps=6)

    def stop(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(5, 3), rows(), plan, out=tmp_path / "run", on_epoch=stop, **settings)
    return lambda **again: train(nn.Linear(5, 3), rows(), plan, out=tmp_path / "run", **again)


def test_a_run_that_goes_on_with_another_rate_says_so(tmp_path):
    go_on = interrupted(tmp_path, optimization=Optimization(learning_rate=0.5, momentum=0.9))
    rates = []
    with pytest.warns(SettingsChanged) as said:
        go_on(
            optimization=Optimization(learning_rate=0.25, momentum=0.0),
            on_step=lambda trainer: rates.append(
                [trainer.optimizer.param_groups[0][k] for k in ("lr", "momentum")]
            ),
        )
    assert str(said[0].message) == (
        "this run goes on with learning_rate=0.25, momentum=0.0; it began with learning_rate=0.5, momentum=0.9"
    )
    assert rates == [[0.25, 0.0]] * 4


def test_a_run_that_goes_on_as_it_began_says_nothing(tmp_path):
    settings = {"optimization": Optimization(optimizer="adam", schedule="cosine"), "first_weights": "seed 1"}
    go_on = interrupted(tmp_path, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SettingsChanged)
        go_on(**settings)


@pytest.mark.parametrize(
    ("again", "sentence"),
    [
        (
            {"optimization": Optimization(optimizer="adam")},
            "expected optimizer='sgd', with which .* got 'adam'",
        ),
        ({"first_weights": "seed 2"}, "expected first_weights='seed 1', with which .*give the same seed"),
    ],
)
def test_another_optimizer_or_other_first_weights_are_another_run(tmp_path, again, sentence):
    settings = {"optimization": Optimization(), "first_weights": "seed 1"}
    go_on = interrupted(tmp_path, **settings)
    with pytest.raises(Refused, match=sentence):
        go_on(**settings | again)
    go_on(**settings)  # the refusal took nothing away


def test_a_trainer_that_is_taken_up_says_that_its_own_rate_goes_on(tmp_path):
    first = make_trainer()
    take(first, 2)
    save_checkpoint(first, tmp_path / "c.safetensors")
    model = nn.Linear(5, 3)
    second = PrivateTrainer(model, torch.optim.Adam(model.parameters(), lr=0.3), PLAN)
    with pytest.warns(SettingsChanged, match="goes on with lr=0.1 of its checkpoint, not with lr=0.3"):
        resume(second, tmp_path / "c.safetensors")
    assert second.optimizer.param_groups[0]["lr"] == 0.1


def stop_after(epoch):
    def on_epoch(report):
        if report.epoch == epoch:
            raise KeyboardInterrupt

    return on_epoch


@pytest.mark.parametrize("noise", [Independent(), LambdaCGD(cancelled=0.8)])
def test_an_interrupted_run_can_be_ended_and_kept(tmp_path, noise):
    plan = replace(PLAN, noise=noise, sampling="cyclic", relation=Relation.ZERO_OUT)
    ledger = Ledger.open(tmp_path / "l.db", Budget(epsilon=50, delta=1e-5, relation=Relation.ZERO_OUT))
    place = {"ledger": ledger, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(5, 3), rows(), plan, **place, on_epoch=stop_after(2))
    taken = []
    result = train(nn.Linear(5, 3), rows(), plan, **place, finish=True, on_step=taken.append)
    assert taken == []
    assert [report.step for report in result.history] == [2, 4]
    assert (result.steps, result.plan.steps) == (4, 6)
    assert (
        result.certificate.planned == plan.event()
    )  # the price of one that was stopped, not of a shorter plan
    assert plan.epsilon(1e-5, 4) <= result.epsilon <= plan.epsilon(1e-5) * (1 + 1e-9)
    result.certificate.verify()
    ledger.verify(certificate=result.certificate)
    (charge,) = ledger.charges()
    assert charge.settled
    assert charge.event == plan.event(4)
    assert not list((tmp_path / "run" / "private").glob("*checkpoint*"))
    released = safetensors.torch.load_file(tmp_path / "run" / "release" / "model.safetensors")
    assert torch.equal(released["weight"], result.model.weight)


def test_what_is_ended_is_what_the_last_checkpoint_held(tmp_path):
    """Steps that were taken after it left nothing behind, and are not paid for."""
    plan, weights = replace(PLAN, average_decay=0.0), {}

    def on_step(trainer):
        weights[trainer.steps_done] = trainer.model.weight.detach().clone()
        if trainer.steps_done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(5, 3), rows(), plan, out=tmp_path / "run", on_step=on_step)
    result = train(nn.Linear(5, 3), rows(), plan, out=tmp_path / "run", finish=True)
    assert torch.equal(result.model.weight, weights[4])
    assert not torch.equal(result.model.weight, weights[5])
    assert result.certificate.event == plan.event(4)


def test_what_was_not_said_before_the_end_is_said_then(tmp_path, monkeypatch):
    refuse_once(monkeypatch, run, "_report", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(5, 3), rows(), PLAN, out=tmp_path / "run")
    result = train(nn.Linear(5, 3), rows(), PLAN, out=tmp_path / "run", finish=True)
    assert [report.step for report in result.history] == [2]


def test_nothing_can_be_ended_where_nothing_was_learned(tmp_path, ledger):
    place = {"ledger": ledger, "out": tmp_path / "run"}
    for out in (None, tmp_path / "run"):
        with pytest.raises(InvalidInput, match="interrupted run to finish"):
            train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=out, finish=True)
    assert ledger.epsilon_spent == 0

    def die(trainer):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(5, 3), rows(), PLAN, **place, on_step=die)
    with pytest.raises(InvalidInput, match="first epoch"):
        train(nn.Linear(5, 3), rows(), PLAN, **place, finish=True)
    assert train(nn.Linear(5, 3), rows(), PLAN, **place).steps == PLAN.steps
