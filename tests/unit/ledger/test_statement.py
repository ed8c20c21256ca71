from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from sfumato.accounting import (
    DpEvent,
    GaussianEvent,
    Relation,
    epsilon,
    gaussian_noise_multiplier,
    poisson_sampled,
    pure,
    repeat,
)
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Budget, Ledger
from sfumato.ledger.statement import as_json, render

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "person"}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.open(tmp_path / "ledger.db", budget=Budget(epsilon=2, delta=1e-5, unit="person"))
    ledger.charge(pure(0.25), purpose="mean [age]", **TERMS)
    return ledger


def shown(ledger: Ledger, **options: int) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(render(ledger, **options))
    return console.file.getvalue()


def test_what_when_each_spent_left_and_a_bar(ledger: Ledger) -> None:
    ledger.charge(pure(0.25), purpose="mean income", **TERMS)
    text = shown(ledger)
    for part in (
        "mean [age]",
        "mean income",
        "0.25",
        "20",
        "25% spent",
        "Spent 0.5, left 1.5: ε = 2 in all",
        "━",
    ):
        assert part in text
    assert "if all charges had been fixed in advance" in text
    assert "per person" in text


def test_reserved_and_seeded_charges_stand_out(ledger: Ledger) -> None:
    ledger.reserve(pure(0.1), purpose="training", **TERMS)
    assert "reserved" in shown(ledger)
    assert "NOT PRIVATE" not in shown(ledger)
    ledger.charge(pure(0.1), purpose="test run", private=False, **TERMS)
    assert "NOT PRIVATE" in shown(ledger)


def test_only_the_newest_are_shown(ledger: Ledger) -> None:
    for number in range(5):
        ledger.charge(pure(0.01), purpose=f"query {number}", **TERMS)
    text = shown(ledger, last=2)
    assert "query 4" in text
    assert "query 2" not in text
    assert "4 earlier charges are not shown" in text


def test_shares_are_shown(ledger: Ledger) -> None:
    ledger.allocate("research", 0.5)
    assert "research" in shown(ledger)
    assert as_json(ledger)["allocations"]["research"] == {
        "epsilon": 0.5, "epsilon_spent": 0.0, "epsilon_left": 0.5, "epsilon_surcharge": 0.0,
    }  # fmt: skip


def test_what_is_set_aside_is_named_where_it_is_the_gap(ledger: Ledger) -> None:
    """One charge of pure ε adds up with the rest: 0.25 + 1.25 + 0.5 is the budget."""
    ledger.allocate("research", 0.5)
    text = " ".join(shown(ledger).split())
    assert "Spent 0.25, set aside 0.5, left 1.25: ε = 2 in all." in text
    assert "surcharge" not in text.replace("left ┃ surcharge", "")


def test_the_surcharge_is_explained_where_there_is_one(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "two.db", Budget(epsilon=2, delta=1e-5, unit="person"))
    assert "chosen after seeing answers" not in shown(ledger)
    ledger.charge(repeat(GaussianEvent(10.0), 2), purpose="training", **TERMS)
    text = " ".join(shown(ledger).split())
    assert "surcharge of the privacy filter 0." in text
    assert "A further charge may be chosen after seeing answers" in text


def test_who_paid_is_a_column_where_a_share_did(ledger: Ledger) -> None:
    assert "paid from" not in shown(ledger)
    ledger.allocate("research", 0.5)
    ledger.charge(pure(0.1), purpose="a count", allocation="research", **TERMS)
    assert "paid from" in shown(ledger)


def test_json_has_the_names_that_others_rely_on(ledger: Ledger) -> None:
    ledger.charge(repeat(GaussianEvent(20.0), 4), purpose="training", **TERMS)
    data = json.loads(json.dumps(as_json(ledger), allow_nan=False))
    assert data["epsilon_spent"] == pytest.approx(ledger.epsilon_spent)
    assert data["epsilon_left"] == pytest.approx(ledger.epsilon_left)
    assert [charge["purpose"] for charge in data["charges"]] == ["mean [age]", "training"]
    assert data["charges"][0]["epsilon"] == pytest.approx(0.25, abs=1e-4)
    assert data["epsilon_if_fixed_in_advance"] < data["epsilon_spent"]
    assert data["head"] == ledger.head.to_json()


def test_an_empty_ledger_has_a_statement_too(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "empty.db", budget=Budget(epsilon=1))
    assert "0% spent" in shown(ledger)
    assert "Nothing was charged yet." in shown(ledger)
    assert "┃" not in shown(ledger)  # no box around nothing
    assert as_json(ledger)["charges"] == []


