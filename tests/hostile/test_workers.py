"""Worker processes read rows ahead: what they read is what the trainer's own process would have read."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from sfumato import PrivateTrainer, TrainingPlan
from sfumato.errors import InvalidInput
from sfumato.randomness import numpy_state
from sfumato.training import cross_entropy
from sfumato.training.data import Items, TrainingData, source_of

ROWS, SECRET = 70, 31337
EXAMPLE = (torch.zeros(3), 0)


class Numbers(Dataset):
    """Row n holds n; `hook(n)` says what else happens when it is read."""

    def __init__(self, hook=lambda row: 0.0):
        self.hook = hook

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return torch.tensor([float(row), float(self.hook(row)), float(os.getpid())]), row % 2


def read(hook, workers, rows=range(ROWS), **options):
    source = Items(Numbers(hook), EXAMPLE, None, workers, **options)
    inputs, targets, readable = source.ask(np.array(rows))()
    return inputs, targets, readable


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_are_the_same_whoever_reads_them(workers):
    (inputs, targets, readable), alone = read(lambda row: -row, workers), read(lambda row: -row, 0)
    assert torch.equal(inputs[:, :2], alone[0][:, :2])
    assert torch.equal(targets, alone[1])
    assert readable.all()
    assert os.getpid() not in inputs[:, 2].to(torch.int64)  # they are other processes
    assert not len(Items(Numbers(), EXAMPLE, None, workers).ask(np.arange(0))()[0])


def raising(row):
    if row in (3, 40):
        raise ValueError(f"secret {SECRET}")
    return 0.0


def ending(row):
    if row in (3, 40):
        os._exit(1)
    return 0.0


@pytest.mark.parametrize("hook", [raising, ending])
def test_a_row_that_raises_or_ends_its_worker_is_left_out_by_itself(hook, capfd):
    data = TrainingData(DataLoader(Numbers(hook), num_workers=2), example=EXAMPLE)
    fetched = data.ask(np.arange(ROWS))()
    assert sorted(set(range(ROWS)) - set(fetched.numbers.tolist())) == [3, 40]
    assert torch.equal(fetched.inputs[:, 0], torch.from_numpy(fetched.numbers).float())
    again = data.ask(np.arange(ROWS))()  # nobody asks for them any more
    assert len(again.numbers) == ROWS - 2
    assert str(SECRET) not in "".join(capfd.readouterr())


def draws(row):
    return torch.rand(()).item() + np.random.rand() + random.random()  # noqa: NPY002  (what others' code does)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_random_differs_between_rows_workers_and_reads(workers):
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    source = Items(Numbers(draws), EXAMPLE, None, workers)
    found = [source.ask(np.arange(ROWS))()[0][:, 1] for _ in range(2)]
    assert len(torch.cat(found).unique()) == 2 * ROWS
    other = Items(Numbers(draws), EXAMPLE, None, workers).ask(np.arange(ROWS))()[0][:, 1]
    assert not torch.isin(other, torch.cat(found)).any()  # a public seed does not decide


def seeding(row):
    """As augmentation by row number does; here with what is known of one person."""
    drawn = draws(row)
    if row % 10 == 0:
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(SECRET)
    return drawn


@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_that_seeds_decides_nothing_for_others(workers):
    before = torch.get_rng_state(), numpy_state(), random.getstate()
    found, _, _ = read(seeding, workers)
    after = torch.get_rng_state(), numpy_state(), random.getstate()
    assert torch.equal(before[0], after[0])  # dropout of the same step is not seeded either
    assert before[1:] == after[1:]
    assert len(found[:, 1].unique()) == ROWS


def test_what_a_worker_cannot_do_is_said_before_anything_is_charged():
    loader = DataLoader(Numbers(lambda row: 0), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(InvalidInput, match="num_workers=0"):
        source_of(loader, EXAMPLE)  # a lambda cannot be handed to a process that is no fork
    with pytest.raises(InvalidInput, match="num_workers=0"):
        source_of(DataLoader(Numbers(), num_workers=1, worker_init_fn=lambda number: 1 / 0), EXAMPLE)


def test_each_worker_begins_by_its_number():
    begun = []
    rows = Numbers(lambda row: begun[0])
    loader = DataLoader(rows, num_workers=2, worker_init_fn=begun.append)
    inputs, _, readable = source_of(loader, EXAMPLE).ask(np.arange(ROWS))()
    assert readable.all()
    assert set(inputs[:, 1].tolist()) <= {0.0, 1.0}
    assert begun == []  # nothing of it is here


def test_the_next_step_is_read_while_one_is_taken():
    plan = TrainingPlan(sample_rate=0.5, expected_batch=35, steps=4, noise_multiplier=1.0)
    model = torch.nn.Linear(3, 2)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=1e-9), plan)
    batches = trainer.batches(DataLoader(Numbers(), num_workers=2), example=EXAMPLE)
    seen = []
    for batch in batches:
        seen.append(bool(trainer._draws.find(batch, batch.step)._asked))
        trainer.step(batch, cross_entropy)
    assert seen == [False, False, True, True]  # chunks are chosen in the first step
    assert trainer.steps_done == 4
