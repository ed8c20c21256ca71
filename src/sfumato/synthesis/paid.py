"""The only way from exact counts to what a synthesizer sees: each use is one that the plan has paid for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidInput, Refused
from sfumato.randomness import Sampler
from sfumato.synthesis.counting import Clique, Marginals
from sfumato.synthesis.merging import Buckets, merge_table
from sfumato.synthesis.noise import CountNoise
from sfumato.synthesis.plan import SynthesisPlan

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_FARTHEST = 2.0**40  # counts that are expected of a fit


class PaidTable:
    """A private table behind the mechanisms of one plan, whose event must have been charged.

    *Guarantees*: what comes out was noised as the plan says, and no more often than the plan says. Exact counts
    are whole numbers, and so are the scores of a choice, so that one person moves each of them by at most
    `plan.rows`, to the last bit. Secret: the counts. Public, or noisy already: everything that is handed in.

    Args:
        plan: What was charged.
        table: The table's counts.
        sampler: The secret stream.

    ```python
    paid = PaidTable(request.plan, marginals, sampler)  # after the plan was charged
    synthesis = Synthesizer(paid, request.columns, request.candidates).run()
    ```
    """

    def __init__(self, plan: SynthesisPlan, table: Marginals, sampler: Sampler) -> None:
        if plan.rows != table.rows:
            raise InvalidInput(
                f"expected a plan for rows={table.rows}, got rows={plan.rows}; count what was charged"
            )
        self.plan = plan
        self._table, self._sampler = table, sampler
        self._left = Counter({"single": plan.columns, "choice": plan.chosen, "joint": plan.measured})
        self._counts: dict[Clique, Integers] = {}

    def single(self, name: str) -> Floats:
        """The noisy counts of one column's cells."""
        return self._released("single", self.plan.single_noise, self._table.marginal((name,)))

    def choose(
        self, expected: Mapping[Clique, Floats], buckets: Mapping[str, Buckets], penalty: float
    ) -> Clique:
        """One marginal whose counts are far from the expected ones, by the exponential mechanism.

        The score of a marginal is how many rows are in the wrong place, less `penalty` for each of its cells.
        """
        self._use("choice")
        cliques = list(expected)
        scores = [self._score(clique, expected[clique], buckets, penalty) for clique in cliques]
        mechanism = self.plan.choice(len(cliques))
        return cliques[mechanism.release(np.array(scores, dtype=np.int64), self._sampler)]

    def joint(self, clique: Clique, buckets: Mapping[str, Buckets]) -> Floats:
        """The noisy counts of combinations of buckets."""
        return self._released("joint", self.plan.joint_noise, self._exact(clique, buckets))

    def exact_shares(self) -> dict[Clique, Floats]:
        """What was counted, without noise: PRIVATE, for the holder's own report."""
        return {clique: counts / max(1, counts.sum()) for clique, counts in self._counts.items()}

    def _score(self, clique: Clique, expected: Floats, buckets: Mapping[str, Buckets], penalty: float) -> int:
        known = np.clip(np.nan_to_num(expected), -_FARTHEST, _FARTHEST)  # so that no sum of them wraps around
        wrong = np.abs(self._exact(clique, buckets) - np.rint(known).astype(np.int64)).sum()
        return int(wrong) - round(penalty * expected.size)

    def _exact(self, clique: Clique, buckets: Mapping[str, Buckets]) -> Integers:
        """Counted once on the engine, however many rounds look at it."""
        if clique not in self._counts:
            counts = self._table.marginal(tuple(buckets[name].column for name in clique))
            self._counts[clique] = merge_table(counts, [buckets[name] for name in clique])
        return self._counts[clique]

    def _released(self, kind: str, noise: CountNoise, counts: Integers) -> Floats:
        self._use(kind)
        return noise.release(counts, self._sampler).astype(np.float64)

    def _use(self, kind: str) -> None:
        if self._left[kind] < 1:
            raise Refused(
                f"expected no more than the plan paid for, got one {kind} more; plan and charge it first"
            )
        self._left[kind] -= 1
