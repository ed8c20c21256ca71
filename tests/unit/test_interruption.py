"""Ctrl-C ends a command with one sentence and exit code 130, whatever library was running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sfumato import interruption
from sfumato.accounting import Budget, Relation, pure
from sfumato.errors import DataError
from sfumato.ledger import Ledger
from sfumato.query import engines
from sfumato.query.engines import Engine


@pytest.fixture(autouse=True)
def _handled():
    """As in a shell's foreground."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)  # until the handler has run


def swallow(*_: Any) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        press()


def translate(*_: Any) -> None:
    """As DuckDB does."""
    swallow()
    raise RuntimeError("Query interrupted")


@pytest.mark.parametrize("library", [press, swallow, translate])
def test_however_a_command_ends_after_it_it_is_interrupted(library):
    with pytest.raises(KeyboardInterrupt), interruption.noted():
        library()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with interruption.noted():
        interruption.check()  # nobody pressed it in this one


def test_one_that_is_lost_in_a_destructor_comes_again():
    class Library:
        def __del__(self) -> None:
            press()

    done: list[int] = []

    def work() -> None:
        Library()
        for step in range(500):  # asks nobody
            time.sleep(0.01)
            done.append(step)

    with pytest.raises(KeyboardInterrupt), interruption.noted():
        work()
    assert len(done) < 500


def test_what_ignores_it_goes_on_ignoring_it():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruption.noted():
        press()


def test_an_engines_error_is_not_taken_for_one_of_the_query(monkeypatch):
    monkeypatch.setitem(engines.DIALECTS, "duckdb", replace(engines.DIALECTS["duckdb"], batches=translate))
    engine = Engine("duckdb", None, None)
    raised: list[type[BaseException]] = []

    def ask() -> None:
        try:
            engine.fetch("SELECT 1")
        except (KeyboardInterrupt, DataError) as error:
            raised.append(type(error))

    with pytest.raises(KeyboardInterrupt), interruption.noted():
        ask()
    assert raised == [KeyboardInterrupt]
    monkeypatch.undo()
    with interruption.noted(), pytest.raises(DataError):
        engine.fetch("SELECT 1")


def test_nothing_is_charged_after_it(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1)) as ledger:

        def pay() -> None:
            swallow()
            ledger.charge(pure(0.1), purpose="x", relation=Relation.ADD_REMOVE, unit="record")

        with pytest.raises(KeyboardInterrupt), interruption.noted():
            pay()
        assert ledger.epsilon_spent == 0


# In a process of its own: an engine that is interrupted, and what the interpreter takes down at its end

PROGRAM = """
import atexit, dataclasses, os, signal, sys, time
from sfumato import __main__ as program
from sfumato.query import engines

class Library:
    def __del__(self):
        os._exit(99)

sys.of_a_library = Library()  # crashes when the interpreter is taken down
atexit.register(print, "closed")

def run(connection, text):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    except KeyboardInterrupt:
        raise RuntimeError("Query interrupted")

engines.DIALECTS["duckdb"] = dataclasses.replace(engines.DIALECTS["duckdb"], batches=run)
sys.argv = ["sfumato", *sys.argv[1:]]
program.program()
"""
POLICY = """
[table]
source = "people.csv"
public_size = 300
[columns.age]
type = "integer"
lower = 0
upper = 120
[budget]
epsilon = 1
ledger = "people.db"
"""


def test_a_query_that_is_interrupted_says_that_it_costs_again(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("age\n1\n2\n3\n")
    (tmp_path / "people.toml").write_text(POLICY)
    words = ["query", "people.toml", "SELECT COUNT(*) FROM people", "--epsilon", "0.25"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 130
    assert done.stdout == "closed\n"
    assert done.stderr == (
        "sfumato: interrupted; what was charged stays charged, and the same command again is charged again\n"
    )
    with Ledger.open(tmp_path / "people.db") as ledger:
        assert ledger.epsilon_spent == 0.25
