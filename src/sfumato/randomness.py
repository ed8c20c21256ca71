"""The only place that makes random generators.

Two kinds of stream. *Public* ones (initialisation, synthetic data, augmentation) are seeded and independent of
all data. *Secret* ones (noise, Poisson sampling) are keyed by the operating system, cryptographic
(AES-128 in counter mode), and never share a key: not across steps, workers, forks or resumed runs.

A mechanism takes a `Sampler` as a value, so that a replay can put a recorded tape in its place.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from randomgen import AESCounter

from sfumato import _validate
from sfumato.caveats import Code
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LANES = 4  # generators behind one stream; a fixed number, so that a seeded run repeats on any machine
_BLOCK = 1 << 17  # draws made at a time: a MiB, inside a core's cache; with fewer, threads wait for each other
_LARGEST_SCALE = 2.0**52  # of rounded draws: beyond it doubles no longer resolve every whole number
_SMALL = 1 << 13  # draws below which NumPy alone is quicker
_LARGE = 1 << 17  # draws from which several threads pay off
_LEAST_EXACT = 2.0**-8  # scale from which whole numbers of 64 bits hold all that exact draws need
_UNSURE = 2.0**-47  # how near a uniform number must be to a chance for more bits to be looked at
_KEY_BYTES = 32  # an AES-128 key and the counter to begin with
_NOTHING = memoryview(bytes(8 * _BLOCK))  # a cipher adds its stream to zeros
_FROM_ONE_TO_TWO = np.uint64(0x3FF << 52)  # sign and exponent of doubles in [1, 2)
_WORDS = 624  # of 32 bits, in the state of a Mersenne twister
_TORCH_HEAD = 24  # bytes before the words in the state that torch gives
_SEED = 8  # bytes of the seed, with which that head begins


class NoiseSource(Protocol):
    """The source of the noise of a vector: a sampler, or draws that are correlated from step to step."""

    def rounded_normal(self, scale: float, size: int) -> Integers:
        """Return scale·Z to the nearest whole number, for standard normal Z: noise for whole sums."""
        ...


class Sampler(NoiseSource, Protocol):
    """The source of all randomness of a mechanism."""

    @property
    def private(self) -> bool:
        """Whether the draws are unpredictable."""
        ...

    def normal(self, size: int) -> Floats: ...
    def uniform(self, size: int) -> Floats: ...
    def laplace(self, size: int) -> Floats: ...
    def integers(self, high: int, size: int) -> Integers: ...
    def bernoulli(self, rate: float, size: int) -> Bools: ...
    def discrete_laplace(self, scale: float, size: int) -> Integers: ...
    def discrete_gaussian(self, scale: float, size: int) -> Integers: ...


def public_generator(seed: int) -> np.random.Generator:
    """Return a reproducible NumPy generator, for public data only.

    >>> public_generator(1).integers(100, size=3).tolist() == public_generator(1).integers(100, size=3).tolist()
    True
    """
    return np.random.Generator(np.random.PCG64(_validate.integer("seed", seed)))


def public_torch_generator(seed: int) -> torch.Generator:
    """Return a reproducible torch generator, for public data only."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(_validate.integer("seed", seed))
    return generator


def fresh_seed() -> int:
    """Return an unpredictable seed from the operating system, for public data only."""
    return int.from_bytes(os.urandom(7), "big")


