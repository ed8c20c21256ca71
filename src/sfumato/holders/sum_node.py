"""One holder's side of a study that adds numbers up: it pays first, and is in each round once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy.typing as npt

from sfumato.errors import Refused
from sfumato.holders.agreed import Verified
from sfumato.holders.messages import Terms
from sfumato.holders.sum_study import RELATION, SumStudy
from sfumato.ledger import Certificate, Charge, Ledger
from sfumato.ledger.certificate import Unrecorded
from sfumato.ledger.signing import PrivateKey
from sfumato.mechanisms.grid import Integers
from sfumato.randomness import Sampler, SecretStream

Values = Callable[[], Sequence[npt.NDArray[Any]]]


class SumNode:
    """A holder in a `SumStudy`.

    *Guarantees*: the study carries the signature of every holder (`Verified`); its whole price is charged to
    this holder's ledger before its numbers are asked for; round numbers go up, so that no round has two inputs;
    each input has this holder's share of the noise; it is in no more rounds than were paid for.

    Args:
        agreed: The study, with the signature of every holder.
        key: This holder's signing key.
        ledger: This holder's ledger; None charges nowhere.
        sampler: Where noise comes from; a fresh secret stream by default.

    Raises:
        InvalidInput: If the key is not that of a holder of the study.
    """

    def __init__(
        self,
        agreed: Verified[SumStudy],
        key: PrivateKey,
        *,
        ledger: Ledger | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.study, self.place = agreed.study, agreed.study.place_of(key.public)
        self._ledger = ledger
        self._sampler: Sampler = SecretStream() if sampler is None else sampler
        self._charge: Charge | None = None
        self._paid, self._last, self._rounds = False, 0, 0

    def pay(self) -> None:
        """Charge the whole study, once.

        Raises:
            BudgetExceeded: If the ledger has no room; nothing is charged then.
        """
        if self._paid:
            raise Refused("expected a study that is not paid for yet, got one that is; make a new study")
        if self._ledger is not None:
            self._charge = self._ledger.charge(
                self.study.event(),
                purpose=f"study {self.study.name}",
                relation=RELATION,
                unit=self.study.unit,
                private=self._sampler.private,
            )
        self._paid = True

    def part_in(
        self, number: int, values: Values, picked: Collection[int] | None = None
    ) -> tuple[Terms, Callable[[], Integers]]:
        """The terms of a round, and what is called for the input once everything else is in order.

        `picked` are the places of those whom the coordinator picked for it, this holder among them. `values`
        gives the parts of the round; it is called at most once, and only when this holder has paid.
        """
        if not self._paid:
            raise Refused(
                "expected a study that this holder paid for, got one that it did not; nothing is sent"
            )
        if number <= self._last:
            raise Refused(f"expected a round after {self._last}, got number={number}; each has one input")
        most = len(self.study.rounds) if self.study.taken is None else self.study.taken
        if self._rounds >= most:
            raise Refused(f"expected to be in at most {most} rounds, as was paid for, was asked to be in more")
        terms = self.study.terms(number, picked)
        if self.place not in terms.places:
            raise Refused("expected a round that this holder was picked for, got another; nothing is sent")
        self._last, self._rounds = number, self._rounds + 1
        agreed = self.study.rounds[number - 1]
        return terms, lambda: agreed.contribution(values(), self._sampler)

    def certificate(self) -> Certificate:
        """What the study claims of this holder's rows."""
        plan = {"kind": self.study.kind, "study": self.study.digest, **self.study.plan}
        caveats = self.study.caveats()
        if self._ledger is not None and self._charge is not None:
            return self._ledger.certificate(self._charge, plan=plan, caveats=caveats)
        return Unrecorded(delta=self.study.delta).pay_for(
            self.study.event(),
            purpose=f"study {self.study.name}",
            relation=RELATION,
            unit=self.study.unit,
            private=self._sampler.private,
            plan=plan,
            caveats=caveats,
        )
