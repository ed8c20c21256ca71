"""Jobs: the price before, one charge for all tries, crashes, cancelling, and what an analyst is told."""

from dataclasses import replace

import pytest

from sfumato.accounting import Relation, pure
from sfumato.desk import jobs
from sfumato.desk.accounts import by_token
from sfumato.desk.jobs import Job
from sfumato.desk.runner import PaidOnce
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.policy import Column

TERMS = {"purpose": "model", "relation": Relation.ADD_REMOVE, "unit": "record"}


@pytest.fixture
def started(another):
    """A desk, an analyst with ε 1, and a way to start jobs."""
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0)
    with served.desk.database.read() as connection:
        account = by_token(connection, ann.token)

    def start(**words):
        job = Job(**{"kind": "train", "target": "ill", "epsilon": 0.5, **words})
        return jobs.start(served.desk, account, served.desk.dataset("people"), job, None)

    return served, ann, start


def test_the_price_is_shown_first_and_costs_nothing(started):
    served, ann, start = started
    page = ann.post("/jobs", kind="train", target="ill", epsilon="0.5", grant="1", action="price")
    assert "charged when it begins" in page.text
    assert "Start" in page.text
    too_much = ann.post("/jobs", kind="train", target="ill", epsilon="1.5", grant="1", action="price")
    assert "It does not fit" in too_much.text
    assert (
        ann.post("/jobs", kind="train", target="ill", epsilon="1.5", grant="1", action="start").status_code
        == 409
    )
    assert ann.post("/jobs", kind="train", target="nothing", epsilon="1", grant="1").status_code == 422
    with pytest.raises(BudgetExceeded):
        start(epsilon=2.0)
    with pytest.raises(InvalidInput):
        start(kind="mine bitcoin")
    assert served.ledger.epsilon_spent == 0


def test_columns_that_say_nothing_are_refused_or_left_out_on_purpose(started):
    served, ann, _ = started
    dataset = served.desk.dataset("people")
    columns = {**dataset.policy.columns, "note": Column(name="note", type="text")}
    vague = replace(dataset, policy=replace(dataset.policy, columns=columns))
    with served.desk.database.read() as connection:
        account = by_token(connection, ann.token)
    for kind in ("train", "synthesize"):
        job = Job(kind=kind, target="ill", epsilon=0.5)
        with pytest.raises(InvalidInput, match="categories for note"):
            jobs.price(served.desk, account, vague, job, None)
        left_out = replace(job, leave_out=("note",))
        assert jobs.price(served.desk, account, vague, left_out, None).fits
        assert left_out.to_json()["leave_out"] == ["note"]
    words = {"kind": "train", "target": "ill", "epsilon": "0.5", "grant": "1", "action": "price"}
    page = ann.post("/jobs", **words, leave_out="nose")
    assert (page.status_code, "a column of the policy" in page.text) == (422, True)
    assert "charged when it begins" in ann.post("/jobs", **words, leave_out=" age ,").text
    assert served.ledger.epsilon_spent == 0


def test_a_job_is_charged_once_however_often_it_begins(started):
    served, _, _ = started
    for _ in range(2):  # two tries of job 7, as by two processes
        with PaidOnce.open(served.ledger.place) as ledger:
            ledger.of_job(7, "ann: questions").charge(pure(0.25), **TERMS)
    assert len(served.ledger.charges()) == 1
    with PaidOnce.open(served.ledger.place) as ledger:
        ledger.of_job(8, "ann: questions").charge(pure(0.25), **TERMS)  # another job
        ledger.of_job(7, "ann: questions").charge(pure(0.3), **TERMS)  # or another event
        ledger.of_job(7, None).charge(pure(0.25), **TERMS)  # or from elsewhere
    assert len(served.ledger.charges()) == 4
    served.ledger.verify()


def test_restarts_do_not_count_and_crashes_do(started):
    served, _, start = started
    database, number = served.desk.database, start()
    for tries in range(1, 6):
        assert jobs.take(database).tries == tries
        jobs.put_back(database)  # the server was killed
    for crash in range(1, 4):
        taken = jobs.take(database)
        jobs.put_back_one(database, number, taken.tries)
        assert jobs.state_of(database, number) == (jobs.QUEUED if crash < 3 else jobs.FAILED)


def test_only_the_newest_try_says_how_it_ended(started):
    served, _, start = started
    database, number = served.desk.database, start()
    old = jobs.take(database).tries
    jobs.put_back(database)
    new = jobs.take(database).tries
    assert not jobs.end(database, number, old, jobs.DONE, result={})
    assert jobs.end(database, number, new, jobs.DONE, result={"facts": {}, "files": ["model/x.json"]})


def test_cancelling_and_what_an_analyst_is_told(started):
    served, ann, start = started
    database, first, second = served.desk.database, start(), start(epsilon=0.1)
    assert ann.post(f"/jobs/{second}/cancel").status_code == 303
    assert jobs.state_of(database, second) == jobs.CANCELLED
    taken = jobs.take(database)
    assert taken.id == first
    private = "expected a file at /srv/private/people.csv"
    jobs.end(database, first, taken.tries, jobs.FAILED, sentence=private)
    page = ann.page(f"/jobs/{first}")
    assert "failed" in page.text
    assert "/srv" not in page.text
    bob, olga = served.person("bob", "analyst"), served.person("olga", "officer")
    assert bob.page(f"/jobs/{first}").status_code == 404
    assert bob.page(f"/jobs/{first}/files/1").status_code == 404
    assert private in olga.page("/ledger").text
