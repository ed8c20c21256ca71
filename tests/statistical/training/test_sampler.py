"""The sampler draws true Poisson batches; batches that are only called so are found out.

Each check is a z-test at |z| ≤ 6: a false alarm has probability 2e-9 a check, below 1e-6 for the whole file.
"""

import math

import numpy as np
import pytest

from sfumato.randomness import SecretStream
from sfumato.training.sampling import poisson_sample

UNITS, RATE, STEPS = 500, 0.1, 4000
Z = 6.0


def ours(stream):
    return [poisson_sample(UNITS, RATE, stream).units for _ in range(STEPS)]


def shuffled(stream):
    """Passes through a random order in batches of equal size."""
    size, batches = int(UNITS * RATE), []
    while len(batches) < STEPS:
        order = np.argsort(stream.uniform(UNITS))
        batches += [order[start : start + size] for start in range(0, UNITS, size)]
    return batches[:STEPS]


def counted_then_chosen(stream):
    """The batch size drawn from a Poisson law, then so many units *with* replacement."""
    counts = np.cumsum(stream.uniform(STEPS * 200).reshape(STEPS, 200) < UNITS * RATE / 200, axis=1)[:, -1]
    return [np.unique(stream.integers(UNITS, int(count))) for count in counts]


def fixed_size(stream):
    size = int(UNITS * RATE)
    return [np.argsort(stream.uniform(UNITS))[:size] for _ in range(STEPS)]


def off_by_one(stream):
    """The last unit never enters."""
    return [poisson_sample(UNITS - 1, RATE, stream).units for _ in range(STEPS)]


def membership(batches):
    table = np.zeros((STEPS, UNITS), dtype=bool)
    for step, units in enumerate(batches):
        table[step, units] = True
    return table


def deviations(table):
    """z-scores that are standard normal for true Poisson sampling (normal limits of binomials)."""
    p, n, t = RATE, UNITS, STEPS
    sizes = table.sum(1)
    mean_size = (sizes.mean() - n * p) / math.sqrt(n * p * (1 - p) / t)
    # Var of the sample variance of binomials: μ₄ − σ⁴ over t
    spread = n * p * (1 - p)
    fourth = spread * (1 + 3 * (n - 2) * p * (1 - p))
    variance = (((sizes - n * p) ** 2).mean() - spread) / math.sqrt((fourth - spread**2) / t)
    inclusion = np.abs(table.sum(0) - t * p).max() / math.sqrt(t * p * (1 - p))
    centred = table - p
    scale = p * (1 - p) * math.sqrt(n * (t - 1))
    following = (centred[1:] * centred[:-1]).sum() / scale
    pairs = (centred[:, ::2] * centred[:, 1::2]).sum() / (p * (1 - p) * math.sqrt(t * (n // 2)))
    return {
        "mean batch size": mean_size,
        "variance of batch size": variance,
        "inclusion of each unit": inclusion,
        "independence of following steps": following,
        "independence of units": pairs,
    }


def test_ours_is_poisson():
    assert {name: z for name, z in deviations(membership(ours(SecretStream()))).items() if abs(z) > Z} == {}


@pytest.mark.keeps_out("A batch size drawn first, then a choice, called Poisson")
@pytest.mark.keeps_out("Shuffled batches accounted as Poisson")
@pytest.mark.parametrize("sabotaged", [shuffled, counted_then_chosen, fixed_size, off_by_one])
def test_what_is_only_called_poisson_is_found_out(sabotaged):
    assert any(abs(z) > Z for z in deviations(membership(sabotaged(SecretStream()))).values())


def test_a_unit_goes_to_a_chunk_by_its_own_draw():
    """Chunks are equally likely, and leaving one unit out moves no other to another chunk."""
    stream = SecretStream()
    sample = poisson_sample(100_000, 0.5, stream)
    sizes = np.array([len(chunk) for chunk in sample.chunks(10)])
    assert sizes.sum() == len(sample.units)
    assert np.abs(sizes - sizes.sum() / 10).max() < Z * math.sqrt(sizes.sum() * 0.09)

    without = type(sample)(np.delete(sample.units, 5), np.delete(sample.places, 5))
    removed = int(sample.units[5])
    for before, after in zip(sample.chunks(10), without.chunks(10), strict=True):
        assert set(before) - {removed} == set(after)


@pytest.mark.parametrize(("units", "rate"), [(0, 0.5), (3, 1e-12)])
def test_batches_may_be_empty(units, rate):
    sample = poisson_sample(units, rate, SecretStream())
    assert len(sample.units) == 0
    assert [len(chunk) for chunk in sample.chunks(4)] == [0, 0, 0, 0]
