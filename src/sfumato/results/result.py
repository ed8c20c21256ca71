"""What every result has: a kind, and a format by which later versions read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato.results.record import Record

FORMAT = 2
"""1 had no number, and "algorithm" or "stage" in the place of "kind"; see `results.format_1`."""


@dataclass(frozen=True, kw_only=True)
class Result(Record):
    """What a run of one kind found: nothing in it but what was paid for or computed on public data."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "format": FORMAT, **super().to_json()}
