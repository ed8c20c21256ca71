"""The one way in which a query is turned down."""

from __future__ import annotations

from sfumato.errors import Refused


class QueryRefused(Refused):
    """A query that cannot be answered privately: why, and the nearest one that can.

    Raised from the text of the query and the policy alone, before any data is touched, so that a refusal says
    nothing about anyone.

    Args:
        reason: Why, in one sentence.
        nearest: A query that would be answered.
    """

    def __init__(self, reason: str, *, nearest: str = "") -> None:
        super().__init__(reason + (f"; you could ask: {nearest}" if nearest else ""))
        self.reason = reason
        self.nearest = nearest
