"""Several processes, one release: every rank samples its own units, sums are added, noise is drawn once.

Start with torchrun and hand `Peers.of_world()` to the trainer. Every rank may be given all of the data: a keyed
hash says which units are its own. Ranks that hold their own people say `sharded=True`. Each draws its own
Poisson sample at the plan's rate; the grid sums, whole numbers, are added by one all-reduce, to which rank 0
alone has added the noise. Rank 0 alone talks to the ledger, and all ranks begin with its weights. Ranks compare
digests of ids and rows under a key that rank 0 draws and that stays inside the group.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch import distributed as torch_distributed
from torch.utils import _pytree as pytree

from sfumato.accounting import DpEvent
from sfumato.errors import InvalidInput, Refused
from sfumato.ledger import Ledger, Reservation
from sfumato.mechanisms import Gaussian, GridGaussian
from sfumato.randomness import NoiseSource, Sampler
from sfumato.training.data import Bytes, columns_of, keyed, name_digests, names_of, row_digests
from sfumato.training.noise import NoisySum
from sfumato.training.sampling import Mask

if TYPE_CHECKING:
    from sfumato.training.trainer import PrivateTrainer

_KEY_BYTES = 32
_FAILED, _RESUMES = 1, 2  # words of ranks to each other after a part of the work


class Aggregation(Protocol):
    """The way in which several holders, who do not show each other their sums, add them up."""

    def add_up(
        self, total: npt.NDArray[np.int64], mechanism: GridGaussian, sampler: Sampler
    ) -> npt.NDArray[np.int64]:
        """Return the sum over all holders in grid steps, with the noise that their shares make."""
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
        """Return all ranks of the process group that torchrun set up."""
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
        """Run a part of the work on every rank; it succeeds on all of them, or raises on all of them.

        The rank that failed raises its own error, the others `Refused`, so that none waits for a rank that is
        not coming. A rank that resumes beside one that begins is found here, as both say which they do.
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
        """Return the rows (n, width) of every rank, in the order of ranks; each may have another n."""
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
        """Return a fresh key of rank 0, the same on every rank, that never leaves the group."""
        key = torch.from_numpy(sampler.integers(256, _KEY_BYTES).astype(np.uint8))
        self._from_first(key)
        return key.numpy().tobytes()

    def share_bytes(self, content: bytes) -> bytes:
        """Return on every rank the bytes that rank 0 gives."""
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
        """Copy the tensors of rank 0 to those of all ranks, which must have the same shapes."""
        if not self.several:
            return
        for tensor in tensors:
            whole = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            self._from_first(whole.view(-1).view(torch.uint8))
            tensor.copy_(whole)

    # Releasing

    def release(
        self, sums: NoisySum, mechanism: GridGaussian, sampler: NoiseSource, *, divisor: float
    ) -> dict[str, Tensor]:
        """Return the noised sum over all ranks; rank 0 adds its noise before anything is sent."""
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
        """Return a noisy count over all ranks."""
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
        """Reserve in the ledger of rank 0, or go on under `held`; a refusal there stops every rank."""
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
        """Return the word of every rank, in the order of ranks."""
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


# Agreeing before the charge


def share_out(peers: Peers, data: Any, units: npt.ArrayLike | None, *, key: bytes) -> Mask | None:
    """Return the units that this rank alone works on; None for all of its data.

    *Guarantees*: where all ranks hold the same data, the owner of a unit follows from a keyed hash of its id,
    or of its row where rows have no ids, and from nothing else: no other unit that comes, goes or changes
    places moves it. Equal rows are told apart by counting them. Sharded ranks share no id, or no row.
    """
    if not peers.several:
        return None
    with peers.together("to tell its units apart"):
        found = row_digests(data, key) if units is None else name_digests(names_of(units), key)
    if peers.sharded:
        with peers.together("to find units of its own"):
            _require_disjoint(peers.gather(np.unique(found, axis=0)))
        return None
    peers.require_same(
        {"data": np.frombuffer(keyed(found.tobytes(), key), np.uint8)},
        remedy="give every rank all of it, or say Peers.of_world(sharded=True) if each holds its own people",
    )
    return _owners(found, peers.count) == peers.rank


def _require_disjoint(of_ranks: list[Bytes]) -> None:
    """Refuse a digest that is there twice: each rank's own are told apart already."""
    together = np.concatenate(of_ranks)
    if len(np.unique(together, axis=0)) < len(together):
        raise InvalidInput(
            "expected ranks that share no unit with sharded=True, got the same id or row on two of them; give "
            "each rank its own people, or leave sharded out and give all ranks the same data; people whose "
            "rows are equal by chance are told apart with units=..."
        )


def _owners(digests: Bytes, ranks: int) -> npt.NDArray[np.int64]:
    """Return the rank of each unit; the k-th of equal rows goes k ranks further."""
    _, codes, counts = np.unique(digests, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    place = np.empty(len(digests), dtype=np.uint64)
    place[order] = np.arange(len(digests)) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = np.ascontiguousarray(digests[:, :8]).view(np.uint64)[:, 0] // np.uint64(2)
    return ((numbers + place) % np.uint64(ranks)).astype(np.int64)


def terms(trainer: PrivateTrainer, data: Any, units: npt.ArrayLike | None, views: object) -> dict[str, Bytes]:
    """Return plan, model, optimizer, layout and the rest as digests; no value of a row is in any of them."""
    optimizer = trainer.optimizer
    columns = columns_of(data)
    items = getattr(data, "dataset", data)  # of a DataLoader
    found, structure = pytree.tree_flatten(columns if columns is not None else items[0] if len(items) else ())
    leaves = [torch.as_tensor(leaf) for leaf in found]
    tensors = [*trainer.model.named_parameters(), *trainer.model.named_buffers()]
    facts: Mapping[str, Any] = {
        "version": [torch.__version__, metadata.version("sfumato")],
        "plan": trainer.plan.to_json(),
        "model": [str(trainer.model), [(name, _form(value), value.requires_grad) for name, value in tensors]],
        "optimizer": [
            type(optimizer).__name__,
            [
                {name: str(value) for name, value in group.items() if name != "params"}
                for group in optimizer.param_groups
            ],
            [_content(leaf) for leaf in pytree.tree_leaves(optimizer.state_dict()["state"])],
        ],
        "data layout": [
            columns is None,
            str(structure),
            [_form(leaf if columns is None else leaf[:0]) for leaf in leaves],  # not how many rows there are
            None if units is None else np.asarray(units).dtype.kind,
            views is not None,
        ],
        "sharded": trainer.peers.sharded,
        "privacy of the sampler": trainer.private,
        "step to begin with": [trainer.steps_done, trainer.clip_norm],
    }
    return {name: digest(json.dumps(fact, sort_keys=True, default=str)) for name, fact in facts.items()}


def digest(text: str) -> Bytes:
    return np.frombuffer(keyed(text.encode()), np.uint8)


def _content(leaf: Any) -> str:
    """Return a digest of a part of the optimizer's state: steps by it move all ranks alike."""
    if isinstance(leaf, Tensor):
        return keyed(leaf.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hex()
    return repr(leaf)


def _form(tensor: Tensor) -> list[str]:
    return [str(tuple(tensor.shape)), str(tensor.dtype)]
