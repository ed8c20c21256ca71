"""Events as keys: whatever they hold, at whatever depth."""

from __future__ import annotations

import pytest
from dp_accounting import dp_event

from sfumato.accounting import pure
from sfumato.accounting.events import hashable

NESTED = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1.0), pure(0.5)])


@pytest.mark.parametrize(
    "event",
    [
        NESTED,
        dp_event.SelfComposedDpEvent(NESTED, 3),
        dp_event.PoissonSampledDpEvent(0.1, dp_event.SelfComposedDpEvent(NESTED, 2)),
        dp_event.MixtureOfGaussiansDpEvent(1.0, [1.0, 2.0], [0.5, 0.5]),
    ],
)
def test_an_event_is_the_same_key_each_time_and_the_same_event(event):
    key = hashable(event)
    assert {key: 1}[hashable(event)] == 1
    assert type(key) is type(event)
    assert hashable(key) == key


def test_other_events_are_other_keys():
    assert hashable(dp_event.ComposedDpEvent([pure(0.5)])) != hashable(dp_event.ComposedDpEvent([pure(0.4)]))
