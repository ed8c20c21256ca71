"""The one sentence that the page begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.report.numbers import figure, power
from sfumato.report.story import Release


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
    def of(cls, rows: Sequence[Release]) -> Headline:
        """The best release at ε of about 1 or less, against the same method without privacy, if it was run."""
        private = [row for row in rows if row.epsilon is not None]
        strict = [row for row in private if row.epsilon is not None and row.epsilon <= 1.05] or private
        best = max(strict, key=lambda row: row.accuracy, default=None)
        without = [row for row in rows if row.epsilon is None]
        same = [row for row in without if best is not None and row.method == best.method] or without
        plain = max(same, key=lambda row: row.accuracy, default=None)
        if best is None:
            return cls(
                before="What was", figure="released", after="", lede="These runs say nothing about accuracy."
            )
        if plain is None:
            return cls(before="Right", figure=f"{best.accuracy:.1%}", after="of the time", lede=_price(best))
        return _difference(plain, best)


def _difference(plain: Release, best: Release) -> Headline:
    points = round(100 * (plain.accuracy - best.accuracy), 1)
    lede = (
        f"Without privacy, {plain.accuracy:.1%} of unseen digits are read right. With it, "
        f"{best.accuracy:.1%}. {_price(best)}"
    )
    if points <= 0:
        return Headline(before="Privacy cost you", figure="nothing", after="", lede=lede)
    return Headline(
        before="Privacy cost you", figure=f"{points:g}", after="point" if points == 1 else "points", lede=lede
    )


def _price(best: Release) -> str:
    delta = "" if not best.delta else f" at δ\u00a0=\u00a0{power(best.delta)}"
    return f"The price of that answer is ε\u00a0=\u00a0{figure(best.epsilon)}{delta}."
