"""Whether a certificate says what the ledger's entry says, in every field that both have."""

from __future__ import annotations

from typing import Any

from sfumato import _validate
from sfumato.accounting import Budget, event_to_json
from sfumato.errors import LedgerTampered
from sfumato.ledger.certificate import Certificate
from sfumato.ledger.chain import Entry, canonical


def check_agreement(certificate: Certificate, entry: Entry, budget: Budget, *, dataset: str | None) -> None:
    """Raise LedgerTampered for the first field in which the certificate and its entry differ."""
    body, stated = entry.body, certificate.to_json()
    in_ledger: dict[str, tuple[Any, Any]] = {
        "event": (event_to_json(certificate.event), body.get("event")),
        "planned event": (stated["planned"], body.get("planned")),
        "dataset": (stated["dataset"], dataset),
        "relation": (stated["relation"], body.get("relation")),
        "unit": (stated["unit"], budget.unit),
        "delta": (float(stated["delta"]), budget.delta),
        "purpose": (stated["purpose"], body.get("purpose")),
        "private": (stated["private"], body.get("private")),
        "time": (stated["time"], body.get("time")),
        "ledger epsilon": (stated["epsilon"]["ledger"], body.get("epsilon_spent")),
        "entry": (stated["ledger"], entry.head.to_json()),
    }
    for name, (said, kept) in in_ledger.items():
        if canonical(said) != canonical(kept):
            raise LedgerTampered(
                f"the certificate does not say what entry {entry.sequence} says: expected {name}="
                f"{_validate.shown(kept)}, got {name}={_validate.shown(said)}"
            )
