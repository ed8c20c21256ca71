"""Nothing stale: a graph holds the values that its code read, and a run stops where those have changed."""

import pytest
import torch
from torch import nn

from sfumato.accounting import Budget
from sfumato.errors import Refused
from sfumato.ledger import Ledger
from sfumato.training import PrivateTrainer, TrainingPlan, resume, save_checkpoint, train
from sfumato.training.engine import Engine

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=6, noise_multiplier=1.0)
NAME = "c.safetensors"
SCALE = 1.0


def rows():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 3, generator=generator), torch.zeros(20)


def loss_that_reads_a_dict():
    settings = {"scale": 1.0}
    return lambda outputs, _: outputs[:, 0] ** 2 * settings["scale"], lambda value: settings.update(scale=value)


def loss_whose_inner_function_reads_a_global():
    def scaled(values):
        return values * SCALE

    def change(value):
        global SCALE
        SCALE = value

    return lambda outputs, _: scaled(outputs[:, 0] ** 2), change


def loss_with_a_table_in_a_list():
    tables = [torch.tensor([1.0])]
    return (
        lambda outputs, _: outputs[:, 0] ** 2 * tables[0],
        lambda value: tables.append(torch.tensor([value])) or tables.pop(0),
    )


LOSSES = [loss_that_reads_a_dict, loss_whose_inner_function_reads_a_global, loss_with_a_table_in_a_list]


@pytest.fixture(params=LOSSES, ids=lambda make: make.__name__.removeprefix("loss_"))
def stale(request):
    loss, change = request.param()
    yield loss, change
    change(1.0)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.db", budget=Budget(epsilon=50, delta=1e-5)) as opened:
        yield opened


def make_trainer(ledger=None, model=None):
    model = nn.Linear(3, 1) if model is None else model
    return PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN, ledger=ledger)


def take(trainer, steps, loss, change=None):
    """Up to so many steps; after the first of them something changes."""
    for batch in trainer.batches(rows()):
        trainer.step(batch, loss)
        if change is not None:
            change(2.0)
        if trainer.steps_done == steps:
            break
    return trainer


def begun(tmp_path, loss, ledger=None):
    save_checkpoint(take(make_trainer(ledger), 2, loss), tmp_path / NAME)


@pytest.mark.keeps_out(
    "A value in a dict, or under a global name that an inner function reads, which a kept graph "
    "holds while the code has another; a run that is resumed with another graph"
)
def test_a_value_that_changed_stops_the_run_before_more_is_released(stale, tmp_path, ledger):
    loss, change = stale
    trainer = take(make_trainer(ledger), 2, loss)
    save_checkpoint(trainer, tmp_path / NAME)
    kept, entries = (tmp_path / NAME).read_bytes(), ledger.head
    take(trainer, 4, loss, change)
    with pytest.raises(Refused, match="a value that has changed since"):
        save_checkpoint(trainer, tmp_path / NAME)
    assert (tmp_path / NAME).read_bytes() == kept
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".staged"] == []
    assert ledger.head == entries


def test_without_the_second_trace_a_stale_graph_would_go_on(stale, tmp_path, monkeypatch):
    """The sabotage that the test above must catch."""
    monkeypatch.setattr(Engine, "digest_now", lambda engine: engine.digest)
    loss, change = stale
    save_checkpoint(take(make_trainer(), 4, loss, change), tmp_path / NAME)


@pytest.mark.keeps_out(
    "A value in a dict, or under a global name that an inner function reads, which a kept graph "
    "holds while the code has another; a run that is resumed with another graph"
)
def test_a_run_is_not_resumed_with_another_graph(stale, tmp_path, ledger):
    loss, change = stale
    begun(tmp_path, loss, ledger)
    change(2.0)
    again = make_trainer(ledger)
    resume(again, tmp_path / NAME)
    for _ in range(2):  # it stays refused
        with pytest.raises(Refused, match="accept_new_graph=True"):
            take(again, 3, loss)
    assert again.steps_started == 2
    accepted = make_trainer(ledger)
    resume(accepted, tmp_path / NAME, accept_new_graph=True)
    save_checkpoint(take(accepted, 3, loss), tmp_path / NAME)
    more = make_trainer(ledger)
    resume(more, tmp_path / NAME)  # it has the graph of the step before now
    assert take(more, 6, loss).steps_done == 6


def test_a_run_is_not_resumed_under_another_version_of_torch(tmp_path, monkeypatch):
    loss, _ = loss_that_reads_a_dict()
    begun(tmp_path, loss)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    again = make_trainer()
    resume(again, tmp_path / NAME)
    with pytest.raises(Refused, match=r"torch 2\.99\.0|got 2\.99\.0"):
        take(again, 3, loss)
    accepted = make_trainer()
    resume(accepted, tmp_path / NAME, accept_new_graph=True)
    assert take(accepted, 3, loss).steps_done == 3


def test_the_same_code_in_another_process_has_the_same_graph(tmp_path):
    """Another model, loss and trainer of the same making, as a script has them that runs again."""
    begun(tmp_path, loss_that_reads_a_dict()[0])
    again = make_trainer()
    resume(again, tmp_path / NAME)
    assert take(again, 6, loss_that_reads_a_dict()[0]).steps_done == 6


def test_a_second_trainer_takes_no_stale_graph_of_the_first(stale):
    loss, change = stale
    model = nn.Linear(3, 1)
    take(make_trainer(model=model), 1, loss)
    change(2.0)
    trainer = take(make_trainer(model=model), 1, loss)
    trainer.check_graph()


def test_a_number_that_the_loss_closes_over_may_change(tmp_path):
    scale, trainer = 1.0, make_trainer()

    def loss(outputs, _):
        return outputs[:, 0] ** 2 * scale

    for batch in trainer.batches(rows()):
        trainer.step(batch, loss)
        save_checkpoint(trainer, tmp_path / NAME)
        scale += 1.0
        save_checkpoint(trainer, tmp_path / NAME)
    assert trainer.steps_done == PLAN.steps


@pytest.mark.parametrize("changes", [False, True])
def test_a_loop_may_evaluate_its_model_before_it_saves(tmp_path, changes):
    """Saved in the mode of evaluation, with a rate of dropout that has no effect there; a stale value shows."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    loss, change = loss_that_reads_a_dict()
    trainer = take(make_trainer(model=model), 2, loss, change if changes else None)
    model.eval()
    if changes:
        with pytest.raises(Refused, match="got another graph"):
            save_checkpoint(trainer, tmp_path / NAME)
    else:
        save_checkpoint(trainer, tmp_path / NAME)
    assert not any(module.training for module in model.modules())


def test_train_takes_up_a_run_with_another_graph_if_it_is_accepted(tmp_path):
    settings = {"scale": 1.0}

    def go(**more):
        torch.manual_seed(0)
        return train(
            nn.Linear(3, 1), rows(), PLAN, loss_fn=lambda outputs, _: outputs[:, 0] ** 2 * settings["scale"],
            out=tmp_path / "run", **more,
        )  # fmt: skip

    def stop(trainer):
        if trainer.steps_done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(on_step=stop)
    settings["scale"] = 2.0
    with pytest.raises(Refused, match="--accept-new-graph"):
        go()
    assert go(accept_new_graph=True).steps == PLAN.steps
