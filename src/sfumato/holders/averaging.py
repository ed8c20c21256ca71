"""Federated averaging with the privacy of clients, simulated: many small clients, one head on public features.

In each round the clients that the coordinator picked train the head on their own rows, clip the change, and
send it under masks with their share of the noise (McMahan et al. 2018, "Learning differentially private
recurrent language models", algorithm 1, with secure sums in place of a trusted server). The coordinator knows
the picked clients: there is no amplification by sampling, and a client pays for every round that it may be in.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sfumato import _validate
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput
from sfumato.fitting import evaluate
from sfumato.holders.parties import Parties
from sfumato.holders.rounds import Losses, Lost, random_losses
from sfumato.holders.sums import (
    DeskSums,
    Part,
    SumRound,
    SumStudy,
    Values,
    calibrated_rounds,
    new_keys,
    public_keys,
)
from sfumato.learn import features, recipe_for
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.signing import PublicKey
from sfumato.randomness import SecretStream
from sfumato.training import cross_entropy

UNIT = "client"


@dataclass(frozen=True, kw_only=True)
class AveragingTerms:
    """Settings of clients' training, and of the average of their updates.

    Args:
        clients: Number of clients.
        rounds: Number of rounds.
        local_steps: Steps of plain gradient descent that a client takes on all its rows in a round.
        learning_rate: The size of these steps.
        clip_norm: C, the bound of one client's update in L2 norm.
        server_rate: The factor of the noisy average.

    >>> AveragingTerms(clients=1000).taken(cohort=100)  # of 12 rounds
    2
    """

    clients: int
    rounds: int = 12
    local_steps: int = 5
    learning_rate: float = 8.0
    clip_norm: float = 4.0
    server_rate: float = 2.0

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "local_steps"):
            _validate.integer(name, getattr(self, name), least=1)
        for name in ("learning_rate", "clip_norm", "server_rate"):
            _validate.positive(name, getattr(self, name))

    def taken(self, cohort: int) -> int:
        """Return the most rounds that one client is in, if cohorts go round."""
        return math.ceil(self.rounds * cohort / self.clients)

    def cohort(self, number: int, size: int) -> list[int]:
        """Return the places of the clients in round `number`, from 1: one cohort after another."""
        first = (number - 1) * size
        return sorted((first + offset) % self.clients + 1 for offset in range(size))


def averaging_study(
    terms: AveragingTerms,
    parties: Parties,
    keys: Mapping[str, PublicKey],
    *,
    name: str,
    parameters: int,
    epsilon: float,
    delta: float,
) -> SumStudy:
    """Return the study with the least noise that costs each client at most (ε, δ)."""
    if parties.holders > terms.clients:
        raise InvalidInput(f"expected at most {terms.clients} clients in a round, got {parties.holders}")
    picked = parties.holders < terms.clients
    taken = terms.taken(parties.holders) if picked else None

    def rounds(noise: float) -> tuple[SumRound, ...]:
        part = Part(
            sensitivity=terms.clip_norm,
            dimension=parameters,
            noise_multiplier=noise,
            shares=parties.counted,
            largest=parties.holders * terms.clip_norm,
        )
        return (SumRound((part,)),) * terms.rounds

    return SumStudy(
        name=name,
        kind="averaging",
        plan={"averaging": asdict(terms)},
        unit=UNIT,
        delta=delta,
        parties=parties,
        rounds=calibrated_rounds(rounds, epsilon=epsilon, delta=delta, taken=taken),
        keys=keys,
        taken=taken,
    )


@dataclass(frozen=True, kw_only=True)
class SimulatedAveraging:
    """The outcome of federated averaging in one process.

    Attributes:
        study: The study.
        terms: Settings of the training.
        model: The head, which takes features and not rows.
        test_accuracy: The share of right answers on the public test rows; None without any.
        certificates: Of each client, by its place.
        abandoned: Number of abandoned rounds.
        seconds: Duration.
    """

    study: SumStudy
    terms: AveragingTerms
    model: nn.Module
    test_accuracy: float | None
    certificates: Mapping[int, Certificate]
    abandoned: int
    seconds: float


def simulate_averaging(
    rows: Dataset,
    test: Dataset | None,
    *,
    parties: Parties,
    terms: AveragingTerms,
    epsilon: float,
    delta: float = 1e-5,
    losses: Losses | None = None,
    ledgers: Mapping[int, Ledger] | None = None,
    masked: bool = True,
    on_round: Callable[[], None] = lambda: None,
) -> SimulatedAveraging:
    """Deal the rows out to many clients and average their updates, each round under masks and noise.

    Args:
        rows: The clients' rows, which declare their classes; their name selects the public features.
        test: Public rows to measure accuracy on; None to measure nothing.
        parties: Of one round: the number of clients, and of those that may be lost or collude.
        terms: Settings of the training.
        epsilon: The ε of one client, with all its rows, against the best informed adversary.
        delta: Its δ.
        losses: The clients lost in a round; by default `parties.dropped` clients chosen at random.
        ledgers: The clients' ledgers by place, from 1.
        masked: False leaves the masks out: the same sums, hidden from no party.
        on_round: Called after each round.

    Returns:
        The head, its accuracy, and a certificate of each client.

    Raises:
        InvalidInput: If too few clients can pay.

    ```python
    terms = AveragingTerms(clients=1000, rounds=12)
    done = simulate_averaging(rows, test, parties=Parties(holders=100), terms=terms, epsilon=8)
    print(done.test_accuracy, done.study.taken)  # every client was in so many rounds at most
    ```
    """
    started = time.perf_counter()
    recipe = recipe_for(rows.name)
    network = features.build(recipe, classes=features.declared(rows)[1])
    head = network.head
    keys = new_keys(terms.clients)
    study = averaging_study(
        terms,
        parties,
        public_keys(keys),
        name=f"{rows.name} of many clients",
        parameters=sum(parameter.numel() for parameter in head.parameters()),
        epsilon=epsilon,
        delta=delta,
    )
    of_round = losses or random_losses(parties, SecretStream())

    def lost(number: int) -> Mapping[int, Lost]:
        """Name lost clients by their places in the study, not in the cohort."""
        cohort = terms.cohort(number, parties.holders)
        return {cohort[place - 1]: message for place, message in of_round(number).items()}

    def update(place: int) -> Values:
        own = slice(place - 1, None, terms.clients)
        return lambda: [clipped_update(head, inputs[own], targets[own], terms)]

    desk = DeskSums(study, keys, losses=lost, ledgers=ledgers, masked=masked)
    inputs, targets = features.featured(network, rows).tensors()
    abandoned = 0
    for number in range(1, terms.rounds + 1):
        cohort = [place for place in terms.cohort(number, parties.holders) if place in desk.keys]
        total = desk.add_up(number, {place: update(place) for place in cohort})
        if total is None:
            abandoned += 1
        else:
            _add(head, total.parts[0] * (terms.server_rate / total.holders))
        on_round()
    seen = None if test is None else features.featured(network, test)
    return SimulatedAveraging(
        study=study,
        terms=terms,
        model=head,
        test_accuracy=None if seen is None else evaluate(head, seen).accuracy,
        certificates=desk.certificates() if ledgers else {},
        abandoned=abandoned,
        seconds=time.perf_counter() - started,
    )


def clipped_update(
    head: nn.Module, inputs: Tensor, targets: Tensor, terms: AveragingTerms
) -> npt.NDArray[np.float64]:
    """Return the change of the head by plain gradient descent on a client's rows, of norm at most `clip_norm`.

    *Guarantees*: norm ≤ C for any rows; a change that is not finite counts as zero.
    """
    moved = copy.deepcopy(head)
    optimizer = torch.optim.SGD(moved.parameters(), lr=terms.learning_rate)
    for _ in range(terms.local_steps if len(inputs) else 0):
        loss = cross_entropy(moved(inputs), targets).mean()
        for parameter, slope in zip(
            moved.parameters(), torch.autograd.grad(loss, list(moved.parameters())), strict=True
        ):
            parameter.grad = slope
        optimizer.step()
    before, after = _flat(head), _flat(moved)
    change = after - before
    norm = float(np.linalg.norm(change))
    if not math.isfinite(norm):
        return np.zeros_like(change)
    # 2⁻⁴⁰ is more than a norm in doubles loses by rounding.
    return change * min(1.0, terms.clip_norm / norm * (1 - 2.0**-40)) if norm else change


def _flat(head: nn.Module) -> npt.NDArray[np.float64]:
    return torch.cat([value.detach().reshape(-1) for value in head.parameters()]).numpy().astype(np.float64)


@torch.no_grad()
def _add(head: nn.Module, change: npt.NDArray[np.float64]) -> None:
    start = 0
    for value in head.parameters():
        part = torch.from_numpy(change[start : start + value.numel()]).reshape(value.shape)
        value.add_(part.to(value.dtype))
        start += value.numel()
