"""Streams: who may repeat a draw, and who never does.

Where draws are compared for being disjoint, they are uniform multiples of 2⁻⁵³: among n of them two are equal
by chance with probability below n²/2⁵⁴, under 1e-6 for the sizes here.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import operator
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from itertools import chain

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from sfumato import randomness
from sfumato.errors import InvalidInput
from sfumato.randomness import SecretStream

DRAWS = 500


def in_fork(work: Callable[[], NDArray[np.generic]]) -> bytes:
    """What `work` returns in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs answers nothing
        try:
            os.write(writer, work().tobytes())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def all_differ(*draws: NDArray[np.float64]) -> bool:
    values = np.concatenate(draws)
    return bool(np.unique(values).size == values.size)


def test_the_comparison_sees_a_repeated_stream() -> None:
    draws = [randomness._aes_generator(bytes(32)).random(DRAWS) for _ in range(2)]
    assert not all_differ(*draws)


@pytest.mark.keeps_out("A predictable generator, a default seed, the same noise twice")
@pytest.mark.parametrize("seed", [None, 3])
def test_forked_processes_share_no_draws(seed: int | None) -> None:
    stream = SecretStream(test_seed=seed)
    stream.uniform(10)
    children = [np.frombuffer(in_fork(lambda: stream.uniform(DRAWS))) for _ in range(2)]
    grandchild = np.frombuffer(in_fork(lambda: np.frombuffer(in_fork(lambda: stream.uniform(DRAWS)))))
    assert all(draws.size == DRAWS for draws in (*children, grandchild))
    assert all_differ(stream.uniform(DRAWS), *children, grandchild)


def test_every_lane_is_keyed_anew_in_a_fork() -> None:
    torch.ones(1 << 20).sin()  # the parent's OpenMP threads run, and would be missed in the child
    stream = SecretStream()
    size = randomness._LARGE
    child = np.frombuffer(in_fork(lambda: stream.rounded_normal(2.0**40, size)[::2000].copy()), dtype=np.int64)
    parent = stream.rounded_normal(2.0**40, size)[::2000]
    assert child.size == parent.size
    assert np.intersect1d(child, parent).size == 0


def test_forks_share_no_exact_draws() -> None:
    # OpenDP draws from the operating system; among 2⁴⁰ likely values 60 draws repeat one with chance 2e-9.
    stream = SecretStream()
    for draw in (stream.discrete_laplace, stream.discrete_gaussian):
        draw(2.0**40, 1)  # OpenDP is loaded before the fork
        children = [np.frombuffer(in_fork(lambda d=draw: d(2.0**40, 20)), dtype=np.int64) for _ in range(2)]
        draws = np.concatenate([draw(2.0**40, 20), *children])
        assert np.unique(draws).size == draws.size == 60


def test_a_seeded_stream_stays_marked_in_a_fork() -> None:
    stream = SecretStream(test_seed=1)
    assert in_fork(lambda: np.array([stream.private])) == np.array([False]).tobytes()


def test_spawned_processes_share_no_draws() -> None:
    stream = SecretStream()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(operator.methodcaller("uniform", DRAWS), [stream, stream], chunksize=1)
    assert all_differ(stream.uniform(DRAWS), first, second)


def test_resumed_runs_and_workers_share_no_draws() -> None:
    stream = SecretStream()
    resumed = [SecretStream(), SecretStream()]
    workers = [stream.spawn(), stream.spawn()]
    assert all_differ(*(each.uniform(DRAWS) for each in (stream, *resumed, *workers)))


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])  # noqa: S301
def test_a_copy_does_not_repeat_the_original(
    seed: int | None, duplicate: Callable[[SecretStream], SecretStream]
) -> None:
    stream = SecretStream(test_seed=seed)
    copies = [duplicate(stream), duplicate(stream)]
    assert all(each.private == stream.private for each in copies)
    assert all_differ(*(each.uniform(DRAWS) for each in (stream, *copies)))


def test_lanes_share_no_draws() -> None:
    draws = SecretStream().rounded_normal(2.0**45, randomness._LARGE)
    starts = np.concatenate([part[:50] for part in np.array_split(draws, randomness._LANES)])
    assert np.unique(starts).size == starts.size


