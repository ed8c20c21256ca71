"""Record and replay: run a whole pipeline on D and on its neighbour D′ with the same noise, and compare.

All that is public must be equal: sizes, counts, names, charges, files, errors, and which draws were asked for.
A noisy release may differ by at most the declared sensitivity: with the noise frozen, the difference of
two releases is the difference of their exact inputs.

    def pipeline(rows, sampler):
        total = Gaussian(sensitivity=1, sigma=4).release(float(rows.clip(0, 1).sum()), sampler)
        released = {"total": ReplayedRelease(total, sensitivity=1)}
        return ReplayOutcome(public={"unit": "person"}, released=released)

    replay(pipeline, rows, rows[:-1]).require()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sfumato import randomness
from sfumato.errors import Refused
from sfumato.randomness import Bools, Floats, Integers, Sampler
from sfumato.schema import Model

Data = TypeVar("Data")
_PER_UNIT = ("uniform", "bernoulli")
"""Draws of which each record has one: their number may differ between neighbours, as it is not released."""


class Departed(Refused):
    """The replayed run asked for other randomness than the recorded one: its draws depend on the data."""


@dataclass(frozen=True)
class Draw:
    name: str
    arguments: tuple[float, ...]
    values: npt.NDArray[Any]


@dataclass
class RecordingSampler:
    """Hand a sampler's draws through and keep them.

    Args:
        inner: The sampler.
        tape: Where draws are kept.

    >>> from sfumato.randomness import SecretStream
    >>> recording = RecordingSampler(SecretStream())
    >>> _ = recording.normal(3)
    >>> len(recording.tape)
    1
    """

    inner: Sampler
    tape: list[Draw] = field(default_factory=list)
    private: bool = field(default=False, init=False)  # the tape reveals the noise

    def _keep(self, name: str, *arguments: float) -> npt.NDArray[Any]:
        values = getattr(self.inner, name)(*arguments)
        self.tape.append(Draw(name, arguments, values.copy()))
        return values

    def normal(self, size: int) -> Floats:
        return self._keep("normal", size)

    def rounded_normal(self, scale: float, size: int) -> Integers:
        return self._keep("rounded_normal", scale, size)

    def uniform(self, size: int) -> Floats:
        return self._keep("uniform", size)

    def laplace(self, size: int) -> Floats:
        return self._keep("laplace", size)

    def integers(self, high: int, size: int) -> Integers:
        return self._keep("integers", high, size)

    def bernoulli(self, rate: float, size: int) -> Bools:
        return self._keep("bernoulli", rate, size)

    def discrete_laplace(self, scale: float, size: int) -> Integers:
        return self._keep("discrete_laplace", scale, size)

    def discrete_gaussian(self, scale: float, size: int) -> Integers:
        return self._keep("discrete_gaussian", scale, size)


@dataclass
class ReplayingSampler(RecordingSampler):
    """Play a tape; asking for anything that is not on it, in its turn, raises `Departed`.

    Draws of which each record has one may be more or fewer: the first ones are played, further ones drawn.

    Args:
        inner: Makes the draws that are not on the tape, where each record has a draw of its own.
        tape: Where the draws of this run are kept.
        recorded: The tape to play.

    >>> from sfumato.randomness import SecretStream
    >>> recording = RecordingSampler(SecretStream())
    >>> first = recording.normal(3)
    >>> bool((ReplayingSampler(SecretStream(), recorded=recording.tape).normal(3) == first).all())
    True
    """

    recorded: Sequence[Draw] = ()

    def _keep(self, name: str, *arguments: float) -> npt.NDArray[Any]:
        turn = len(self.tape)
        asked = f"draw {turn}: {name}{_shown(arguments)}"
        if turn >= len(self.recorded):
            raise Departed(f"{asked} was asked for on the neighbour only")
        expected = self.recorded[turn]
        per_unit = name in _PER_UNIT and arguments[:-1] == expected.arguments[:-1]
        if name != expected.name or (arguments != expected.arguments and not per_unit):
            raise Departed(f"{asked} on the neighbour, {expected.name}{_shown(expected.arguments)} before")
        values = self._fitted(expected.values, name, arguments)
        self.tape.append(Draw(name, arguments, values))
        return values.copy()

    def _fitted(self, values: npt.NDArray[Any], name: str, arguments: tuple[float, ...]) -> npt.NDArray[Any]:
        more = int(arguments[-1]) - values.size
        if more <= 0:
            return values[: values.size + more]
        return np.concatenate([values, getattr(self.inner, name)(*arguments[:-1], more)])

    @property
    def left(self) -> int:
        return len(self.recorded) - len(self.tape)


@dataclass(frozen=True)
class ReplayedRelease:
    """The output of a mechanism, and by how much its input may move: in L2 norm, or L1 for `norm=1`.

    Args:
        value: The output.
        sensitivity: By how much its input may move.
        norm: 2 for the L2 norm, 1 for the L1 norm.

    >>> ReplayedRelease(value=3.0, sensitivity=1.0).norm
    2
    """

    value: Any
    sensitivity: float
    norm: int = 2


@dataclass(frozen=True)
class ReplayOutcome:
    """The outputs that a pipeline publishes.

    Args:
        public: The outputs without noise; they must not differ at all.
        released: The outputs of mechanisms, by name.

    >>> ReplayOutcome(public={"steps": 10}).public["steps"]
    10
    """

    public: Any = None
    released: Mapping[str, ReplayedRelease] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayReport:
    """The forbidden differences, and how far each release moved, as a share of its sensitivity.

    Attributes:
        differences: The forbidden differences.
        movements: How far each release moved, as a share of its sensitivity.
    """

    differences: tuple[str, ...]
    movements: Mapping[str, float]

    @property
    def holds(self) -> bool:
        # Outputs are floats: a release of many grid steps is rounded to 24 bits after its noise.
        return not self.differences and all(share <= 1 + 1e-3 for share in self.movements.values())

    @property
    def findings(self) -> tuple[str, ...]:
        moved = (
            f"released {name} moved by {share:.3g} times its sensitivity"
            for name, share in self.movements.items()
            if not share <= 1 + 1e-3
        )
        return (*self.differences, *moved)

    def require(self) -> None:
        """Raise AssertionError with all findings, if there are any."""
        if not self.holds:
            raise AssertionError("the run on the neighbour differs in public:\n  " + "\n  ".join(self.findings))


def replay(
    pipeline: Callable[[Data, Sampler], Any], data: Data, neighbour: Data, *, sampler: Sampler | None = None
) -> ReplayReport:
    """Run a pipeline on two neighbouring data sets with the same draws, and compare.

    A pipeline returns a `ReplayOutcome`, or anything else, all of which is then public. Put the record that
    differs last, so that the others keep their draws.

    Args:
        pipeline: `pipeline(data, sampler)` returns a `ReplayOutcome`, or anything else, all of which is
            then public.
        data: One data set.
        neighbour: The other. Put the record that differs last, so that the others keep their draws.
        sampler: The secret stream.

    Returns:
        The differences.

    >>> replay(lambda data, sampler: len(data), [1, 2], [1, 2, 3]).differences != ()
    True
    """
    stream: Sampler = randomness.SecretStream() if sampler is None else sampler
    recorder = RecordingSampler(stream)
    one = _attempt(pipeline, data, recorder)
    player = ReplayingSampler(stream, recorded=recorder.tape)
    other = _attempt(pipeline, neighbour, player)
    differences = _compare("", one.public, other.public)
    if not differences and player.left:
        differences = [f"{player.left} draws were not asked for on the neighbour"]
    differences += [
        f"released {name} on one of both only" for name in sorted(one.released.keys() ^ other.released.keys())
    ]
    both = one.released.keys() & other.released.keys()
    movements = {name: _movement(one.released[name], other.released[name]) for name in sorted(both)}
    return ReplayReport(tuple(differences), movements)


def _attempt(pipeline: Callable[[Data, Sampler], Any], data: Data, sampler: Sampler) -> ReplayOutcome:
    try:
        result = pipeline(data, sampler)
    except Exception as error:  # of every type: an error that one data set causes is public
        return ReplayOutcome(public={"error": f"{type(error).__name__}: {error}"})
    return result if isinstance(result, ReplayOutcome) else ReplayOutcome(public=result)


def _movement(one: ReplayedRelease, other: ReplayedRelease) -> float:
    first, second = (np.asarray(release.value, dtype=np.float64).reshape(-1) for release in (one, other))
    if first.size != second.size:
        return float("inf")
    distance = float(np.linalg.norm(first - second, ord=one.norm))
    return distance / one.sensitivity if np.isfinite(distance) else float("inf")


def _compare(path: str, one: Any, other: Any) -> list[str]:
    """Paths at which two public values differ."""
    where = path or "public"
    if isinstance(one, Model) and type(one) is type(other):
        return _compare(path, one.to_json(), other.to_json())
    if is_dataclass(one) and type(one) is type(other) and not isinstance(one, type):
        names = [item.name for item in fields(one)]
        return _compare(path, {n: getattr(one, n) for n in names}, {n: getattr(other, n) for n in names})
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = [f"{where}: only one of both has {key!r}" for key in one.keys() ^ other.keys()]
        return keys + [
            line
            for key in one
            if key in other
            for line in _compare(f"{path}.{key}".lstrip("."), one[key], other[key])
        ]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return [f"{where}: {len(one)} items against {len(other)}"]
        return [
            line
            for i, pair in enumerate(zip(one, other, strict=True))
            for line in _compare(f"{path}[{i}]", *pair)
        ]
    if hasattr(one, "__array__") or hasattr(other, "__array__"):
        first, second = np.asarray(one), np.asarray(other)
        same = (
            first.shape == second.shape and first.dtype == second.dtype and first.tobytes() == second.tobytes()
        )
        return [] if same else [f"{where}: arrays differ, shapes {first.shape} and {second.shape}"]
    return [] if one == other or (one != one and other != other) else [f"{where}: {one!r} against {other!r}"]


def _shown(arguments: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{value:g}" for value in arguments) + ")"
