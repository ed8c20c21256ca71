"""Events as JSON, so that every reader can recompute an ε from a certificate, in seconds or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

from sfumato import _validate
from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.errors import InvalidInput

DEEPEST = 32
"""How far events may lie inside events; ours lie four deep."""

_Field = Callable[[str, Any, int], Any]  # name, JSON value, depth → value


def _number(name: str, value: Any, depth: int) -> float:
    return _validate.real(name, value) if not isinstance(value, int) else _whole(name, value, depth)


def _whole(name: str, value: Any, depth: int) -> int:
    _validate.real(name, value)  # neither a boolean nor beyond all floats
    return _validate.integer(name, value, least=-(10**18))


def _shape(name: str, value: Any, depth: int) -> float:
    return float("inf") if value == "inf" else _number(name, value, depth)


def _numbers(name: str, value: Any, depth: int) -> list[float]:
    return [_number(name, item, depth) for item in _listed(name, value)]


def _event(name: str, value: Any, depth: int) -> DpEvent:
    return _decode(value, depth + 1)


def _events(name: str, value: Any, depth: int) -> list[DpEvent]:
    return [_decode(item, depth + 1) for item in _listed(name, value)]


def _listed(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInput(f"expected {name} to be a list, got {name}={_validate.shown(value)}")
    return value


_KINDS: dict[str, tuple[type[Any], dict[str, _Field]]] = {
    "none": (events.NoEvent, {}),
    "non-private": (events.NonPrivateEvent, {}),
    "gaussian": (events.GaussianEvent, {"noise_multiplier": _number}),
    "clipped-gaussian": (events.ClippedGaussianEvent, {"noise_multiplier": _number}),
    "laplace": (events.LaplaceEvent, {"noise_multiplier": _number}),
    "discrete-gaussian": (events.DiscreteGaussianEvent, {"sigma": _number, "sensitivity": _whole}),
    "discrete-laplace": (events.DiscreteLaplaceEvent, {"noise_parameter": _number, "sensitivity": _whole}),
    "randomized-response": (
        events.RandomizedResponseEvent,
        {"noise_parameter": _number, "num_buckets": _whole},
    ),
    "gaussian-shares": (
        events.GaussianSharesEvent,
        {"noise_multiplier": _number, "share_sigma": _number, "shares": _whole, "dimension": _whole},
    ),
    "exponential-mechanism": (events.ExponentialMechanismEvent, {"epsilon": _number}),
    "approximate": (events.ApproximateEvent, {"epsilon": _number, "delta": _number}),
    "mixture-of-gaussians": (
        events.MixtureOfGaussiansEvent,
        {"standard_deviation": _number, "sensitivities": _numbers, "sampling_probs": _numbers},
    ),
    "poisson-sampled": (events.PoissonSampledEvent, {"sampling_probability": _number, "event": _event}),
    "repeated": (events.RepeatedEvent, {"event": _event, "count": _whole}),
    "repeat-and-select": (
        events.RepeatAndSelectEvent,
        {"event": _event, "mean": _number, "shape": _shape},
    ),
    "composed": (events.ComposedEvent, {"events": _events}),
}
_NAMES = {kind: name for name, (kind, _) in _KINDS.items()}


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """Return a plain dictionary that `event_from_json` turns back into an equal event.

    Raises:
        InvalidInput: If the event is of a kind that is not known here.

    >>> event_to_json(events.GaussianEvent(2.0))
    {'kind': 'gaussian', 'noise_multiplier': 2.0}
    """
    return _encode(event, 0)


def event_from_json(data: Any) -> DpEvent:
    """Return the event that a dictionary describes; anything that is not of its field's type is refused.

    The parameters' ranges are checked, too, so that an event that was read can be priced.

    Args:
        data: A dictionary of `event_to_json`.

    Raises:
        InvalidInput: If a field is missing, of another type or out of its range.

    >>> event_from_json({"kind": "gaussian", "noise_multiplier": 2.0})
    GaussianDpEvent(noise_multiplier=2.0)
    """
    event = _decode(data, 0)
    for _release in events.atoms(event):
        pass  # checked on the way
    return event


def _encode(event: DpEvent, depth: int) -> dict[str, Any]:
    if type(event) not in _NAMES:
        raise InvalidInput(
            f"expected an event of one of the kinds {', '.join(_KINDS)}, got {type(event).__name__}"
        )
    _check_depth(depth)
    name = _NAMES[type(event)]
    return {"kind": name, **{field: _plain(getattr(event, field), depth) for field in _KINDS[name][1]}}


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, DpEvent):
        return _encode(value, depth + 1)
    if isinstance(value, list | tuple):
        return [_plain(item, depth) for item in value]
    return "inf" if isinstance(value, float) and value == float("inf") else value


def _decode(data: Any, depth: int) -> DpEvent:
    _check_depth(depth)
    if not isinstance(data, Mapping):
        raise InvalidInput(f"expected an event to be an object with a kind, got {_validate.shown(data)}")
    name = data.get("kind")
    if not isinstance(name, str) or name not in _KINDS:
        raise InvalidInput(f"expected kind to be one of {', '.join(_KINDS)}, got kind={_validate.shown(name)}")
    kind, fields = _KINDS[name]
    if set(data) != {"kind", *fields}:
        raise InvalidInput(
            f"expected the fields {sorted(fields)} of a {name} event, got "
            f"{_validate.shown(sorted(map(str, set(data) - {'kind'})))}"
        )
    return kind(**{field: read(field, data[field], depth) for field, read in fields.items()})


def _check_depth(depth: int) -> None:
    if depth > DEEPEST:
        raise InvalidInput(f"expected events inside events at most {DEEPEST} deep, got more; flatten them")


# Events from outside

MOST_KINDS_OF_RELEASE = 64
MOST_RELEASES = 10**12
MOST_WORK = 2.0**20
"""Of one kind of release, in points at which its noise is looked at."""


def check_affordable(event: DpEvent) -> None:
    """Raise InvalidInput for an event whose price would take minutes, or more memory than there is.

    Raises:
        InvalidInput: If it has too many releases or parts.

    >>> from sfumato.accounting import LaplaceEvent, repeat
    >>> check_affordable(repeat(LaplaceEvent(2.0), 1000))
    >>> check_affordable(repeat(LaplaceEvent(2.0), 10**15))
    Traceback (most recent call last):
        ...
    sfumato.errors.InvalidInput: expected at most 1e+12 releases, got 1e+15; no one makes so many
    """
    parts = events.merged(event)
    if len(parts) > MOST_KINDS_OF_RELEASE:
        raise InvalidInput(
            f"expected at most {MOST_KINDS_OF_RELEASE} kinds of release in one event, got {len(parts)}; "
            "state one certificate for each part"
        )
    releases = sum(parts.values())
    if releases > MOST_RELEASES:
        raise InvalidInput(
            f"expected at most {MOST_RELEASES:g} releases, got {_size(releases)}; no one makes so many"
        )
    for part in parts:
        if not events.gives_everything(part) and not _work(part) <= MOST_WORK:
            raise InvalidInput(
                f"expected releases that can be priced in seconds, got a {type(part).__name__} with parameters "
                "beyond all use; its ε cannot be recomputed here"
            )


def _size(number: int) -> str:
    return f"{number:g}" if number < 10**300 else "more than 1e+300"


@singledispatch
def _work(event: DpEvent) -> float:
    return 1.0


@_work.register
def _(event: events.GaussianEvent | events.GaussianSharesEvent) -> float:
    return 1.0 if 1e-100 < event.noise_multiplier < 1e100 else math.inf


@_work.register
def _(event: events.DiscreteGaussianEvent) -> float:
    return max(event.sigma, event.sensitivity)  # every whole number near the centre


@_work.register
def _(event: events.DiscreteLaplaceEvent) -> float:
    return event.sensitivity / 8


@_work.register
def _(event: events.RandomizedResponseEvent) -> float:
    return 1.0 if event.num_buckets < 2**53 else math.inf


@_work.register
def _(event: events.PoissonSampledEvent) -> float:
    return _work(event.event)


@_work.register
def _(event: events.MixtureOfGaussiansEvent) -> float:
    # Its loss has no closed inverse, and the line of the quadrature is as long as the largest shift.
    usual = 1e-6 <= max(event.sensitivities) / event.standard_deviation <= 4
    return 2.0**16 * len(event.sensitivities) if usual else math.inf


@_work.register
def _(event: events.RepeatAndSelectEvent) -> float:
    check_affordable(event.event)
    return 1.0 if event.mean <= 1e9 and (event.shape == math.inf or event.shape <= 1e6) else math.inf
