"""What can fail on public facts fails before anything is spent, and no row is read before it is paid for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from sfumato.accounting import Budget
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.learn.table import TableTraining
from sfumato.learn.table.encoding import Source
from sfumato.ledger import Ledger
from sfumato.policy import Column, Policy
from sfumato.randomness import SecretStream
from sfumato.synthesis.cells import CellColumn
from sfumato.synthesis.model import Step, SyntheticModel, marginal
from sfumato.synthesis.release import Request, release

COLUMNS = {
    "age": Column(name="age", type="real", lower=0, upper=100),
    "ill": Column(name="ill", type="integer", categories=(0, 1)),
}
ROWS = pd.DataFrame({"age": np.linspace(0, 99, 40), "ill": [0, 1] * 20})


def policy(**changes) -> Policy:
    terms = {"columns": COLUMNS, "budget": Budget(epsilon=3, delta=1e-6), "public_size": 40, "source": "memory"}
    return Policy(table="people", **{**terms, **changes})


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=3, delta=1e-6)) as book:
        yield book


@pytest.mark.keeps_out(
    "Rows that are read before they are paid for, or an error after the charge that was to be seen before it"
)
@pytest.mark.parametrize("model", ["linear", "boosted", "mlp"])
def test_a_row_is_read_after_it_was_paid_for(ledger, monkeypatch, model):
    """The network's rows were once read first, and a charge that another process got in before was too late."""
    spent = []
    read = Source.read

    def watched(source):
        spent.append(ledger.epsilon_spent)
        return read(source)

    monkeypatch.setattr(Source, "read", watched)
    ready = TableTraining.prepare(policy(), target="ill", epsilon=2, model=model)
    run = ready.train(ledger=ledger, data=ROWS)
    assert len(spent) == 1
    assert spent[0] == ledger.epsilon_spent > 0
    assert not [caveat for caveat in run.certificate.caveats if "not entered in a ledger" in caveat]
    with pytest.raises(BudgetExceeded):
        ready.train(ledger=ledger, data=ROWS)
    assert len(spent) == 1, "and not at all where there is no room"


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_table_without_rows_is_no_error_after_the_charge(ledger, model):
    """An error that tells that there was nobody would itself tell of somebody."""
    run = TableTraining.prepare(policy(), target="ill", epsilon=2, model=model).train(
        ledger=ledger, data=ROWS.iloc[:0]
    )
    assert run.model.predict(ROWS).shape == (40,)


@pytest.mark.keeps_out(
    "Rows that are read before they are paid for, or an error after the charge that was to be seen before it"
)
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_test_rows_without_an_answer_are_refused_for_nothing(ledger, tmp_path, model):
    (tmp_path / "test.csv").write_text("age,ill\n3,7\n4,8\n")
    ready = TableTraining.prepare(policy(), target="ill", epsilon=2, model=model)
    with pytest.raises(InvalidInput, match="known ill"):
        ready.train(ledger=ledger, data=ROWS, test=tmp_path / "test.csv")
    assert ledger.epsilon_spent == 0


def test_values_that_no_table_holds_are_refused_for_nothing(ledger, tmp_path):
    class Untouched:
        rows = 1

        def prepare(self):
            pytest.fail("the engine was asked")

    columns = {
        "code": Column(name="code", type="integer", categories=(1, 2**70)),
        "ill": Column(name="ill", type="boolean"),
    }
    request = Request.of(policy(columns=columns), rows=10, epsilon=1)
    with pytest.raises(InvalidInput, match=r"2\*\*63"):
        release(request, Untouched(), ledger=ledger, out=tmp_path / "s.csv", sampler=SecretStream())
    assert ledger.epsilon_spent == 0


@pytest.mark.keeps_out(
    "Rows that are read before they are paid for, or an error after the charge that was to be seen before it"
)
def test_a_model_of_sixty_columns_in_a_row_has_its_marginals():
    """Beyond 52 columns between two the fit once stopped, after the charge: it ran out of letters."""
    names = [f"c{place:02}" for place in range(60)]
    turn = np.array([[0.9, 0.1], [0.2, 0.8]])
    steps = [Step((), (names[0],), np.array([0.3, 0.7]))]
    steps += [Step((before,), (name,), turn) for before, name in pairwise(names)]
    ends = (names[0], names[-1])
    expected = np.array([0.3, 0.7])[:, None] * np.linalg.matrix_power(turn, 59)
    assert marginal(steps, ends) == pytest.approx(expected, abs=1e-12)
    assert marginal(steps, ends[::-1]) == pytest.approx(expected.T, abs=1e-12)
    columns = tuple(CellColumn(name=name, type="boolean", values=(True,)) for name in names)
    model = SyntheticModel(columns, {name: np.eye(2) for name in names}, tuple(steps), 10.0)
    assert model.cells(ends) == pytest.approx(expected, abs=1e-12)
