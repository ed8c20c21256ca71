"""Several processes, one release: every rank samples its own units, sums are added, noise is drawn once.

Start with torchrun and hand `Peers.of_world()` to the trainer. Every rank may be given all of the data: a keyed
hash says which units are its own (`ownership.py`). Ranks that hold their own people say `sharded=True`. Each
draws its own Poisson sample at the plan's rate; the grid sums, whole numbers, are added by one all-reduce, to
which rank 0 alone has added the noise. Rank 0 alone talks to the ledger, and its first weights are everybody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch import distributed as torch_distributed

from sfumato.accounting import DpEvent
from sfumato.errors import InvalidInput, Refused
from sfumato.ledger import Ledger, Reservation
from sfumato.mechanisms import Gaussian, GridGaussian
from sfumato.randomness import NoiseSource, Sampler
from sfumato.training.noise import StepSum

Bytes = npt.NDArray[np.uint8]
_KEY_BYTES = 32
_FAILED, _RESUMES = 1, 2  # what ranks say to each other after a part of the work


class Aggregation(Protocol):
    """How several holders, who do not show each other their sums, add them up."""

    def add_up(
        self, total: npt.NDArray[np.int64], mechanism: GridGaussian, sampler: Sampler
    ) -> npt.NDArray[np.int64]:
        """The sum over all holders in grid steps, with the noise that their shares make."""
        ...


@dataclass(frozen=True, kw_only=True)
class Peers:
    """The processes that take each step together; this one is number `rank` of `count`.

    Args:
        rank: The number of this process, from 0.
        count: How many there are.
        sharded: True if each process holds units that no other has; False if all hold the same data.
        through: How a holder's sums reach those of other holders, with whom it has no process group.

    >>> Peers(rank=0, count=1).count
    1
    """

    rank: int
    count: int
    sharded: bool = False
    through: Aggregation | None = None

    @classmethod
    def of_world(cls, *, sharded: bool = False) -> Peers:
        """All ranks of the process group that torchrun set up."""
        if not torch_distributed.is_initialized():
            raise InvalidInput(
                "expected an initialised process group; call torch.distributed.init_process_group('gloo') first"
            )
        rank, count = torch_distributed.get_rank(), torch_distributed.get_world_size()
        return cls(rank=rank, count=count, sharded=sharded)

    @property
    def leads(self) -> bool:
        return self.rank == 0 or self.through is not None

    @property
    def several(self) -> bool:
        """Whether there is a process group; holders have none."""
        return self.count > 1 and self.through is None

    # Agreeing

    @contextmanager
    def together(self, doing: str, *, resumes: bool = False) -> Iterator[None]:
        """What a rank does by itself in the block, every rank has done after it; or all of them raise.

        The one that failed raises its own error, the others `Refused`, and nobody waits for a rank that is not
        coming: one that resumes beside one that begins is found here, as both say which they do. What the block
        computed is not released.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        said = self._said(_FAILED * (failure is not None) + _RESUMES * resumes)
        failed = [rank for rank, word in enumerate(said) if word & _FAILED]
        if failure is not None:
            raise failure
        if len({word & _RESUMES for word in said}) > 1:
            raise Refused(
                "expected every rank to resume, or none, got some of each; give every rank the same files, and "
                "let each call resume or leave it"
            )
        if failed:
            raise Refused(
                f"rank {failed[0]} failed {doing}, so all ranks stopped and nothing of it was released; see "
                f"what rank {failed[0]} says"
            )

    def require_same(self, facts: Mapping[str, Bytes], *, remedy: str) -> None:
        """Raise on every rank if a fact, as a digest, is another on any of them; the facts have one order."""
        if not self.several:
            return
        of_ranks = self.gather(np.stack(list(facts.values())))
        for place, name in enumerate(facts):
            strangers = [
                rank for rank, seen in enumerate(of_ranks) if (seen[place] != of_ranks[0][place]).any()
            ]
            if strangers:
                raise InvalidInput(
                    f"expected the same {name} on every rank, got another on rank {strangers[0]}; {remedy}"
                )

    def gather(self, rows: Bytes) -> list[Bytes]:
        """The rows (n, width) of every rank, in the order of ranks; each may have another n."""
        if not self.several:
            return [rows]
        counts = torch.zeros(self.count, dtype=torch.int64)
        counts[self.rank] = len(rows)
        self._add_up(counts)
        room = torch.zeros(int(counts.max()), rows.shape[1], dtype=torch.uint8)
        room[: len(rows)] = torch.from_numpy(rows)
        parts = [torch.empty_like(room) for _ in range(self.count)]
        torch_distributed.all_gather(parts, room)
        return [part[:own].numpy() for part, own in zip(parts, counts.tolist(), strict=True)]

    def share_key(self, sampler: Sampler) -> bytes:
        """A fresh key of rank 0, the same on every rank, that never leaves the group."""
        key = torch.from_numpy(sampler.integers(256, _KEY_BYTES).astype(np.uint8))
        self._from_first(key)
        return key.numpy().tobytes()

    def share_bytes(self, content: bytes) -> bytes:
        """What rank 0 gives, on every rank."""
        if not self.several:
            return content
        length = torch.tensor(len(content))
        self._from_first(length)
        room = torch.zeros(int(length), dtype=torch.uint8)
        if self.leads:
            room = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._from_first(room)
        return room.numpy().tobytes()

    @torch.no_grad()
    def share_weights(self, tensors: Iterable[Tensor]) -> None:
        """Put what rank 0 holds into the tensors of all ranks, which must have the same shapes."""
        if not self.several:
            return
        for tensor in tensors:
            whole = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            self._from_first(whole.view(-1).view(torch.uint8))
            tensor.copy_(whole)

    # Releasing

    def release(
        self, sums: StepSum, mechanism: GridGaussian, sampler: NoiseSource, *, divisor: float
    ) -> dict[str, Tensor]:
        """The noised sum over all ranks, the same on each; rank 0 adds its noise before anything is sent."""
        if self.through is not None:
            total = sums.total(mechanism)
            total[:] = self.through.add_up(
                total, mechanism, cast(Sampler, sampler)
            )  # shares are not correlated
            return sums.take(mechanism, divisor=divisor)
        if not self.several:
            return sums.release(mechanism, sampler, divisor=divisor)
        with self.together("to draw the noise"):
            if self.leads:
                sums.add_noise(mechanism, sampler)
        self._add_up(torch.from_numpy(sums.total(mechanism)))
        return sums.take(mechanism, divisor=divisor)

    def release_count(self, count: float, mechanism: Gaussian, sampler: Sampler) -> float:
        """A noisy count over all ranks."""
        whole = torch.tensor(round(2 * count))  # counts shifted by ½ a unit: whole when doubled
        self._add_up(whole)
        noisy = torch.tensor(0.0, dtype=torch.float64)
        with self.together("to draw the noise of a count"):
            if self.leads:
                noisy.fill_(mechanism.release(float(whole) / 2, sampler))
        self._add_up(noisy)
        return float(noisy)

    def reserve(
        self, ledger: Ledger | None, event: DpEvent, *, held: Reservation | None = None, **terms: Any
    ) -> Reservation | None:
        """Rank 0 reserves in its ledger, or goes on under what it holds; a refusal there stops every rank."""
        holders = torch.tensor(int(ledger is not None))
        self._add_up(holders)
        reservation = held
        with self.together("to reserve the plan in its ledger"):
            if self.leads and ledger is None and int(holders):
                raise Refused("expected a ledger on rank 0, which alone pays, got one on another rank only")
            if self.leads and ledger is not None and held is None:
                reservation = ledger.reserve(event, **terms)
        return reservation

    # Talking

    def _said(self, word: int) -> list[int]:
        """What every rank says, in the order of ranks."""
        if not self.several:
            return [word]
        words = torch.zeros(self.count, dtype=torch.int64)
        words[self.rank] = word
        self._add_up(words)
        return words.tolist()

    def _add_up(self, values: Tensor) -> None:
        if self.several:
            torch_distributed.all_reduce(values)

    def _from_first(self, values: Tensor) -> None:
        if self.several:
            torch_distributed.broadcast(values, src=0)


ALONE = Peers(rank=0, count=1)
