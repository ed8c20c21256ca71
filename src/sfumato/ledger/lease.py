"""Who may go on with a reservation, and what of it is durable already: a lease with a fencing token.

The reserving process holds token 1. Whoever takes the reservation up, as a resumed run does, appends an entry
with the next token; from then on everything that an older holder asks for is refused. No clock is involved: a
holder that sleeps for a week and wakes up is refused as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sfumato import _validate
from sfumato.accounting import DpEvent, NoEvent, event_from_json, event_to_json
from sfumato.errors import InvalidInput, LedgerError
from sfumato.ledger.chain import Entry
from sfumato.ledger.charge import part_of, same_releases

_DIGEST = 64  # hexadecimal digits of a SHA-256


@dataclass(frozen=True, kw_only=True)
class Lease:
    """What the newest entry about a reservation says; a change is a new value, or a refusal.

    Attributes:
        token: Grows when another process takes the reservation up.
        begun: Whether a row may have been touched.
        private: False once noise was seeded.
        steps: How many steps are durable.
        ran: What those steps released.
        digest: SHA-256 of the file that holds them.
    """

    token: int = 1
    begun: bool = True  # whether rows may have been touched
    private: bool = True  # whether nobody who held it had seeded noise
    steps: int = 0  # with a durable output
    ran: DpEvent | None = None  # what these steps released
    digest: str | None = None  # of the file that holds their output

    def begin(self) -> Lease:
        return replace(self, begun=True)

    def taken_up(self, *, private: bool) -> Lease:
        return replace(self.with_noise(private=private), token=self.token + 1)

    def with_noise(self, *, private: bool) -> Lease:
        """Once noise was seeded, the run stays not private."""
        return replace(self, private=self.private and bool(private))

    def marked(self, ran: DpEvent, *, steps: int, digest: str) -> Lease:
        """With a newer durable output; never with less than before."""
        if not self.begun:
            raise LedgerError("expected begin() before the first step, got a mark; rows are touched after it")
        _validate.integer("steps", steps, least=self.steps, remedy="a durable step stays durable")
        if len(digest) != _DIGEST or not set(digest) <= set("0123456789abcdef"):
            raise InvalidInput(f"expected digest to be a SHA-256 in {_DIGEST} hexadecimal digits, got another")
        if self.ran is not None and not part_of(self.ran, ran):
            raise InvalidInput("expected a mark that holds all that is durable already, got one with less")
        return replace(self, steps=steps, ran=ran, digest=digest)

    def refusal(self, ran: DpEvent, whole: DpEvent) -> str | None:
        """Why the reservation of `whole` cannot be settled to `ran`; None if it can."""
        if not self.begun:
            if same_releases(ran, NoEvent()):
                return None
            return "expected begin() before rows were touched, got none; only settle(NoEvent()) is left"
        if same_releases(ran, whole):
            return None
        if self.token > 1 and self.ran is None:
            return (
                "expected a durable mark of what ran before the reservation was taken up, got none; "
                "settle() keeps all that was reserved"
            )
        if self.ran is not None and not part_of(self.ran, ran):
            return (
                f"expected at least the steps={self.steps} that are durable and so released, got an event with "
                "fewer; settle with what was started, or without an event"
            )
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "token": self.token,
            "begun": self.begun,
            "private": self.private,
            "steps": self.steps,
            "ran": None if self.ran is None else event_to_json(self.ran),
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Lease:
        ran = data["ran"]
        return cls(**{**data, "ran": None if ran is None else event_from_json(ran)})


def first_lease(reserved: Entry) -> Lease:
    """The lease with which a reservation begins; reservations of format 1 had none and had begun."""
    found = reserved.body.get("lease")
    return Lease(private=reserved.body["private"]) if found is None else Lease.from_json(found)
