"""A study at a desk: all holders and the coordinator in one process, with the keys and masks of real ones."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from sfumato.datasets import Dataset
from sfumato.errors import BudgetExceeded, InvalidInput, Refused
from sfumato.fitting import evaluate
from sfumato.holders.coordinator_round import CoordinatorRound
from sfumato.holders.desk_round import Lost, run_round
from sfumato.holders.holder_round import HolderRound
from sfumato.holders.messages import Terms
from sfumato.holders.network import NetworkTerms
from sfumato.holders.node import Node, Opened
from sfumato.holders.parties import Parties
from sfumato.holders.study import Study
from sfumato.holders.tasks import dealt
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.signing import PrivateKey
from sfumato.mechanisms.grid import Integers
from sfumato.randomness import Sampler, SecretStream
from sfumato.recipes import features

Losses = Callable[[int], Mapping[int, Lost]]


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What came of a study at a desk.

    Attributes:
        study: The study that was rehearsed, with keys made for it.
        model: The trained head, which takes features and not rows, or the network; all holders have the same.
        test_accuracy: The share of right answers on the public test rows; None without any.
        certificates: Of each holder that took part, by its place from 1.
        abandoned: How many rounds were abandoned; at most `study.spare`.
        seconds: How long it took, features included.
    """

    study: Study
    model: nn.Module
    test_accuracy: float | None
    certificates: Mapping[int, Certificate]
    abandoned: int
    seconds: float


class Desk:
    """Passes the messages of each round; one holder works at a time, the others wait for their turn.

    One at a time, since a step keys the global generators of the process.
    """

    def __init__(self, keys: Mapping[int, PrivateKey], losses: Losses) -> None:
        self._keys, self._losses = keys, losses
        self._turn = threading.Lock()
        self._meeting = threading.Barrier(len(keys), action=self._hold)
        self._terms: dict[int, Terms] = {}
        self._contributions: dict[int, Callable[[], Integers]] = {}
        self._opened: Opened | None = None

    def work(self, place: int, task: Callable[[], Certificate]) -> Certificate:
        """Do a holder's work; where it fails, nobody waits for it."""
        with self._turn:
            try:
                return task()
            except BaseException:
                self._meeting.abort()
                raise

    def exchange(self, terms: Terms, place: int, contribution: Callable[[], Integers]) -> Opened | None:
        self._terms[place], self._contributions[place] = terms, contribution
        self._turn.release()
        try:
            self._meeting.wait()
        except threading.BrokenBarrierError as error:
            raise Refused("another holder failed, so the study ends; see what that one says") from error
        finally:
            self._turn.acquire()
        return self._opened

    def _hold(self) -> None:
        """One round, when all have brought what they add."""
        terms = next(iter(self._terms.values()))
        parts = {place: HolderRound(self._terms[place], place, key) for place, key in self._keys.items()}
        coordinator = CoordinatorRound(terms)
        lost = self._losses(terms.number)
        try:
            total = run_round(coordinator, parts, self._contributions, lost=lost)
            self._opened = Opened(total, len(coordinator.survivors))
        except Refused:
            self._opened = None


