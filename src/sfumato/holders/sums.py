"""Sums over several holders who do not train: votes, statistics, updates of clients.

A round adds up vectors, each with its own grid and noise. A `SumStudy` is the rounds that all holders sign, and
their price; `SumNode` is a holder that pays for it, and `DeskSums` goes through the rounds in one process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato import _validate, accounting
from sfumato.accounting import Budget, DpEvent
from sfumato.errors import InvalidInput, Refused
from sfumato.holders.masks import Modulus
from sfumato.holders.parties import Parties
from sfumato.holders.rounds import Contribution, Losses, Lost, Opened, Terms, masked_sum
from sfumato.holders.study import RELATION, Agreed, Verified, able_to_pay
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.certificate import Unrecorded
from sfumato.ledger.chain import canonical
from sfumato.ledger.signing import PrivateKey, PublicKey
from sfumato.mechanisms import GaussianShares
from sfumato.mechanisms import grid as grids
from sfumato.mechanisms.grid import Floats, Integers
from sfumato.randomness import Sampler, SecretStream

MARGIN = 2.0**-9
"""Of the sensitivity: each holder rounds its own sum to the grid, which moves it by 2⁻¹⁰ of that at most."""

Values = Callable[[], Sequence[npt.NDArray[Any]]]
"""Makes a holder's parts of a round, when it is their turn."""


# Rounds


@dataclass(frozen=True, kw_only=True)
class Part:
    """A vector that is summed over all holders under one noise.

    Args:
        sensitivity: A bound of the distance, in L2 norm, by which one unit moves the sum over all holders.
        dimension: Number of numbers.
        noise_multiplier: Standard deviation of the counted shares together, over the sensitivity.
        shares: Number of counted shares: those that the best informed adversary does not know.
        largest: No number of the sum is expected above it; beyond it a sum may wrap, and is no less private.

    >>> part = Part(sensitivity=2**0.5, dimension=10, noise_multiplier=4.0, shares=5, largest=1000)
    >>> round(part.deviation(8), 2)  # of the noise in a sum that eight holders contributed to
    7.17
    """

    sensitivity: float
    dimension: int
    noise_multiplier: float
    shares: int
    largest: float

    def __post_init__(self) -> None:
        _validate.positive("largest", self.largest)
        self.mechanism()

    def mechanism(self) -> GaussianShares:
        return GaussianShares(
            clip_norm=self.sensitivity,
            dimension=self.dimension,
            noise_multiplier=self.noise_multiplier,
            shares=self.shares,
            margin=MARGIN,
        )

    def deviation(self, holders: int) -> float:
        """Return the standard deviation of the noise on each number of a sum over so many holders."""
        noise = self.mechanism()
        return noise.share_sigma * noise.grid * float(np.sqrt(holders))

    def under(self, shares: int) -> Part:
        """Return this part as an adversary sees it that does not know so many shares."""
        seen = self.mechanism().under(shares)
        return replace(self, shares=shares, noise_multiplier=seen.noise_multiplier)


