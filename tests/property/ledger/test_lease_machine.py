"""Processes that reserve, run, save, resume, fork, settle and crash in any order: no step is released twice.

A *release* is an output that left: a durable checkpoint, or a run that finished. What a process computed and
lost, or was not allowed to save, is none. A process that crashed is one that never acts again.
"""

from __future__ import annotations

import copy
import itertools
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from sfumato.accounting import Budget, Relation, pure, repeat
from sfumato.accounting.events import atoms
from sfumato.errors import SfumatoError
from sfumato.ledger import Head, Ledger, Reservation

STEP, STEPS = pure(2**-6), 4
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}


@dataclass
class Run:
    """What became of one reservation, as an observer of all processes knows it."""

    head: Head
    touched: bool = False
    durable: list[int] = field(default_factory=list)  # executions in the newest checkpoint
    released: set[tuple[int, int]] = field(default_factory=set)  # steps, and their executions, that ever left

    def release(self, executions: list[int]) -> None:
        self.released |= set(enumerate(executions))


@dataclass
class Process:
    run: Run
    reservation: Reservation
    executions: list[int]  # one for each step that it took, or found in the checkpoint


class Leases(RuleBasedStateMachine):
    processes = Bundle("processes")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.place = Path(self.folder.name) / "ledger.db"
        self.ledger = Ledger.open(self.place, budget=Budget(epsilon=1))
        self.runs: list[Run] = []
        self.execution = itertools.count()

    def teardown(self) -> None:
        self.ledger.verify()
        self.ledger.close()
        self.folder.cleanup()

    @initialize(target=processes, begun=st.booleans())
    def start(self, begun: bool) -> Process:
        return self._reserve(begun)

    @precondition(lambda self: len(self.runs) < 3)
    @rule(target=processes, begun=st.booleans())
    def reserve(self, begun: bool) -> Process:
        return self._reserve(begun)

    def _reserve(self, begun: bool) -> Process:
        reservation = self.ledger.reserve(repeat(STEP, STEPS), purpose="steps", begun=begun, **TERMS)
        self.runs.append(Run(reservation.head, touched=begun))
        return Process(self.runs[-1], reservation, [])

    @rule(process=processes)
    def begin_and_step(self, process: Process) -> None:
        if len(process.executions) == STEPS:
            return
        try:
            process.reservation.begin()
        except SfumatoError:
            return
        process.run.touched = True
        process.executions.append(next(self.execution))

    @rule(process=processes)
    def step_unasked(self, process: Process) -> None:
        """In the middle of an epoch nobody asks the ledger."""
        if process.reservation.lease.begun and len(process.executions) < STEPS:
            process.executions.append(next(self.execution))

    @rule(process=processes, digit=st.sampled_from("0123456789abcdef"))
    def save(self, process: Process, digit: str) -> None:
        done = len(process.executions)
        try:
            process.reservation.mark(repeat(STEP, done), steps=done, digest=digit * 64)
        except SfumatoError:
            return
        process.run.durable = list(process.executions)
        process.run.release(process.executions)

    @rule(process=processes, lie=st.integers(0, STEPS))
    def settle(self, process: Process, lie: int) -> None:
        """With what it took, or with what it would like to have taken, down to the durable steps."""
        stated = len(process.executions) if lie == STEPS else min(lie, len(process.executions))
        try:
            process.reservation.settle(repeat(STEP, stated))
        except SfumatoError:
            return
        process.run.release(process.executions[:stated])

    @rule(target=processes, process=processes)
    def resume(self, process: Process) -> object:
        """Another process, with a connection of its own, goes on with the run."""
        run = process.run
        try:
            return Process(run, Ledger.open(self.place).reservation(run.head), list(run.durable))
        except SfumatoError:
            return multiple()

    @rule(target=processes, process=processes)
    def fork(self, process: Process) -> Process:
        return Process(process.run, copy.copy(process.reservation), list(process.executions))

    @rule(process=processes)
    def give_back(self, process: Process) -> None:
        try:
            self.ledger.give_back(process.run.head.sequence)
        except SfumatoError:
            return
        assert not process.run.touched

    @invariant()
    def released_steps_are_paid_for(self) -> None:
        by_place = dict(zip((run.head.sequence for run in self.runs), self.ledger.charges(), strict=True))
        for run in self.runs:
            paid = sum(count for _, count in atoms(by_place[run.head.sequence].event))
            assert len(run.released) <= paid
            assert len({step for step, _ in run.released}) == len(run.released), "a step was released twice"


Leases.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
TestLeases = Leases.TestCase
