"""What waits shares a transaction; what fails in it harms nothing else."""

import threading

import pytest
from sqlalchemy import text

from sfumato.desk import asking
from sfumato.desk.database import Database, Together


def test_what_came_meanwhile_is_done_at_once_and_in_order():
    going, taken = threading.Event(), []

    def work(waiting):
        going.wait(10)
        taken.append([one.wanted for one in waiting])
        for one in waiting:
            one.outcome.set_result(-one.wanted)

    together = Together(work, name="test")
    outcomes = [together.submit(number) for number in range(5)]
    going.set()
    assert [one.result(10) for one in outcomes] == [0, -1, -2, -3, -4]
    together.close()
    assert [number for some in taken for number in some] == list(range(5))
    assert len(taken) <= 2


def test_a_change_that_fails_undoes_no_other(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    with database.write() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER UNIQUE)"))
        held = [database.soon(_insert(number)) for number in (1, 2, 2, 3)]  # they wait for this transaction
    assert [one.exception() is None for one in held] == [True, True, False, True]
    with database.read() as connection:
        assert connection.execute(text("SELECT x FROM t ORDER BY x")).scalars().all() == [1, 2, 3]
    database.close()


def _insert(number):
    return lambda connection: connection.execute(text("INSERT INTO t VALUES (:x)"), {"x": number})


@pytest.mark.keeps_out("A row read for one of several questions before all of them are charged")
def test_no_row_is_read_before_all_of_a_group_is_charged(another, monkeypatch):
    served = another()
    people = [served.person(f"a{i}", "analyst", allocation=0.3, signed_in=False) for i in range(2)]
    served.warm()
    assert people[0].ask().status_code == 200
    dataset, order = served.desk.dataset("people"), []
    charge_each, answer = dataset.ledger.charge_each, dataset.table.answer
    monkeypatch.setattr(
        dataset.ledger, "charge_each", lambda all: order.append(f"charge {len(all)}") or charge_each(all)
    )
    monkeypatch.setattr(dataset.table, "answer", lambda *a, **m: order.append("read") or answer(*a, **m))
    waiting = []
    for one in people:
        account = asking_account(served, one)
        question = asking.Question(sql="SELECT COUNT(*) FROM people", epsilon=0.1)
        asked = asking._ready_to_ask(served.desk, account, dataset, question)
        waiting.append(asking.Waiting(asking.Numbered(served.desk, 1, asked)))
    asking.charge_all(dataset, waiting)
    for one in waiting:
        one.outcome.result(10)
    assert order == ["charge 2", "read", "read"]


def asking_account(served, someone):
    from sfumato.desk.accounts import by_token

    with served.desk.database.read() as connection:
        return by_token(connection, someone.token)


def test_the_charge_of_another_query_answers_nothing(another):
    served = another()
    served.person("ann", "analyst", allocation=1.0, signed_in=False).ask(epsilon=0.1)
    dataset = served.desk.dataset("people")
    ready = dataset.table.ready(dataset.table.plan("SELECT COUNT(*) FROM people", epsilon=0.2))
    refused = asking.BudgetExceeded("no room", epsilon_spent=0.1, epsilon_left=0.0)
    for charge in (served.ledger.charges()[-1], refused, None):
        with pytest.raises(asking.InvalidInput, match="charge of this query"):
            dataset.table.answer(ready, charge, ledger=served.ledger)
