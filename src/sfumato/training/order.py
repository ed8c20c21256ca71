"""A fixed, public order of batches: who takes part in a step is known before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.training.ownership import name_digests, names_of
from sfumato.training.sampling import Floats, Indices, Sample


@dataclass(frozen=True, eq=False)
class FixedOrder:
    """The block of each unit, and its place in [0, 1) within that; step t works on block t mod `blocks`.

    *Guarantees*: a unit takes part in one step of each pass, always `blocks` steps apart, and which one it is
    depends on its own place among the rows, or on its own name, alone. Nothing of it is secret.
    """

    block: Indices
    places: Floats
    blocks: int

    @classmethod
    def of(cls, units: int, blocks: int, *, names: npt.ArrayLike | None = None) -> FixedOrder:
        """By the number of a row, dealt like cards; by a hash of its name, where units have names.

        Named units have no place of their own: the numbers of all others change with the name of one.

        >>> FixedOrder.of(5, 2).sample(3).units.tolist()
        [1, 3]
        """
        _validate.integer("blocks", blocks, least=1)
        if names is not None:
            words = np.ascontiguousarray(name_digests(names_of(names), b"")).view(np.uint64)
            chosen = (words[:, 0] % np.uint64(blocks)).astype(np.int64)
            return cls(chosen, (words[:, 1] >> np.uint64(11)).astype(np.float64) * 2.0**-53, blocks)
        rows = np.arange(units, dtype=np.int64)
        return cls(rows % blocks, (rows // blocks) / max(1, -(-units // blocks)), blocks)

    def sample(self, step: int) -> Sample:
        units = np.flatnonzero(self.block == step % self.blocks)
        return Sample(units, self.places[units])
