"""Chunks of a step: joined in float32 within a declared error, exact from there on."""

import numpy as np
import pytest
import torch

from sfumato.mechanisms import GridGaussian
from sfumato.randomness import SecretStream
from sfumato.training.noise import JOINED, NoisySum, joining_error

PARAMETERS = {"weight": torch.zeros(7, 5), "bias": torch.zeros(9)}
DIMENSION = 44
UNITS = 1000


def mechanism(**more):
    return GridGaussian(clip_norm=1.0, dimension=DIMENSION, noise_multiplier=1.0, **more)


def chunk_sum(generator, units=UNITS):
    """The sum of so many unit vectors that all point the same way: the longest a chunk sum can be."""
    flat = torch.randn(DIMENSION, generator=generator, dtype=torch.float64)
    flat *= units / flat.norm()
    return {"weight": flat[:35].view(7, 5).float(), "bias": flat[35:].float()}


def total(chunks, grid):
    sums = NoisySum(PARAMETERS)
    for number, chunk in chunks.items():
        sums.add({name: value.clone() for name, value in chunk.items()}, grid, chunk=number)
    return sums.total(grid).copy()


def exact(chunks):
    return sum(np.concatenate([c["weight"].double().ravel(), c["bias"].double()]) for c in chunks.values())


@pytest.mark.parametrize("count", [1, 2, 4, 5, 9])
def test_the_total_is_the_sum_within_the_declared_error(count):
    generator = torch.Generator().manual_seed(count)
    chunks = {number: chunk_sum(generator) for number in range(count)}
    grid = mechanism()
    error = total(chunks, grid) * grid.grid - exact(chunks)
    groups = -(-count // JOINED)
    rounding_to_grid = groups * grid.grid / 2 * np.sqrt(DIMENSION)
    assert np.linalg.norm(error) <= groups * joining_error(count, UNITS) / 2 + rounding_to_grid


def test_the_error_stops_growing_where_chunks_go_to_the_grid():
    assert joining_error(JOINED + 5, UNITS) == joining_error(JOINED, UNITS) > joining_error(2, UNITS)
    assert joining_error(1, UNITS) >= 2 * UNITS * torch.finfo(torch.float32).eps / 2  # wider sums are converted


@pytest.mark.parametrize("lone", [0, 2, 3, 5])
def test_a_chunk_of_one_unit_moves_the_total_by_no_more_than_that_unit(lone):
    """Without its only unit a chunk is empty: the others must be joined as before."""
    generator = torch.Generator().manual_seed(lone)
    chunks = {number: chunk_sum(generator, units=1 if number == lone else UNITS) for number in range(9)}
    without = {number: chunk for number, chunk in chunks.items() if number != lone}
    grid = mechanism(float_error=joining_error(9, UNITS))
    moved = total(chunks, grid) - total(without, grid)
    assert np.linalg.norm(moved * grid.grid) <= grid.sensitivity


def test_counting_chunks_by_arrival_would_move_every_group():
    """What the numbers are for: float32 loses a 1 that is added to 2²⁴, so who joins whom matters."""
    values = {0: 0.01, **dict.fromkeys(range(1, 9), 1.0), JOINED: 2.0**24}
    chunks = {
        number: {k: torch.full_like(v, values[number]) for k, v in PARAMETERS.items()} for number in values
    }
    grid = mechanism()

    def moved(others):
        return np.linalg.norm((total(chunks, grid) - total(others, grid)) * grid.grid)

    assert (
        moved({number: chunks[number] for number in range(1, 9)}) <= 0.01 * np.sqrt(DIMENSION) + grid.grid * 7
    )
    assert moved({number - 1: chunks[number] for number in range(1, 9)}) > grid.sensitivity


def test_ground_is_lent_once_and_holds_zeros_again_however_the_step_ends():
    grid = mechanism()
    sums = NoisySum(PARAMETERS)
    for end in (
        lambda: sums.release(grid, SecretStream(), divisor=1.0),
        lambda: (sums.total(grid), sums.take(grid, divisor=1.0)),
        sums.discard,
    ):
        ground = sums.ground()
        assert ground.keys() == PARAMETERS.keys()
        assert not any(part.any() for part in ground.values())
        for part in ground.values():
            part.fill_(3.0)
        assert not sums.ground()  # somebody writes there
        sums.add(ground, grid, chunk=0)
        sums.add({name: torch.ones_like(value) for name, value in PARAMETERS.items()}, grid, chunk=1)
        assert not sums.ground()
        end()


def test_sums_that_were_written_to_the_ground_are_released_like_others():
    grid = mechanism()
    there, elsewhere = NoisySum(PARAMETERS), NoisySum(PARAMETERS)
    chunk = chunk_sum(torch.Generator().manual_seed(3))
    for name, part in there.ground().items():
        part.copy_(chunk[name])
    there.add(there._ground, grid)
    elsewhere.ground()["weight"].fill_(7.0)  # begun there, and made elsewhere after all
    elsewhere.add({name: value.clone() for name, value in chunk.items()}, grid)
    released = [each.release(grid, SecretStream(test_seed=1), divisor=2.0) for each in (there, elsewhere)]
    assert all(torch.equal(released[0][name], released[1][name]) for name in PARAMETERS)
