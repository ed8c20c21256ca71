"""What takes a ledger's place where none is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato import _validate
from sfumato.accounting import DpEvent, Relation
from sfumato.ledger.certificate import Certificate, check_statable
from sfumato.ledger.chain import Head


@dataclass(frozen=True, kw_only=True)
class Unrecorded:
    """Certifies releases at `delta`, as a ledger does, and enters none: each certificate says so.

    There is no budget, so that nothing is refused.

    Args:
        delta: The δ at which certificates state ε.

    >>> from sfumato.accounting import pure
    >>> terms = {"purpose": "a count", "relation": Relation.ADD_REMOVE, "unit": "record"}
    >>> Unrecorded(delta=0).pay_for(pure(0.5), **terms).caveats[0][:25]
    'not entered in a ledger: '
    """

    delta: float

    def __post_init__(self) -> None:
        _validate.delta("delta", self.delta)

    def pay_for(
        self,
        event: DpEvent,
        *,
        purpose: str,
        relation: Relation,
        unit: str,
        private: bool = True,
        planned: DpEvent | None = None,
        plan: Mapping[str, Any] | None = None,
        eta: float | None = None,
        caveats: Sequence[str] = (),
        reserved: Head | None = None,
    ) -> Certificate:
        """The certificate of one release; `planned` is the whole plan of one that was stopped early.

        Args:
            event: What will be released.
            purpose: What it is, in one line.
            relation: The relation under which the event is priced.
            unit: The unit for which it is priced.
            private: False for a run whose noise was seeded.
            planned: The whole plan of a run that was stopped early.
            plan: Settings that the certificate shall state.
            eta: η, the bound of rounding errors that the noise was scaled up for.
            caveats: Sentences that the certificate shall state.
            reserved: The entry of a ledger that holds the whole plan, of a run that is not settled yet.

        Returns:
            The certificate.
        """
        check_statable(plan, caveats)
        return Certificate.of(
            event,
            purpose=purpose,
            delta=self.delta,
            unit=unit,
            relation=relation,
            private=private,
            planned=planned,
            plan=plan,
            eta=eta,
            caveats=caveats,
            reserved=reserved,
        )
