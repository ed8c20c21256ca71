import io
import pickle
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato.accounting import Budget
from sfumato.errors import DataCorrupted, LedgerError, Refused, SettingsChanged
from sfumato.ledger import Ledger
from sfumato.training import Optimization, PrivateTrainer, TrainingPlan, resume, save_checkpoint, train

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=6, noise_multiplier=1.0, average_decay=0.5)


def loss_fn(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def rows():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 5, generator=generator), torch.randint(0, 3, (20,), generator=generator)


def make_trainer(ledger=None, plan=PLAN):
    model = nn.Linear(5, 3)
    return PrivateTrainer(model, torch.optim.Adam(model.parameters(), lr=0.1), plan, ledger=ledger)


def take(trainer, steps):
    for batch in trainer.batches(rows()):
        trainer.step(batch, loss_fn)
        if trainer.steps_done == steps:
            break


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
    trainer.step(next(batches), loss_fn)
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


def test_a_settled_run_is_not_taken_up_again(tmp_path, ledger):
    trainer = make_trainer(ledger)
    take(trainer, 3)
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    trainer.finish()
    with pytest.raises(LedgerError, match="settled"):
        resume(make_trainer(ledger), tmp_path / "c.safetensors")


def test_another_plan_is_refused(tmp_path):
    trainer = make_trainer()
    take(trainer, 1)
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    with pytest.raises(Refused, match="plan"):
        resume(make_trainer(plan=replace(PLAN, noise_multiplier=0.5)), tmp_path / "c.safetensors")


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
        first.step(batch, loss_fn)
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