def test_a_seeded_stream_repeats_and_says_so() -> None:
    first, second = SecretStream(test_seed=4), SecretStream(test_seed=4)
    for stream in (first, second):
        assert not stream.private
        assert not stream.spawn().private
    for name, arguments in DRAW_CALLS.items():
        np.testing.assert_array_equal(getattr(first, name)(*arguments), getattr(second, name)(*arguments), name)
    np.testing.assert_array_equal(first.spawn().normal(9), second.spawn().normal(9))
    assert all_differ(SecretStream(test_seed=4).uniform(DRAWS), SecretStream(test_seed=5).uniform(DRAWS))
    assert SecretStream().private


DRAW_CALLS: dict[str, tuple[float, ...]] = {
    "normal": (50,),
    "rounded_normal": (100.0, 50),
    "uniform": (50,),
    "laplace": (50,),
    "integers": (9, 50),
    "bernoulli": (0.3, 50),
    "discrete_laplace": (20.0, 50),
    "discrete_gaussian": (20.0, 50),
}


def test_every_kind_of_draw_is_covered_here() -> None:
    protocols = randomness.Sampler, randomness.NoiseSource
    methods = {name for protocol in protocols for name in vars(protocol) if not name.startswith("_")}
    assert methods - {"private"} == set(DRAW_CALLS)


@pytest.mark.parametrize("name", DRAW_CALLS)
def test_sizes_and_types(name: str) -> None:
    stream = SecretStream()
    kinds = {"bernoulli": "b", "normal": "f", "uniform": "f", "laplace": "f"}
    for size in (0, 1, 7):
        draws = getattr(stream, name)(*DRAW_CALLS[name][:-1], size)
        assert draws.shape == (size,)
        assert draws.dtype.kind == kinds.get(name, "i")


# --- AES-128 in counter mode -------------------------------------------------------------------------------


def test_blocks_are_aes_128_of_a_running_counter() -> None:
    # FIPS-197, appendix C.1
    key = bytes(range(16))
    plain = bytes.fromhex("00112233445566778899aabbccddeeff")
    assert aes_128(key, plain).hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"

    counter = (1 << 128) - 3  # runs over its end
    generator = randomness._aes_generator(key + counter.to_bytes(16, "little"))
    blocks = generator.bit_generator.random_raw(12).astype("<u8").tobytes()
    expected = [aes_128(key, ((counter + i) % (1 << 128)).to_bytes(16, "little")) for i in range(6)]
    assert blocks == b"".join(expected)

    draws = np.empty(12)
    randomness._Blocks(key + counter.to_bytes(16, "big")).fill(draws)
    expected = [aes_128(key, ((counter + i) % (1 << 128)).to_bytes(16, "big")) for i in range(6)]
    words = np.frombuffer(b"".join(expected), "<u8")
    assert ((draws - 1) * 2**52).tolist() == (words >> 12).tolist()  # 52 bits of each


def test_no_place_is_left_unfilled() -> None:
    with pytest.raises(RuntimeError, match="at most"):
        SecretStream()._blocks[0].fill(np.empty(randomness._BLOCK + 1))


def test_no_block_comes_twice() -> None:
    # As electronic code book, or with a counter that stands still, blocks would repeat.
    stream, draws = SecretStream(), np.empty(100_000)
    stream._blocks[0].fill(draws)
    for raw in (stream._generator.bit_generator.random_raw(200_000), draws):
        pairs = raw.reshape(-1, 2)
        assert np.unique(pairs, axis=0).shape == pairs.shape


