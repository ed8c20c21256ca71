"""A share of the budget is spent by whoever was given it, and by nobody else, in every command."""

import json

import pytest
from typer.testing import CliRunner

from sfumato.accounting import Budget, LaplaceEvent, Relation
from sfumato.cli.app import app
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import Ledger

ONE = {"relation": Relation.ADD_REMOVE, "unit": "record"}


@pytest.fixture
def place(tmp_path):
    with Ledger.create(tmp_path / "book.db", Budget(epsilon=3, delta=1e-5)) as ledger:
        ledger.allocate("team", 0.5)
    return tmp_path / "book.db"


def run(*words):
    result = CliRunner().invoke(app, [*map(str, words)])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_all_that_is_handed_the_ledger_spends_from_the_share(place):
    with Ledger.open(place).spend_under("team", purpose="spring report") as ledger:
        assert ledger.epsilon_left == pytest.approx(0.5)
        ledger.charge(LaplaceEvent(4.0), purpose="a count", **ONE)
        ledger.pay_for(LaplaceEvent(8.0), purpose="a mean", **ONE)
        assert [charge.allocation for charge in ledger.charges()] == ["team", "team"]
        assert ledger.charges()[0].purpose == "spring report: a count"
        for spend in (
            ledger.charge,
            ledger.reserve,
            ledger.pay_for,
        ):  # 0.125 is left
            with pytest.raises(BudgetExceeded, match="team"):
                spend(LaplaceEvent(5.0), purpose="more", **ONE)
        with pytest.raises(BudgetExceeded, match="team"):
            ledger.check(LaplaceEvent(5.0), **ONE)
        assert ledger.epsilon_left == pytest.approx(0.125)


def test_a_share_that_is_not_there_is_refused_at_once(place):
    with (
        Ledger.open(place) as ledger,
        pytest.raises(InvalidInput, match="expected allocation to be one of: 'team'"),
    ):
        ledger.spend_under("tem")


COMMANDS = {
    "train": ("train", "--data", "digits", "--model", "mlp", "--epsilon", "1"),
    "tune": ("tune", "--data", "digits", "--epsilon", "1"),
    "pate": ("pate", "--data", "digits", "--epsilon", "1", "--teachers", "10"),
}
RUNS = {
    "train": "sfumato.learn.Classifier.train",
    "tune": "sfumato.learn.tuning.run",
    "pate": "sfumato.pate.run",
}


class Handed(Exception):
    """What a command hands its ledger to was reached."""


@pytest.mark.keeps_out("A share of the budget that exists and that no command spends from")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_held_to_its_share(command, place, tmp_path, monkeypatch):
    """What it charges comes from the team's share: the ledger that it hands on spends from nothing else."""

    def run_with(*_, ledger, **more):
        with pytest.raises(BudgetExceeded, match="team"):  # fits the budget of 3, and not the half of the team
            ledger.charge(LaplaceEvent(1.0), purpose="a run", **ONE)
        raise Handed

    monkeypatch.setattr(RUNS[command], run_with)
    words = (*COMMANDS[command], "--ledger", place, "--out", tmp_path / "out", "--allocation")
    with pytest.raises(InvalidInput, match="expected allocation to be one of: 'team'"):
        run(*words, "nobody")
    with pytest.raises(Handed):
        run(*words, "team")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--allocation", "--purpose"])
def test_a_share_needs_a_ledger(command, option):
    with pytest.raises(InvalidInput, match=f"expected --ledger with {option}"):
        run(*COMMANDS[command], option, "team")


@pytest.mark.keeps_out("A share of the budget that exists and that no command spends from")
def test_a_query_is_held_to_its_share(place, tmp_path):
    (tmp_path / "people.csv").write_text("\n".join(["age", *(str(20 + n % 50) for n in range(200))]))
    (tmp_path / "people.toml").write_text(
        '[table]\nsource = "people.csv"\n[budget]\nepsilon = 3.0\ndelta = 1e-5\nledger = "book.db"\n'
        '[columns.age]\ntype = "integer"\nlower = 0\nupper = 100\n'
    )
    ask = ("query", tmp_path / "people.toml", "SELECT COUNT(*) FROM people", "--json", "--allocation", "team")
    shared = json.loads(run(*ask, "--epsilon", "0.25", "--purpose", "spring report"))
    assert shared["epsilon_left"] == pytest.approx(0.25)
    with Ledger.open(place) as ledger:
        assert ledger.charges()[0].purpose.startswith("spring report: ")
    with pytest.raises(BudgetExceeded, match="team"):
        run(*ask, "--epsilon", "1")
