"""What shows later that a ledger is the same and no older: its head, kept elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sfumato import _validate
from sfumato.errors import InvalidInput, LedgerTampered
from sfumato.ledger.chain import Head
from sfumato.ledger.documents import WITNESS, refuse_others
from sfumato.ledger.ledger import Ledger
from sfumato.ledger.signing import FIELD, PrivateKey, PublicKey, signer
from sfumato.ledger.strict_json import read_object

PURPOSE = "witness"
_FIELDS = {"kind", "name", "sequence", "hash", "time"}


@dataclass(frozen=True, kw_only=True)
class Witness:
    """The newest entry of a ledger at one time.

    Kept where the keeper of the ledger cannot reach it, it shows a roll-back. It
    says nothing about the charges except how many entries there are.

    Args:
        name: The ledger's own random name.
        head: The newest entry.
        time: When it was noted.
        signer: Who signed it, if anybody did.

    >>> import tempfile; from sfumato.ledger import Budget, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger.create(f"{folder}/l.db", Budget(epsilon=1))
    ...     Witness.of(ledger).head == ledger.verify()
    ...     ledger.close()
    True
    """

    name: str  # the ledger's own, of which there is one
    head: Head
    time: str
    signer: PublicKey | None = None

    @classmethod
    def of(cls, ledger: Ledger) -> Witness:
        """Note the newest entry of a ledger.

        Args:
            ledger: The ledger.

        Returns:
            The witness.
        """
        return cls(name=ledger.name, head=ledger.head, time=datetime.now(UTC).isoformat(timespec="seconds"))

    def to_json(self, key: PrivateKey | None = None) -> dict[str, Any]:
        """Signed if a key is given."""
        data = {"kind": PURPOSE, "name": self.name, **self.head.to_json(), "time": self.time}
        return data if key is None else key.sign(PURPOSE, data)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Witness:
        return cls.from_json(read_object(path, "a witness of a ledger"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Witness:
        """The witness in `data`; NotVerified where it carries a signature that does not fit."""
        refuse_others(data, WITNESS)
        if set(data) - {FIELD} != _FIELDS or data["kind"] != PURPOSE:
            raise InvalidInput(f"expected a witness of the fields {sorted(_FIELDS)}, got another file")
        for name in ("name", "hash", "time"):
            if not isinstance(data[name], str):
                raise InvalidInput(f"expected {name} of the witness to be a text, got another value")
        head = Head(sequence=_validate.integer("sequence", data["sequence"]), hash=data["hash"])
        return cls(name=data["name"], head=head, time=data["time"], signer=signer(PURPOSE, data))

    def check_followed_by(self, ledger: Ledger, key: PrivateKey | None) -> None:
        """Refuse to let the newest head of `ledger`, signed with `key`, take the place of this witness.

        It may, if it says more: the same ledger later on, under the same signature.
        """
        if self.name != ledger.name:
            raise InvalidInput(
                f"expected a witness of the ledger {ledger.place}, got one of another ledger; choose another "
                "file"
            )
        ledger.check_head(self.head)
        if self.signer is not None and (key is None or key.public != self.signer):
            raise InvalidInput(
                "expected the key that signed the witness, got another or none; sign with that key, or choose "
                "another file"
            )

    def expected_in(self, ledger: Ledger) -> Head:
        """The entry that `ledger.verify` must find; LedgerTampered if it is another ledger."""
        if ledger.name != self.name:
            raise LedgerTampered(
                f"the ledger {ledger.place} is not the one of the witness: it was made anew, or is another"
            )
        return self.head
