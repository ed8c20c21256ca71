"""A question over HTTP: who pays, what is told, and when it leaves."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sfumato.desk import asking
from sfumato.desk.limits import Effort, kind_of

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
    from sfumato.desk.limits import Pace

    return Pace(served.desk.database, served.desk.settings.tick)


def test_pages_show_history_saved_questions_and_exports_of_the_team_alone(served, ann, bob):
    ann.ask("SELECT city, COUNT(*) FROM people GROUP BY city", epsilon=0.2)
    asked = "SELECT max(id) FROM questions WHERE team = 'ann' AND state = 'answered'"
    with (
        served.desk.database.read() as connection
    ):  # left open, it would hold the database until it is collected
        number = connection.exec_driver_sql(asked).scalar()
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


@pytest.mark.keeps_out("One dear question for which everybody waits, and by which a whole kind is slowed down")
def test_a_dear_question_holds_up_no_other(another, monkeypatch):
    """Its rows are read by the thread that asks; its noise is made beside it, and its kind is its own."""
    served = another(tick=0.2)
    ann = served.person("ann", "analyst", allocation=5.0, signed_in=False)
    assert ann.ask().status_code == 200
    table, going, asked = served.desk.dataset("people").table, threading.Event(), []
    released = table.released

    def slowly(ready, *words, **more):
        asked.append(ready.planned.values)
        if ready.planned.values > asking.MOST_IN_PASSING:
            assert going.wait(30)
        return released(ready, *words, **more)

    monkeypatch.setattr(table, "released", slowly)
    dear = "SELECT BIN(age, 1000), MEDIAN(age) FROM people GROUP BY BIN(age, 1000)"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ann.ask, dear, 0.001)
        while not asked:
            time.sleep(0.01)
        assert ann.ask().status_code == 200  # meanwhile
        assert not first.done()
        going.set()
        assert first.result(60).status_code == 200
    slowed = served.desk.pace.all()
    assert all("noisy numbers" in kind for kind in slowed)  # others keep their tick
    assert served.desk.pace.ticks("people: one table, one pass") == 1


def test_a_kind_begins_with_the_ticks_that_its_numbers_take(served):
    pace = Pace_of(served)
    pace.at_least("dear", 3.5 * pace.tick)
    pace.at_least("small", 1e-6)
    assert (pace.ticks("dear"), pace.ticks("small")) == (4, 1)
    assert pace.all().get("dear") is None  # it was not slowed down: that is told of others


@pytest.mark.keeps_out("One dear question for which everybody waits, and by which a whole kind is slowed down")
def test_kinds_tell_questions_apart_by_their_numbers(served):
    dataset = served.desk.dataset("people")

    def kind(sql):
        return kind_of(dataset.table.plan(sql, epsilon=1e-4), dataset.policy, "people")

    few = kind(COUNT), kind("SELECT city, COUNT(*) FROM people GROUP BY city")
    many = [
        kind(f"SELECT BIN(age, {n}), MEDIAN(age) FROM people GROUP BY BIN(age, {n})") for n in (20, 900, 1000)
    ]
    assert few[0] == few[1]
    assert many[0] != many[1]
    assert many[1] == many[2]
    assert few[0] not in many


@pytest.mark.keeps_out("Planning that costs the asker nothing")
@pytest.mark.parametrize("sql", [COUNT, "SELECT * FROM people"])
def test_what_is_not_charged_counts_against_an_effort(another, sql):
    """On every way to have a question planned, whether it is answered, told about or refused."""
    served = another()
    ann = served.person("ann", "analyst", allocation=5.0)
    number = ann.api("GET", "/api/v1/allocations").json()[0]["id"]
    fields = {"sql": sql, "epsilon": "0.001", "grant": str(number), "title": "x"}
    body = {"sql": sql, "epsilon": 0.001}
    served.warm()
    ways = {
        "expect": lambda: ann.api("POST", "/api/v1/tables/people/expect", json=body),
        "query": lambda: ann.ask(sql, 0.001),
        "page expect": lambda: ann.post("/ask", action="expect", **fields),
        "page ask": lambda: ann.post("/ask", action="ask", **fields),
        "page save": lambda: ann.post("/ask", action="save", **fields),
    }
    for name, way in ways.items():
        served.desk.effort = Effort(size=1e-6, rate=0.0)
        assert way().status_code in (200, 303, 422), name
        assert way().status_code == 429, name
    bob = served.person("bob", "analyst", allocation=1.0, signed_in=False)
    assert bob.ask(epsilon=0.001).status_code == 200  # another account's is another's
