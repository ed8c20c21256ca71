"""What holders sign: a study as one digest, under the signature of every holder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from sfumato.errors import InvalidInput, NotVerified
from sfumato.holders.flower import node_key, public_line
from sfumato.holders.messages import Signed
from sfumato.ledger.signing import PrivateKey, PublicKey, signer

STUDY = "holders study"


class Agreed(ABC):
    """A study of any kind: its holders by name, in the order of their places, and one digest of it all."""

    keys: Mapping[str, PublicKey]

    @property
    @abstractmethod
    def digest(self) -> str:
        """Another for every study that differs in anything, the order of the holders included."""

    def signed(self, key: PrivateKey) -> Signed:
        """A holder's agreement, with the public key of its node in the network."""
        return key.sign(STUDY, {"study": self.digest, "node": public_line(node_key(key))})

    def check_signatures(self, signatures: Collection[Signed]) -> None:
        """Raise unless every holder signed this very study."""
        found = {signer(STUDY, signature) for signature in signatures if signature.get("study") == self.digest}
        missing = [name for name, key in self.keys.items() if key not in found]
        if missing:
            raise NotVerified(
                f"expected the signature of every holder under this study, got none of {missing[0]}; all must "
                "sign the same file, with the same version of sfumato"
            )

    def nodes(self, signatures: Collection[Signed]) -> dict[int, str]:
        """The keys of all holders' nodes, by place."""
        self.check_signatures(signatures)
        found = {signer(STUDY, one): one.get("node") for one in signatures if one.get("study") == self.digest}
        return {place: str(found[key]) for place, key in enumerate(self.keys.values(), 1)}

    def place_of(self, key: PublicKey) -> int:
        for place, known in enumerate(self.keys.values(), 1):
            if known == key:
                return place
        raise InvalidInput("expected the key of a holder of the study, got another; ask to be put into it")


S = TypeVar("S", bound=Agreed)


@dataclass(frozen=True)
class Verified(Generic[S]):
    """A study that carries the signature of every holder: there is none without.

    Args:
        study: What all holders agreed on.
        signatures: The agreement of each of them.

    Raises:
        NotVerified: If a holder has not signed this very study.

    ```python
    agreed = Verified(study, [study.signed(key) for key in keys])
    ```
    """

    study: S
    signatures: Collection[Signed]

    def __post_init__(self) -> None:
        self.study.check_signatures(self.signatures)
