"""What a run of other software did, as an event, with what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sfumato.accounting import DpEvent, NonPrivateEvent, Relation


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
        elsewhere: What the same run released as other relations see it, for a claim that names one of them.
    """

    event: DpEvent
    relation: Relation
    unit: str
    delta: float
    claimed: float | None
    problems: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    others: dict[str, tuple[DpEvent, Relation]] = field(default_factory=dict)
    elsewhere: dict[Relation, DpEvent] = field(default_factory=dict)

    def under(self, relation: Relation) -> Finding:
        """The same finding, priced under the relation of the claim; without a price where none is known.

        To blank a unit's values moves a sum by no more than to replace them, so that the price of replace-one
        holds under zero-out.
        """
        if relation is self.relation:
            return self
        event = self.elsewhere.get(relation)
        if event is None and relation is Relation.ZERO_OUT and self.relation is Relation.REPLACE_ONE:
            event = self.event
        beside = {str(self.relation): (self.event, self.relation), **self.others}
        beside.pop(str(relation), None)
        if event is not None:
            return replace(self, event=event, relation=relation, others=beside)
        said = f"The claim is for {relation} neighbours, and no ε of this run is known to hold for them."
        problems = (said, *self.problems)
        return replace(self, event=NonPrivateEvent(), relation=relation, problems=problems, others=beside)
