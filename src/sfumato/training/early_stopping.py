"""Stop a run when accuracy on records kept out no longer rises; every look at them is charged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from sfumato import _validate
from sfumato.accounting import DpEvent, Relation, repeat
from sfumato.errors import InvalidInput
from sfumato.ledger import Ledger
from sfumato.randomness import Sampler
from sfumato.runs import EpochReport
from sfumato.training.hold_out import HeldOut, price


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Measure accuracy on records kept out after each epoch, and stop when it has not risen for a while.

    *Guarantees*: each measurement is a release of its own, charged before a record is looked at; how many there
    can be at most is known beforehand, and a ledger without room for all of them refuses the run before it
    starts. The stop depends on noised figures only. Steps that were not started cost nothing, but the price of
    a run that was stopped is not that of a shorter plan: its certificate states prices that hold however the
    stop was decided (the whole plan's, or a privacy filter's; Feldman & Zrnic 2021). No record is in training
    and in the measurement; their prices are added all the same: the ε of the run is that of both.

    Args:
        held: The records kept out, from `keep_out`.
        epsilon: The ε of one measurement, on top of training.
        patience: How many epochs in a row may pass without a new best figure.
        least_gain: By how much a figure must exceed the best so far. The noise of a count has a standard
            deviation of about 1.4 / epsilon records.

    >>> import numpy as np
    >>> from sfumato.datasets import Dataset
    >>> from sfumato.training import keep_out
    >>> rows = Dataset(inputs=np.zeros((1000, 2), np.float32), targets=np.zeros(1000, np.int64), name="toy",
    ...                visibility="private", public_size=1000)
    >>> training, held = keep_out(rows, 0.2)
    >>> EarlyStopping(held=held, epsilon=0.1).patience
    2
    """

    held: HeldOut
    epsilon: float
    patience: int = 2
    least_gain: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.held, HeldOut):
            raise InvalidInput(
                f"expected held to be records kept out, got {type(self.held).__name__}; as in training, held = "
                "keep_out(rows, 0.1)"
            )
        _validate.positive("epsilon", self.epsilon)
        _validate.integer("patience", self.patience, least=1)
        _validate.non_negative("least_gain", self.least_gain)

    def event(self, epochs: int, *, relation: Relation = Relation.ADD_REMOVE) -> DpEvent:
        """Say what measuring after so many epochs releases.

        Args:
            epochs: How many.
            relation: Which data sets are neighbours.

        Returns:
            The event.
        """
        return repeat(price(self.epsilon, relation), epochs)

    def measure(
        self,
        model: nn.Module,
        *,
        delta: float,
        ledger: Ledger | None,
        sampler: Sampler | None,
        relation: Relation = Relation.ADD_REMOVE,
    ) -> float:
        """Measure accuracy on the records kept out; it is charged first.

        Args:
            model: The model.
            delta: The δ at which the certificate is priced, without a ledger.
            ledger: Where the measurement is charged.
            sampler: The secret stream.
            relation: Which data sets are neighbours.

        Returns:
            The noised share of right answers.
        """
        found = self.held.accuracy(
            model, epsilon=self.epsilon, delta=delta, relation=relation, ledger=ledger, sampler=sampler
        )
        return found.accuracy

    def is_over(self, history: Sequence[EpochReport]) -> bool:
        """Say whether the last `patience` figures did not exceed the best one before them.

        Args:
            history: What was said after each epoch.

        Returns:
            Whether to stop.
        """
        figures = [one.held_out_accuracy for one in history if one.held_out_accuracy is not None]
        if len(figures) <= self.patience:
            return False
        before, since = figures[: -self.patience], figures[-self.patience :]
        return max(since) <= max(before) + self.least_gain
