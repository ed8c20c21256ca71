"""Attacks on the desk: work without end, a broken promise, and crashes between the desk and its ledger."""

import json

import pytest
from sqlalchemy import select

from sfumato.accounting import GaussianEvent, Relation
from sfumato.desk import database as db
from sfumato.desk import decisions, grants
from sfumato.desk.accounts import by_id
from sfumato.desk.grants import Wanted
from sfumato.desk.limits import Effort
from sfumato.errors import BudgetExceeded, InvalidInput

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}


def test_whoever_has_much_computed_waits(another):
    served = another()
    ann, bob = served.person("ann", "analyst"), served.person("bob", "analyst")
    served.desk.effort = Effort(size=0.05, rate=1e-9)
    plan = "/plan?kind=query&name=c&epsilon=0.1&times=12&details=SELECT+COUNT(*)+FROM+people"
    seen = [ann.page(plan.replace("12", str(12 + number))).status_code for number in range(20)]
    assert seen[0] == 200
    assert seen[-1] == 429
    assert bob.page(plan).status_code == 200  # each has their own
    assert ann.page("/plan").status_code == 200  # and what costs nothing is still there


def test_what_is_computed_at_once_is_limited():
    effort = Effort(size=10, rate=1)
    assert [effort.begin("ann") for _ in range(3)] == [True, True, False]
    effort.end("ann", 0.1)
    assert effort.begin("ann")
    effort.end("ann", 20.0)
    assert not effort.begin("ann")


@pytest.mark.parametrize("details", ["per_person=" + "9" * 4000, "epsilon=1e-320", "people=1", "x=1"])
def test_odd_figures_of_a_plan_are_told_in_a_sentence(another, details):
    served = another()
    ann = served.person("ann", "analyst")
    page = ann.page(f"/plan?kind=counts&name=c&epsilon=0.1&times=1&details={details}")
    assert page.status_code == 200
    deep = "SELECT COUNT(*) FROM people WHERE " + "(" * 900 + "age > 3" + ")" * 900
    answer = ann.page(f"/plan?kind=query&name=c&epsilon=0.1&times=1&details={deep.replace(' ', '+')}")
    assert answer.status_code == 200


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_broken_promise_is_not_made_again(another, noise):
    served = another()
    ann, olga = served.person("ann", "analyst", allocation=1.0), served.person("olga", "officer")
    served.ledger.record(GaussianEvent(noise), purpose="the course report", **TERMS)
    facts = json.loads(served.send("GET", "/api/v1/public").text, parse_constant=pytest.fail)["datasets"][0]
    assert "was broken" in facts["promise"]
    assert facts["epsilon_spent"] != 0
    page = served.send("GET", "/public")
    assert page.status_code == 200
    assert "was broken" in page.text
    assert "Whatever is published" not in page.text
    assert "was broken" in olga.page("/ledger").text
    refused = ann.ask()
    assert refused.status_code == 409
    assert refused.json()["epsilon_left"] == 0
    for ending in ("html", "json", "yaml"):
        assert olga.page(f"/statements/people.{ending}").status_code == 200


def _waiting(served, team, epsilon):
    ann = served.person(team, "analyst")
    ann.post("/requests", table="people", purpose="report", epsilon=str(epsilon), reason="a report")
    with served.desk.database.read() as connection:
        return connection.execute(select(db.requests.c.id).where(db.requests.c.team == team)).scalar_one()


def _officer(served):
    served.person("olga", "officer", signed_in=False)
    with served.desk.database.read() as connection:
        number = connection.execute(select(db.accounts.c.id).where(db.accounts.c.name == "olga")).scalar_one()
        return by_id(connection, number)


def test_a_refused_allocation_takes_no_other_with_it(another):
    """One was planned when the server was killed; the next, which does not fit, is refused."""
    served = another()
    desk, officer, number = served.desk, _officer(served), _waiting(served, "ann", 6)
    with desk.database.write() as connection:
        people, wanted = desk.dataset("people"), Wanted(team="bob", purpose="x", epsilon=5)
        first = grants.plan(connection, desk, people, wanted, said="by olga")
    with pytest.raises(InvalidInput):
        decisions.approve(
            desk,
            [officer],
            decisions.request(
                desk, officer, desk.dataset("people"), Wanted(team="eve", purpose="x", epsilon=9), reason="much"
            ),
        )
    decisions.approve(desk, [officer], number)  # 6 of 8
    assert [one.team for one in grants.of_team(desk, "bob")] == ["bob"]  # still planned
    desk.finish()  # it no longer fits
    assert grants.of_team(desk, "bob") == []
    assert [one.shares for one in grants.of_team(desk, "ann")] == [("ann: report",)]
    assert first


def test_an_approval_that_was_lost_waits_again(another):
    served = another()
    desk, officer, number = served.desk, _officer(served), _waiting(served, "ann", 6)
    with desk.database.write() as connection:  # approved, and killed before the ledger had it
        row = connection.execute(select(db.requests).where(db.requests.c.id == number)).one()
        words = {"said": "by olga", "request": number}
        grant = grants.plan(connection, desk, desk.dataset("people"), decisions.wanted_of(row), **words)
        grants.decide(connection, [number], decisions.APPROVED, decided_by=officer.id, grant=grant)
    served.ledger.allocate("made at the command line", 5)
    desk.finish()
    with desk.database.read() as connection:
        assert connection.execute(select(db.requests.c.state)).scalar_one() == decisions.OPEN


def test_a_closed_ledger_does_not_keep_the_desk_from_starting(another):
    served = another()
    desk, officer, number = served.desk, _officer(served), _waiting(served, "ann", 6)
    served.ledger.record(GaussianEvent(0.1), purpose="the course report", **TERMS)
    with pytest.raises(BudgetExceeded):
        decisions.approve(desk, [officer], number)
    desk.finish()
    with desk.database.read() as connection:
        assert connection.execute(select(db.requests.c.state)).scalar_one() == decisions.OPEN


def test_words_of_forms_that_are_no_ascii_are_refused(served):
    sent = served.send("POST", "/sign-in", cookies={"desk_visit": "x"}, data={"csrf": "é", "name": "ann"})
    assert sent.status_code == 403
