"""Noise for 11 million sums on a grid, against as many float32 normals from torch.

Both are timed in turn, in one run: the ratio is that of the medians. Run with `python bench/noise.py`.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import randomgen
import torch

from sfumato.mechanisms import GridGaussian, add_to_grid
from sfumato.randomness import SecretStream, public_generator

SIZE = 11_000_000
ROUNDS = 9
TARGET = 3.0


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    mechanism = GridGaussian(clip_norm=1.0, dimension=SIZE, noise_multiplier=1.0)
    stream = SecretStream()
    sums = public_generator(0).integers(-(1 << 30), 1 << 30, SIZE)
    gradient = public_generator(1).standard_normal(SIZE, dtype=np.float32)
    scale = mechanism.sigma / mechanism.grid
    works: dict[str, Callable[[], object]] = {
        "torch.randn, float32": lambda: torch.randn(SIZE),
        "NumPy's ziggurat on a secret stream": lambda: stream.normal(SIZE),
        "secret rounded normal, int64": lambda: stream.rounded_normal(scale, SIZE),
        "whole release: noise, sum, float32": lambda: mechanism.release(sums, stream),
        "for comparison, one chunk onto the grid": lambda: add_to_grid(sums, gradient, mechanism.grid),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(ROUNDS + 1):
        for name, work in works.items():
            elapsed = seconds(work)
            if turn:  # the first round warms up
                times[name].append(elapsed)
    report(times)


def report(times: dict[str, list[float]]) -> None:
    print(f"{SIZE:,} values; {os.cpu_count()} cores, {platform.machine()}; torch {torch.__version__}", end="")
    print(f" on {torch.get_num_threads()} threads, numpy {np.__version__}, randomgen {randomgen.__version__}")
    medians = {name: statistics.median(values) for name, values in times.items()}
    base = medians["torch.randn, float32"]
    for name, median in medians.items():
        print(f"  {name:<40} {1e3 * median:7.1f} ms {median / base:6.2f}x")
    ratio = medians["whole release: noise, sum, float32"] / base
    print(f"whole release / torch.randn = {ratio:.2f} (target < {TARGET:g})")


if __name__ == "__main__":
    main()