def simulate(
    rows: Dataset,
    test: Dataset | None,
    *,
    parties: Parties,
    epsilon: float,
    delta: float = 1e-5,
    spare: int = 0,
    holders_per_unit: int = 1,
    network: NetworkTerms | None = None,
    losses: Losses | None = None,
    ledgers: Mapping[int, Ledger] | None = None,
    on_step: Callable[[], None] | None = None,
) -> Simulated:
    """Deal the rows out to holders, row after row, and train the default recipe, or a network, over them.

    A holder whose ledger has no room stays out of the study.

    Args:
        rows: Private rows that declare their size and classes; their name says which recipe.
        test: Public rows to measure accuracy on; None to measure nothing.
        parties: How many holders there are, and how many may be lost or collude.
        epsilon: The ε of the study against the best informed adversary of `parties`.
        delta: Its δ.
        spare: How many rounds may be abandoned; they are priced like all others.
        holders_per_unit: With how many holders one unit may be at most. Rows are dealt out to one each; the
            price is for so many.
        network: What is trained in place of the default recipe's head.
        losses: Says for the number of a round, from 1, who is lost in it and at which message; by default
            `parties.dropped` holders, chosen anew in each round.
        ledgers: The holders' ledgers by place, from 1; who has none is not charged.
        on_step: Called after each step of the first holder that takes part.

    Returns:
        The trained head, its accuracy, and a certificate of each holder.

    Raises:
        InvalidInput: If fewer than `parties.least` holders can pay; nothing is charged.
        Refused: If more than `spare` rounds were abandoned; what was charged stays charged.

    ```python
    rows, test = sfumato.datasets.load("mnist", "train"), sfumato.datasets.load("mnist", "test")
    done = simulate(rows, test, parties=Parties(holders=10, dropped=2, colluding=3), epsilon=1)
    print(done.test_accuracy, done.study.epsilons())
    ```
    """
    started = time.perf_counter()
    keys = {place: PrivateKey(Ed25519PrivateKey.generate()) for place in range(1, parties.holders + 1)}
    study = replace(
        _study(rows, parties, keys, epsilon=epsilon, delta=delta, spare=spare),
        holders_per_unit=holders_per_unit,
        network=network,
    )
    admitted = _admitted(study, keys, ledgers or {})
    learner, seen_rows, seen_test = _as_learned(study, rows, test)
    parts = {place: dealt(seen_rows, place, parties.holders) for place in admitted}
    heads = {place: copy.deepcopy(learner) for place in admitted}
    desk = Desk(admitted, losses or random_losses(parties, SecretStream()))
    signatures = [study.signed(key) for key in keys.values()]
    nodes = {
        place: Node(study, key, signatures, desk, ledger=(ledgers or {}).get(place))
        for place, key in admitted.items()
    }
    first = min(admitted)

    def task(place: int) -> Certificate:
        seen = (lambda _: on_step()) if on_step is not None and place == first else None
        return desk.work(place, lambda: nodes[place].train(heads[place], parts[place], on_step=seen))

    certificates = _side_by_side(task, list(admitted))
    return Simulated(
        study=study,
        model=heads[first],
        test_accuracy=None if seen_test is None else evaluate(heads[first], seen_test).accuracy,
        certificates=certificates,
        abandoned=nodes[first].abandoned,
        seconds=time.perf_counter() - started,
    )


def _as_learned(study: Study, rows: Dataset, test: Dataset | None) -> tuple[nn.Module, Dataset, Dataset | None]:
    """What every holder trains, and the rows as it takes them: as public features, or as they are."""
    if study.network is not None:
        return study.learner(), rows, test
    whole = features.build(study.recipe, classes=study.classes)
    return whole.head, features.featured(whole, rows), None if test is None else features.featured(whole, test)


def random_losses(parties: Parties, sampler: Sampler) -> Losses:
    """As many holders as may be lost, each at any message, others in every round."""

    def lost(number: int) -> Mapping[int, Lost]:
        order = np.argsort(sampler.uniform(parties.holders))[: parties.dropped] + 1
        messages = sampler.integers(len(Lost) - 1, parties.dropped)
        return {int(place): Lost(int(message)) for place, message in zip(order, messages, strict=True)}

    return lost


def _study(
    rows: Dataset,
    parties: Parties,
    keys: Mapping[int, PrivateKey],
    *,
    epsilon: float,
    delta: float,
    spare: int,
) -> Study:
    size, classes = features.declared(rows)
    return Study(
        name=f"{rows.name} at a desk",
        data=rows.name,
        classes=classes,
        public_size=size,
        largest_share=1 / parties.holders,
        unit=rows.unit,
        epsilon=epsilon,
        delta=delta,
        parties=parties,
        spare=spare,
        keys={f"holder {place}": key.public for place, key in keys.items()},
    )


def _admitted(
    study: Study, keys: Mapping[int, PrivateKey], ledgers: Mapping[int, Ledger]
) -> dict[int, PrivateKey]:
    """Those who can pay."""

    def pays(place: int) -> bool:
        try:
            if place in ledgers:
                study.check_room(ledgers[place])
        except BudgetExceeded:
            return False
        return True

    admitted = {place: key for place, key in keys.items() if pays(place)}
    if len(admitted) < study.parties.least:
        raise InvalidInput(
            f"expected at least {study.parties.least} holders whose ledgers have room for the study, got "
            f"{len(admitted)}; nothing was charged: ask for a smaller ε"
        )
    return admitted


def _side_by_side(task: Callable[[int], Certificate], places: list[int]) -> dict[int, Certificate]:
    with ThreadPoolExecutor(len(places), "holder") as threads:
        futures = {place: threads.submit(task, place) for place in places}
        failed = [error for future in futures.values() if (error := future.exception()) is not None]
    if failed:
        # The first failure is the cause; the others say that somebody else failed.
        raise min(failed, key=lambda error: isinstance(error, Refused) and "another holder" in str(error))
    return {place: future.result() for place, future in futures.items()}
