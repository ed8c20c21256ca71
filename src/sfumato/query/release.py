"""Exact sums → noisy answers, each with its 95% interval. Everything after the noise is post-processing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato.query import quantiles
from sfumato.query.intervals import Floats, discrete_half_width, half_width, ratio_interval
from sfumato.query.noise import Integers, Price, WholeLaplace
from sfumato.query.plan import Aggregate, Cells, ClippedSum, Measure, Moments, UnitCount
from sfumato.randomness import Sampler

_MEAN_SHARES = {1: np.array([0.0, 1.0]), 2: np.array([0.0, 0.5, 1.0])}
_SQUARE_SHARES = np.array([0.0, 0.0, 1.0])


@dataclass(frozen=True)
class Noisy:
    """A measure's noisy numbers: (groups, numbers), or a tree for cells."""

    measure: Measure
    noise: WholeLaplace
    parts: Integers
    tree: quantiles.Tree | None = None


@dataclass(frozen=True)
class Estimate:
    """One aggregate for every group: values and the ends of their 95% intervals."""

    values: npt.NDArray[np.float64] | npt.NDArray[np.int64]
    low: Floats
    high: Floats


def parts_of(position: int, measure: Measure, exact: Mapping[str, Integers]) -> Integers:
    """The whole numbers that a linear measure releases, from the engine's sums; (groups, numbers)."""
    if isinstance(measure, UnitCount):
        return exact["units"][:, None]
    if isinstance(measure, ClippedSum):
        return exact[f"s{position}"][:, None]
    assert isinstance(measure, Moments)
    if measure.of is None:
        return exact["rows"][:, None]
    count = exact[f"n{position}"]
    parts = _moment_parts(position, measure, count, exact)
    if measure.missing:
        parts.append((exact["rows"] - count) * measure.span)
    return np.stack(parts, axis=1)


def _moment_parts(
    position: int, measure: Moments, count: Integers, exact: Mapping[str, Integers]
) -> list[Integers]:
    if measure.degree == 0:
        return [count]
    mass = count * measure.span
    if measure.degree == 1:
        return [mass - exact[f"s{position}"], exact[f"s{position}"]]
    low, high = exact[f"l{position}"], exact[f"h{position}"]
    return [low, mass - low - high, high]


def add_noise(
    price: Price, exact: Mapping[str, Integers], cells: Sequence[Integers], sampler: Sampler
) -> tuple[Noisy, ...]:
    """Every measure's numbers with their noise; `cells` holds the counts of each Cells measure in turn."""
    found, waiting, position = [], iter(cells), 0
    for measure, noise in zip(price.measures, price.noises, strict=True):
        if isinstance(measure, Cells):
            tree = quantiles.noisy_tree(measure, next(waiting), noise, sampler)
            found.append(Noisy(measure, noise, np.zeros((0, 0), dtype=np.int64), tree))
        else:
            parts = noise.release(parts_of(position, measure, exact), sampler)
            found.append(Noisy(measure, noise, parts))
            position += 1
    return tuple(found)


def estimate(aggregate: Aggregate, noisy: Sequence[Noisy]) -> Estimate:
    """An aggregate, from the measure that was planned for it."""
    source = next(item for item in noisy if answers(item.measure, aggregate))
    if source.tree is not None:
        return Estimate(*quantiles.quantile(source.tree, aggregate.level))
    return _LINEAR[aggregate.function](source, aggregate)


def answers(measure: Measure, aggregate: Aggregate) -> bool:
    if aggregate.function == "count_units":
        return isinstance(measure, UnitCount)
    if aggregate.function == "quantile":
        return isinstance(measure, Cells) and measure.of == aggregate.of
    if aggregate == Aggregate("count"):
        return isinstance(measure, Moments) and (measure.of is None or measure.missing)
    if isinstance(measure, ClippedSum):
        return aggregate.function == "sum" and measure.of == aggregate.of
    enough = aggregate.function == "count" or (isinstance(measure, Moments) and measure.degree > 0)
    return isinstance(measure, Moments) and measure.of == aggregate.of and enough


