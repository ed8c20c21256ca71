"""Prices of sampled Gaussian noise and of groups, on whole arrays, against dp-accounting's own functions.

Each pair is timed in turn, in one run: ratios are those of the medians. Run with `python bench/prices.py`.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

from dp_accounting.pld import privacy_loss_distribution as distributions
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

from sfumato.accounting import GaussianEvent, MixtureOfGaussiansEvent, PoissonSampledEvent, Relation
from sfumato.accounting.losses import loss_distribution
from sfumato.accounting.rdp import ORDERS, rdp

ROUNDS = 5
RATE, SIGMA, INTERVAL = 256 / 60_000, 1.1, 1e-4
SHIFTS, CHANCES = (0.0, 1.0, 2.0), ((1 - RATE) ** 2, 2 * RATE * (1 - RATE), RATE**2)  # of two people


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    sampled, group = (
        PoissonSampledEvent(RATE, GaussianEvent(SIGMA)),
        MixtureOfGaussiansEvent(SIGMA, SHIFTS, CHANCES),
    )

    steps = itertools.count(1)

    def fresh() -> PoissonSampledEvent:
        """Another one each time, as divergences that are known are kept."""
        return PoissonSampledEvent(RATE * (1 + 1e-9 * next(steps)), GaussianEvent(SIGMA))

    def divergences() -> None:
        RdpAccountant(list(ORDERS)).compose(sampled)

    works: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "losses of a sampled Gaussian": (
            lambda: loss_distribution(sampled, Relation.ADD_REMOVE, INTERVAL),
            lambda: distributions.from_gaussian_mechanism(
                SIGMA, sampling_prob=RATE, value_discretization_interval=INTERVAL
            ),
        ),
        "losses of a group of two": (
            lambda: loss_distribution(group, Relation.ADD_REMOVE, INTERVAL),
            lambda: distributions.from_mixture_gaussian_mechanism(
                SIGMA, SHIFTS, CHANCES, value_discretization_interval=INTERVAL
            ),
        ),
        "Rényi divergences at all orders": (lambda: rdp(fresh()), divergences),
    }
    for name, pair in works.items():
        times = [[seconds(work) for work in pair] for _ in range(ROUNDS + 1)][1:]  # the first round warms up
        ours, theirs = (statistics.median(each) for each in zip(*times, strict=True))
        print(
            f"  {name:<32} ours {1e3 * ours:.1f} ms, dp-accounting {1e3 * theirs:.1f} ms: {theirs / ours:5.1f}x"
        )


if __name__ == "__main__":
    main()
