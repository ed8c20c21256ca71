"""What a step works on is what its own trainer drew for it, once: nobody else's batch, no second draw."""

import copy
import pickle
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from sfumato.accounting import Budget, Relation
from sfumato.errors import InvalidInput, Refused
from sfumato.ledger import Ledger
from sfumato.training import PrivateTrainer, TrainingPlan, cross_entropy, resume, save_checkpoint
from sfumato.training.engine import Engine
from sfumato.training.sampling import Batch

PLAN = TrainingPlan(sample_rate=0.2, expected_batch=8, steps=5, noise_multiplier=2.0)
SHUFFLE = replace(PLAN, sampling="shuffle", relation=Relation.ZERO_OUT)
CYCLIC = replace(PLAN, sampling="cyclic", relation=Relation.ZERO_OUT, steps=10)
ROWS = torch.rand(40, 2), torch.zeros(40, dtype=torch.long)


def make(plan=PLAN, **more):
    model = nn.Linear(2, 2)
    return PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, **more)


def units_of(batch):
    return batch.sample.units.tolist()


@pytest.fixture
def worked_on(monkeypatch):
    """The rows of each chunk of a step."""
    seen, intact = [], Engine.clipped

    def noted(self, inputs, targets, *arguments, **more):
        if more:  # not the public row that is tried before the charge
            seen.append(inputs.clone())
        return intact(self, inputs, targets, *arguments, **more)

    monkeypatch.setattr(Engine, "clipped", noted)
    return seen


# Whose batch it is


@pytest.mark.keeps_out("Batches of another trainer, drawn at another rate or for another unit")
def test_a_batch_that_another_trainer_drew_is_refused_before_anything_is_charged(tmp_path):
    other = make(replace(PLAN, sample_rate=1.0))
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=5, delta=1e-5)) as ledger:
        own = make(ledger=ledger)
        next(own.batches(ROWS))  # of the same step
        with pytest.raises(Refused, match="by the trainer that drew it"):
            own.step(next(other.batches(ROWS)), cross_entropy)
        assert ledger.epsilon_spent == 0
    assert own.steps_started == 0


@pytest.mark.keeps_out("Batches of another trainer, drawn at another rate or for another unit")
def test_records_drawn_for_another_unit_are_refused():
    people = replace(PLAN, sample_rate=1.0, unit="person", rows_per_unit=10)
    subject = make(people)
    next(subject.batches(ROWS, units=np.repeat(range(4), 10)))
    with pytest.raises(Refused, match="by the trainer that drew it"):
        subject.step(next(make(replace(PLAN, sample_rate=1.0)).batches(ROWS)), cross_entropy)


@pytest.mark.keeps_out("Batches of another trainer, drawn at another rate or for another unit")
@pytest.mark.parametrize(
    "forged",
    [
        lambda batch, other: Batch(batch.step, batch.data, batch.sample),
        lambda batch, other: replace(batch, sample=other.sample),
        lambda batch, other: copy.copy(batch),
        lambda batch, other: other,
    ],
)
def test_a_batch_that_is_made_otherwise_is_refused(forged):
    subject = make()
    batch, other, *_ = subject.batches(ROWS)
    with pytest.raises(Refused, match="used once"):
        subject.step(forged(batch, other), cross_entropy)


def test_rows_that_somebody_else_chose_are_no_batch():
    with pytest.raises(InvalidInput, match=r"trainer\.batches"):
        make().step(ROWS, cross_entropy)


def test_what_is_done_to_a_batch_reaches_no_step(worked_on):
    subject = make()
    batch = next(subject.batches(ROWS))
    drawn = ROWS[0][np.sort(units_of(batch))]
    batch.sample.units[:] = 7
    object.__setattr__(batch, "sample", replace(batch.sample, units=np.arange(40), places=np.zeros(40)))
    object.__setattr__(batch, "data", None)
    subject.step(batch, cross_entropy)
    assert torch.equal(torch.cat(worked_on).sort(0).values, drawn.sort(0).values)


# How often units are drawn


@pytest.mark.keeps_out(
    "Several draws of one step, of which a loop takes the one it likes, or a unit twice in a pass"
)
@pytest.mark.parametrize("plan", [PLAN, SHUFFLE, CYCLIC])
def test_iterators_show_the_same_draw_of_a_step_however_many_there_are(plan):
    subject = make(plan)
    first = units_of(next(subject.batches(ROWS)))
    for _ in range(10):
        assert units_of(next(subject.batches(ROWS))) == first
    assert units_of(next(subject.batches([column.clone() for column in ROWS]))) == first  # equal rows


@pytest.mark.parametrize("plan", [PLAN, SHUFFLE])
def test_a_new_iterator_ends_the_one_before(plan):
    subject = make(plan)
    old, new = subject.batches(ROWS), subject.batches(ROWS)
    early, late = next(old), next(new)
    with pytest.raises(Refused, match="called again"):
        subject.step(early, cross_entropy)
    with pytest.raises(Refused, match="called again"):
        next(old)
    subject.step(late, cross_entropy)
    assert subject.steps_done == 1


