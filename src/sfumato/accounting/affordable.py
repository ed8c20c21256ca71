"""Whether an event from outside can be priced in seconds, decided before anything is computed."""

from __future__ import annotations

import math
from functools import singledispatch

from sfumato.accounting.events import (
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    DpEvent,
    GaussianEvent,
    GaussianSharesEvent,
    MixtureOfGaussiansEvent,
    PoissonSampledEvent,
    RandomizedResponseEvent,
    RepeatAndSelectEvent,
    gives_everything,
    merged,
)
from sfumato.errors import InvalidInput

MOST_KINDS_OF_RELEASE = 64
MOST_RELEASES = 10**12
MOST_WORK = 2.0**20
"""Of one kind of release, in points at which its noise is looked at."""


def check_affordable(event: DpEvent) -> None:
    """Raise InvalidInput for an event whose price would take minutes, or more memory than there is.

    Args:
        event: What is to be priced.

    Raises:
        InvalidInput: If it has too many releases or parts.

    >>> from sfumato.accounting import LaplaceEvent, repeat
    >>> check_affordable(repeat(LaplaceEvent(2.0), 1000))
    >>> check_affordable(repeat(LaplaceEvent(2.0), 10**15))
    Traceback (most recent call last):
        ...
    sfumato.errors.InvalidInput: expected at most 1e+12 releases, got 1e+15; nobody makes so many
    """
    parts = merged(event)
    if len(parts) > MOST_KINDS_OF_RELEASE:
        raise InvalidInput(
            f"expected at most {MOST_KINDS_OF_RELEASE} kinds of release in one event, got {len(parts)}; "
            "state one certificate for each part"
        )
    releases = sum(parts.values())
    if releases > MOST_RELEASES:
        raise InvalidInput(
            f"expected at most {MOST_RELEASES:g} releases, got {_size(releases)}; nobody makes so many"
        )
    for part in parts:
        if not gives_everything(part) and not _work(part) <= MOST_WORK:
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
def _(event: GaussianEvent | GaussianSharesEvent) -> float:
    return 1.0 if 1e-100 < event.noise_multiplier < 1e100 else math.inf


@_work.register
def _(event: DiscreteGaussianEvent) -> float:
    return max(event.sigma, event.sensitivity)  # every whole number near the centre


@_work.register
def _(event: DiscreteLaplaceEvent) -> float:
    return event.sensitivity / 8


@_work.register
def _(event: RandomizedResponseEvent) -> float:
    return 1.0 if event.num_buckets < 2**53 else math.inf


@_work.register
def _(event: PoissonSampledEvent) -> float:
    return _work(event.event)


@_work.register
def _(event: MixtureOfGaussiansEvent) -> float:
    # Its loss has no closed inverse, and the line of the quadrature is as long as the largest shift.
    usual = 1e-6 <= max(event.sensitivities) / event.standard_deviation <= 4
    return 2.0**16 * len(event.sensitivities) if usual else math.inf


@_work.register
def _(event: RepeatAndSelectEvent) -> float:
    check_affordable(event.event)
    return 1.0 if event.mean <= 1e9 and (event.shape == math.inf or event.shape <= 1e6) else math.inf