def _linear(source: Noisy, weights: Sequence[float]) -> Estimate:
    """Σ wᵢ eᵢ: its noise is the same in every group."""
    values = source.parts @ np.asarray(weights, dtype=float)
    width = half_width([weights])[0] * source.noise.scale
    return Estimate(values, values - width, values + width)


def _whole_number(source: Noisy) -> Estimate:
    values = source.parts[:, 0]
    exact = source.noise.discrete
    width = discrete_half_width(source.noise.scale) if exact else half_width([[1.0]])[0] * source.noise.scale
    return Estimate(values, (values - width).astype(float), (values + width).astype(float))


def _count(source: Noisy, aggregate: Aggregate) -> Estimate:
    measure = source.measure
    assert isinstance(measure, Moments)
    if source.parts.shape[1] == 1:
        return _whole_number(source)
    weights = np.full(source.parts.shape[1], 1 / measure.span)
    if measure.missing and aggregate.of is not None:
        weights[-1] = 0.0
    found = _linear(source, weights.tolist())
    return Estimate(np.rint(found.values).astype(np.int64), found.low, found.high)


def _units(source: Noisy, aggregate: Aggregate) -> Estimate:
    return _whole_number(source)


def _sum(source: Noisy, aggregate: Aggregate) -> Estimate:
    measure = source.measure
    if isinstance(measure, ClippedSum):
        return _linear(source, [measure.fixed.grid])
    assert isinstance(measure, Moments)
    fixed = measure.fixed
    weights = [fixed.lower / fixed.span + fixed.grid * share for share in _MEAN_SHARES[measure.degree]]
    return _linear(source, weights + [0.0] * measure.missing)


def _average(source: Noisy, aggregate: Aggregate) -> Estimate:
    measure = source.measure
    assert isinstance(measure, Moments)
    shares = _MEAN_SHARES[measure.degree]
    parts = source.parts[:, : len(shares)].astype(float)
    total = parts.sum(axis=1)
    low, high = ratio_interval(parts, shares, source.noise.scale)
    unknown = (low == 0.0) & (high == 1.0)  # noise could hide the whole group: say the middle
    ratio = np.where(unknown, 0.5, parts @ shares / np.where(unknown, 1.0, total))
    return Estimate(*(_unscaled(measure, item) for item in (ratio, low, high)))


def _unscaled(measure: Moments, ratio: Floats) -> Floats:
    fixed = measure.fixed
    return np.clip(fixed.lower + ratio * fixed.span * fixed.grid, fixed.lower, fixed.upper)


def _variance(source: Noisy, aggregate: Aggregate) -> Estimate:
    """E[z²] − E[z]² with first-order error propagation; of a sample unless the function says population."""
    measure = source.measure
    assert isinstance(measure, Moments)
    shares, squares = _MEAN_SHARES[2], _SQUARE_SHARES
    parts = source.parts[:, :3].astype(float)
    total = parts.sum(axis=1)
    clear = total > 4 * half_width([[1.0, 1.0, 1.0]])[0] * source.noise.scale
    safe = np.where(total > 0, total, 1.0)
    mean, square = parts @ shares / safe, parts @ squares / safe
    gradient = (squares - square[:, None]) - 2 * mean[:, None] * (shares - mean[:, None])
    width = half_width(gradient / safe[:, None]) * source.noise.scale
    spread = np.where(clear, square - mean**2, 0.125)
    low, high = np.where(clear, spread - width, 0.0), np.where(clear, spread + width, 0.25)
    people = np.maximum(total / measure.span, 2.0)
    sample = 1.0 if aggregate.function.endswith("_pop") else people / (people - 1)
    unit = (measure.fixed.span * measure.fixed.grid) ** 2 * sample
    return Estimate(*(np.clip(item, 0.0, 0.25) * unit for item in (spread, low, high)))


def _deviation(source: Noisy, aggregate: Aggregate) -> Estimate:
    found = _variance(source, aggregate)
    return Estimate(np.sqrt(found.values), np.sqrt(found.low), np.sqrt(found.high))


_LINEAR = {
    "count": _count,
    "count_units": _units,
    "sum": _sum,
    "avg": _average,
    "var": _variance,
    "var_pop": _variance,
    "stddev": _deviation,
    "stddev_pop": _deviation,
}
