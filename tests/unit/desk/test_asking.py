"""A question over HTTP: who pays, what is told, and when it leaves."""

import math
import time

import pytest

COUNT = "SELECT COUNT(*) FROM people"


def test_an_answer_is_paid_from_the_allocation_and_no_more(served, bob):
    before = served.ledger.state
    first = bob.ask(epsilon=0.6)
    assert first.status_code == 200
    body = first.json()
    assert set(body) >= {"columns", "rows", "intervals", "epsilon_spent", "epsilon_left"}
    assert body["epsilon_left"] == pytest.approx(0.4)  # the allocation's, of a ledger with 8
    assert served.ledger.state.spent_by("bob: questions") == pytest.approx(0.6, abs=1e-5)
    second = bob.ask(epsilon=0.5)
    assert second.status_code == 409
    assert second.json()["epsilon_left"] == pytest.approx(0.4)
    assert served.ledger.state.spent - before.spent == pytest.approx(0.6, abs=1e-5)
    assert served.ledger.charges()[-1].head.sequence == body["entry"]["sequence"]


def test_refusals_say_what_can_be_asked_and_cost_nothing(served, ann):
    spent = served.ledger.epsilon_spent
    rows = ann.ask("SELECT * FROM people")
    assert rows.status_code == 422
    assert rows.json()["nearest"] == COUNT
    assert ann.ask("SELECT AVG(secret_number) FROM people").status_code == 422
    assert ann.ask("SELECT 1; DROP TABLE people").status_code == 422
    assert ann.ask("SELECT " + "(" * 3000).status_code == 422
    assert ann.ask(epsilon=-1).status_code == 422
    assert ann.api("POST", "/api/v1/tables/nobody/query", json={"sql": COUNT, "epsilon": 1}).status_code == 404
    assert served.ledger.epsilon_spent == spent


def test_who_may_not_ask_is_told_so(served, olga, rita):
    body = {"sql": COUNT, "epsilon": 0.1}
    assert served.send("POST", "/api/v1/tables/people/query", json=body).status_code == 401
    assert rita.ask().status_code == olga.ask().status_code == 403
    poor = served.person("poor", "analyst", signed_in=False)
    assert poor.ask().status_code == 403


def test_an_engine_that_fails_tells_nothing(another):
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0, signed_in=False)
    assert ann.ask().status_code == 200
    engine = served.desk.dataset("people").table._engine
    private = "row 17 of /srv/private/people.csv has 'Mary Smith'"

    def fails(text):
        raise RuntimeError(private)

    object.__setattr__(engine, "fetch", fails)
    answer = ann.ask("SELECT AVG(age) FROM people")
    assert answer.status_code == 503
    assert "Mary" not in answer.text
    assert "/srv" not in answer.text


def test_an_answer_leaves_at_the_tick_of_its_kind(another):
    """However long the engine takes: the tick follows from when the question came."""
    served = another(tick=0.4)
    ann = served.person("ann", "analyst", allocation=5.0, signed_in=False)
    ann.ask()
    dataset, taken = served.desk.dataset("people"), []
    answer = dataset.table.answer
    for slow in (0.0, 0.2):

        def slowly(*words, slow=slow, **more):
            time.sleep(slow)
            return answer(*words, **more)

        dataset.table.answer = slowly
        served.desk.pace.reset()
        time.sleep(0.4 - time.time() % 0.4)  # begin with a tick
        assert ann.ask().status_code == 200
        taken.append(time.time() % 0.4)
    assert max(taken) < 0.15  # just after a tick, and not .2 s apart


def test_one_that_is_late_is_late_for_all(served):
    pace = Pace_of(served)
    kind = "people: a kind of its own"
    due = pace.due(100.02, kind)
    assert math.isclose(due, math.floor(100.02 / pace.tick + 2) * pace.tick)
    pace.slower(kind, 1)
    pace.slower(kind, 1)  # a second one that was late by the old measure
    assert pace.ticks(kind) == 2
    assert Pace_of(served).ticks(kind) == 2  # it is kept
    assert pace.due(100.02, kind) > due


def Pace_of(served):
    from sfumato.desk.pace import Pace

    return Pace(served.desk.database, served.desk.settings.tick)


def test_pages_show_history_saved_questions_and_exports_of_the_team_alone(served, ann, bob):
    ann.ask("SELECT city, COUNT(*) FROM people GROUP BY city", epsilon=0.2)
    number = (
        served.desk.database.engine.connect()
        .exec_driver_sql("SELECT max(id) FROM questions WHERE team = 'ann' AND answer IS NOT NULL")
        .scalar()
    )
    page = ann.page(f"/answers/{number}")
    assert page.status_code == 200
    assert 'role="img"' in page.text
    for ending in ("csv", "json", "parquet"):
        assert ann.page(f"/answers/{number}/answer.{ending}").status_code == 200
        assert bob.page(f"/answers/{number}/answer.{ending}").status_code == 404
    assert bob.page(f"/answers/{number}").status_code == 404
    saved = ann.post("/ask", sql=COUNT, epsilon="0.1", grant=_grant(ann), action="save", title="<b>how many")
    assert saved.status_code == 303
    assert "&lt;b&gt;how many" in ann.page("/ask").text
    assert "how many" not in bob.page("/ask").text
    assert "GROUP BY city" not in bob.page("/ask").text
    assert "desk.db" not in ann.page("/ask").text
    assert "secret_number" not in ann.page("/ask").text + str(ann.api("GET", "/api/v1/tables/people").json())


def _grant(someone):
    return str(someone.api("GET", "/api/v1/allocations").json()[0]["id"])


def test_the_expected_error_costs_nothing(served, ann):
    spent = served.ledger.epsilon_spent
    found = ann.api("POST", "/api/v1/tables/people/expect", json={"sql": COUNT, "epsilon": 0.1}).json()
    assert found["expected_errors"][0]["half_width"] == pytest.approx(30, rel=0.1)  # 2 ln 20 … of Laplace(10)
    page = ann.post("/ask", sql=COUNT, epsilon="0.1", grant=_grant(ann), action="expect")
    assert "± 30" in page.text
    assert served.ledger.epsilon_spent == spent
