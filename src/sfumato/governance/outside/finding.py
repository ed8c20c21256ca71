"""What a run of other software did, as an event, with what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sfumato.accounting import DpEvent, Relation


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was released, for whom, and what the reader must know about it.

    Attributes:
        event: What was released.
        relation: The relation under which `event` is priced.
        unit: Who is protected.
        delta: The δ of the claim.
        claimed: The ε that was claimed, or None.
        problems: What is wrong, in sentences.
        assumed: What the settings do not say and was taken to hold.
        others: Prices to set beside it: what they are of, the event and its relation.
    """

    event: DpEvent
    relation: Relation
    unit: str
    delta: float
    claimed: float | None
    problems: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    others: dict[str, tuple[DpEvent, Relation]] = field(default_factory=dict)
