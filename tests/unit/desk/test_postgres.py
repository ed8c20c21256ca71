"""The desk's own database on PostgreSQL: what it does on SQLite it does there."""

import pytest

from sfumato.desk import jobs, trail
from sfumato.desk.accounts import Account, Role
from sfumato.desk.desk import Desk
from sfumato.desk.jobs import Job
from sfumato.errors import Refused


def test_a_desk_on_postgresql(another, postgres_url):
    served = another(database=postgres_url)
    ann, olga = served.person("ann", "analyst", allocation=0.2), served.person("olga", "officer")
    assert [ann.ask(epsilon=0.1).status_code for _ in range(3)] == [200, 200, 409]
    grant = ann.api("GET", "/api/v1/allocations").json()[0]["id"]
    ann.post("/requests", table="people", grant=grant, epsilon="0.5", reason="the spring report")
    assert "the spring report" in olga.page("/requests").text
    assert olga.post("/requests/1/approve").status_code == 303
    assert ann.ask(epsilon=0.3).status_code == 200
    assert ann.page("/answers/1").status_code == 200
    assert ann.page("/ask").status_code == olga.page("/ledger").status_code == 200
    who = Account(id=1, name="ann", role=Role.ANALYST, team="ann")
    number = jobs.start(served.desk, who, served.desk.dataset("people"), Job(kind="report"), grant)
    taken = jobs.take(served.desk.database)
    assert (taken.id, taken.tries, jobs.take(served.desk.database)) == (number, 1, None)
    jobs.put_back(served.desk.database)
    assert jobs.take(served.desk.database).tries == 2
    assert not jobs.end(served.desk.database, number, 1, jobs.DONE, result={})  # an earlier try, too late
    assert jobs.end(served.desk.database, number, 2, jobs.DONE, result={})
    assert len(list(trail.entries(served.desk.database))) > 10
    assert [served.desk.tries.reserve("ann") for _ in range(5)] == [0] * 5
    assert served.desk.tries.reserve("ann") > 0
    served.desk.finish()
    with pytest.raises(Refused, match="expected one server"):
        Desk.open(served.place).finish()
    assert jobs.take(served.desk.database) is None  # and the first one still writes
