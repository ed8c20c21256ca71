"""The clipped sum of one batch: the compiled graph and plain gradients, in turns.

    python bench/compiler.py [cnn256 lstm …] [--turns 12] [--threads 2] [--profile]

Printed are ratios of the least and the median times to plain forward and backward passes, and what the trace
and the first block cost, once. With one thread processor time is counted, for machines that do other work.
`--profile` lists the operations of the compiled graph by their time instead.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transformer
from sfumato.models import CNN, resnet18
from sfumato.training import Flat
from sfumato.training.engine import Engine

per_row = partial(F.cross_entropy, reduction="none")


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.cells, self.head = kind(128, 128, batch_first=True), nn.Linear(128, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.cells(inputs)[0][:, -1])


class OwnMLP(nn.Module):
    """Two layers and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 3)
        self.scale = nn.Parameter(torch.ones(256))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(inputs)) * self.scale)


def images(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 1, 28, 28), torch.randint(0, 10, (rows,))


def steps(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 64, 128), torch.randint(0, 5, (rows,))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]], int]] = {
    "mlp256": (OwnMLP, lambda rows: (torch.randn(rows, 64), torch.randint(0, 3, (rows,))), 256),
    "cnn256": (CNN, images, 256),
    "cnn1024": (CNN, images, 1024),
    "resnet64": (resnet18, images, 64),
    "encoder32": (transformer.Encoder, transformer.sequences, 32),
    "lstm64": (partial(Recurrent, nn.LSTM), steps, 64),
    "gru64": (partial(Recurrent, nn.GRU), steps, 64),
}


def timed(work: Callable[[], object]) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    work()
    return clock() - start


class Contest:
    """One batch of a case, and those who work on it."""

    def __init__(self, name: str) -> None:
        make, data, rows = CASES[name]
        torch.manual_seed(0)
        self.model, (self.inputs, self.targets) = make(), data(rows)
        self.trace = timed(self.prepare)
        self.first = timed(self.compiled)

    def prepare(self) -> None:
        self.engine = Engine(self.model, per_row, (self.inputs[:1], self.targets[:1]))

    def compiled(self) -> object:
        return self.engine.clipped(self.inputs, self.targets, Flat(norm=1.0))

    def plain(self) -> None:
        self.model.zero_grad()
        F.cross_entropy(self.model(self.inputs), self.targets).backward()


def profiled(contest: Contest) -> str:
    with torch.profiler.profile() as profile:
        for _ in range(3):
            contest.compiled()
    return profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(f"torch {torch.__version__}, {asked.threads} threads, {asked.turns} turns")
    print("| case | plain ms | compiled / plain, least | median | trace s | first block s |")
    print("|---|---|---|---|---|---|")
    for name in asked.cases or CASES:
        contest = Contest(name)
        if asked.profile:
            print(profiled(contest))
            continue
        contenders = [contest.plain, contest.compiled]
        for each in contenders:
            each()
        times = [[timed(each) for each in contenders] for _ in range(asked.turns)]
        plain, compiled = zip(*times, strict=True)
        ratios = " | ".join(f"{of(compiled) / of(plain):.2f}" for of in (min, statistics.median))
        once = f"{contest.trace:.2f} | {contest.first:.2f}"
        print(f"| {name} | {1e3 * min(plain):.1f} | {ratios} | {once} |", flush=True)


if __name__ == "__main__":
    main()
