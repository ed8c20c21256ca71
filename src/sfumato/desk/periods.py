"""Calendar periods, in UTC: an allocation of one a quarter has a share of the ledger for each quarter."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import NamedTuple

from sfumato import _validate

PERIODS = {"once": 0, "month": 1, "quarter": 3, "year": 12}
"""Months of each; "once" has no end."""
MOST_PERIODS = 120


class Window(NamedTuple):
    """When a share may be spent."""

    label: str
    begins: float
    ends: float | None


def windows(period: str, count: int, *, now: float) -> list[Window]:
    """The period that `now` is in, and those after it.

    >>> [one.label for one in windows("quarter", 3, now=1_800_000_000)]
    ['2027-Q1', '2027-Q2', '2027-Q3']
    """
    months = PERIODS[_validate.one_of("period", period, PERIODS)]
    if not months:
        return [Window("", 0.0, None)]
    count = _validate.integer("periods", count, least=1)
    _validate.one_of("periods", count, range(1, MOST_PERIODS + 1), remedy="choose fewer")
    today = datetime.fromtimestamp(now, UTC)
    first = (today.year * 12 + today.month - 1) // months * months
    starts = [first + months * place for place in range(count + 1)]
    return [
        Window(_label(period, start), _time(start), _time(end)) for start, end in itertools.pairwise(starts)
    ]


def _time(month: int) -> float:
    return datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp()


def _label(period: str, month: int) -> str:
    year, rest = divmod(month, 12)
    if period == "year":
        return f"{year}"
    return f"{year}-Q{rest // 3 + 1}" if period == "quarter" else f"{year}-{rest + 1:02}"
