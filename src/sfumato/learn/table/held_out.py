"""Accuracy of a table's model on private rows that were kept out of training: noisy counts, at a price."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sfumato.datasets import Chosen
from sfumato.errors import InvalidInput
from sfumato.learn.table import mlp
from sfumato.learn.table.linear import Rows
from sfumato.learn.table.model import Scorer, TableModel
from sfumato.learn.table.plan import RELATION
from sfumato.learn.table.target import Target
from sfumato.ledger import Ledger, Unrecorded
from sfumato.mechanisms import DiscreteLaplace
from sfumato.policy import Policy
from sfumato.randomness import Sampler
from sfumato.training import NoisyAccuracy
from sfumato.training.answers import answering
from sfumato.training.hold_out import PURPOSE, share_of


def check_can_be_measured(policy: Policy, target: Target) -> None:
    """Refuse what right and wrong answers do not describe."""
    if target.classes is None:
        raise InvalidInput(
            f"expected a target with categories to count right answers on rows kept out, got {target.name}, a "
            "number; measure on public rows (--test-data)"
        )
    if policy.unit.rows > 1:
        raise InvalidInput(
            f"expected one row of each {policy.budget.unit} to keep some out, got up to {policy.unit.rows}; "
            "rows of one are alike, and would make the accuracy look surer than it is: measure on public rows "
            "(--test-data), or declare rows = 1 in [unit]"
        )


def parted(rows: Rows, share: float, sampler: Sampler) -> tuple[Rows, Rows, npt.NDArray[np.bool_]]:
    """PRIVATE: the rows to learn from, those kept out, and which they are: by a coin for each row, of its own.

    Coins depend on no data, so that a row that comes or goes moves no other.
    """
    coins = sampler.bernoulli(share, len(rows.target))
    return _chosen(rows, ~coins), _chosen(rows, coins), coins


def accuracy(
    model: TableModel,
    rows: Rows,
    *,
    unit: str,
    epsilon: float,
    delta: float,
    ledger: Ledger | None,
    sampler: Sampler,
    chosen: Chosen,
) -> NoisyAccuracy:
    """How much the model gets right of rows kept out, charged before one is looked at.

    *Guarantees*: as of `HeldOut.accuracy`. A row's answer is that row's alone: scores are whole numbers, and a
    network is shown blocks in which a row has the same bits in any company.
    """
    mechanism = DiscreteLaplace.calibrated(sensitivity=1, epsilon=epsilon)
    ask = _answering(model.scorer)
    certificate = (ledger or Unrecorded(delta=delta)).pay_for(
        mechanism.event(),
        purpose=PURPOSE,
        relation=RELATION,
        unit=unit,
        private=chosen.private_with(sampler),
        caveats=chosen.caveats_with(sampler),
    )
    right = ask(rows) == rows.target
    return share_of(right, mechanism, sampler, epsilon=epsilon, certificate=certificate)


def _answering(scorer: Scorer) -> Callable[[Rows], npt.NDArray[np.int64]]:
    """How a model is asked; one that cannot be asked is refused here, before a charge."""
    if isinstance(scorer, mlp.Network):
        ask, encoders = answering(scorer.module), scorer.encoders
        return lambda rows: ask(torch.from_numpy(mlp.dense(encoders, rows.cells)))
    return lambda rows: _best(scorer.scores(rows.cells))


def _best(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else scores.argmax(axis=1)


def _chosen(rows: Rows, which: npt.NDArray[np.bool_]) -> Rows:
    return Rows(cells=np.asfortranarray(rows.cells[which]), target=rows.target[which])
