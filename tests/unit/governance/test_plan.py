"""Plans of a year: priced together, charged once, and drawn from."""

from __future__ import annotations

import math

import pytest

from sfumato.accounting import Budget, GaussianEvent, LaplaceEvent, Relation, epsilon, pure, repeat
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerTampered, RelationMismatch
from sfumato.governance import Plan
from sfumato.ledger import Ledger
from sfumato.ledger.verify import replay
from sfumato.query import Table, load_policy

BUDGET = Budget(epsilon=2, delta=1e-6, unit="person")
MONTHLY = {"name": "monthly", "kind": "counts", "noise": "gaussian", "epsilon": 0.1, "times": 12}
SQL = "SELECT COUNT(*) AS n FROM people"


def plan(*releases, **more):
    return Plan.from_settings({"name": "year", "delta": 1e-6, "releases": list(releases), **more})


@pytest.fixture
def people(tmp_path):
    (tmp_path / "people.csv").write_text("person,ill\n" + "".join(f"{i},{i % 2}\n" for i in range(200)))
    (tmp_path / "people.toml").write_text(
        '[table]\nname = "people"\nsource = "people.csv"\npublic_size = 200\n'
        '[unit]\ncolumn = "person"\nrows = 1\n'
        '[budget]\nepsilon = 2.0\ndelta = 1e-6\nledger = "people.db"\n'
        '[columns.ill]\ntype = "integer"\nlower = 0\nupper = 1\n'
    )
    return tmp_path / "people.toml"


def test_a_plan_costs_what_its_releases_compose_to():
    price = plan(MONTHLY).price()
    noise = plan(MONTHLY).releases[0].event.noise_multiplier
    assert price.together == pytest.approx(epsilon(GaussianEvent(noise / math.sqrt(12)), 1e-6))
    assert price.together < price.one_by_one < price.added_up
    assert price.added_up == pytest.approx(1.2, rel=0.01)
    assert price.attacker[0.01] >= 0.01


def test_laplace_errors_are_the_laws():
    release = plan({"kind": "counts", "epsilon": 0.5, "per_person": 3}).releases[0]
    # One person moves three counts by 1 each: scale 3/ε, of which 5% lie beyond ln(20) scales.
    assert release.errors["count"] == pytest.approx(3 / 0.5 * math.log(20))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"kind": "counts"}, "epsilon"),
        ({"kind": "rows", "epsilon": 1}, "kind"),
        ({"kind": "counts", "epsilon": 1, "epsilom": 2}, "epsilom"),
        ({"kind": "counts", "epsilon": -1}, "epsilon"),
        ({"kind": "counts", "epsilon": 1, "times": 10**9}, "times"),
        ({"kind": "average", "epsilon": 1, "lower": 3, "upper": 2, "people": 5}, "lower < upper"),
        ({"kind": "survey", "epsilon": 1, "people": 50}, "replace-one"),
        ({**MONTHLY, "noise": "gausian"}, "noise to be one of laplace, gaussian"),
        ({"kind": "query", "epsilon": 1, "policy": "../../etc/passwd", "sql": "SELECT 1"}, "known here"),
        ("counts", r"releases\[0\] to be an object"),
    ],
)
def test_a_line_that_makes_no_sense_is_one_sentence(line, words):
    with pytest.raises(InvalidInput, match=words):
        plan(line)


@pytest.mark.keeps_out("A plan for persons that asks a table whose policy protects rows")
def test_a_question_is_planned_for_the_unit_of_its_policy(people):
    """A plan for persons on a policy of rows would be charged for people whom the noise does not hide."""
    people.write_text(people.read_text().replace('[unit]\ncolumn = "person"\nrows = 1\n', ""))
    question = {"kind": "query", "policy": "people.toml", "sql": SQL, "epsilon": 0.1}
    settings = {"delta": 1e-6, "unit": "person", "releases": [question]}
    with pytest.raises(InvalidInput, match="unit = 'record' in the plan"):
        Plan.from_settings(settings, policy=lambda name: load_policy(people))
    assert Plan.from_settings({**settings, "unit": "record"}, policy=lambda name: load_policy(people)).releases


def test_a_plan_without_room_for_delta_is_refused():
    with pytest.raises(InvalidInput):
        plan(MONTHLY, delta=0)


def test_releases_are_drawn_from_a_charged_plan(tmp_path, people):
    (tmp_path / "year.toml").write_text(
        'delta = 1e-6\n[[releases]]\nkind = "query"\nname = "people"\npolicy = "people.toml"\n'
        f'sql = "{SQL}"\nepsilon = 0.25\ntimes = 2\n'
    )
    year, policy = Plan.read(tmp_path / "year.toml"), load_policy(people)
    with Ledger.open(tmp_path / "people.db", budget=policy.budget) as ledger:
        year.charge(ledger)
        spent = ledger.epsilon_spent
        assert spent == pytest.approx(0.5, rel=1e-4)  # noise is drawn on a grid
        ledger.spend_under("year")
        table = Table(policy, ledger)
        for _ in range(2):
            assert abs(table.ask(SQL, epsilon=0.25, noise="laplace").rows[0][0] - 200) < 200
        with pytest.raises(BudgetExceeded, match="plan 'year'"):
            table.ask(SQL, epsilon=0.25, noise="laplace")
        assert ledger.epsilon_spent == spent
        ledger.verify()


def test_a_plan_gives_only_what_it_holds(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=BUDGET) as ledger:
        plan(MONTHLY, {"kind": "counts", "epsilon": 0.1, "times": 3}).charge(ledger)
        noise = plan(MONTHLY).releases[0].event.noise_multiplier
        take = {"purpose": "a month", "relation": Relation.ADD_REMOVE, "unit": "person", "allocation": "year"}
        ledger.charge(GaussianEvent(noise), **take)
        ledger.reserve(repeat(GaussianEvent(noise), 11), **take).settle(GaussianEvent(noise))
        for other in (GaussianEvent(noise), GaussianEvent(noise * 0.999), pure(0.2), LaplaceEvent(10.0)):
            with pytest.raises(BudgetExceeded, match="year"):
                ledger.charge(other, **take)
        ledger.charge(repeat(pure(0.1), 2), **take)
        with pytest.raises(BudgetExceeded):
            ledger.charge(repeat(pure(0.1), 2), **take)
        with pytest.raises(RelationMismatch):
            ledger.charge(pure(0.1), **{**take, "relation": Relation.ZERO_OUT})
        with pytest.raises(InvalidInput):
            plan(MONTHLY).charge(ledger)  # the name is taken
        ledger.verify()
        assert all(charge.drawn for charge in ledger.charges()[1:])


def test_a_forged_draw_is_found(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=BUDGET) as ledger:
        plan({"kind": "counts", "epsilon": 0.1}).charge(ledger)
        take = {"purpose": "x", "relation": Relation.ADD_REMOVE, "unit": "person", "allocation": "year"}
        ledger.charge(pure(0.1), **take)
        entries = list(ledger.entries())
        replay(ledger.budget, entries)
        with pytest.raises(LedgerTampered):
            replay(ledger.budget, [*entries, entries[-1]])  # the same draw twice