@pytest.mark.keeps_out(
    "Several draws of one step, of which a loop takes the one it likes, or a unit twice in a pass"
)
@pytest.mark.parametrize("at", range(5))
def test_a_shuffled_pass_takes_each_unit_once_whoever_begins_again(at):
    """The loop is left after a batch was shown, or after its step, and begun again."""
    subject, used = make(SHUFFLE), Counter()
    for leave in (lambda batch: batch.step == at, lambda batch: False):
        for batch in subject.batches(ROWS):
            if leave(batch) and at % 2:
                break
            used.update(units_of(batch))
            subject.step(batch, cross_entropy)
            if leave(batch):
                break
    assert subject.steps_done == 5
    assert set(used.values()) == {1}
    assert len(used) == 40


@pytest.mark.keeps_out(
    "Several draws of one step, of which a loop takes the one it likes, or a unit twice in a pass"
)
@pytest.mark.parametrize("plan", [PLAN, SHUFFLE, CYCLIC])
def test_a_draw_that_was_shown_is_not_used_on_other_rows(plan):
    subject = make(plan)
    next(subject.batches(ROWS))
    moved = tuple(column.flip(0) for column in ROWS)
    for data, more in ((moved, {}), (tuple(column[:30] for column in ROWS), {})):
        with pytest.raises(Refused, match="others at step 0"):
            next(subject.batches(data, **more))


def test_persons_are_not_given_other_rows_after_a_draw():
    subject = make(replace(PLAN, unit="person", rows_per_unit=10))
    people = np.arange(40)
    next(subject.batches(ROWS, units=people))
    with pytest.raises(Refused, match="others at step 0"):
        next(subject.batches(ROWS, units=people[::-1]))


def test_a_fixed_order_goes_by_the_same_rows_until_the_end():
    """Rows in another order would have a turn again before their pass is over."""
    subject = make(CYCLIC)
    batches = subject.batches(ROWS)
    subject.step(next(batches), cross_entropy)
    with pytest.raises(Refused, match="others at step 1"):
        next(subject.batches(tuple(column.flip(0) for column in ROWS)))
    assert next(subject.batches(ROWS)).step == 1


def test_poisson_sampling_goes_on_with_other_rows_where_no_draw_was_shown():
    subject = make()
    for batch in subject.batches(ROWS):
        subject.step(batch, cross_entropy)
        break
    for batch in subject.batches(tuple(column[:30] for column in ROWS)):
        subject.step(batch, cross_entropy)
    assert subject.steps_done == PLAN.steps


def test_a_trainer_that_has_shown_a_draw_takes_no_run_up(tmp_path):
    first = make()
    batches = first.batches(ROWS)
    first.step(next(batches), cross_entropy)
    save_checkpoint(first, tmp_path / "c.safetensors")
    second = make()
    next(second.batches(ROWS))
    with pytest.raises(Refused, match="fresh trainer"):
        resume(second, tmp_path / "c.safetensors")
    with pytest.raises(Refused, match="fresh trainer"):
        second.take_up(second.state)


# How often a step is taken


def test_a_step_that_failed_is_not_drawn_again(monkeypatch):
    subject = make()
    intact = Engine.clipped

    def breaks(self, *arguments, **more):
        if subject.steps_started:
            raise ValueError("out of memory")
        return intact(self, *arguments, **more)

    monkeypatch.setattr(Engine, "clipped", breaks)
    batch = next(subject.batches(ROWS))
    with pytest.raises(ValueError, match="out of memory"):
        subject.step(batch, cross_entropy)
    with pytest.raises(Refused, match="not repeated"):
        next(subject.batches(ROWS))


def test_a_step_that_is_taken_while_its_plan_is_reserved_is_not_taken_again(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=5, delta=1e-5)) as ledger:
        subject = make(
            replace(PLAN, steps=1), ledger=ledger, on_reserved=lambda one: one.step(batch, cross_entropy)
        )
        batch = next(subject.batches(ROWS))
        with pytest.raises(Refused):
            subject.step(batch, cross_entropy)
        assert subject.steps_started == 0
        assert ledger.charges() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plan", replace(PLAN, noise_multiplier=0.1)),
        ("steps_done", 0),
        ("steps_started", 0),
        ("clip_norm", 9.0),
    ],
)
def test_what_a_run_is_priced_by_is_not_changed_from_outside(name, value):
    with pytest.raises(AttributeError):
        setattr(make(), name, value)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_trainer_has_no_copies_that_would_take_its_steps_again(copied):
    with pytest.raises(Refused, match="taken twice"):
        copied(make())


class Noted:
    """Notes each row that is read in a file, as workers are other processes."""

    def __init__(self, notes):
        self.notes = notes

    def __len__(self):
        return 40

    def __getitem__(self, row):
        with self.notes.open("a") as file:
            file.write(f"{row}\n")
        return torch.zeros(2), torch.tensor(0)


def test_workers_read_nothing_ahead_of_the_charge(tmp_path):
    """A rehearsal has settled by then how rows will be read."""
    example, notes = (torch.zeros(2), torch.tensor(0)), tmp_path / "read"
    subject = make(replace(PLAN, sample_rate=1.0))
    subject.rehearse((torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)), cross_entropy)
    loader = DataLoader(Noted(notes), num_workers=1)
    batches = subject.batches(loader, example=example)
    batch = next(batches)
    time.sleep(0.5)  # in which a worker would have read some
    assert not notes.exists()
    subject.step(batch, cross_entropy)
    assert notes.exists()
