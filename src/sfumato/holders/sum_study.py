"""A study that adds numbers up: votes, statistics, updates of clients. What all parties sign, and its price."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from sfumato import _validate, accounting
from sfumato.accounting import Budget, DpEvent, Relation
from sfumato.errors import InvalidInput
from sfumato.holders.agreed import Agreed
from sfumato.holders.messages import Terms
from sfumato.holders.parties import Parties
from sfumato.holders.sums import SumRound
from sfumato.ledger.chain import canonical
from sfumato.ledger.signing import PublicKey

RELATION = Relation.ADD_REMOVE


@dataclass(frozen=True, kw_only=True)
class SumStudy(Agreed):
    """Rounds of sums over several holders, without sampling: every round is seen by all who take part in it.

    *Guarantees*: against an adversary that does not know k shares of the noise of a round, the rounds cost
    `event` with k shares. There is no amplification: whoever takes part in a round is known.

    Args:
        name: What reports and ledgers call the study.
        kind: What the sums are of, such as "votes".
        plan: Everything else that decides what is computed, for JSON; it is signed.
        unit: Who is protected, such as "record", "person" or "client".
        delta: The δ of the guarantee.
        parties: How many holders there are, and how many may be lost or collude.
        rounds: What is added up, in this order.
        keys: The holders' public signing keys by name; a holder's place is its number in them, from 1.
        taken: In how many rounds one holder is at most, where the coordinator picks `parties.holders` of more
            holders for each round; None if all are in all of them. So many rounds are the price: who does the
            picking knows who was picked, so that there is no amplification.

    Raises:
        InvalidInput: If a field is outside its range, or there is not one key of each holder.

    ```python
    counts = Part(sensitivity=1.0, dimension=10, noise_multiplier=4.0, shares=parties.counted, largest=1e6)
    study = SumStudy(
        name="counts", kind="counts", plan={}, unit="person", delta=1e-5, parties=parties,
        rounds=(SumRound((counts,)),), keys=keys,
    )
    print(study.epsilons())
    ```
    """

    name: str
    kind: str
    plan: Mapping[str, Any]
    unit: str
    delta: float
    parties: Parties
    rounds: tuple[SumRound, ...]
    keys: Mapping[str, PublicKey]
    taken: int | None = None

    def __post_init__(self) -> None:
        _validate.probability("delta", self.delta)
        object.__setattr__(self, "keys", MappingProxyType(dict(self.keys)))
        enough = len(self.keys) == self.parties.holders or (
            self.taken is not None and len(self.keys) > self.parties.holders
        )
        if not enough or len(set(self.keys.values())) != len(self.keys):
            raise InvalidInput("expected one key of each holder, all of them different, got others")
        if not self.rounds:
            raise InvalidInput("expected at least one round, got none")
        if any(part.shares != self.parties.counted for one in self.rounds for part in one.parts):
            raise InvalidInput(f"expected noise for the {self.parties.counted} shares that count, got others")
        if self.taken is not None:
            if not 1 <= _validate.integer("taken", self.taken) <= len(self.rounds):
                raise InvalidInput(f"expected taken from 1 to {len(self.rounds)}, got taken={self.taken}")
            if len(set(self.rounds)) > 1:
                raise InvalidInput("expected equal rounds where a holder is in some of them only, got others")

    @cached_property
    def digest(self) -> str:
        said = {
            **{name: getattr(self, name) for name in ("name", "kind", "unit", "delta", "taken")},
            "plan": dict(self.plan),
            "parties": asdict(self.parties),
            "rounds": [asdict(one) for one in self.rounds],
            "holders": [[name, key.id] for name, key in self.keys.items()],
        }
        return hashlib.sha256(canonical(said)).hexdigest()

    def event(self, shares: int | None = None) -> DpEvent:
        """All rounds that one unit is in, against whom so many shares are unknown; as declared by default."""
        rounds = self.rounds[: len(self.rounds) if self.taken is None else self.taken]
        return accounting.compose(*((one if shares is None else one.under(shares)).event() for one in rounds))

    def epsilons(self) -> dict[str, float]:
        """ε against each adversary, after all declared drop-outs."""
        return {
            name: accounting.epsilon(self.event(count), self.delta, relation=RELATION)
            for name, count in self.parties.shares_against.items()
        }

    def terms(self, number: int, picked: Collection[int] | None = None) -> Terms:
        """Of one round, numbered from 1, for the holders at the places that were picked; all by default."""
        if not 1 <= _validate.integer("number", number) <= len(self.rounds):
            raise InvalidInput(f"expected a round from 1 to {len(self.rounds)}, got number={number}")
        agreed, places = self.rounds[number - 1], dict(enumerate(self.keys.values(), 1))
        if picked is not None:
            places = {place: places[place] for place in sorted(picked)}
        if len(places) != self.parties.holders:
            raise InvalidInput(f"expected {self.parties.holders} holders in a round, got {len(places)}")
        return Terms(
            study=self.digest,
            number=number,
            parties=self.parties,
            places=places,
            dimension=agreed.dimension,
            bits=agreed.modulus(self.parties.holders).bits,
        )

    def caveats(self) -> tuple[str, ...]:
        """What a reader of a certificate must know."""
        parties = self.parties
        against = ", ".join(f"{name} {value:.3g}" for name, value in self.epsilons().items())
        return (
            f"noise of each round made by {parties.holders} holders; the price counts the {parties.counted} "
            f"shares that are left with {parties.dropped} holders lost and {parties.colluding} colluding with "
            "the coordinator",
            f"ε against each adversary at δ={self.delta:g}: {against}",
            "a holder that lies in its numbers, or adds no noise, is not seen under masks; the declared number "
            "of colluding holders covers those",
        )


def calibrated_rounds(
    make: Callable[[float], tuple[SumRound, ...]], *, epsilon: float, delta: float, taken: int | None = None
) -> tuple[SumRound, ...]:
    """The rounds with the least noise that cost at most (ε, δ); `make` takes a factor of all the noise."""

    def event(factor: float) -> DpEvent:
        return accounting.compose(*(one.event() for one in make(factor)[:taken]))

    found = accounting.calibrate(event, Budget(epsilon=epsilon, delta=delta, relation=RELATION), guess=4.0)
    return make(found)
