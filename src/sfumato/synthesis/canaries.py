"""People who do not exist, put into a copy of the counts, so that an attacker can be asked who was in.

The run with canaries is made for the holder and never released: it is not charged, and its outcome is private.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sfumato.randomness import Sampler
from sfumato.synthesis.cells import CellColumn
from sfumato.synthesis.counting import Clique, Marginals
from sfumato.synthesis.model import SyntheticModel

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Rows = Mapping[str, Integers]


def draw_canaries(columns: Sequence[CellColumn], count: int, sampler: Sampler) -> dict[str, Integers]:
    """Rows whose cells are drawn evenly and independently: most are unlike any person.

    Args:
        columns: The columns as cells.
        count: How many rows.
        sampler: The secret stream.

    Returns:
        The cells of each column.

    >>> from sfumato.randomness import SecretStream
    >>> city = CellColumn(name="city", type="text", values=("Delft", "Utrecht"))
    >>> draw_canaries([city], 5, SecretStream())["city"].shape
    (5,)
    """
    return {column.name: sampler.integers(max(1, column.missing), count) for column in columns}


class WithCanaries:
    """Marginals of a table with canaries in it, each with as many equal rows as one person may have."""

    def __init__(self, table: Marginals, canaries: Rows, included: npt.NDArray[np.bool_]) -> None:
        self.rows = table.rows
        self._table = table
        self._canaries = {name: cells[included] for name, cells in canaries.items()}

    def prepare(self) -> None:
        self._table.prepare()

    def marginal(self, clique: Clique) -> Integers:
        counts = self._table.marginal(clique).copy()
        np.add.at(counts, tuple(self._canaries[name] for name in clique), self.rows)
        return counts


def membership_scores(model: SyntheticModel, canaries: Rows) -> Floats:
    """How much likelier the model makes each canary than its columns alone would, around the median.

    The dependence between columns in the model is the trace that an unlikely row can leave.
    """
    alone = sum(np.log(model.cells((name,))[cells] + 1e-12) for name, cells in canaries.items())
    gain = model.log_chances(canaries) - alone
    return np.asarray(gain - np.median(gain))


def linked(model: SyntheticModel, canaries: Rows, secret: str) -> npt.NDArray[np.bool_]:
    """Whether someone who knows the rest of a canary's row reads its secret off the model.

    The guess is the value that the model makes likeliest beside the known ones. For canaries that were not in,
    it is right by chance alone.
    """
    column = next(column for column in model.columns if column.name == secret)
    count = len(canaries[secret])
    tried = [
        model.log_chances({**canaries, secret: np.full(count, cell)}) for cell in range(max(1, column.missing))
    ]
    return np.asarray(np.argmax(tried, axis=0) == canaries[secret])
