"""250 teachers as one batched ensemble, against a Python loop over the same models.

Both train on the same shards with the same batches, and the loop is timed on a part of the teachers, whose
time is scaled up. Run with `python bench/pate.py`.
"""

from __future__ import annotations

import copy
import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato import models
from sfumato.pate import EnsembleFit, shard_table
from sfumato.pate.teachers import fit, stack
from sfumato.randomness import public_torch_generator

TEACHERS, ROWS, ROUNDS = 250, 240, 3  # MNIST's training set, dealt to 250
LOOPED = 25  # teachers of the loop, a tenth
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    # model, shape of an input, batch, epochs: fewer than teachers need, enough for steps to be what takes time
    "head on prior features, batches of 32": (lambda: nn.Linear(128, 10), (128,), 32, 8),
    "mlp 784-128-10, batches of 8": (lambda: models.build("mlp"), (1, 28, 28), 8, 4),
    "mlp 784-128-10, batches of 32": (lambda: models.build("mlp"), (1, 28, 28), 32, 8),
}


def loop(model: nn.Module, inputs: Tensor, targets: Tensor, table: np.ndarray, how: EnsembleFit) -> None:
    for rows in torch.from_numpy(table):
        own = copy.deepcopy(model)
        optimizer = torch.optim.SGD(own.parameters(), lr=how.learning_rate, momentum=how.momentum)
        source = public_torch_generator(how.seed)
        for _ in range(how.epochs):
            for places in torch.randperm(len(rows), generator=source).split(how.batch):
                batch = rows[places]
                optimizer.zero_grad()
                F.cross_entropy(own(inputs[batch]), targets[batch]).backward()
                optimizer.step()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(
    make: Callable[[], nn.Module], shape: tuple[int, ...], batch: int, epochs: int
) -> tuple[float, float]:
    source = public_torch_generator(0)
    rows = TEACHERS * ROWS
    inputs = torch.rand(rows, *shape, generator=source)
    targets = torch.randint(10, (rows,), generator=source)
    table = shard_table(np.arange(rows) % TEACHERS, teachers=TEACHERS, capacity=ROWS)
    model, how = make(), EnsembleFit(epochs=epochs, batch=batch, learning_rate=0.01)
    batched, looped = [], []
    for _ in range(ROUNDS):
        batched.append(seconds(lambda: fit(stack([model] * TEACHERS), inputs, targets, table, how)))
        looped.append(seconds(lambda: loop(model, inputs, targets, table[:LOOPED], how)) * TEACHERS / LOOPED)
    return statistics.median(batched), statistics.median(looped)


def main() -> None:
    print(
        f"{TEACHERS} teachers; {os.cpu_count()} cores, {platform.machine()}; torch {torch.__version__}", end=""
    )
    print(f" on {torch.get_num_threads()} threads")
    for name, case in CASES.items():
        batched, looped = measure(*case)
        print(f"  {name:<38} batched {batched:6.2f} s, loop {looped:6.2f} s: {looped / batched:5.1f}x")
    print("target: >= 4x, aim 10x")


if __name__ == "__main__":
    main()