def aes_128(key: bytes, block: bytes) -> bytes:
    """AES as FIPS-197 describes it, slowly."""
    box = [_sbox(value) for value in range(256)]
    words = [list(key[i : i + 4]) for i in range(0, 16, 4)]
    constant = 1
    for i in range(4, 44):
        word = list(words[-1])
        if i % 4 == 0:
            word = [box[b] for b in word[1:] + word[:1]]
            word[0] ^= constant
            constant = _times(constant, 2)
        words.append([a ^ b for a, b in zip(words[i - 4], word, strict=True)])
    keys = [list(chain(*words[i : i + 4])) for i in range(0, 44, 4)]
    state = [a ^ b for a, b in zip(block, keys[0], strict=True)]
    for turn in range(1, 11):
        state = [box[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if turn < 10:
            state = list(chain(*(_mix(state[i : i + 4]) for i in range(0, 16, 4))))
        state = [a ^ b for a, b in zip(state, keys[turn], strict=True)]
    return bytes(state)


def _times(a: int, b: int) -> int:
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def _sbox(value: int) -> int:
    inverse = next((x for x in range(1, 256) if _times(value, x) == 1), 0)
    bits = inverse | inverse << 8
    return 0x63 ^ (0xFF & (bits ^ bits >> 4 ^ bits >> 5 ^ bits >> 6 ^ bits >> 7))


def _mix(column: list[int]) -> list[int]:
    rows = ((2, 3, 1, 1), (1, 2, 3, 1), (1, 1, 2, 3), (3, 1, 1, 2))
    return [
        _times(column[0], r[0]) ^ _times(column[1], r[1]) ^ _times(column[2], r[2]) ^ _times(column[3], r[3])
        for r in rows
    ]


# --- Distributions: some thirty checks, a false alarm in any of them has a chance below 1e-6 ---------------

FALSE_ALARM = 2e-8


def distance(draws: NDArray[np.int64], cdf: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
    """The largest gap between the share of draws ≤ k and cdf(k), over whole k."""
    values, counts = np.unique(draws, return_counts=True)
    below = np.concatenate([[0.0], np.cumsum(counts) / draws.size])
    gaps = np.abs(below[1:] - cdf(values)), np.abs(below[:-1] - cdf(values - 1.0))
    return float(np.max(gaps))


def tolerance(size: int) -> float:
    """Exceeded by the distance with a chance of at most FALSE_ALARM (Massart 1990: 2·exp(−2·n·t²))."""
    return math.sqrt(math.log(2 / FALSE_ALARM) / (2 * size))


def discrete_gaussian_cdf(scale: float) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    support = np.arange(-int(12 * scale) - 12, int(12 * scale) + 13)
    weights = np.exp(-(support**2) / (2 * scale**2))
    total = np.cumsum(weights) / weights.sum()
    return lambda k: np.interp(k, support, total)


@pytest.mark.parametrize("seed", [None, 11])
@pytest.mark.parametrize("scale", [0.6, 7.0])
def test_discrete_laplace(seed: int | None, scale: float) -> None:
    draws = SecretStream(test_seed=seed).discrete_laplace(scale, 20_000)
    assert distance(draws, lambda k: stats.dlaplace.cdf(k, 1 / scale)) < tolerance(20_000)
    for wrong in (0.7, 1.4):
        assert distance(draws, lambda k, w=wrong: stats.dlaplace.cdf(k, 1 / (w * scale))) > tolerance(20_000)


@pytest.mark.parametrize("seed", [None, 12])
@pytest.mark.parametrize("scale", [0.6, 7.0])
def test_discrete_gaussian(seed: int | None, scale: float) -> None:
    draws = SecretStream(test_seed=seed).discrete_gaussian(scale, 20_000)
    assert distance(draws, discrete_gaussian_cdf(scale)) < tolerance(20_000)
    for wrong in (0.7, 1.4):
        assert distance(draws, discrete_gaussian_cdf(wrong * scale)) > tolerance(20_000)


@pytest.mark.parametrize("size", [100_001, randomness._LARGE + 3])
@pytest.mark.parametrize("scale", [0.7, 3.0, 1e6])
def test_rounded_normal(scale: float, size: int) -> None:
    draws = SecretStream().rounded_normal(scale, size)
    assert draws.dtype == np.int64
    assert draws.shape == (size,)
    assert distance(draws, lambda k: stats.norm.cdf((k + 0.5) / scale)) < tolerance(size)
    for wrong in (0.7, 1.4):
        assert distance(draws, lambda k, w=wrong: stats.norm.cdf((k + 0.5) / (w * scale))) > tolerance(size)


def test_rounded_normal_moments_and_pairs() -> None:
    size, scale = 400_000, 2.0**30  # rounding adds 1/12, nothing against the scale
    draws = SecretStream().rounded_normal(scale, size) / scale
    # A quadratic form zᵀAz is off its mean by more than 2‖A‖_F√x + 2‖A‖x with chance 2e^−x (Laurent & Massart
    # 2000, lemma 1). Squares: A = I. Products with lag: half a shift and its transpose, smaller in both.
    x = math.log(2 / FALSE_ALARM)
    bound = 2 * math.sqrt(size * x) + 2 * x
    assert abs(np.sum(draws**2) - size) < bound
    assert abs(np.sum(draws)) < math.sqrt(2 * size * x)
    for lag in (1, randomness._BLOCK // 2, randomness._BLOCK, size // randomness._LANES):
        assert abs(np.sum(draws[lag:] * draws[:-lag])) < bound
    # 25 of these draws are expected beyond 4, so that none is has a chance of e^−25; Box & Muller ends at 8.57.
    assert 4 < np.abs(draws).max() < 8.6


@pytest.mark.parametrize("size", [1, 100, randomness._SMALL, randomness._LARGE + 3, 5 * randomness._BLOCK + 1])
def test_parts_handed_out_are_the_draws_each_place_once(size: int) -> None:
    found = np.full(size, np.nan)
    visits = np.zeros(size, dtype=int)

    def work(start: int, draws: NDArray[np.float64]) -> None:
        found[start : start + draws.size] = draws
        visits[start : start + draws.size] += 1

    randomness.spread_rounded_normal(SecretStream(test_seed=3), 1000.0, size, work)
    assert (visits == 1).all()
    assert (found == SecretStream(test_seed=3).rounded_normal(1000.0, size)).all()


def test_another_samplers_draws_are_its_own() -> None:
    """A recorded tape, or a stream that overrides its draws, is asked and never passed over."""

    class Sevens(SecretStream):
        def rounded_normal(self, scale: float, size: int) -> NDArray[np.int64]:
            return np.full(size, 7)

    found = []
    randomness.spread_rounded_normal(Sevens(), 1.0, randomness._LARGE, lambda start, draws: found.append(draws))
    assert all((draws == 7).all() for draws in found)
    assert sum(draws.size for draws in found) == randomness._LARGE


def test_two_threads_may_draw_from_one_stream() -> None:
    stream = SecretStream()
    with ThreadPoolExecutor(4) as threads:
        draws = list(threads.map(lambda _: stream.rounded_normal(2.0**50, randomness._LARGE // 2), range(24)))
    assert len({each[:2].tobytes() for each in draws}) == len(draws)


def test_the_threads_of_a_stream_know_nothing_of_torch() -> None:
    # OpenMP, once used from several threads, slows all of torch down; NumPy alone must do.
    script = (
        "import sys; from sfumato import randomness as r;"
        "r.SecretStream().rounded_normal(1.0, r._LARGE); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_rounded_normal_limits() -> None:
    stream = SecretStream()
    assert not stream.rounded_normal(0.0, 100).any()
    for scale in (-1.0, math.nan, math.inf, 2.0**53):
        with pytest.raises(InvalidInput, match="scale"):
            stream.rounded_normal(scale, 10)


@pytest.mark.parametrize("rate", [0.0, 0.003, 0.5, 1.0])
def test_bernoulli(rate: float) -> None:
    size = 400_000
    heads = int(SecretStream().bernoulli(rate, size).sum())
    assert stats.binomtest(heads, size, rate).pvalue > FALSE_ALARM  # an exact test
    if 0 < rate < 1:
        assert stats.binomtest(heads, size, min(1.0, 1.4 * rate)).pvalue < FALSE_ALARM


def test_integers_are_even() -> None:
    draws = SecretStream().integers(7, 70_000)
    assert distance(draws, lambda k: np.clip((k + 1) / 7, 0, 1)) < tolerance(70_000)


@pytest.mark.parametrize(
    ("name", "cdf"),
    [("normal", stats.norm.cdf), ("laplace", stats.laplace.cdf), ("uniform", stats.uniform.cdf)],
)
def test_continuous_draws(name: str, cdf: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> None:
    draws = getattr(SecretStream(), name)(50_000)
    assert stats.kstest(draws, cdf).statistic < tolerance(50_000)
    assert stats.kstest(1.4 * draws, cdf).statistic > tolerance(50_000)


def test_public_generators_repeat() -> None:
    np.testing.assert_array_equal(
        randomness.public_generator(1).random(5), randomness.public_generator(1).random(5)
    )
    first, second = (randomness.public_torch_generator(1) for _ in range(2))
    assert first.initial_seed() == second.initial_seed() == 1
    with pytest.raises(InvalidInput, match="seed"):
        randomness.public_generator(-1)


def law(draw: str, scale: float, *, reach: int = 40) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Whole numbers and their chances."""
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-np.abs(values) / scale if draw == "discrete_laplace" else -(values**2) / (2 * scale**2))
    return values, weights / weights.sum()


def off(draws: NDArray[np.int64], name: str, scale: float) -> float:
    """The largest gap between the draws' distribution function and the law's."""
    values, chances = law(name, scale)
    return float(max(abs((draws <= value).mean() - chances[: i + 1].sum()) for i, value in enumerate(values)))


@pytest.mark.keeps_out("Exact noise, made fast, that is no longer exact")
@pytest.mark.parametrize("name", ["discrete_laplace", "discrete_gaussian"])
@pytest.mark.parametrize("scale", [0.3, 1.7, 3.0])
def test_many_exact_draws_have_the_law(name: str, scale: float) -> None:
    """Massart: a gap above t among n draws has a chance of 2 exp(−2nt²); here 1e-8 for each of six tests."""
    size = 400_000
    tolerance = math.sqrt(math.log(2 / 1e-8) / (2 * size))
    draws = getattr(SecretStream(), name)(scale, size)
    assert off(draws, name, scale) < tolerance
    assert off(draws, name, 1.1 * scale) > tolerance or scale < 1  # another scale is seen
    assert off(draws + 1, name, scale) > tolerance  # so is a shift


def tails(draws: NDArray[np.int64], name: str, scale: float) -> bool:
    """Whether as many draws lie far out, on each side, as the law says; wrong with a chance of 2e-9 each."""
    values, chances = law(name, scale, reach=2000)
    above, right = np.cumsum(chances[::-1])[::-1], []  # P(X ≥ value)
    for expected in (30, 300, 20_000):
        far = int(values[np.flatnonzero(above * draws.size <= expected)[0]])
        chance = float(above[values == far][0])
        for found in (int((draws >= far).sum()), int((draws <= -far).sum())):
            right.append(
                min(stats.binom.cdf(found, draws.size, chance), stats.binom.sf(found - 1, draws.size, chance))
            )
    return min(right) > 1e-9


@pytest.mark.parametrize("name", ["discrete_laplace", "discrete_gaussian"])
@pytest.mark.parametrize("scale", [1.7, 3.0, 20.3])
def test_many_exact_draws_have_the_tails_of_the_law(
    name: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few draws in a million lie there, which the gap to the law would not show."""
    size = 1_000_000
    draws = getattr(SecretStream(), name)(scale, size)
    assert tails(draws, name, scale)
    assert abs(float(draws.sum())) < 7 * math.sqrt(size * float((draws**2).mean()))  # a chance of 3e-12
    cut = np.abs(draws) < np.quantile(np.abs(draws), 0.999)
    assert not tails(draws[cut], name, scale)  # sabotage: tails cut off
    assert not tails(np.abs(draws), name, scale)  # and one sign only


@pytest.mark.keeps_out("Exact noise, made fast, that is no longer exact")
def test_what_53_bits_leave_open_is_decided_by_further_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a coin unsure within a twentieth of its chance, the draws would have the same law."""
    size = 10_000
    tolerance = math.sqrt(math.log(2 / 1e-8) / (2 * size))
    monkeypatch.setattr(randomness, "_UNSURE", 0.05)
    for name in ("discrete_laplace", "discrete_gaussian"):
        assert off(getattr(SecretStream(), name)(1.7, size), name, 1.7) < tolerance


def test_a_coin_is_decided_by_its_chance_to_the_last_digit() -> None:
    generator = randomness._aes_generator(bytes(32))
    for exponent in (Fraction(1), Fraction(1, 3), Fraction(7, 2)):
        first = math.floor(
            Decimal(2**53) * (-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
        )
        assert randomness._surely_below(first - 1, exponent, generator)
        assert not randomness._surely_below(first + 1, exponent, generator)
        halves = [randomness._surely_below(first, exponent, generator) for _ in range(200)]
        assert 0 < sum(halves) < 200  # the bits behind decide