@dataclass(frozen=True)
class SumRound:
    """One round: all its parts are added up under masks together, in this order.

    Args:
        parts: The vectors, at least one.

    >>> counts = Part(sensitivity=1.0, dimension=2, noise_multiplier=4.0, shares=5, largest=1000)
    >>> SumRound((counts, counts)).dimension
    4
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise InvalidInput("expected a round with at least one part, got none")

    @property
    def dimension(self) -> int:
        return sum(part.dimension for part in self.parts)

    def event(self) -> DpEvent:
        return accounting.compose(*(part.mechanism().event() for part in self.parts))

    def under(self, shares: int) -> SumRound:
        return SumRound(tuple(part.under(shares) for part in self.parts))

    def contribution(self, values: Sequence[npt.NDArray[Any]], sampler: Sampler) -> Integers:
        """Return one holder's numbers on the grid, with its share of the noise: to be masked."""
        shapes = [np.shape(value) for value in values]
        if shapes != [(part.dimension,) for part in self.parts]:
            raise InvalidInput(
                f"expected numbers as agreed, {[part.dimension for part in self.parts]}, got {shapes}"
            )
        noises = [part.mechanism() for part in self.parts]
        rounded = [grids.to_grid(value, noise.grid) for value, noise in zip(values, noises, strict=True)]
        return np.concatenate(
            [noise.release(value, sampler) for noise, value in zip(noises, rounded, strict=True)]
        )

    def read(self, total: Integers) -> list[Floats]:
        """Return the parts of an opened sum, in the units in which they were contributed."""
        pieces = np.split(total, np.cumsum([part.dimension for part in self.parts])[:-1])
        return [
            grids.from_grid(piece, part.mechanism().grid)
            for piece, part in zip(pieces, self.parts, strict=True)
        ]

    def modulus(self, holders: int) -> Modulus:
        noises = [(part, part.mechanism()) for part in self.parts]
        return Modulus.fitting(
            largest=max(part.largest / noise.grid for part, noise in noises),
            sigma=max(noise.share_sigma for _, noise in noises) * float(np.sqrt(holders)),
            dimension=self.dimension,
        )


# The study


@dataclass(frozen=True, kw_only=True)
class SumStudy(Agreed):
    """Rounds of sums over several holders, without sampling: every round is seen by all who take part in it.

    *Guarantees*: against an adversary that does not know k shares of the noise of a round, the rounds cost
    `event` with k shares. There is no amplification, as the holders of a round are known.

    Args:
        name: The study's name in reports and ledgers.
        kind: The kind of the sums, such as "votes".
        plan: Everything else that decides what is computed, for JSON; it is signed.
        unit: The unit of privacy, such as "record", "person" or "client".
        delta: The δ of the guarantee.
        parties: The number of holders, and of those that may be lost or collude.
        rounds: The rounds, in this order.
        keys: The holders' public signing keys by name; a holder's place is its number in them, from 1.
        taken: Most rounds of one holder, where the coordinator picks `parties.holders` of more holders for each
            round; None if all are in all of them. So many rounds are the price: the coordinator knows the
            picked holders, so that there is no amplification.

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
        more = self.taken is not None and len(self.keys) > self.parties.holders
        self._keep_keys(enough=more or len(self.keys) == self.parties.holders)
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

    @property
    def most_rounds(self) -> int:
        """The number of rounds that one holder is in, and pays for."""
        return len(self.rounds) if self.taken is None else self.taken

    def event(self, shares: int | None = None) -> DpEvent:
        return accounting.compose(
            *((one if shares is None else one.under(shares)).event() for one in self.rounds[: self.most_rounds])
        )

    def terms(self, number: int, picked: Collection[int] | None = None) -> Terms:
        """Return the terms of one round, numbered from 1, for the picked places; all by default."""
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


def calibrated_rounds(
    make: Callable[[float], tuple[SumRound, ...]], *, epsilon: float, delta: float, taken: int | None = None
) -> tuple[SumRound, ...]:
    """Return the rounds with the least noise that cost at most (ε, δ); `make` takes a factor of the noise."""

    def event(factor: float) -> DpEvent:
        return accounting.compose(*(one.event() for one in make(factor)[:taken]))

    found = accounting.calibrate(event, Budget(epsilon=epsilon, delta=delta, relation=RELATION), guess=4.0)
    return make(found)


# A holder


class SumNode:
    """A holder in a `SumStudy`; it charges the whole study to its ledger when it is made.

    *Guarantees*: the study carries the signature of every holder (`Verified`); a node has paid the whole price
    before its numbers are asked for; round numbers go up, so that no round has two inputs; each input has this
    holder's share of the noise; it is in no more rounds than were paid for.
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
        self._last = self._rounds = 0
        self._charge = None if ledger is None else ledger.charge(self.study.event(), **self._terms())

    def part_in(
        self, number: int, values: Values, picked: Collection[int] | None = None
    ) -> tuple[Terms, Contribution]:
        """Return the terms of a round, and the function that makes this holder's input.

        `picked` are the places that the coordinator picked for it, this holder's among them. `values` gives the
        parts of the round; it is called at most once.
        """
        if number <= self._last:
            raise Refused(f"expected a round after {self._last}, got number={number}; each has one input")
        most = self.study.most_rounds
        if self._rounds >= most:
            raise Refused(f"expected to be in at most {most} rounds, as was paid for, was asked to be in more")
        terms = self.study.terms(number, picked)
        if self.place not in terms.places:
            raise Refused("expected a round that this holder was picked for, got another; nothing is sent")
        self._last, self._rounds = number, self._rounds + 1
        agreed = self.study.rounds[number - 1]
        return terms, lambda: agreed.contribution(values(), self._sampler)

    def certificate(self) -> Certificate:
        """Return this holder's certificate."""
        said: dict[str, Any] = {
            "plan": {"kind": self.study.kind, "study": self.study.digest, **self.study.plan},
            "caveats": self.study.caveats(),
        }
        if self._ledger is not None and self._charge is not None:
            return self._ledger.certificate(self._charge, **said)
        return Unrecorded(delta=self.study.delta).pay_for(self.study.event(), **self._terms(), **said)

    def _terms(self) -> dict[str, Any]:
        return {
            "purpose": f"study {self.study.name}",
            "relation": RELATION,
            "unit": self.study.unit,
            "private": self._sampler.private,
        }


