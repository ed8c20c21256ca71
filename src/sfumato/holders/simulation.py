"""A training in one process: all holders and the coordinator, with the keys and masks of real ones."""

from __future__ import annotations

import copy
import io
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from sfumato.datasets import Dataset, draw, public_name
from sfumato.errors import Refused
from sfumato.holders.masks import Words
from sfumato.holders.node import Node
from sfumato.holders.parties import Parties
from sfumato.holders.rounds import (
    Contribution,
    CoordinatorRound,
    HolderRound,
    Losses,
    Masked,
    Opened,
    Terms,
    masked_sum,
    random_losses,
    run_round,
)
from sfumato.holders.study import Study, able_to_pay
from sfumato.holders.sums import Part, SumRound, SumStudy, calibrated_rounds, new_keys, public_keys
from sfumato.holders.tasks import NetworkTerms, Table, dealt
from sfumato.learn import features
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.signing import PrivateKey
from sfumato.mechanisms.grid import Floats
from sfumato.randomness import SecretStream
from sfumato.runs import SeveralHolders, write_run
from sfumato.storage import RunFolder

_DRAWN, _DIGIT, _SIDE, _MOST = 6000, 3, 28, 20  # of the pictures of a round


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """The outcome of a study in one process.

    Attributes:
        study: The study, with keys made for it.
        model: The trained head, which takes features and not rows, or the network.
        test_accuracy: The share of right answers on the public test rows; None without any.
        certificates: Of each holder that took part, by its place from 1.
        abandoned: Number of abandoned rounds; at most `study.spare`.
        seconds: Duration, features included.
    """

    study: Study
    model: nn.Module
    test_accuracy: float | None
    certificates: Mapping[int, Certificate]
    abandoned: int
    seconds: float


