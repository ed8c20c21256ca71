"""Allocations by team, purpose and period; requests, decisions, four eyes, and their trace."""

import itertools
import time

import pytest

from sfumato.desk import database as db
from sfumato.desk import grants
from sfumato.desk.grants import Wanted, windows
from sfumato.errors import InvalidInput

YEAR, NOW = 31_557_600.0, time.time()


def test_asked_until_refused_requested_approved_and_on(another):
    served = another()
    ann, olga = served.person("ann", "analyst", allocation=0.2), served.person("olga", "officer")
    assert [ann.ask(epsilon=0.1).status_code for _ in range(3)] == [200, 200, 409]
    grant = ann.api("GET", "/api/v1/allocations").json()[0]["id"]
    asked = ann.post("/requests", table="people", grant=grant, epsilon="0.3", reason="the spring report")
    assert asked.status_code == 303
    assert olga.post("/requests/1/approve").status_code == 303
    assert ann.ask(epsilon=0.3).status_code == 200  # with the same token
    entries = [entry.body for entry in served.ledger.entries() if entry.kind == "allocate"]
    assert "request 1 of ann approved by olga: the spring report" in entries[-1]["purpose"]
    assert olga.post("/requests/1/approve").status_code == 409  # decided already
    served.ledger.verify()


def test_a_decline_is_in_the_ledger(another):
    served = another()
    ann, olga = served.person("ann", "analyst"), served.person("olga", "officer")
    ann.post("/requests", table="people", purpose="survey", epsilon="1", reason="why not")
    assert olga.post("/requests/1/decline").status_code == 303
    last = list(served.ledger.entries())[-1]
    assert last.kind == "note"
    assert "declined by olga: why not" in last.body["text"]
    assert ann.ask().status_code == 403
    served.ledger.verify()


def test_four_eyes_are_two_people(another):
    served = another(more="four_eyes = true")
    ann = served.person("ann", "analyst")
    olga, otto = served.person("olga", "officer"), served.person("otto", "officer")
    ann.post("/requests", table="people", purpose="survey", epsilon="1", reason="why not")
    assert olga.post("/requests/1/approve").status_code == 303
    for one in (ann, olga, otto):
        assert "Approved by olga; a second officer must approve too" in one.page("/requests").text
    assert "/requests/1/approve" not in olga.page("/requests").text
    refused = olga.post("/requests/1/approve")
    assert (refused.status_code, "second officer" in refused.text) == (409, True)
    assert ann.ask().status_code == 403
    assert otto.post("/requests/1/approve").status_code == 303
    assert ann.ask().status_code == 200
    entries = [entry.body["purpose"] for entry in served.ledger.entries() if entry.kind == "allocate"]
    assert entries == ["request 1 of ann approved by olga and otto: why not"]
    # and an officer cannot make the second pair of eyes, or take over one
    assert olga.post("/users", name="olga2", role="officer").status_code == 409
    with served.desk.database.read() as connection:
        number = connection.execute(db.accounts.select().where(db.accounts.c.name == "otto")).one().id
    assert olga.post(f"/users/{number}/password").status_code == 409


def test_periods_are_shares_from_the_start_and_unused_does_not_come_back(another, monkeypatch):
    served = another()
    wanted = Wanted(team="t", purpose="counts", epsilon=1.0, period="quarter", periods=4)
    assert wanted.in_words() == "ε 4 in all, 1 a quarter, unused does not come back"
    grants.give(served.desk, served.desk.dataset("people"), wanted, said="x")
    names = list(served.ledger.state.shares)
    assert len(names) == 4
    assert served.ledger.state.left() == pytest.approx(4.0)  # of 8: all four are set aside now
    (now,) = grants.of_team(served.desk, "t")
    assert len(now.shares) == 1
    for years, count in ((0.25, 1), (3, 0)):
        monkeypatch.setattr(grants.time, "time", lambda later=years: NOW + later * YEAR)
        (then,) = grants.of_team(served.desk, "t")
        assert len(then.shares) == count
        assert now.shares[0] not in then.shares
    monkeypatch.undo()
    wider = Wanted(team="u", purpose="counts", epsilon=1.5, period="quarter", periods=4)
    with pytest.raises(InvalidInput):
        grants.give(served.desk, served.desk.dataset("people"), wider, said="6 more do not fit")
    assert list(served.ledger.state.shares) == names  # none of it, and not a part
    assert len(grants.of_team(served.desk, None)) == 1


def test_a_crash_between_desk_and_ledger_is_finished_later(another):
    served = another()
    wanted = Wanted(team="t", purpose="counts", epsilon=1.0)
    with served.desk.database.write() as connection:
        grants.plan(connection, served.desk, served.desk.dataset("people"), wanted, said="approved by olga")
    assert served.ledger.state.shares == {}
    assert grants.of_team(served.desk, "t")[0].shares == ()  # nothing can be spent yet
    served.desk.finish()
    assert list(served.ledger.state.shares) == ["t: counts"]
    served.desk.finish()  # and once only
    with served.desk.database.write() as connection:
        connection.execute(db.shares.update().values(made=False))
    served.desk.finish()  # the ledger had it, the desk did not know
    assert list(served.ledger.state.shares) == ["t: counts"]


def test_windows_follow_the_calendar():
    months = windows("month", 14, now=1_798_761_599.0)  # the last second of 2026
    assert (months[0].label, months[1].label, months[-1].label) == ("2026-12", "2027-01", "2028-01")
    assert all(one.ends == two.begins for one, two in itertools.pairwise(months))
    assert windows("year", 2, now=0.0)[1].label == "1971"
    with pytest.raises(InvalidInput):
        windows("quarter", 0, now=0.0)
    with pytest.raises(InvalidInput):
        windows("decade", 1, now=0.0)
