"""Teachers: trained as one ensemble on disjoint shards, on one process or on several."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, distributed, nn

from sfumato import _validate, models
from sfumato.errors import InvalidInput
from sfumato.pate.ensemble import Ensemble, EnsembleFit, fit, stack
from sfumato.pate.shards import Integers

FITS = {
    # A head starts from the public one: a few long steps on whole shards, pulled back to where it began.
    "head": EnsembleFit(epochs=40, batch=1 << 16, learning_rate=8.0, weight_decay=1e-4),
    "mlp": EnsembleFit(epochs=40, batch=32, learning_rate=0.05),
    # Longer steps lose many a teacher of 200 images.
    "cnn": EnsembleFit(epochs=40, batch=8, learning_rate=0.005),
}
KINDS = tuple(FITS)


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """What every teacher is and how it learns; all of it public.

    Args:
        kind: "head", a linear layer that starts from a public one, for features of a public prior; "mlp",
            one hidden layer of 128, for square images; or "cnn", the small convolutional net of
            `sfumato.models`.
        fit: How it learns.

    >>> TeacherConfig.of("mlp").kind
    'mlp'
    """

    kind: str = "head"
    fit: EnsembleFit = field(default_factory=lambda: FITS["head"])

    def __post_init__(self) -> None:
        _validate.one_of("kind", self.kind, KINDS)

    @classmethod
    def of(cls, kind: str) -> TeacherConfig:
        """The kind with settings that suit it."""
        return cls(kind=kind, fit=FITS[_validate.one_of("kind", kind, KINDS)])


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The processes that share the teachers: teacher k learns and votes on process k modulo `count`.

    Args:
        rank: The number of this process, from 0.
        count: How many there are.

    >>> Ranks(rank=1, count=2).mine(5).tolist()
    [1, 3]
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def of_world(cls) -> Ranks:
        """All ranks of the process group that torchrun set up."""
        if not distributed.is_initialized():
            raise InvalidInput(
                "expected an initialised process group; call torch.distributed.init_process_group('gloo') first"
            )
        return cls(rank=distributed.get_rank(), count=distributed.get_world_size())

    def mine(self, teachers: int) -> Integers:
        return np.arange(self.rank, teachers, self.count)

    def share_key(self, key: bytes) -> bytes:
        """The key of rank 0, on every rank: all must agree on whose records are whose."""
        if self.count == 1:
            return key
        values = torch.tensor(list(key), dtype=torch.uint8)
        distributed.broadcast(values, src=0)
        return bytes(values.tolist())

    def gather(self, votes: Tensor, teachers: int) -> Integers:
        """All teachers' votes (teachers, queries) on every rank, from those of this rank's own."""
        if self.count == 1:
            return votes.numpy()
        room = torch.full((-(-teachers // self.count), votes.shape[1]), -1, dtype=torch.int64)
        room[: len(votes)] = votes
        parts = [torch.empty_like(room) for _ in range(self.count)]
        distributed.all_gather(parts, room)
        return torch.stack(parts, dim=1).flatten(0, 1)[:teachers].numpy()  # teacher k was row k // count


def build(
    config: TeacherConfig, table: Integers, example: Tensor, classes: int, start: nn.Linear | None
) -> Ensemble:
    """The untrained teachers of these shards; the same first weights for all, which are public."""
    if config.kind == "head":
        if start is None:
            raise InvalidInput(
                "expected start, a public linear head on the features, for kind='head', got none"
            )
        model: nn.Module = start
    else:
        channels, side = example.shape[0], example.shape[-1]
        model = models.build(
            config.kind, classes=classes, in_channels=channels, side=side, seed=config.fit.seed
        )
    return stack([model] * len(table))


def train_teachers(
    inputs: Tensor,
    targets: Tensor,
    table: Integers,
    config: TeacherConfig,
    *,
    classes: int,
    start: nn.Linear | None = None,
) -> Ensemble:
    """Train one teacher for each row of the table of shards, all at once.

    Args:
        inputs: (rows, …), private.
        targets: (rows,).
        table: What `shard_table` gave.
        config: What a teacher is and how it learns.
        classes: How many classes there are.
        start: The public head to start from, for the kind "head".

    Returns:
        The teachers.

    >>> from sfumato.pate.shards import shard_table
    >>> table = shard_table(np.array([0, 1, 0, 1]), teachers=2, capacity=3)
    >>> config = TeacherConfig(kind="mlp", fit=EnsembleFit(epochs=1))
    >>> teachers = train_teachers(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 1, 0]), table, config, classes=2)
    >>> teachers.votes(torch.rand(3, 1, 8, 8)).shape
    torch.Size([2, 3])
    """
    return fit(build(config, table, inputs[0], classes, start), inputs, targets, table, config.fit)


def vote(
    inputs: Tensor,
    targets: Tensor,
    table: Integers,
    queries: Tensor,
    config: TeacherConfig,
    *,
    classes: int,
    start: nn.Linear | None = None,
    ranks: Ranks | None = None,
) -> Integers:
    """Train the teachers and let each vote on each query.

    With several ranks each trains and asks its own teachers only, and needs only their rows.

    Args:
        inputs: (rows, …), private.
        targets: (rows,).
        table: What `shard_table` gave.
        queries: (queries, …), public.
        config: What a teacher is and how it learns.
        classes: How many classes there are.
        start: The public head to start from, for the kind "head".
        ranks: The processes that share the teachers; each needs only the rows of its own.

    Returns:
        (teachers, queries) of class numbers.

    ```python
    votes = vote(inputs, targets, table, public_images, TeacherConfig.of("mlp"), classes=10)
    ```
    """
    ranks = Ranks() if ranks is None else ranks
    own = table[ranks.mine(len(table))]
    trained = train_teachers(inputs, targets, own, config, classes=classes, start=start)
    return ranks.gather(trained.votes(queries), len(table))
