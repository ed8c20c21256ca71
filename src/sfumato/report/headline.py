"""The one sentence that the page begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.report.numbers import figure, percent, power
from sfumato.report.releases import ReleaseRow

_STRICT = 1.05  # an ε of about 1


@dataclass(frozen=True, kw_only=True)
class Headline:
    """`before` and `after` stand around `figure`, which is set apart; `text` is all of it."""

    before: str
    figure: str
    after: str
    lede: str

    @property
    def text(self) -> str:
        return " ".join(part for part in (self.before, self.figure, self.after) if part)

    @classmethod
    def of(cls, rows: Sequence[ReleaseRow], examples: str = "examples") -> Headline:
        """The best release at ε of about 1 or less, against the same method without privacy, if it was run."""
        best = _best([row for row in rows if row.epsilon is not None])
        if best is None:
            return _without_accuracy(rows)
        without = [row for row in rows if row.epsilon is None and row.accuracy is not None]
        plain = max(
            [row for row in without if row.method == best.method] or without, key=_accuracy, default=None
        )
        if plain is None:
            right = percent(_accuracy(best))
            return cls(before="Right", figure=right, after="of the time", lede=_price(best))
        return _difference(plain, best, examples)


def _best(private: Sequence[ReleaseRow]) -> ReleaseRow | None:
    measured = [row for row in private if row.accuracy is not None]
    strict = [row for row in measured if row.epsilon is not None and row.epsilon <= _STRICT] or measured
    return max(strict, key=_accuracy, default=None)


def _accuracy(row: ReleaseRow) -> float:
    return 0.0 if row.accuracy is None else row.accuracy


def _without_accuracy(rows: Sequence[ReleaseRow]) -> Headline:
    private = [row for row in rows if row.epsilon is not None]
    if not private:
        lede = "None of them is a private release."
        return Headline(before="What the runs", figure="found", after="", lede=lede)
    largest = max(private, key=lambda row: row.epsilon or 0.0)
    lede = f"No accuracy was measured on public data. {_price(largest)}"
    return Headline(before="What was", figure="released", after="", lede=lede)


def _difference(plain: ReleaseRow, best: ReleaseRow, examples: str) -> Headline:
    points = round(100 * (_accuracy(plain) - _accuracy(best)), 1)
    lede = (
        f"Without privacy, {percent(_accuracy(plain))} of unseen {examples} are classified correctly. "
        f"With privacy, {percent(_accuracy(best))}. {_price(best)}"
    )
    if points <= 0:
        return Headline(before="Privacy cost you", figure="nothing", after="", lede=lede)
    return Headline(
        before="Privacy cost you", figure=f"{points:g}", after="point" if points == 1 else "points", lede=lede
    )


def _price(row: ReleaseRow) -> str:
    delta = "" if not row.delta else f" at δ\u00a0=\u00a0{power(row.delta)}"
    return f"The price is ε\u00a0=\u00a0{figure(row.epsilon)}{delta}."
