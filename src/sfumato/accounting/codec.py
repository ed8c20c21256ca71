"""Events as JSON, so that anyone can recompute an ε from a certificate."""

from __future__ import annotations

from typing import Any

import attr

from sfumato.accounting import events
from sfumato.accounting.events import DpEvent
from sfumato.errors import InvalidInput

_KINDS: dict[str, type[Any]] = {
    "none": events.NoEvent,
    "non-private": events.NonPrivateEvent,
    "gaussian": events.GaussianEvent,
    "laplace": events.LaplaceEvent,
    "discrete-gaussian": events.DiscreteGaussianEvent,
    "discrete-laplace": events.DiscreteLaplaceEvent,
    "randomized-response": events.RandomizedResponseEvent,
    "exponential-mechanism": events.ExponentialMechanismEvent,
    "approximate": events.ApproximateEvent,
    "mixture-of-gaussians": events.MixtureOfGaussiansEvent,
    "poisson-sampled": events.PoissonSampledEvent,
    "repeated": events.RepeatedEvent,
    "repeat-and-select": events.RepeatAndSelectEvent,
    "composed": events.ComposedEvent,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """A plain dictionary that `event_from_json` turns back into an equal event.

    >>> event_to_json(events.GaussianEvent(2.0))
    {'kind': 'gaussian', 'noise_multiplier': 2.0}
    """
    try:
        name = _NAMES[type(event)]
    except KeyError:
        raise InvalidInput(
            f"expected an event of one of the kinds {', '.join(_KINDS)}, got {type(event).__name__}"
        ) from None
    fields = {field.name: _encode(getattr(event, field.name)) for field in attr.fields(type(event))}
    return {"kind": name, **fields}


def event_from_json(data: dict[str, Any]) -> DpEvent:
    """The event that a dictionary describes; anything unknown in it is refused."""
    fields = dict(data)
    name = fields.pop("kind", None)
    if name not in _KINDS:
        raise InvalidInput(f"expected kind to be one of {', '.join(_KINDS)}, got kind={name!r}")
    known = {field.name for field in attr.fields(_KINDS[name])}
    if set(fields) != known:
        raise InvalidInput(f"expected the fields {sorted(known)} of a {name} event, got {sorted(fields)}")
    return _KINDS[name](**{key: _decode(value) for key, value in fields.items()})


def _encode(value: Any) -> Any:
    if isinstance(value, DpEvent):
        return event_to_json(value)
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return event_from_json(value)
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return value
