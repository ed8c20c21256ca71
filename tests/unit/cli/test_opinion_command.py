"""What `sfumato opinion --ledger` says, and asks, before it charges."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from sfumato.accounting import Budget
from sfumato.cli import opinion
from sfumato.cli.app import app
from sfumato.errors import InvalidInput
from sfumato.ledger import Ledger

GAUSSIAN = ["noise_multiplier=4", "sample_rate=1", "steps=1", "delta=1e-5", "poisson_sampling=true"]


@pytest.fixture
def people(tmp_path):
    Ledger.create(tmp_path / "people.db", Budget(epsilon=3, delta=1e-5)).close()
    return str(tmp_path / "people.db")


def record(place, *words, noise=4, answer=None):
    settings = [f"noise_multiplier={noise}", *GAUSSIAN[1:]]
    line = ["opinion", *(word for each in settings for word in ("--set", each)), "--ledger", place, *words]
    return CliRunner().invoke(app, line, input=answer)


def charges(place):
    with Ledger.open(place) as ledger:
        return len(ledger.charges())


@pytest.fixture
def on_a_terminal(monkeypatch):
    monkeypatch.setattr(opinion, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))


def test_the_price_is_said_before_it_is_charged(people):
    done = record(people, "--json")
    told = json.loads(done.stdout)
    assert f"ε = {told['epsilon']:.4g} at δ = 1e-05 is charged to" in done.stderr
    assert f"ε left 3, and {told['epsilon_left']:.4g} after it" in done.stderr  # as it then came out
    assert charges(people) == 1


def test_what_would_close_the_ledger_is_said_to(people):
    done = record(people, "--json", noise=0.3)
    assert "does not fit in" in done.stderr
    assert "closes this ledger for good" in done.stderr
    assert json.loads(done.stdout)["ledger_closed"] is True


@pytest.mark.usefixtures("on_a_terminal")
@pytest.mark.parametrize(("words", "answer", "made"), [([], "n\n", 0), ([], "y\n", 1), (["--yes"], None, 1)])
def test_a_person_is_asked(people, words, answer, made):
    done = record(people, *words, answer=answer)
    assert charges(people) == made
    assert (done.exit_code == 0) == bool(made)
    assert ("Record it?" in done.stderr) == (not words)
    assert ("Nothing was recorded." in done.stderr) == (not made)


def test_nothing_is_confirmed_without_a_ledger():
    with pytest.raises(InvalidInput, match="expected --ledger with --yes"):
        CliRunner().invoke(app, ["opinion", "--set", "delta=1e-5", "--yes"], catch_exceptions=False)
