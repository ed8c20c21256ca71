"""What runs at one holder: it takes part in the rounds of a signed study, each once, and in nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from sfumato.accounting import NoEvent
from sfumato.errors import Refused
from sfumato.holders.messages import Signed, Terms
from sfumato.holders.study import Study
from sfumato.ledger import Certificate, Ledger, Reservation, Witness
from sfumato.ledger.signing import PrivateKey
from sfumato.mechanisms import GridGaussian
from sfumato.mechanisms.grid import Integers
from sfumato.randomness import Sampler
from sfumato.storage import json_bytes, write_whole
from sfumato.training import PrivateTrainer
from sfumato.training.distributed import Aggregation, Peers


@dataclass(frozen=True)
class Opened:
    """What a `Channel` hands a node of one round that was not abandoned.

    Attributes:
        total: The noisy sum in grid steps, one whole number for each parameter.
        holders: How many holders' inputs are in it.

    >>> Opened(np.zeros(3, dtype=np.int64), holders=9).holders
    9
    """

    total: Integers
    holders: int


class Channel(Protocol):
    """How a node takes part in a round."""

    def exchange(self, terms: Terms, place: int, contribution: Callable[[], Integers]) -> Opened | None:
        """The opened sum; None where the round was abandoned."""
        ...


class Node:
    """A holder's side of a study.

    *Guarantees*: the study carries the signature of every holder; its whole price, every round included, is
    reserved in this holder's ledger before a row is touched; each input has this holder's share of the noise;
    every round has a fresh sample. A round has one input: its number is marked in the ledger, on the disk,
    before the input leaves, and a lower one is never answered. A node that was killed goes on under the same
    reservation; a second one with the same ledger takes it away from the first. An abandoned round is not
    repeated: its input may have been seen, and a second one of the same sample would cost more than another
    round. The step is skipped, and stays paid. A ledger that was put back from an older copy is refused, if
    `witness` was not put back with it.

    Args:
        study: What all holders agreed on.
        key: This holder's signing key; its public half is in the study.
        signatures: The agreement of every holder, this one included.
        channel: How messages reach the coordinator and come back.
        ledger: This holder's ledger; None charges nowhere.
        sampler: Where sampling and noise come from; a fresh secret stream by default.
        witness: A file of this holder's that keeps the ledger's newest entry; None keeps none.

    Raises:
        NotVerified: If a holder has not signed this very study.
        InvalidInput: If the key is not that of a holder of the study.

    ```python
    signatures = [read_signature(path) for path in Path("signatures").glob("*.json")]
    node = Node(study, PrivateKey.read("delft.key"), signatures, channel, ledger=Ledger.open("mine.db"))
    certificate = node.train(head, rows)  # rows as the study's public features see them
    ```
    """

    def __init__(
        self,
        study: Study,
        key: PrivateKey,
        signatures: Collection[Signed],
        channel: Channel,
        *,
        ledger: Ledger | None = None,
        sampler: Sampler | None = None,
        witness: Path | None = None,
    ) -> None:
        study.check_signatures(signatures)
        self.study, self.place = study, study.place_of(key.public)
        self._channel, self._ledger, self._sampler = channel, ledger, sampler
        self._witness = witness
        self._round = self._answered = self.abandoned = 0
        self._trainer: PrivateTrainer | None = None

    def train(
        self,
        head: nn.Module,
        rows: Any,
        *,
        caveats: tuple[str, ...] = (),
        on_step: Callable[[PrivateTrainer], None] | None = None,
    ) -> Certificate:
        """Train the head on all holders' rows, of which these are this holder's.

        `rows` may be a function that reads them: it is called with the secret stream once they are paid for,
        and returns rows and, where the unit is a person, whose each is. A study that was begun with this
        ledger, and cut off, goes on: rounds that were answered are not answered again, and their outcomes come
        from the coordinator.

        Raises:
            Refused: If the study was finished with this ledger; or more rounds were abandoned than declared.
        """
        trainer = self._trainer = _rehearsed(
            self.study,
            head,
            ledger=self._ledger,
            purpose=self._purpose,
            sampler=self._sampler,
            through=self,
        )
        self._pay(trainer)
        found, units = rows(trainer.sampler) if callable(rows) else (rows, None)
        for batch in trainer.batches(found, units=units):
            trainer.step(batch, self.study.loss)
            if on_step is not None:
                on_step(trainer)
        with torch.no_grad():
            for name, value in trainer.average.values.items():
                trainer.parameters[name].copy_(value)
        return trainer.certificate(delta=self.study.delta, caveats=(*_caveats(self.study), *caveats))

    @property
    def _purpose(self) -> str:
        return f"study {self.study.name} {self.study.digest}"

    def _pay(self, trainer: PrivateTrainer) -> None:
        """Reserve the whole study, or take up what an earlier run of this node left open."""
        if self._ledger is None:
            return
        if self._witness is not None and self._witness.exists():
            self._ledger.check_head(Witness.read(self._witness).expected_in(self._ledger))
        charges = [charge for charge in self._ledger.charges() if charge.purpose == self._purpose]
        if any(charge.settled and not isinstance(charge.event, NoEvent) for charge in charges):
            raise Refused(
                "expected a study that this ledger has not finished yet, got one that it has; its rounds are "
                "answered once: sign a new study for another model"
            )
        plan = self.study.plan
        left = [charge.head for charge in charges if not charge.settled and charge.event == plan.event()]
        reservation = (
            self._ledger.reservation(left[0], private=trainer.private)
            if left
            else self._ledger.reserve(
                plan.event(),
                purpose=self._purpose,
                relation=plan.relation,
                unit=plan.unit,
                private=trainer.private,
                begun=False,
                noted=_found_by_its_purpose,
            )
        )
        reservation.begin()
        trainer.take_up(replace(trainer.state, reservation=reservation, private=reservation.private))
        self._answered = reservation.marked

    def add_up(self, total: Integers, mechanism: GridGaussian, sampler: Sampler) -> Integers:
        """The noisy sum over all holders of this step; zero where its round was abandoned."""
        noise = self.study.noise
        expected = (noise.grid, noise.dimension, noise.noise_multiplier)
        if (mechanism.grid, mechanism.dimension, mechanism.noise_multiplier) != expected:
            raise Refused("expected sums and noise as in the study, got others; nothing was sent")
        noise.check_covers(mechanism.eta)
        self._round += 1
        terms = self.study.terms(self._round)

        def contribution() -> Integers:
            self._mark(terms)
            return noise.release(total, sampler)

        opened = self._channel.exchange(terms, self.place, contribution)
        if opened is None:
            return self._skipped(total)
        return _as_of_all(opened, self.study.parties.holders)

    def _mark(self, terms: Terms) -> None:
        """Note on the disk that the input of this round is about to leave; it never leaves again."""
        if terms.number <= self._answered:
            raise Refused(f"expected a round after {self._answered}, which was answered, got {terms.number}")
        self._answered = terms.number
        reservation = None if self._trainer is None else self._trainer.reservation
        if reservation is not None:
            reservation.mark(self.study.plan.event(terms.number), steps=terms.number, digest=terms.id)
            if self._witness is not None and self._ledger is not None:
                noted = json_bytes(Witness.of(self._ledger).to_json())
                write_whole(self._witness, noted, readable=False)

    def _skipped(self, total: Integers) -> Integers:
        self.abandoned += 1
        if self.abandoned > self.study.spare:
            raise Refused(
                f"expected at most spare={self.study.spare} abandoned rounds, got more; the study ends, and "
                "what was charged stays charged"
            )
        return np.zeros_like(total)


def rounding(study: Study) -> float:
    """By what share of C this machine's rounding may lengthen a unit's gradient; found on public rows.

    Args:
        study: What will be trained.

    Returns:
        η, at most the margin that the study declares.

    Raises:
        InvalidInput: If it is above that margin: no node of this machine could take part.

    ```python
    print(rounding(Study.read("study.toml")))
    ```
    """
    eta = _rehearsed(study, study.learner(), ledger=None, purpose="", sampler=None, through=None).eta
    assert eta is not None
    return eta


def _rehearsed(
    study: Study,
    head: nn.Module,
    *,
    ledger: Ledger | None,
    purpose: str,
    sampler: Sampler | None,
    through: Aggregation | None,
) -> PrivateTrainer:
    """A trainer of the study that has shown on public rows that its rounding is within the margin."""
    trainer = PrivateTrainer(
        head,
        study.optimization.build(head),
        study.plan,
        ledger=ledger,
        purpose=purpose,
        sampler=sampler,
        peers=Peers(rank=0, count=int(1 / study.largest_share + 1e-9), through=through or _Nobody()),
    )
    trainer.rehearse(study.task.example(), study.loss)
    study.noise.check_covers(math.inf if trainer.eta is None else trainer.eta)
    return trainer


class _Nobody:
    """Where no sum goes to."""

    def add_up(self, total: Integers, mechanism: GridGaussian, sampler: Sampler) -> Integers:
        raise Refused("expected a rehearsal, got a step")


def _found_by_its_purpose(reservation: Reservation) -> None:
    """Nothing more is to be written down: the ledger's entry names the study, and is found by it."""


def _caveats(study: Study) -> tuple[str, ...]:
    parties = study.parties
    against = ", ".join(f"{name} {value:.3g}" for name, value in study.epsilons().items())
    return (
        f"noise made by {parties.holders} holders; the price counts the {parties.counted} shares that are left "
        f"with {parties.dropped} holders lost and {parties.colluding} colluding with the coordinator",
        f"ε against each adversary at δ={study.delta:g}: {against}",
        "a holder that lies in its numbers, or adds no noise, is not seen under masks; the declared number of "
        "colluding holders covers those",
    )


def _as_of_all(opened: Opened, holders: int) -> Integers:
    """As large as if no holder had been lost; who was is public."""
    if opened.holders == holders:
        return opened.total
    return np.rint(opened.total * (holders / opened.holders)).astype(np.int64)
