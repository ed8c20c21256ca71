"""Rounds of sums at a desk: all holders and the coordinator in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.errors import BudgetExceeded, InvalidInput, Refused
from sfumato.holders.agreed import Verified
from sfumato.holders.coordinator_round import CoordinatorRound
from sfumato.holders.desk_round import Lost, run_round
from sfumato.holders.holder_round import HolderRound
from sfumato.holders.masks import Modulus
from sfumato.holders.messages import Terms
from sfumato.holders.sum_node import SumNode, Values
from sfumato.holders.sum_study import RELATION, SumStudy
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.signing import PrivateKey, PublicKey
from sfumato.mechanisms.grid import Floats, Integers
from sfumato.randomness import Sampler

Losses = Callable[[int], Mapping[int, Lost]]


def new_keys(holders: int) -> dict[int, PrivateKey]:
    """Signing keys for a rehearsal, by place."""
    return {place: PrivateKey(Ed25519PrivateKey.generate()) for place in range(1, holders + 1)}


def public_keys(keys: Mapping[int, PrivateKey]) -> dict[str, PublicKey]:
    return {f"holder {place}": key.public for place, key in keys.items()}


@dataclass(frozen=True)
class Total:
    """An opened round: its parts as numbers, and how many holders are in them."""

    parts: list[Floats]
    holders: int


class DeskSums:
    """All holders of a study in one process, those who can pay; `add_up` goes through one round.

    Args:
        study: What all holders agreed on; they sign it here.
        keys: Their signing keys by place.
        losses: Who is lost in a round, and at which message.
        ledgers: The holders' ledgers by place; who has none is not charged.
        masked: False leaves out masks and their messages, for hundreds of holders and more. The sum is the
            same to the last bit, as masks cancel; what is left out then is what would hide the inputs.
        samplers: The holders' secret streams by place; fresh ones by default.

    Raises:
        InvalidInput: If too few holders can pay; nothing is charged.
    """

    def __init__(
        self,
        study: SumStudy,
        keys: Mapping[int, PrivateKey],
        *,
        losses: Losses = lambda number: {},
        ledgers: Mapping[int, Ledger] | None = None,
        masked: bool = True,
        samplers: Mapping[int, Sampler] | None = None,
    ) -> None:
        self.study, self._losses, self._masked = study, losses, masked
        books, streams = ledgers or {}, samplers or {}
        self.keys = _who_can_pay(study, keys, books)
        agreed = Verified(study, [study.signed(key) for key in keys.values()])
        self._nodes = {
            place: SumNode(agreed, key, ledger=books.get(place), sampler=streams.get(place))
            for place, key in self.keys.items()
        }
        for node in self._nodes.values():
            node.pay()

    def add_up(self, number: int, values: Mapping[int, Values]) -> Total | None:
        """The sum over those who are not lost, of the holders named; None where the round is abandoned."""
        lost = self._losses(number)
        picked = None if self.study.taken is None else list(values)
        asked = {place: self._nodes[place].part_in(number, values[place], picked) for place in values}
        terms = next(iter(asked.values()))[0]
        inputs = {place: contribution for place, (_, contribution) in asked.items()}
        try:
            if self._masked:
                total, holders = self._under_masks(terms, inputs, lost)
            else:
                total, holders = _plain(terms, inputs, lost)
        except Refused:
            return None
        return Total(self.study.rounds[number - 1].read(total), holders)

    def certificates(self) -> dict[int, Certificate]:
        return {place: node.certificate() for place, node in self._nodes.items()}

    def _under_masks(
        self, terms: Terms, inputs: Mapping[int, Callable[[], Integers]], lost: Mapping[int, Lost]
    ) -> tuple[Integers, int]:
        coordinator = CoordinatorRound(terms)
        parts = {place: HolderRound(terms, place, self.keys[place]) for place in inputs}
        total = run_round(coordinator, parts, inputs, lost=lost)
        return total, len(coordinator.survivors)


def _plain(
    terms: Terms, inputs: Mapping[int, Callable[[], Integers]], lost: Mapping[int, Lost]
) -> tuple[Integers, int]:
    """What opens, without masks: the sum modulo the same power of two, by the same rules of who is enough."""
    arrived = [place for place in inputs if lost.get(place, Lost.NEVER) > Lost.INPUT]
    opening = [place for place in arrived if lost.get(place, Lost.NEVER) > Lost.OPENING]
    if len(arrived) < terms.parties.least or len(opening) < terms.parties.threshold:
        raise Refused("expected enough holders to open the round, got fewer; it is abandoned")
    modulus = Modulus(terms.bits)
    total = modulus.reduce(inputs[arrived[0]]())
    for place in arrived[1:]:
        total += modulus.reduce(inputs[place]())
    return modulus.signed(total), len(arrived)


def _who_can_pay(
    study: SumStudy, keys: Mapping[int, PrivateKey], ledgers: Mapping[int, Ledger]
) -> dict[int, PrivateKey]:
    event = study.event()

    def pays(place: int) -> bool:
        try:
            if place in ledgers:
                ledgers[place].check(event, relation=RELATION, unit=study.unit)
        except BudgetExceeded:
            return False
        return True

    admitted = {place: key for place, key in keys.items() if pays(place)}
    if len(admitted) < study.parties.least:
        raise InvalidInput(
            f"expected at least {study.parties.least} holders whose ledgers have room for the study, got "
            f"{len(admitted)}; nothing was charged: ask for a smaller ε"
        )
    return admitted
