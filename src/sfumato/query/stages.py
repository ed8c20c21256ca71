"""A query on its way to an answer, as values: planned from public facts, and ready to be charged and run."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.query.measures import Counted
from sfumato.query.plan import Query
from sfumato.query.pricing import Price


@dataclass(frozen=True)
class Compiled:
    """The SQL that an engine has planned: sums for each group, and counts of cells for each tree.

    It names the tables as every connection to the policy's source does.
    """

    sums: str
    cells: list[tuple[Counted, str]]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A query with its noise, from the query, the policy and the ledger alone: no row was read for it.

    Attributes:
        query: What is asked.
        price: Its noise, and through it the event that is charged.
        purpose: What the ledger says of it.
        values: How many noisy numbers it takes, those that are simulated for intervals too.
    """

    query: Query
    price: Price
    purpose: str
    values: int


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A planned query that the engine has planned too: what is left to be done is to charge it."""

    planned: Planned
    compiled: Compiled
