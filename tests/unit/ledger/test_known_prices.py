"""A ledger is looked at again without an accountant, and what is kept for that reaches no other figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sfumato.accounting import GaussianEvent, LaplaceEvent, Relation, poisson_sampled, repeat
from sfumato.ledger import Budget, Ledger
from sfumato.ledger.known_prices import KnownPrices
from sfumato.ledger.statement import as_json

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}
SHOW = """
import sys
from sfumato.cli.app import app
app(["ledger", "show", sys.argv[1]], standalone_mode=False)
sys.exit("scipy" in sys.modules)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    with Ledger.create(tmp_path / "used.db", Budget(epsilon=3, delta=1e-5)) as ledger:
        ledger.charge(repeat(poisson_sampled(0.01, GaussianEvent(2.0)), 50), purpose="training", **TERMS)
        ledger.charge(LaplaceEvent(20.0), purpose="a count", **TERMS)
    return tmp_path / "used.db"


def kept(place: Path) -> Path:
    [file] = (place.parent / "cache" / "prices").iterdir()
    return file


def look(place: Path) -> dict[str, Any]:
    with Ledger.open(place) as ledger:
        prices = KnownPrices(ledger.name)
        found = as_json(ledger, price=prices)
        prices.keep()
    return found


def test_a_second_look_loads_no_accountant(place: Path) -> None:
    look(place)
    subprocess.run([sys.executable, "-c", SHOW, str(place)], check=True)


def test_it_says_the_same(place: Path) -> None:
    with Ledger.open(place) as ledger:
        assert as_json(ledger) == look(place) == look(place)


def test_a_changed_price_shows_nowhere_else(place: Path) -> None:
    look(place)
    wrong = dict.fromkeys(json.loads(kept(place).read_text()), 0.001)
    kept(place).write_text(json.dumps(wrong))
    shown = look(place)
    assert shown["charges"][0]["epsilon"] == 0.001  # the file is in use
    with Ledger.open(place) as ledger:
        true = as_json(ledger)  # what is signed
    assert true["charges"][0]["epsilon"] > 0.01
    assert (shown["epsilon_spent"], shown["epsilon_left"]) == (true["epsilon_spent"], true["epsilon_left"])


@pytest.mark.parametrize(
    "content", ["", "[]", '{"a": "b"}', '{"a": -1.0}', '{"a": NaN}', '{"a": Infinity}', "\xff", "[" * 200_000]
)
def test_what_is_no_price_list_is_made_anew(place: Path, content: str) -> None:
    before = look(place)
    kept(place).write_text(content, encoding="latin-1")
    assert look(place) == before
    assert look(place) == before


def test_a_cache_that_cannot_be_written_only_costs_time(place: Path) -> None:
    (place.parent / "cache").write_text("a file in the way")
    assert look(place)["charges"][0]["epsilon"] > 0


def test_what_is_no_file_is_not_read(place: Path) -> None:
    before = look(place)
    kept(place).unlink()
    os.mkfifo(place.parent / "cache" / "prices" / "pipe")
    [pipe] = (place.parent / "cache" / "prices").iterdir()
    with Ledger.open(place) as ledger:
        wanted = KnownPrices(ledger.name)._path
    assert wanted is not None
    pipe.rename(wanted)
    assert look(place) == before  # and did not wait for a writer


def test_a_user_without_a_home_is_shown_the_ledger(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFUMATO_CACHE", "~nobody-has-this-name/cache")
    assert look(place)["charges"][0]["epsilon"] > 0
