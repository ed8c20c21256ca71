"""Several processes, one release: every rank samples its own units, sums are added, noise is drawn once.

Start with torchrun and hand `Peers.of_world()` to the trainer. Each rank holds its own units (a unit's rows on
one rank only) and draws its own Poisson sample at the plan's rate; the grid sums, whole numbers, are added by
one all-reduce, to which rank 0 alone has added the noise. Rank 0 alone talks to the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as torch_distributed

from sfumato.accounting import DpEvent
from sfumato.errors import InvalidInput, Refused, SfumatoError
from sfumato.ledger import Ledger, Reservation
from sfumato.mechanisms import Gaussian, GridGaussian
from sfumato.randomness import Sampler
from sfumato.training.noise import NoisySum


@dataclass(frozen=True, kw_only=True)
class Peers:
    """The processes that take each step together; this one is number `rank` of `count`."""

    rank: int
    count: int

    @classmethod
    def of_world(cls) -> Peers:
        """All ranks of the process group that torchrun set up."""
        if not torch_distributed.is_initialized():
            raise InvalidInput(
                "expected an initialised process group; call torch.distributed.init_process_group('gloo') first"
            )
        return cls(rank=torch_distributed.get_rank(), count=torch_distributed.get_world_size())

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def release(
        self, sums: NoisySum, mechanism: GridGaussian, sampler: Sampler, *, divisor: float
    ) -> dict[str, Tensor]:
        """The noised sum over all ranks, the same on each; rank 0 adds its noise before anything is sent."""
        if self.count == 1:
            return sums.release(mechanism, sampler, divisor=divisor)
        if self.leads:
            sums.add_noise(mechanism, sampler)
        self._add_up(torch.from_numpy(sums.total(mechanism)))
        return sums.take(mechanism, divisor=divisor)

    def release_count(self, count: float, mechanism: Gaussian, sampler: Sampler) -> float:
        """A noisy count over all ranks."""
        whole = torch.tensor(round(2 * count))  # counts shifted by ½ a unit: whole when doubled
        self._add_up(whole)
        noisy = torch.tensor(0.0, dtype=torch.float64)
        if self.leads:
            noisy.fill_(mechanism.release(float(whole) / 2, sampler))
        self._add_up(noisy)
        return float(noisy)

    def reserve(self, ledger: Ledger | None, event: DpEvent, **terms: Any) -> Reservation | None:
        """Rank 0 reserves in its ledger; a refusal there stops every rank."""
        refusal: SfumatoError | None = None
        reservation = None
        try:
            if self.leads and ledger is not None:
                reservation = ledger.reserve(event, **terms)
        except SfumatoError as error:
            refusal = error
        refused = torch.tensor(int(refusal is not None))
        self._add_up(refused)
        if refusal is not None:
            raise refusal
        if int(refused):
            raise Refused("the ledger of rank 0 refused the plan; see what rank 0 says")
        return reservation

    def _add_up(self, values: Tensor) -> None:
        if self.count > 1:
            torch_distributed.all_reduce(values)


ALONE = Peers(rank=0, count=1)
