"""`sfumato local` as its users call it."""

import json

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from sfumato.accounting import Budget, Relation
from sfumato.cli import local
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerError, SfumatoError
from sfumato.ledger import Ledger
from sfumato.runs import read_run


def run(*words):
    app = typer.Typer()
    local.register(app)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["local", *map(str, words)])
    if isinstance(result.exception, SfumatoError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_release_then_learn(tmp_path):
    out = tmp_path / "noised.npz"
    words = ("release", "digits", "--epsilon", 8, "--prior", "none", "--dimension", 24, "--out", out)
    released = json.loads(run(*words, "--json"))
    assert released["epsilon"] == 8
    assert released["shuffled"] == "no amplification"
    assert released["epsilon_left"] == 0
    found = json.loads(run("learn", out, "--out", tmp_path / "run", "--json"))
    # 360 public digits; guessing reaches a half with a chance below 1e-80.
    assert 0.5 < found["test_accuracy"] <= 1
    kept = read_run(tmp_path / "run")
    assert (kept.result.epsilon, kept.result.test_accuracy) == (8, found["test_accuracy"])
    assert (kept.result.data, kept.certificate.prices.pld) == ("digits", 8)
    with pytest.raises(InvalidInput, match="once"):
        run(*words)
    with pytest.raises(BudgetExceeded):
        run(*words[:-1], tmp_path / "other.npz", "--ledger", tmp_path / "noised.ledger.db")


def test_images_of_ones_own(tmp_path):
    generator = np.linspace(0, 255, 40 * 28 * 28).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", images=generator.reshape(40, 28, 28), labels=np.arange(40) % 10)
    found = run(
        "release",
        tmp_path / "mine.npz",
        "--epsilon",
        2,
        "--prior",
        "none",
        "--out",
        tmp_path / "n.npz",
        "--json",
    )
    assert json.loads(found)["people"] == 40


def test_a_table_by_its_policy(tmp_path):
    people = pd.DataFrame({"age": [20, 40] * 500, "ill": [True, False, False, False] * 250})
    people.to_csv(tmp_path / "people.csv", index=False)
    policy = tmp_path / "people.toml"
    policy.write_text(
        '[budget]\nepsilon = 8.0\n[columns.age]\ntype = "integer"\nlower = 0\nupper = 100\n'
        '[columns.ill]\ntype = "boolean"\n'
    )
    out = tmp_path / "noised.npz"
    found = json.loads(run("release", tmp_path / "people.csv", "--policy", policy, "--out", out, "--json"))
    assert found["epsilon"] == pytest.approx(8)
    shown = json.loads(run("show-table", out, "--policy", policy, "--json"))["columns"]
    # Scale 25, standard deviation 35, over √1000: 1.1; six of them.
    assert abs(shown["age"]["mean"][0] - 30) < 7
    assert abs(shown["ill"]["True"][0] - 0.25) < 0.1
    with pytest.raises(InvalidInput, match="policy"):
        run("release", tmp_path / "people.csv", "--epsilon", 1, "--out", tmp_path / "x.npz")


@pytest.mark.parametrize("epsilon", [0, -1])
def test_no_epsilon_no_release(tmp_path, epsilon):
    with pytest.raises(InvalidInput, match="epsilon"):
        run("release", "digits", "--epsilon", epsilon, "--prior", "none", "--out", tmp_path / "n.npz")
    assert list(tmp_path.glob("*")) == []


def test_help_shows_an_example():
    assert "sfumato local release mnist" in run("release", "--help").replace("\n", " ")


TABLE = """
[table]
name = "people"
source = "people.csv"
[columns.age]
type = "integer"
lower = 0
upper = 100
[budget]
epsilon = 1
unit = "person"
"""


@pytest.mark.keeps_out("Local reports under a policy, each charged to a fresh ledger")
@pytest.mark.parametrize(
    "named", ["", 'dataset = "clinic-2026"\n', 'dataset = "clinic-2026"\nledger = "l.db"\n']
)
def test_a_second_release_under_one_policy_is_refused_wherever_it_goes(tmp_path, named):
    pd.DataFrame({"age": [20, 40] * 10}).to_csv(tmp_path / "people.csv", index=False)
    policy = tmp_path / "people.toml"
    policy.write_text(TABLE + named)
    run("release", policy, "--out", tmp_path / "a.npz", "--json")
    for words in ((), ("--epsilon", 0.5)):
        with pytest.raises(BudgetExceeded):
            run("release", policy, "--out", tmp_path / "b.npz", *words)
    assert not (tmp_path / "b.npz").exists()
    book = tmp_path / ("l.db" if "ledger" in named else "people.ledger.db")
    with Ledger.open(book) as ledger:
        assert len(ledger.charges()) == 1
        assert ledger.dataset == ("clinic-2026" if named else None)
    if named:  # one ledger for one data set, and a ledger of another one is not charged
        with pytest.raises((InvalidInput, LedgerError), match="ledger"):
            run("release", policy, "--out", tmp_path / "b.npz", "--ledger", tmp_path / "other.db")
        assert not (tmp_path / "other.db").exists()


def test_a_ledger_of_another_data_set_is_not_charged(tmp_path):
    pd.DataFrame({"age": [20, 40] * 10}).to_csv(tmp_path / "people.csv", index=False)
    policy = tmp_path / "people.toml"
    policy.write_text(TABLE + 'dataset = "clinic-2026"\nledger = "l.db"\n')
    budget = Budget(epsilon=9, unit="person", relation=Relation.REPLACE_ONE)
    with Ledger.create(tmp_path / "l.db", budget, dataset="another") as ledger:
        with pytest.raises(LedgerError, match="dataset"):
            run("release", policy, "--out", tmp_path / "a.npz")
        assert not ledger.charges()