@contextmanager
def public_torch_seed(seed: int) -> Iterator[None]:
    """Seed torch's own generator inside the block, for modules that draw their first weights from it.

    Afterwards the generator goes on where it was.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_validate.integer("seed", seed))
        yield


@contextmanager
def secret_global_generators(sampler: Sampler, device: torch.device | None = None) -> Iterator[None]:
    """Key torch's, NumPy's and Python's global generators from `sampler` within the block.

    Of torch's those of the CPU, of every CUDA device, and of `device`. All code that draws from them, such as
    dropout and augmentation, is then as unpredictable as the noise, under any seed that was set outside.
    NumPy's and Python's get 256 secret bits; torch's, whose seed has 32, a whole secret state. Afterwards each
    goes on where it was. A generator that code makes for itself is beyond reach.
    """
    import torch

    with _kept_generators(device) as others:
        words = sampler.integers(2**32, _WORDS + 16)
        torch.set_rng_state(_torch_state(words[:_WORDS]))
        np.random.set_bit_generator(np.random.PCG64DXSM(words[-16:-8].tolist()))  # type: ignore[attr-defined]
        random.seed(int.from_bytes(words[-8:].astype("<u4").tobytes(), "little"))
        for place in others:
            key = int(sampler.integers(2**62, 1)[0])
            if place.type == "cuda":
                torch.cuda.default_generators[place.index].manual_seed(key)
            else:
                torch.get_device_module(place).manual_seed(key)
        yield


@contextmanager
def public_global_generators(seed: int) -> Iterator[None]:
    """Seed torch's, NumPy's and Python's global generators within the block, for code that sees public rows.

    Afterwards each goes on where it was.
    """
    import torch

    with _kept_generators(None):
        torch.default_generator.manual_seed(_validate.integer("seed", seed))
        np.random.set_bit_generator(np.random.PCG64(seed))  # type: ignore[attr-defined]
        random.seed(seed)
        yield


def secret_torch_generator(sampler: Sampler) -> torch.Generator:
    """Return a torch generator whose whole state is drawn from `sampler`: as unpredictable as the noise.

    >>> import torch
    >>> one, other = (secret_torch_generator(SecretStream()) for _ in range(2))
    >>> torch.equal(torch.rand(4, generator=one), torch.rand(4, generator=other))
    False
    """
    import torch

    generator = torch.Generator()
    generator.set_state(_torch_state(sampler.integers(2**32, _WORDS)))
    return generator


class FreshGenerators:
    """Key the global generators secretly within a `with` block, and anew by `refresh`.

    Code that is called item by item may seed them, from values of an item; the next item would draw the
    numbers that follow. `refresh` keys them anew if one, of the CPU or of `device`, was used or seeded since.

    >>> with FreshGenerators() as generators:
    ...     random.seed(0)
    ...     generators.refresh()
    ...     random.random() == random.Random(0).random()
    False
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._within = ExitStack()
        self._states: tuple[Any, ...] = ()

    def __enter__(self) -> FreshGenerators:
        self._within.enter_context(secret_global_generators(SecretStream(), self._device))
        self._states = _global_states(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        self._within.close()

    @property
    def moved(self) -> bool:
        """Whether a generator was drawn from or seeded since it was keyed."""
        return _global_states(self._device) != self._states

    def refresh(self) -> None:
        if self.moved:
            self._within.close()
            self.__enter__()


def _global_states(device: torch.device | None) -> tuple[Any, ...]:
    import torch

    places = (torch.device("cpu"), *(() if device is None or device.type == "cpu" else (device,)))
    return *(_state_of(place).cpu().numpy().tobytes() for place in places), numpy_state(), random.getstate()


@contextmanager
def _kept_generators(device: torch.device | None) -> Iterator[list[torch.device]]:
    """Put all global generators back after the block; yield the accelerators, of CUDA and `device`."""
    import torch

    others = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    if device is not None and device.type not in ("cpu", "cuda"):
        others.append(device)
    of_torch = [(place, _state_of(place)) for place in (torch.device("cpu"), *others)]
    of_numpy = np.random.get_bit_generator()  # type: ignore[attr-defined]
    of_python = random.getstate()
    try:
        yield others
    finally:
        for place, state in of_torch:
            if place.type == "cpu":
                torch.set_rng_state(state)
            else:
                torch.get_device_module(place).set_rng_state(state, place)
        np.random.set_bit_generator(of_numpy)  # type: ignore[attr-defined]
        random.setstate(of_python)


def _state_of(device: torch.device) -> torch.Tensor:
    import torch

    if device.type == "cpu":
        return torch.get_rng_state()
    state: torch.Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def numpy_state() -> list[Any]:
    """Return the state of NumPy's global generator: another one after each draw."""
    state = np.random.get_bit_generator().state  # type: ignore[attr-defined]
    inner = state["state"].values()
    return [value.tobytes() if isinstance(value, np.ndarray) else value for value in inner]


@lru_cache(maxsize=1)
def _fresh_torch_state() -> torch.Tensor:
    return public_torch_generator(0).get_state()


def _torch_state(words: Integers) -> torch.Tensor:
    """Return a freshly seeded Mersenne twister's state with other words in it, behind a head of 24 bytes.

    The head begins with the seed; one that says nothing of the words takes its place.
    """
    state = _fresh_torch_state().clone()
    inside, words = state.numpy(), words.astype(np.uint64)
    digest = hashlib.blake2b(words.tobytes(), digest_size=_SEED).digest()
    inside[:_SEED].view(np.uint64)[0] = int.from_bytes(digest, "little")
    inside[_TORCH_HEAD : _TORCH_HEAD + 8 * _WORDS].view(np.uint64)[:] = words
    return state


OWN_NOISE = Code.OWN_SAMPLER()


def draws_by_own_code(sampler: Any) -> bool:
    """Return whether the class of a sampler, a method of it, or a sampler that it holds is not Sfumato's."""
    held = [each for each in getattr(sampler, "__dict__", {}).values() if hasattr(each, "rounded_normal")]
    methods = [each for each in vars(type(sampler)).values() if callable(each)]
    homes = [getattr(each, "__module__", None) or "sfumato" for each in (type(sampler), *methods)]
    own = any(home.partition(".")[0] != "sfumato" for home in homes)
    return own or any(map(draws_by_own_code, held))


def caveats_of_sampler(sampler: Any) -> tuple[str, ...]:
    """Return the caveat of a certificate whose noise came from another sampler than Sfumato's."""
    return (OWN_NOISE,) if draws_by_own_code(sampler) else ()


class SecretStream:
    """Draw numbers that cannot be predicted or repeated.

    *Guarantees*: the 128-bit key and the starting counter come from `os.urandom`; a forked child is keyed
    anew before it can draw; `spawn` gives streams with keys of their own, and so does copying or pickling one.
    The normal, Laplace and uniform draws are float64; the sampler behind them is taken as ideal, which
    certificates state. The discrete draws are exact: by OpenDP, or many at once by Canonne, Kamath & Steinke's
    samplers, of the same stream of bits as all the rest.

    `test_seed` makes the stream reproducible for tests; `private` is then False, and ledgers and certificates
    of such a run say that it is not private.
    """

    def __init__(self, *, test_seed: int | None = None) -> None:
        self._test_seed = None if test_seed is None else _validate.integer("test_seed", test_seed)
        self._children = 0
        self._rekey()
        _live_streams.add(self)

    @property
    def private(self) -> bool:
        return self._test_seed is None

    def spawn(self) -> SecretStream:
        """Return another stream, independent of this one (reproducible only if this one is)."""
        if self._test_seed is None:
            return SecretStream()
        self._children += 1
        label = f"{self._test_seed}/{self._children}".encode()
        return SecretStream(test_seed=int.from_bytes(hashlib.sha256(label).digest()[:8], "big"))

    def __reduce__(self) -> tuple[Callable[[int | None], SecretStream], tuple[int | None]]:
        # A copy that went on from the same counter would repeat the noise: a spawned stream arrives.
        return _stream, (self.spawn()._test_seed,)

    def normal(self, size: int) -> Floats:
        return self._generator.standard_normal(size)

    def rounded_normal(self, scale: float, size: int) -> Integers:
        _check_scale(scale)
        if size < _SMALL:
            return np.rint(self._generator.normal(0.0, scale, size)).astype(np.int64)
        draws = np.empty(size, dtype=np.int64)

        def keep(start: int, part: Floats) -> None:
            draws[start : start + part.size] = part

        self._spread_rounded_normal(scale, size, keep)
        return draws

    def _spread_rounded_normal(self, scale: float, size: int, work: Callable[[int, Floats], None]) -> None:
        if size < _LARGE:
            _draw_rounded_normal(self._blocks[0], scale, 0, size, work)
            return
        # NumPy lets go of the interpreter while it works: the lanes draw their parts side by side.
        edges = [size * lane // _LANES for lane in range(_LANES + 1)]
        each = self._blocks, repeat(scale), edges[:-1], edges[1:], repeat(work)
        side_by_side(_draw_rounded_normal, *each)

    def uniform(self, size: int) -> Floats:
        return self._generator.random(size)

    def laplace(self, size: int) -> Floats:
        return self._generator.laplace(size=size)

    def integers(self, high: int, size: int) -> Integers:
        return self._generator.integers(high, size=size, dtype=np.int64)

    def bernoulli(self, rate: float, size: int) -> Bools:
        """Return independent coins; the chance of heads is `rate` to within 2⁻⁵³."""
        return self._generator.random(size) < rate

    def discrete_laplace(self, scale: float, size: int) -> Integers:
        if not self.private:
            return _seeded_discrete_laplace(self._generator, scale, size)
        return self._exactly("laplace", _exact_discrete_laplace, scale, size)

    def discrete_gaussian(self, scale: float, size: int) -> Integers:
        if not self.private:
            return _seeded_discrete_gaussian(self._generator, scale, size)
        return self._exactly("gaussian", _exact_discrete_gaussian, scale, size)

    def _exactly(self, name: str, draw: Callable[..., Integers], scale: float, size: int) -> Integers:
        """Draw few numbers by OpenDP, many in blocks: draws that are rejected then need little memory."""
        if size < _SMALL or not _LEAST_EXACT <= scale <= _LARGEST_SCALE:
            return _opendp_draws(name, scale, size)
        sizes = [min(_BLOCK, size - start) for start in range(0, size, _BLOCK)]
        return np.concatenate([draw(self._generator, scale, part) for part in sizes])

    @cached_property
    def _blocks(self) -> list[_Blocks]:
        """The generators of large draws."""
        return [_Blocks(self._key(f"{lane}/blocks")) for lane in range(_LANES)]

    def _rekey(self) -> None:
        self._generator = _aes_generator(self._key("0"))
        self.__dict__.pop("_blocks", None)

    def _key(self, label: str) -> bytes:
        if self._test_seed is None:
            return os.urandom(_KEY_BYTES)
        return hashlib.sha256(f"sfumato test stream {self._test_seed}/{label}".encode()).digest()


class _Blocks:
    """Make random doubles by the block, from AES-128 in counter mode by OpenSSL, in a third of NumPy's time."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._cipher = Cipher(algorithms.AES(key[:16]), modes.CTR(key[16:])).encryptor()
        self._lock = threading.Lock()  # a cipher takes no second caller

    def fill(self, out: Floats) -> None:
        """Fill at most a block with uniform draws from [1, 2), of 52 random bits."""
        words = out.view(np.uint64)
        with self._lock:
            filled = self._cipher.update_into(_NOTHING[: out.nbytes], out.view(np.uint8).data)
        if filled != out.nbytes:
            raise RuntimeError(f"expected at most {_BLOCK} places to fill, got {out.size}")
        words >>= np.uint64(12)
        words |= _FROM_ONE_TO_TWO


def _aes_generator(key: bytes) -> np.random.Generator:
    halves = int.from_bytes(key[:16], "little"), int.from_bytes(key[16:], "little")
    return np.random.Generator(AESCounter(key=halves[0], counter=halves[1]))


def keyed_normal(key: bytes, size: int) -> Floats:
    """Return standard normal draws that the same 32 bytes give again: for noise that a later step takes back.

    The key is a secret of its own, from a secret stream, and belongs to one vector.
    """
    if len(key) != _KEY_BYTES:
        raise InvalidInput(f"expected a key of {_KEY_BYTES} bytes, got {len(key)}; draw one from a sampler")
    return _aes_generator(key).standard_normal(size)


def side_by_side(work: Callable[..., None], *arguments: Iterable[Any]) -> None:
    """Call work(*one of each) for all arguments, on the threads of large draws."""
    list(_threads().map(work, *arguments))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """Return the threads of large draws; a forked child makes its own."""
    return ThreadPoolExecutor(min(_LANES, os.cpu_count() or 1), "noise")


def spread_rounded_normal(
    sampler: NoiseSource, scale: float, size: int, work: Callable[[int, Floats], None]
) -> None:
    """Call work(start, draws) for all of `size` draws of `sampler.rounded_normal`, whole numbers in float64.

    Of a secret stream's many draws each part is worked on while it is in the cache, several parts at a time;
    `work` may overwrite its draws.
    """
    # A subclass, or a test, that draws in another way must not be passed over.
    plain = isinstance(sampler, SecretStream) and type(sampler).rounded_normal is _STREAMS_OWN
    if isinstance(sampler, SecretStream) and plain and size >= _SMALL:
        sampler._spread_rounded_normal(_check_scale(scale), size, work)
    else:
        work(0, sampler.rounded_normal(scale, size).astype(np.float64))


_STREAMS_OWN = SecretStream.rounded_normal


def _check_scale(scale: float) -> float:
    if not 0 <= scale <= _LARGEST_SCALE:
        raise InvalidInput(
            f"expected scale in [0, 2**52], got scale={scale!r}; choose a coarser grid for the sums"
        )
    return scale


def _draw_rounded_normal(
    blocks: _Blocks, scale: float, start: int, stop: int, work: Callable[[int, Floats], None]
) -> None:
    """Draw scale·Z, rounded, for places start to stop, Z by pairs r·cos φ, r·sin φ (Box & Muller 1958).

    Half the time of NumPy's ziggurat, whose branches do not vectorise; |Z| ends at 8.49, beyond which an ideal
    normal goes with a chance of 2e-17. No torch here: once its OpenMP has been used from these threads, all its
    work on the main thread takes up to twice as long, and it does not survive a fork.
    """
    room = min(_BLOCK, stop - start + 1)
    uniform, scratch = np.empty(room), np.empty(room // 2)
    for first in range(start, stop, _BLOCK):
        size = min(_BLOCK, stop - first)
        pairs = (size + 1) // 2
        noise = uniform[: 2 * pairs]
        blocks.fill(noise)
        _box_muller(noise[:pairs], noise[pairs:], scratch[:pairs], scale)
        work(first, np.rint(noise, out=noise)[:size])


def _box_muller(first: Floats, second: Floats, scratch: Floats, scale: float) -> None:
    """Turn two arrays of uniforms in [1, 2) into independent normals of the given scale, in place.

    With t = tan(φ/2) and q = 2r/(1+t²): r·cos φ = q − r and r·sin φ = q·t, as NumPy has a vectorised tangent
    for float64 but neither sine nor cosine. φ/2 is from [π, 2π), where the tangent is that of [0, π).
    """
    # r = √(−2 ln(2 − u)); 2 − u is exact and in (0, 1], so its logarithm is finite.
    np.subtract(2.0, first, out=first)
    np.log(first, out=first)
    first *= -2.0 * scale**2
    np.sqrt(first, out=first)
    second *= math.pi
    np.tan(second, out=second)
    np.multiply(second, second, out=scratch)
    scratch += 1.0
    np.divide(first, scratch, out=scratch)
    scratch += scratch
    second *= scratch
    np.subtract(scratch, first, out=first)


def _stream(test_seed: int | None) -> SecretStream:
    return SecretStream(test_seed=test_seed)


def _seeded_discrete_laplace(generator: np.random.Generator, scale: float, size: int) -> Integers:
    heads = -np.expm1(-1.0 / scale)
    return generator.geometric(heads, size) - generator.geometric(heads, size)


def _seeded_discrete_gaussian(generator: np.random.Generator, scale: float, size: int) -> Integers:
    """Rejection from a discrete Laplace (Canonne, Kamath & Steinke 2020, algorithm 3), in doubles."""
    width = np.floor(scale) + 1.0
    accepted = np.empty(0, dtype=np.int64)
    while accepted.size < size:
        proposals = _seeded_discrete_laplace(generator, width, 2 * size)
        chance = np.exp(-((np.abs(proposals) - scale**2 / width) ** 2) / (2.0 * scale**2))
        accepted = np.concatenate([accepted, proposals[generator.random(2 * size) < chance]])
    return accepted[:size]


def _exact_discrete_laplace(generator: np.random.Generator, scale: float, size: int) -> Integers:
    """Draw P(z) ∝ exp(−|z| / scale), exactly, many at once: 60 times as fast as one after another.

    With scale = n/d, X = U + nV of U from 0 to n − 1 kept with chance exp(−U/n) and P(V = v) ∝ e⁻ᵛ; ⌊X/d⌋ with
    a fair sign, and 0 with one sign only (Canonne, Kamath & Steinke 2020, algorithm 2).
    """
    numerator, divisor = float(scale).as_integer_ratio()
    accepted, missing = [np.empty(0, dtype=np.int64)], size
    while missing > 0:
        low = generator.integers(numerator, size=2 * missing + 64, dtype=np.int64)

        def exact(at: int, low: Integers = low) -> Fraction:
            return Fraction(int(low[at]), numerator)

        low = low[_coins(generator, low / numerator, exact)]
        value = (low + numerator * _natural_geometric(generator, low.size)) // divisor
        negative = generator.integers(2, size=low.size, dtype=np.int64)
        value = np.where(negative == 1, -value, value)[(negative == 0) | (value > 0)]
        accepted.append(value[:missing])
        missing -= accepted[-1].size
    return np.concatenate(accepted)


def _exact_discrete_gaussian(generator: np.random.Generator, scale: float, size: int) -> Integers:
    """Draw P(z) ∝ exp(−z² / 2·scale²), exactly (the same, algorithm 3).

    A discrete Laplace y of width t = ⌊scale⌋ + 1 is kept with chance exp(−(|y| − scale²/t)² / 2·scale²).
    """
    width, square = math.floor(scale) + 1, Fraction(scale) ** 2
    accepted, missing = [np.empty(0, dtype=np.int64)], size
    while missing > 0:
        value = _exact_discrete_laplace(generator, float(width), 2 * missing + 64)
        exponents = (np.abs(value) - scale**2 / width) ** 2 / (2.0 * scale**2)

        def exact(at: int, value: Integers = value) -> Fraction:
            return (abs(int(value[at])) - square / width) ** 2 / (2 * square)

        accepted.append(value[_coins(generator, exponents, exact)][:missing])
        missing -= accepted[-1].size
    return np.concatenate(accepted)


def _natural_geometric(generator: np.random.Generator, size: int) -> Integers:
    """Draw P(v) = (1 − 1/e) e⁻ᵛ: the number of coins of chance 1/e that fall on heads in a row."""
    found, going = np.zeros(size, dtype=np.int64), np.arange(size)
    while going.size:
        going = going[_coins(generator, np.ones(going.size), lambda at: Fraction(1))]
        found[going] += 1
    return found


def _coins(generator: np.random.Generator, exponents: Floats, exact: Callable[[int], Fraction]) -> Bools:
    """Throw coins with chances exp(−exponents), exactly.

    A coin is a uniform number below its chance. Its first 53 bits and a chance in doubles, right to 2⁻⁴⁹ (as
    `exponents` are to 2⁻⁵⁰), decide nearly always; where they do not, further bits and digits do.
    """
    uniform, chance = generator.random(exponents.size), np.exp(-exponents)
    heads = uniform < chance
    for at in np.flatnonzero(np.abs(uniform - chance) < _UNSURE):
        heads[at] = _surely_below(int(uniform[at] * 2.0**53), exact(int(at)), generator)
    return heads


def _surely_below(first: int, exponent: Fraction, generator: np.random.Generator) -> bool:
    """Return whether a uniform number with these first 53 bits lies below exp(−exponent)."""
    bits, digits = 53, 40
    while True:
        with localcontext() as context:
            context.prec = digits
            chance = (-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
            error = Decimal(10) ** (4 - digits)  # two roundings, of an exponent below 100
            low, high = (Decimal(first + more) / Decimal(2**bits) for more in (0, 1))
            if high < chance - error or low > chance + error:
                return bool(high < chance)
        first, bits, digits = (first << 32) | int(generator.integers(2**32)), bits + 32, digits + 10


def _opendp_draws(name: str, scale: float, size: int) -> Integers:
    """Draw exact discrete noise by OpenDP, from the operating system's generator; one call for all draws."""
    return np.array(_opendp_measurement(name, scale)([0] * size), dtype=np.int64)


@lru_cache(maxsize=64)
def _opendp_measurement(name: str, scale: float) -> Callable[[list[int]], list[int]]:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if name == "laplace":
        make, metric = dp.m.make_laplace, dp.l1_distance(T="i64")
    else:
        make, metric = dp.m.make_gaussian, dp.l2_distance(T="i64")
    measurement: Callable[[list[int]], list[int]] = make(domain, metric, scale)
    return measurement


_live_streams: weakref.WeakSet[SecretStream] = weakref.WeakSet()


def _rekey_after_fork() -> None:
    _threads.cache_clear()  # threads do not survive a fork
    # A seeded stream is keyed anew as well: parent and child drawing the same noise is never wanted.
    for stream in list(_live_streams):
        stream._test_seed = None if stream.private else int.from_bytes(os.urandom(8), "big")
        stream._rekey()


os.register_at_fork(after_in_child=_rekey_after_fork)
