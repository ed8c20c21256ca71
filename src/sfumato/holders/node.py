"""A holder's side of a training: it pays for a signed study, and answers each of its rounds once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import nn

from sfumato.accounting import NoEvent
from sfumato.errors import Refused
from sfumato.holders.rounds import Contribution, Opened, Signed, Terms
from sfumato.holders.study import Study
from sfumato.ledger import Certificate, Ledger, Witness
from sfumato.ledger.signing import PrivateKey
from sfumato.mechanisms import GridGaussian
from sfumato.mechanisms.grid import Integers
from sfumato.randomness import Sampler
from sfumato.storage import json_bytes, write_whole
from sfumato.training import PrivateTrainer
from sfumato.training.distributed import Aggregation, Peers


class Channel(Protocol):
    """A node's way to the coordinator and back."""

    def exchange(self, terms: Terms, place: int, contribution: Contribution) -> Opened | None:
        """Return the opened sum; None if the round was abandoned."""
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
        study: The signed study.
        key: This holder's signing key; its public half is in the study.
        signatures: The agreement of every holder, this one included.
        channel: The way to the coordinator and back.
        ledger: This holder's ledger; None charges nowhere.
        sampler: Source of sampling and noise; a fresh secret stream by default.
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
        and returns rows and, where the unit is a person, the person of each. A study that was begun with this
        ledger, and cut off, goes on: rounds that were answered are not answered again, and their outcomes come
        from the coordinator.

        Raises:
            Refused: If the study was finished with this ledger; or more rounds were abandoned than declared.
        """
        trainer = self._trainer = _rehearsed(
            self.study, head, self, ledger=self._ledger, purpose=self._purpose, sampler=self._sampler
        )
        self._pay(trainer)
        found, units = rows(trainer.sampler) if callable(rows) else (rows, None)
        for batch in trainer.batches(found, units=units):
            trainer.step(batch, self.study.task.loss)
            if on_step is not None:
                on_step(trainer)
        trainer.use_average()
        return trainer.certificate(delta=self.study.delta, caveats=(*self.study.caveats(), *caveats))

    @property
    def _purpose(self) -> str:
        return f"study {self.study.name} {self.study.digest}"

    def _pay(self, trainer: PrivateTrainer) -> None:
        """Reserve the whole study, or take up the reservation of an earlier run."""
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
                noted=lambda reservation: None,  # the ledger's entry is found by its purpose
            )
        )
        reservation.begin()
        trainer.take_up(replace(trainer.state, reservation=reservation, private=reservation.private))
        self._answered = reservation.marked

    def add_up(self, total: Integers, mechanism: GridGaussian, sampler: Sampler) -> Integers:
        """Return the noisy sum of this step over all holders; zero if its round was abandoned."""
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
        """Note on the disk that the input of this round is about to leave; it leaves once."""
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
                "its charge stays"
            )
        return np.zeros_like(total)


def rounding(study: Study) -> float:
    """Return the share of C by which this machine's rounding may lengthen a gradient, found on public rows.

    It is at most the margin that the study declares; above it no node of this machine could take part.
    """
    eta = _rehearsed(study, study.task.learner(), _Rehearsal()).eta
    assert eta is not None
    return eta


def _rehearsed(
    study: Study,
    head: nn.Module,
    through: Aggregation,
    *,
    ledger: Ledger | None = None,
    purpose: str = "",
    sampler: Sampler | None = None,
) -> PrivateTrainer:
    """Return a trainer of the study; its rounding, checked on public rows, is within the margin."""
    trainer = PrivateTrainer(
        head,
        study.optimization.build(head),
        study.plan,
        ledger=ledger,
        purpose=purpose,
        sampler=sampler,
        peers=Peers(rank=0, count=int(1 / study.largest_share + 1e-9), through=through),
    )
    trainer.rehearse(study.task.example(), study.task.loss)
    study.noise.check_covers(math.inf if trainer.eta is None else trainer.eta)
    return trainer


class _Rehearsal:
    """An aggregation that takes no sums."""

    def add_up(self, total: Integers, mechanism: GridGaussian, sampler: Sampler) -> Integers:
        raise Refused("expected a rehearsal, got a step")


def _as_of_all(opened: Opened, holders: int) -> Integers:
    """Scale a sum as if no holder had been lost; the lost ones are public."""
    if opened.holders == holders:
        return opened.total
    return np.rint(opened.total * (holders / opened.holders)).astype(np.int64)