class Desk:
    """Goes through each round when all holders have come to it; one holder works at a time.

    One at a time, since a step keys the global generators of the process.
    """

    def __init__(self, keys: Mapping[int, PrivateKey], losses: Losses) -> None:
        self._keys, self._losses = keys, losses
        self._turn = threading.Lock()
        self._meeting = threading.Barrier(len(keys), action=self._hold)
        self._terms: Terms
        self._contributions: dict[int, Contribution] = {}
        self._opened: Opened | None = None

    def work(self, task: Callable[[int], Certificate]) -> dict[int, Certificate]:
        """Do every holder's work side by side; where one fails, the others do not wait for it."""

        def in_turn(place: int) -> Certificate:
            with self._turn:
                try:
                    return task(place)
                except BaseException:
                    self._meeting.abort()
                    raise

        with ThreadPoolExecutor(len(self._keys), "holder") as threads:
            futures = {place: threads.submit(in_turn, place) for place in self._keys}
            failed = [error for future in futures.values() if (error := future.exception()) is not None]
        if failed:  # the first failure is the cause; the others say that another holder failed
            raise min(failed, key=lambda error: isinstance(error, Refused) and "another holder" in str(error))
        return {place: future.result() for place, future in futures.items()}

    def exchange(self, terms: Terms, place: int, contribution: Contribution) -> Opened | None:
        self._terms, self._contributions[place] = terms, contribution
        self._turn.release()
        try:
            self._meeting.wait()
        except threading.BrokenBarrierError as error:
            raise Refused("another holder failed, so the study ends; see its message") from error
        finally:
            self._turn.acquire()
        return self._opened

    def _hold(self) -> None:
        lost = self._losses(self._terms.number)
        self._opened = masked_sum(self._terms, self._keys, self._contributions, lost)


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
        spare: Number of rounds that may be abandoned; they are priced like all others.
        holders_per_unit: Most holders that have one unit; rows are dealt out to one each.
        network: The network to train in place of the default recipe's head.
        on_step: Called after each step of the first holder that takes part.

    Returns:
        The trained head, its accuracy, and a certificate of each holder.

    Raises:
        InvalidInput: If fewer than `parties.least` holders can pay; nothing is charged.
        Refused: If more than `spare` rounds were abandoned; the charges stay.

    ```python
    rows, test = sfumato.datasets.load("mnist", "train"), sfumato.datasets.load("mnist", "test")
    done = simulate(rows, test, parties=Parties(holders=10, dropped=2, colluding=3), epsilon=1)
    print(done.test_accuracy, done.study.epsilons())
    ```
    """
    started = time.perf_counter()
    keys, books = new_keys(parties.holders), ledgers or {}
    study = replace(
        _study(rows, parties, keys, epsilon=epsilon, delta=delta, spare=spare),
        holders_per_unit=holders_per_unit,
        network=network,
    )
    admitted = able_to_pay(study, keys, books)
    first, task = min(admitted), study.task
    assert not isinstance(task, Table)
    material = task.material(lambda: rows, test)
    seen, _ = material.read(SecretStream())
    models = {
        place: material.network if place == first else copy.deepcopy(material.network) for place in admitted
    }
    desk = Desk(admitted, losses or random_losses(parties, SecretStream()))
    signatures = [study.signed(key) for key in keys.values()]
    nodes = {
        place: Node(study, key, signatures, desk, ledger=books.get(place)) for place, key in admitted.items()
    }

    def train(place: int) -> Certificate:
        stepped = (lambda _: on_step()) if on_step is not None and place == first else None
        own = dealt(seen, place, parties.holders)
        return nodes[place].train(models[place], own, on_step=stepped)

    certificates = desk.work(train)
    return Simulated(
        study=study,
        model=models[first],
        test_accuracy=material.measure().get("test_accuracy"),
        certificates=certificates,
        abandoned=nodes[first].abandoned,
        seconds=time.perf_counter() - started,
    )


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
        keys=public_keys(keys),
    )


# The run folder


def keep(done: Simulated, out: str | os.PathLike[str]) -> None:
    """Write a run folder for `sfumato report`: the result, one certificate, and one round as pictures."""
    study, parties = done.study, done.study.parties
    folder = RunFolder.begin(Path(out))
    pictures = round_pictures(parties)
    result = SeveralHolders(
        holders=parties.holders,
        dropped=parties.dropped,
        colluding=parties.colluding,
        threshold=parties.threshold,
        rounds=study.plan.steps,
        numbers=study.noise.dimension,
        unit=study.unit,
        **study.epsilons(),
        delta=study.delta,
        test_accuracy=done.test_accuracy,
        data=public_name(study.data),
        pictures=tuple(pictures),
    )
    write_run(
        folder,
        result,
        certificate=done.certificates[min(done.certificates)],
        plan=study.to_dict(),
        release={f"figures/{name}": content for name, content in pictures.items()},
        seconds=done.seconds,
    )


def round_pictures(parties: Parties) -> dict[str, bytes]:
    """Return PNG files of a round on public drawings at ε = 1: one input, its masked form, and the sum."""
    parties = parties if parties.holders <= _MOST else Parties(holders=10)
    keys = new_keys(parties.holders)

    def rounds(noise: float) -> tuple[SumRound, ...]:
        part = Part(
            sensitivity=1.0,
            dimension=_SIDE**2,
            noise_multiplier=noise,
            shares=parties.counted,
            largest=_DRAWN,
        )
        return (SumRound((part,)),)

    study = SumStudy(
        name="a picture",
        kind="picture",
        plan={},
        unit="drawing",
        delta=1e-5,
        parties=parties,
        rounds=calibrated_rounds(rounds, epsilon=1.0, delta=1e-5),
        keys=public_keys(keys),
    )
    agreed, terms = study.rounds[0], study.terms(1)
    sums = _sums_of_drawings(parties.holders)
    added = {place: agreed.contribution([sums[place - 1]], SecretStream()) for place in keys}
    coordinator = _Watched(terms)
    parts = {place: HolderRound(terms, place, key) for place, key in keys.items()}
    total = run_round(coordinator, parts, {place: partial(added.__getitem__, place) for place in added})
    shown = {
        "added.png": agreed.read(added[1])[0],
        "sent.png": coordinator.sent.astype(np.float64),
        "sum.png": agreed.read(total)[0],
    }
    return {name: _grey(values) for name, values in shown.items()}


class _Watched(CoordinatorRound):
    """Keeps the masked input of the first holder."""

    sent: Words

    def take_masked(self, masked: Masked) -> None:
        if masked.sender == 1:
            self.sent = masked.words.copy()
        super().take_masked(masked)


def _sums_of_drawings(holders: int) -> Floats:
    """Return (holders, pixels): drawings of one digit, each of length 1, dealt out and added up."""
    drawn, labels = draw("strokes", _DRAWN, seed=5)
    rows = drawn[labels == _DIGIT].reshape(-1, _SIDE**2).astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) * (1 + 1e-12)
    return np.stack([rows[place::holders].sum(axis=0) for place in range(holders)])


def _grey(values: Floats) -> bytes:
    from PIL import Image

    low, high = values.min(), values.max()
    grey = np.round((values - low) / (high - low) * 255).astype(np.uint8).reshape(_SIDE, _SIDE)
    buffer = io.BytesIO()
    Image.fromarray(grey).save(buffer, format="png", optimize=True)
    return buffer.getvalue()