# A rehearsal


def new_keys(holders: int) -> dict[int, PrivateKey]:
    """Make signing keys for a rehearsal, by place."""
    return {place: PrivateKey(Ed25519PrivateKey.generate()) for place in range(1, holders + 1)}


def public_keys(keys: Mapping[int, PrivateKey]) -> dict[str, PublicKey]:
    return {f"holder {place}": key.public for place, key in keys.items()}


@dataclass(frozen=True)
class Total:
    """An opened round: its parts as numbers, and the number of holders that contributed."""

    parts: list[Floats]
    holders: int


class DeskSums:
    """All holders of a study in one process, those who can pay; `add_up` goes through one round.

    All holders sign the study here; those whose ledgers have no room stay out. `masked=False` leaves out masks
    and their messages, for hundreds of holders and more. The sum is the same to the last bit, as masks cancel;
    inputs are then not hidden from the coordinator.
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
        self.keys = able_to_pay(study, keys, books)
        agreed = Verified(study, [study.signed(key) for key in keys.values()])
        self._nodes = {
            place: SumNode(agreed, key, ledger=books.get(place), sampler=streams.get(place))
            for place, key in self.keys.items()
        }

    def add_up(self, number: int, values: Mapping[int, Values]) -> Total | None:
        """Return the sum over the named holders that are not lost; None if the round is abandoned."""
        lost = self._losses(number)
        picked = None if self.study.taken is None else list(values)
        asked = {place: self._nodes[place].part_in(number, values[place], picked) for place in values}
        terms = next(iter(asked.values()))[0]
        inputs = {place: contribution for place, (_, contribution) in asked.items()}
        opened = masked_sum(terms, self.keys, inputs, lost) if self._masked else _plain(terms, inputs, lost)
        if opened is None:
            return None
        return Total(self.study.rounds[number - 1].read(opened.total), opened.holders)

    def certificates(self) -> dict[int, Certificate]:
        return {place: node.certificate() for place, node in self._nodes.items()}


def _plain(terms: Terms, inputs: Mapping[int, Contribution], lost: Mapping[int, Lost]) -> Opened | None:
    """Return the sum that would open under masks, modulo the same power of two, by the same conditions."""
    arrived = [place for place in inputs if lost.get(place, Lost.NEVER) > Lost.INPUT]
    opening = [place for place in arrived if lost.get(place, Lost.NEVER) > Lost.OPENING]
    if len(arrived) < terms.parties.least or len(opening) < terms.parties.threshold:
        return None
    modulus = Modulus(terms.bits)
    total = modulus.reduce(inputs[arrived[0]]())
    for place in arrived[1:]:
        total += modulus.reduce(inputs[place]())
    return Opened(modulus.signed(total), len(arrived))