def test_left_is_said_for_pure_and_for_gaussian_releases(ledger: Ledger) -> None:
    ledger.charge(repeat(GaussianEvent(10.0), 2), purpose="training", **TERMS)
    pure_left, gaussian_left = (as_json(ledger)[f"epsilon_left{kind}"] for kind in ("", "_to_gaussian"))
    assert gaussian_left > pure_left * 1.05
    text = " ".join(shown(ledger).split())
    assert f"Left is for a release of pure ε; a Gaussian one may cost {gaussian_left:.4f}." in text
    assert "sfumato train --dry-run --ledger says whether one does" in text


@pytest.mark.parametrize("used", [pure(0.4), repeat(GaussianEvent(8.0), 3)])
@pytest.mark.parametrize("share", [None, 1.0])
def test_a_gaussian_release_fits_up_to_what_is_said_to_be_left(
    tmp_path: Path, used: DpEvent, share: float | None
) -> None:
    budget = Budget(epsilon=2, delta=1e-5, unit="person")
    ledger = Ledger.create(tmp_path / "used.db", budget)
    if share is not None:
        ledger.allocate("others", share)
    ledger.charge(used, purpose="earlier", **TERMS)
    left = as_json(ledger)["epsilon_left_to_gaussian"]
    noise = gaussian_noise_multiplier(left, budget.delta)
    ledger.check(GaussianEvent(noise * 1.001), **TERMS)
    with pytest.raises(BudgetExceeded):
        ledger.check(GaussianEvent(noise * 0.999), **TERMS)


def test_a_ledger_without_charges_has_one_figure_left(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "new.db", Budget(epsilon=2, delta=1e-5))
    assert as_json(ledger)["epsilon_left_to_gaussian"] == as_json(ledger)["epsilon_left"] == 2
    assert "Gaussian" not in shown(ledger)


def test_a_ledger_without_delta_has_none_left_for_training(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "pure.db", Budget(epsilon=2))
    assert as_json(ledger)["epsilon_left_to_gaussian"] == 0
    assert "none for training (δ is 0)" in shown(ledger)


STEP = poisson_sampled(0.02, GaussianEvent(1.5))


def stopped(tmp_path: Path, *, relation: Relation = Relation.ADD_REMOVE) -> Ledger:
    """A ledger whose only run was stopped after 380 of 600 steps."""
    ledger = Ledger.create(
        tmp_path / "stopped.db", Budget(epsilon=6, delta=1e-5, unit="person", relation=relation)
    )
    ledger.reserve(repeat(STEP, 600), purpose="training", **TERMS).settle(repeat(STEP, 380))
    return ledger


@pytest.mark.parametrize("relation", [Relation.ADD_REMOVE, Relation.REPLACE_ONE])
def test_a_stopped_run_is_priced_as_the_ledger_counts_it(tmp_path: Path, relation: Relation) -> None:
    ledger = stopped(tmp_path, relation=relation)
    (line,) = as_json(ledger)["charges"]
    assert line["status"] == "stopped early"
    assert line["epsilon"] == ledger.epsilon_spent
    assert line["epsilon"] > 1.2 * epsilon(repeat(STEP, 380), 1e-5)  # of a plan that was shorter from the start


def test_a_stopped_run_costs_no_more_than_its_whole_plan(tmp_path: Path) -> None:
    (line,) = as_json(stopped(tmp_path))["charges"]
    assert line["epsilon"] <= epsilon(repeat(STEP, 600), 1e-5)


def test_nothing_is_said_to_have_been_fixed_in_advance_once_a_run_was_stopped(tmp_path: Path) -> None:
    ledger = stopped(tmp_path)
    ledger.charge(pure(0.1), purpose="a count", **TERMS)
    assert as_json(ledger)["epsilon_if_fixed_in_advance"] is None
    assert "fixed in advance" not in shown(ledger)


def test_a_stopped_run_that_its_plan_paid_for_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "planned.db", Budget(epsilon=6, delta=1e-5, unit="person"))
    ledger.prepay("year", repeat(STEP, 600), purpose="all of it", **TERMS)
    run = ledger.reserve(repeat(STEP, 600), purpose="training", allocation="year", **TERMS)
    run.settle(repeat(STEP, 380))
    assert as_json(ledger)["epsilon_if_fixed_in_advance"] == pytest.approx(epsilon(repeat(STEP, 600), 1e-5))
