"""Training on a table: what a hostile row, person or file could do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sfumato.accounting import Budget
from sfumato.cli.app import app
from sfumato.errors import DataError, InvalidInput
from sfumato.learn.table import TableTraining
from sfumato.learn.table.encoding import Source, public_rows
from sfumato.ledger import Ledger
from sfumato.policy import Column, Policy, Unit
from sfumato.randomness import SecretStream

COLUMNS = {
    "age": Column(name="age", type="real", lower=0, upper=100),
    "town": Column(name="town", type="text", categories=("Delft", "Ghent")),
    "ill": Column(name="ill", type="integer", categories=(0, 1)),
}
POLICY = """
[table]
name = "people"
source = "people.csv"
public_size = 200
[budget]
epsilon = 3.0
delta = 1e-6
[columns.age]
type = "real"
lower = 0
upper = 100
[columns.town]
type = "text"
categories = ["Delft", "Ghent"]
[columns.ill]
type = "integer"
categories = [0, 1]
"""


def policy(**changes) -> Policy:
    fields = {"source": "people.csv", "budget": Budget(epsilon=9, delta=1e-6), "public_size": 200} | changes
    return Policy(table="people", columns=COLUMNS, **fields)


def people(rows: int = 200) -> pd.DataFrame:
    return pd.DataFrame(
        {"age": np.linspace(0, 99, rows), "town": ["Delft", "Ghent"] * (rows // 2), "ill": [0, 1] * (rows // 2)}
    )


class Exact(SecretStream):
    """No noise to speak of: what is left are the sums themselves."""

    def rounded_normal(self, scale: float, size: int):
        return np.arange(1, size + 1, dtype=np.int64)


def sums(frame: pd.DataFrame, rules: Policy) -> list[np.ndarray]:
    """The first two releases, noise taken off: counts, and the gradients of the first step."""
    from sfumato.learn.table import additive, run

    found = []

    def heard(values, **more):
        found.append(values.astype(float) * 2.0 ** -more["bits"])
        return np.zeros(values.shape)

    ready = TableTraining.prepare(rules, target="ill", epsilon=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "release", heard)
        run.TableTraining.train(ready, data=frame)
    return found[:2]


@pytest.mark.parametrize(
    "cell",
    [float("nan"), float("inf"), -1e308, 5e-324, "old", "1e999", None],
)
def test_no_cell_is_an_error_or_moves_a_sum_by_more_than_is_declared(cell):
    plain = people()
    odd = pd.concat([plain, pd.DataFrame({"age": [cell], "town": ["Mars"], "ill": [1]})], ignore_index=True)
    odd["age"] = odd["age"].astype("string" if isinstance(cell, str) else "float64")
    before, after = sums(plain, policy()), sums(odd, policy())
    ready = TableTraining.prepare(policy(), target="ill", epsilon=1)
    assert np.linalg.norm(after[0] - before[0]) <= np.sqrt(2)
    assert np.linalg.norm(after[1] - before[1]) <= ready.plan.clip_norm


@pytest.mark.keeps_out("A person with many rows who counts more often than is paid for")
def test_a_person_with_a_thousand_rows_counts_as_a_few():
    plain = people().assign(person=lambda frame: "p" + frame.index.astype(str))
    flood = pd.DataFrame({"age": [99.0] * 1000, "town": "Ghent", "ill": 0, "person": "flood"})
    rules = policy(unit=Unit(column="person", rows=3), budget=Budget(epsilon=9, delta=1e-6, unit="person"))
    before, after = (sums(frame, rules) for frame in (plain, pd.concat([plain, flood], ignore_index=True)))
    ready = TableTraining.prepare(rules, target="ill", epsilon=1)
    assert np.linalg.norm(after[0] - before[0]) <= 3 * np.sqrt(2)
    assert np.linalg.norm(after[1] - before[1]) <= 3 * ready.plan.clip_norm


def test_an_engine_that_fails_quotes_no_row(monkeypatch, tmp_path):
    ready = TableTraining.prepare(policy(), target="ill", epsilon=1)
    source = Source.open(policy(), ["age", "town", "ill"], data=people())

    class Broken:
        def to_pyarrow(self, expression):
            raise ValueError("cannot read 'Peter has the flu'")

    object.__setattr__(source.engine, "connection", Broken())
    monkeypatch.setattr(Source, "open", lambda *a, **k: source)
    with (
        Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=9, delta=1e-6)) as ledger,
        pytest.raises(DataError) as caught,
    ):
        ready.train(ledger=ledger)
    assert "Peter" not in str(caught.value)
    with Ledger.open(tmp_path / "l.db") as ledger:
        assert ledger.epsilon_spent > 0.99  # rows may have been touched: it stays spent


def asked(tmp_path, monkeypatch, *words: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.toml").write_text(POLICY)
    people().to_csv(tmp_path / "people.csv", index=False)
    return CliRunner().invoke(app, ["train", "people.toml", *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "ill"], "expected --epsilon with a policy"),
        (["--epsilon", "1"], "expected --target with a policy"),
        (["--target", "ilness", "--epsilon", "1"], "expected the target to be one of age, town, ill"),
        (["--target", "ill", "--epsilon", "1", "--epochs", "3"], "expected no --epochs with a policy"),
        (["--target", "ill", "--epsilon", "1", "--model", "cnn"], "linear, boosted, mlp"),
        (["--target", "ill", "--epsilon", "1", "--delta", "0"], "delta"),
        (["--target", "ill", "--epsilon", "1", "--data", "mnist"], "expected no --data with a policy"),
        (["--target", "ill", "--epsilon", "1", "--ledger", "other.db"], "expected no --ledger with a policy"),
        (["--target", "ill", "--epsilon", "1", "--test-data", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_wrong_words_are_answered_in_a_sentence_and_cost_nothing(tmp_path, monkeypatch, words, message):
    found = asked(tmp_path, monkeypatch, *words)
    assert found.exit_code != 0
    assert message in str(found.exception)
    place = tmp_path / "people.ledger.db"
    if place.exists():
        with Ledger.open(place) as ledger:
            assert ledger.epsilon_spent == 0


def test_training_is_charged_to_the_policys_ledger_and_kept_though_nobody_said_so(tmp_path, monkeypatch):
    for number in (1, 2):
        found = asked(tmp_path, monkeypatch, "--target", "ill", "--epsilon", "0.5", "--json")
        assert found.exit_code == 0, found.output
        with Ledger.open(tmp_path / "people.ledger.db") as ledger:
            assert len(ledger.charges()) == number
            assert ledger.epsilon_spent >= (0.49, 0.69)[number - 1]  # Gaussians: √2 · 0.5 and a little more
    for folder in ("people-ill", "people-ill-2"):
        assert (tmp_path / "out" / folder / "release" / "certificate.json").is_file()


def test_a_budget_that_is_spent_refuses_before_a_row_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(Source, "read", lambda self: pytest.fail("a row was read"))
    found = asked(tmp_path, monkeypatch, "--target", "ill", "--epsilon", "5")
    assert type(found.exception).__name__ == "BudgetExceeded"


def test_the_unit_cannot_be_learned():
    rules = policy(unit=Unit(column="person", rows=1), budget=Budget(epsilon=9, delta=1e-6, unit="person"))
    with pytest.raises(InvalidInput, match="which tells people apart"):
        TableTraining.prepare(rules, target="person", epsilon=1)


@pytest.mark.keeps_out("Figures measured on private rows that pass for public ones")
def test_no_figure_is_measured_on_the_policys_own_rows(tmp_path):
    people().to_csv(tmp_path / "people.csv", index=False)
    rules = replace(policy(), source=str(tmp_path / "people.csv"))
    with pytest.raises(InvalidInput, match="own table"):
        public_rows(rules, tmp_path / "." / "people.csv", ["age"])


@pytest.mark.keeps_out("Figures measured on private rows that pass for public ones")
def test_test_rows_are_read_from_the_file_that_is_named_and_from_no_table_of_the_policy(tmp_path):
    people(200).to_csv(tmp_path / "people.csv", index=False)
    people(8).to_csv(tmp_path / "public.csv", index=False)
    rules = replace(policy(), source=str(tmp_path / "people.csv"))
    several = replace(rules, tables={rules.table: rules})
    assert public_rows(several, tmp_path / "public.csv", ["age"]).num_rows == 8
