"""A pytest fixture that points record and replay at your own code.

    def test_my_release(replay):
        replay(pipeline, rows, rows[:-1])

`pipeline(data, sampler)` returns its published outputs, or a `ReplayOutcome` that says which parts went through
noise and with which sensitivity. The test fails with a list of all that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sfumato.audit.replay import ReplayReport


@pytest.fixture
def replay() -> Callable[..., ReplayReport]:
    """Runs a pipeline on a data set and on a neighbour with the same noise, and fails where they differ."""
    from sfumato.audit.replay import replay as run_both
    from sfumato.randomness import SecretStream

    def check(pipeline: Callable[[Any, Any], Any], data: Any, neighbour: Any, *, seed: int = 0) -> ReplayReport:
        report = run_both(pipeline, data, neighbour, sampler=SecretStream(test_seed=seed))
        report.require()
        return report

    return check
