"""A broken budget is never stated as kept, and no plan is priced under a relation that is not its own."""

import json

import pytest

from sfumato.accounting import Budget, GaussianEvent, Relation, pure
from sfumato.errors import InvalidInput
from sfumato.governance import Plan, Statement, checklist, registry_entry, write_statement
from sfumato.ledger import Ledger, PrivateKey

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_statement_of_a_broken_budget_promises_nothing(tmp_path, noise):
    key = PrivateKey.create(tmp_path / "holder")
    with Ledger.create(tmp_path / "book.db", Budget(epsilon=3, delta=1e-6)) as ledger:
        ledger.charge(pure(0.1), purpose="a question", **TERMS)
        ledger.record(GaussianEvent(noise), purpose="the course report", **TERMS)
        found = Statement.of(ledger, key=key)
    assert "was broken" in found.data["promise"]
    assert "at most" not in found.data["promise"]
    assert found.data["meaning"] is None
    assert found.data["epsilon_if_fixed_in_advance"] is None
    assert registry_entry(found)["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] != 3
    for ending in ("html", "pdf", "json"):
        write_statement(found, tmp_path / f"statement.{ending}", checklist(found))
    json.loads((tmp_path / "statement.json").read_text(), parse_constant=pytest.fail)


MODEL = {"name": "m", "kind": "model", "size": 60000, "batch": 600, "epochs": 10, "epsilon": 1.0}
COUNTS = {"name": "c", "kind": "counts", "noise": "gaussian", "epsilon": 1.0}
SURVEY = {"name": "s", "kind": "survey", "answers": 2, "people": 100, "epsilon": 1.0}


@pytest.mark.parametrize(
    ("line", "relation"),
    [(MODEL, "replace-one"), (COUNTS, "replace-one"), (COUNTS, "zero-out"), (SURVEY, "add-remove")],
)
def test_noise_for_one_relation_is_not_priced_under_another(line, relation):
    """Under replace-one the model's noise would have seemed to cost 0.84, less than under add-remove."""
    with pytest.raises(InvalidInput, match="expected relation"):
        Plan.from_settings({"delta": 1e-6, "relation": relation, "releases": [line]})


@pytest.mark.parametrize(
    "line",
    [
        {**MODEL, "epochs": 1e308},
        {"name": "c", "kind": "counts", "epsilon": 0.1, "per_person": 10**400},
        {**SURVEY, "epsilon": 1000.0},
        {**SURVEY, "answers": 10**400},
    ],
)
def test_figures_beyond_numbers_are_refused_in_a_sentence(line):
    relation = "replace-one" if line["kind"] == "survey" else "add-remove"
    with pytest.raises(InvalidInput, match="expected"):
        Plan.from_settings({"delta": 1e-6, "relation": relation, "releases": [line]})
