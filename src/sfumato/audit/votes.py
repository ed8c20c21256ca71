"""The attack on noisy votes: who is called the winner, on two votes that differ by one voter.

One voter moves a candidate's chance to win by the most where the noise decides: where all are level, or two
lead together. Such votes are played with the first and with the last candidate ahead, since ties go to one end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.audit.bounds import Bound
from sfumato.audit.distinguish import PairAttack, attack_pairs

Counts = npt.NDArray[np.int64]
Vote = Callable[[Counts], npt.NDArray[np.int64]]
"""From votes (rounds, candidates) to the winner of each round."""


def worst_votes(candidates: int, *, replaced: bool, level: int = 20) -> tuple[tuple[Counts, Counts], ...]:
    """Neighbouring counts: one voter more, or, with `replaced`, one who votes for another candidate.

    Args:
        candidates: How many candidates there are.
        replaced: True if a neighbour has one voter replaced, False if one more.
        level: About how many votes each candidate has.

    Returns:
        Pairs of counts.

    >>> [(one.tolist(), other.tolist()) for one, other in worst_votes(3, replaced=True, level=5)][0]
    ([6, 5, 5], [5, 5, 6])
    """
    last = _validate.integer("candidates", candidates, least=2) - 1
    ballots = np.eye(candidates, dtype=np.int64)
    level_all = np.full(candidates, level, dtype=np.int64)
    two_lead = level * (ballots[0] + ballots[last])
    return tuple(
        (base + ballots[ahead], base + ballots[behind] if replaced else base)
        for base in (level_all, two_lead)
        for ahead, behind in ((0, last), (last, 0))
    )


def vote_attack(vote: Vote, *, candidates: int, replaced: bool, bound: Bound, trials: int) -> PairAttack:
    """Attack a vote: what do the winners of all `worst_votes` give away?

    Args:
        vote: Gives the winner of each round, from votes (rounds, candidates).
        candidates: How many candidates there are.
        replaced: True if a neighbour has one voter replaced, False if one more.
        bound: The bound that thresholds are chosen by.
        trials: Half of how often each vote is played on both sides.

    Returns:
        The errors on each pair of counts.

    ```python
    vote_attack(vote, candidates=3, replaced=False, bound=bound, trials=10_000).bound(bound, 0.05)
    ```
    """
    return attack_pairs(
        lambda counts, rounds: vote(np.tile(counts, (rounds, 1))),
        worst_votes(candidates, replaced=replaced),
        bound,
        trials=trials,
    )
