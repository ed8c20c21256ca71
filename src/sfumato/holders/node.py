"""What runs at one holder: it takes part in the rounds of a signed study, each once, and in nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from sfumato.errors import Refused
from sfumato.holders.messages import Signed, Terms
from sfumato.holders.study import Study
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.signing import PrivateKey
from sfumato.mechanisms import GridGaussian
from sfumato.mechanisms.grid import Integers
from sfumato.randomness import Sampler
from sfumato.training import PrivateTrainer
from sfumato.training.distributed import Peers
from sfumato.training.rowwise import cross_entropy


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
    reserved in this holder's ledger before a row is touched; round numbers go up, so that no round has two
    inputs; each input has this holder's share of the noise; every round has a fresh sample. An abandoned round
    is not repeated: its input may have been seen, and a second one of the same sample would cost more than
    another round. The step is skipped, and stays paid.

    Args:
        study: What all holders agreed on.
        key: This holder's signing key; its public half is in the study.
        signatures: The agreement of every holder, this one included.
        channel: How messages reach the coordinator and come back.
        ledger: This holder's ledger; None charges nowhere.
        sampler: Where sampling and noise come from; a fresh secret stream by default.

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
    ) -> None:
        study.check_signatures(signatures)
        self.study, self.place = study, study.place_of(key.public)
        self._channel, self._ledger, self._sampler = channel, ledger, sampler
        self._round = self.abandoned = 0

    def train(
        self, head: nn.Module, rows: Any, *, on_step: Callable[[PrivateTrainer], None] | None = None
    ) -> Certificate:
        """Train the head on all holders' rows, of which these are this holder's."""
        trainer = PrivateTrainer(
            head,
            self.study.optimization.build(head),
            self.study.plan,
            ledger=self._ledger,
            purpose=f"study {self.study.name}",
            sampler=self._sampler,
            peers=Peers(rank=0, count=int(1 / self.study.largest_share + 1e-9), through=self),
        )
        for batch in trainer.batches(rows):
            trainer.step(batch, cross_entropy)
            if on_step is not None:
                on_step(trainer)
        with torch.no_grad():
            for name, value in trainer.average.values.items():
                trainer.parameters[name].copy_(value)
        return trainer.certificate(delta=self.study.delta, caveats=_caveats(self.study))

    def add_up(self, total: Integers, mechanism: GridGaussian, sampler: Sampler) -> Integers:
        """The noisy sum over all holders of this step; zero where its round was abandoned."""
        noise = self.study.noise
        expected = (noise.grid, noise.dimension, noise.noise_multiplier)
        if (mechanism.grid, mechanism.dimension, mechanism.noise_multiplier) != expected:
            raise Refused("expected sums and noise as in the study, got others; nothing was sent")
        noise.check_covers(mechanism.eta)
        self._round += 1
        opened = self._channel.exchange(
            self.study.terms(self._round), self.place, lambda: noise.release(total, sampler)
        )
        if opened is None:
            return self._skipped(total)
        return _as_of_all(opened, self.study.parties.holders)

    def _skipped(self, total: Integers) -> Integers:
        self.abandoned += 1
        if self.abandoned > self.study.spare:
            raise Refused(
                f"expected at most spare={self.study.spare} abandoned rounds, got more; the study ends, and "
                "what was charged stays charged"
            )
        return np.zeros_like(total)


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
