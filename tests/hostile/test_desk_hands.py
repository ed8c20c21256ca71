"""A desk in several hands: crashes, orphans, restored copies, two desks on one ledger, one officer alone."""

import asyncio
import json
import os
import re
import runpy
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the desk: pip install 'sfumato[desk]'")

from fastapi import FastAPI
from typer.testing import CliRunner

from sfumato.accounting import Relation, pure
from sfumato.cli.app import app
from sfumato.desk import accounts, asking, decisions, gate, grants, jobs, runner, trail
from sfumato.desk import database as db
from sfumato.desk import pages as ask_pages
from sfumato.desk.accounts import Account, Role, add_person
from sfumato.desk.database import Database
from sfumato.desk.desk import Desk
from sfumato.desk.grants import Wanted
from sfumato.desk.jobs import Job
from sfumato.desk.limits import Effort
from sfumato.errors import InvalidInput, LedgerError, Refused
from sfumato.ledger import ChargeRequest, Ledger, move

_UNIT = runpy.run_path(str(Path(__file__).parents[1] / "unit" / "desk" / "conftest.py"))
Served, another, _cheap_passwords = (_UNIT[name] for name in ("Served", "another", "_cheap_passwords"))
PASSWORD = _UNIT["PASSWORD"]
TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}
OPINION = 'noise_multiplier = {noise}\nsample_rate = {rate}\nsteps = 100\nsampling = "poisson"\ndelta = 1e-6\n'


def restarted(place):
    """What a start says of a desk."""
    desk = Desk.open(place)
    try:
        desk.finish()
        lines = [one.body for one in trail.entries(desk.database)]
        return [line["route"] for line in lines if line["method"] == "start"]
    finally:
        desk.close()


def raw(place):
    """The desk's database as another program opens it: nothing is checked."""
    return sqlite3.connect(place.parent / "desk.db")


def approved(ann, olga, *, purpose="report", epsilon=0.01):
    ann.post("/requests", table="people", purpose=purpose, epsilon=str(epsilon), reason="a report")
    return olga.post("/requests/1/approve").status_code


# Crashes, orphans, ledgers that are gone


@pytest.mark.keeps_out(
    "A token for an allocation that the ledger then refuses, which keeps the server from starting ever after"
)
def test_a_token_needs_a_share_that_was_made(another, monkeypatch, capsys):
    """The ledger refuses an allocation for which a token is asked meanwhile; the next start works."""
    served = another()
    ann, olga = served.person("ann", "analyst"), served.person("olga", "officer")
    settle, seen = grants.settle, []

    def meanwhile(*words):
        seen.append(ann.post("/account/tokens", purpose="x", grant="1").status_code)
        settle(*words)

    monkeypatch.setattr(grants, "settle", meanwhile)
    assert approved(ann, olga, epsilon=9) == 422
    assert seen == [422]
    assert restarted(served.place) == []
    monkeypatch.undo()
    assert "Waits for a decision" in olga.page("/requests").text


@pytest.mark.keeps_out(
    "A token for an allocation that the ledger then refuses, which keeps the server from starting ever after"
)
def test_an_allocation_that_is_taken_back_takes_all_that_refers_to_it(another, capsys):
    served = another()
    desk, ann = served.desk, served.person("ann", "analyst")
    wanted = Wanted(team="ann", purpose="x", epsilon=9)
    with desk.database.write() as connection:
        grants.plan(connection, desk, desk.dataset("people"), wanted, said="by olga")
    with raw(served.place) as database:  # as an older version wrote it
        database.execute("INSERT INTO tokens VALUES (9, 1, x'00', 'x', 1, 0, 0, 0)")
        database.execute(
            """INSERT INTO questions (account, team, dataset, "grant", sql, epsilon, state, asked)"""
            " VALUES (1, 'ann', 'people', 1, 'x', 1, 'refused', 0)"
        )
    (found,) = restarted(served.place)
    assert "cannot be set aside" in found
    assert "cannot be set aside" in capsys.readouterr().err
    with raw(served.place) as database:
        assert database.execute("SELECT id FROM tokens").fetchall() == [(1,)]
        assert database.execute('SELECT "grant" FROM questions').fetchall() == [(None,)]
    assert ann.ask().status_code == 403


def steps_of(work, kill_at):
    """Do `work` in a process that is killed after this many durable steps; whether it ended by itself."""
    child = os.fork()
    if child == 0:
        left = [kill_at]

        def step():
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)

        write, allocate = Database.write, Ledger.allocate_all

        @contextmanager
        def counted(self):
            with write(self) as connection:
                yield connection
            step()

        Database.write = counted
        Ledger.allocate_all = lambda self, *a, **m: (allocate(self, *a, **m), step())
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.keeps_out(
    "A token for an allocation that the ledger then refuses, which keeps the server from starting ever after"
)
def test_killed_between_any_two_steps(another, tmp_path, desk_files, capsys):
    """An allocation is made whole or not at all, once, whatever step the process is killed after."""
    served = another()
    served.person("ann", "analyst", signed_in=False)
    served.person("olga", "officer", signed_in=False)
    with served.desk.database.read() as connection:
        ann, olga = (accounts.by_id(connection, number) for number in (1, 2))
    wanted = Wanted(team="ann", purpose="report", epsilon=1.0, period="quarter", periods=2)
    decisions.request(served.desk, ann, served.desk.dataset("people"), wanted, reason="x")
    served.desk.close()

    def approve(place):
        desk = Desk.open(place)
        decisions.approve(desk, [olga], 1)

    def add(place):
        add_person(Desk.open(place), "bob", role="analyst", wanted=wanted)

    for work in (approve, add):
        for kill_at in range(20):
            place = tmp_path / f"{work.__name__}-{kill_at}" / "desk.toml"
            shutil.copytree(served.place.parent, place.parent, ignore=lambda *_: ["add", "approve"])
            done = steps_of(lambda work=work, place=place: work(place), kill_at)
            desk = Desk.open(place)
            desk.finish()
            capsys.readouterr()
            desk.finish()
            assert capsys.readouterr().err == "", "a second start finds nothing"
            made = grants.of_team(desk, "ann")
            with raw(place) as database:
                assert database.execute("PRAGMA foreign_key_check").fetchall() == []
                states = {state for (state,) in database.execute("SELECT state FROM requests")}
            book = desk.dataset("people").ledger
            assert len(book.state.shares) == 2 * len(made) <= 2
            if work is approve:
                assert states == ({"approved"} if made else {"open"})
            book.verify()
            desk.close()
            if done:
                break
        assert done
        assert kill_at >= 3


@pytest.mark.keeps_out(
    "A repair that deletes shares, answers and jobs which a ledger has paid for, because a row "
    "beside them is gone"
)
@pytest.mark.keeps_out(
    "A row that refers to nothing, a ledger that is missing or closed: one of them, and nothing is served"
)
def test_rows_that_refer_to_rows_that_are_gone_are_told_and_spend_nothing(another, capsys):
    """As another program leaves them, which does not check references."""
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0)
    head = served.ledger.head
    with raw(served.place) as database:
        database.executescript(
            """
            INSERT INTO tokens VALUES (9, 1, x'00', 'x', 99, 0, 0, 0);
            INSERT INTO shares (dataset, name, origin, "grant", epsilon, begins, said, made)
              VALUES ('people', 'orphan', 'x', 99, 1, 0, 'x', 0);
            """
        )
    said, _ = restarted(served.place)
    assert said in capsys.readouterr().err
    assert "shares to grants, tokens to grants" in said
    assert served.ledger.head == head  # the orphan share was not made
    assert ann.ask().status_code == 200


@pytest.mark.keeps_out("Two servers of one desk, of which the second begins the running job again")
def test_a_second_server_of_a_desk_is_refused(another):
    """It would put the running job back into the queue."""
    served = another()
    served.desk.finish()
    number = jobs.start(*_asked(served, served.person("ann", "analyst", allocation=1.0)), None)
    assert jobs.take(served.desk.database).id == number
    linked = served.place.parent / "linked.db"
    linked.symlink_to(served.place.parent / "desk.db")
    beside = served.place.with_name("beside.toml")
    beside.write_text(served.place.read_text().replace("desk.db", "linked.db"))
    for place in (served.place, beside):
        second = subprocess.run(
            [sys.executable, "-m", "sfumato", "serve", str(place), "--port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (second.returncode, second.stderr.count("\n")) == (1, 1)
        assert "expected one server for the database of a desk, got a second" in second.stderr
    assert jobs.state_of(served.desk.database, number) == jobs.RUNNING
    served.desk.close()
    assert restarted(served.place) == []  # the next one is let in


def _asked(served, person, **words):
    """A desk, an account, a data set and a job, as a job is started with."""
    with served.desk.database.read() as connection:
        account = accounts.by_token(connection, person.token)
    job = Job(**{"kind": "train", "target": "ill", "epsilon": 0.5, **words})
    return served.desk, account, served.desk.dataset("people"), job


@pytest.mark.keeps_out(
    "A job that waits in the queue until its account is closed or its period over, and is charged then"
)
@pytest.mark.parametrize("change", ["closed", "over", "nothing"])
def test_a_job_that_waited_is_charged_only_if_it_may_be_now(another, monkeypatch, change):
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0)
    number = jobs.start(*_asked(served, ann), None)
    with served.desk.database.write() as connection:
        if change == "closed":
            accounts.close(connection, 1)
        if change == "over":
            connection.execute(db.shares.update().values(ends=time.time() - 1))

    def charge(settings, database, job):
        ledger = runner._opened(settings, database, job)[1]
        ledger.pay_for(pure(0.5), purpose="a model", **TERMS)
        return {"facts": {}, "files": []}

    monkeypatch.setitem(runner._WORK, "train", charge)
    monkeypatch.chdir(served.place.parent)
    runner.run(served.place, number, jobs.take(served.desk.database).tries)
    paid = change == "nothing"
    assert jobs.state_of(served.desk.database, number) == (jobs.DONE if paid else jobs.FAILED)
    assert len(served.ledger.charges()) == paid
    if not paid:
        assert change in jobs.failed(served.desk)[0].sentence


@pytest.mark.keeps_out("Tokens that outlive the password; `true` taken for an ε of 1")
def test_a_new_password_ends_the_tokens(another):
    """Who lost a password may have lost the tokens too."""
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0)
    assert ann.ask().status_code == 200
    assert ann.ask(epsilon=True).status_code == 422
    assert ann.ask(epsilon="0.1").status_code == 422
    assert ann.ask(epsilon=0.1, delta=False).status_code == 422
    assert ann.post("/account/password", old=PASSWORD, new="another long password").status_code == 303
    assert ann.ask().status_code == 401
    assert served.ledger.epsilon_spent == pytest.approx(0.1, rel=1e-3)


@pytest.mark.keeps_out("A session or token of the old password, made while the password changes")
def test_a_session_of_the_old_password_does_not_outlive_it(another):
    """The password changes while an old one is compared: what was verified before is over, tokens too."""
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0)
    verify = accounts._verified

    def slowly(stored, password):
        found = verify(stored, password)
        with served.desk.database.write() as connection:
            accounts.set_password(connection, 1, accounts.hashed("another long password"))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts, "_verified", slowly)
        late = dict(served.sign_in("ann").cookies)
    ann.cookies = late
    assert ann.page("/account").status_code == 401
    with served.desk.database.read() as connection:
        old = accounts.by_id(connection, 1)
    with served.desk.database.write() as connection:
        token = accounts.add_token(connection, replace(old, epoch=old.epoch - 1), purpose="x", grant=1)
    assert served.send("GET", "/api/v1/tables", headers={"authorization": f"Bearer {token}"}).status_code == 401
    ann.cookies, again = dict(served.sign_in("ann", "another long password").cookies), "yet another password"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts, "_verified", slowly)
        late = ann.post("/account/password", old="another long password", new=again)
    assert late.status_code == 409
    assert served.sign_in("ann", again).status_code == 401


IMAGES = '\n[images.scans]\nsource = "digits"\npublic_size = 1500\nepsilon = 4.0\ndelta = 1e-5\n'


@pytest.mark.keeps_out(
    "A refusal in a browser that names the option of a command; a page that fails where a desk has no table"
)
def test_a_desk_of_images_alone_has_no_table_to_plan_for(another):
    served = another(settings=IMAGES)
    served.desk.datasets.pop("people")
    served.desk.settings = replace(
        served.desk.settings, policies=dict(list(served.desk.settings.policies.items())[1:])
    )
    page = served.person("olga", "officer").page("/plan")
    assert (page.status_code, "expected a desk with a table" in page.text) == (422, True)


@pytest.mark.keeps_out(
    "A refusal in a browser that names the option of a command; a page that fails where a desk has no table"
)
def test_a_refusal_of_the_desk_names_no_option_of_a_command(another):
    more = '[columns.note]\ntype = "text"\n'
    served = another(more=f"\n{more}")
    ann = served.person("ann", "analyst", allocation=1.0)
    words = {"kind": "train", "target": "ill", "epsilon": "0.5", "grant": "1", "action": "price"}
    page = ann.post("/jobs", **words)
    assert page.status_code == 422
    assert "categories for note" in page.text
    assert "--" not in re.sub("<!--.*?-->", "", page.text)


@pytest.fixture
def with_images(another):
    """A desk with a table and with images, and an allocation of each."""
    served = another(settings=IMAGES)
    ann = served.person("ann", "analyst")
    for table in ("people", "scans"):
        wanted = Wanted(team="ann", purpose="work", epsilon=1.0)
        grants.give(served.desk, served.desk.dataset(table), wanted, said="x")
    served.desk.close()
    return served, ann


def gone(place):
    Path(place).unlink()


def moved(place):
    move(place, f"{place}.elsewhere").close()


def broken(place):
    Path(place).write_bytes(b"not a ledger")


@pytest.mark.keeps_out("A missing ledger made anew, with the whole budget")
@pytest.mark.keeps_out(
    "A row that refers to nothing, a ledger that is missing or closed: one of them, and nothing is served"
)
@pytest.mark.parametrize("harm", [gone, broken])
def test_a_ledger_that_cannot_be_opened_leaves_the_other_tables_served(with_images, harm, capsys):
    """One that is missing is not made anew: the budget would be whole again."""
    served, ann = with_images
    place = served.place.parent / "people.ledger.db"
    harm(str(place))
    assert any("people is not served" in one for one in restarted(served.place))
    assert "people is not served" in capsys.readouterr().err
    with pytest.raises(LedgerError, match="people is not served"):
        CliRunner().invoke(app, ["desk", "verify", "--config", str(served.place)], catch_exceptions=False)
    assert place.exists() == (harm is broken)
    again = Served(served.place)
    ann.desk = again
    assert [one["table"] for one in ann.api("GET", "/api/v1/allocations").json()] == ["scans"]
    for path in ("/ask", "/jobs", "/requests", "/account", "/public"):
        assert ann.page(path).status_code == 200
    with pytest.raises(InvalidInput, match="people is not served"):
        again.desk.dataset("people")
    with pytest.raises(InvalidInput, match="expected a table"):
        again.desk.dataset(None)  # the one that is left is not meant by it
    again.desk.close()
    harm(str(served.place.parent / "scans.ledger.db"))
    with pytest.raises(LedgerError, match=r"people is not served.*scans is not served"):
        Desk.open(served.place)


def test_a_moved_ledger_does_not_stop_the_start(with_images, capsys):
    served, _ = with_images
    desk = Desk.open(served.place)
    wanted = Wanted(team="ann", purpose="more", epsilon=1.0)
    with desk.database.write() as connection:
        grants.plan(connection, desk, desk.dataset("people"), wanted, said="by olga")
    desk.close()
    moved(str(served.place.parent / "people.ledger.db"))
    assert any("people" in one for one in restarted(served.place))


def test_a_database_of_another_kind_is_one_sentence(another):
    served = another()
    served.desk.close()
    for path in served.place.parent.glob("desk.db*"):
        path.unlink()
    (served.place.parent / "desk.db").write_bytes(b"no database" * 100)
    with pytest.raises(InvalidInput, match="expected the desk's database"):
        Desk.open(served.place)


# Shares are known by an origin, not by a name


@pytest.mark.keeps_out(
    "A share known by its name: an officer approves ε = .01, and the team spends the 5 of another"
)
def test_a_share_of_the_same_name_is_not_adopted(another):
    """The officer approves ε = .01; a share of ε = 5 has the name already."""
    served = another()
    ann, olga = served.person("ann", "analyst"), served.person("olga", "officer")
    served.ledger.allocate("ann: report", 5.0)
    assert approved(ann, olga) == 303
    (mine,) = ann.api("GET", "/api/v1/allocations").json()
    assert mine["epsilon_left"] == pytest.approx(0.01, rel=1e-3)
    assert ann.ask(epsilon=1.0).status_code == 409
    assert ann.ask(epsilon=0.01).status_code == 200
    assert served.ledger.state.spent_by("ann: report") == 0
    assert served.ledger.state.spent_by("ann: report (2)") == pytest.approx(0.01, rel=1e-3)
    served.ledger.verify()


def test_a_plan_of_the_same_name_is_not_adopted(another):
    served = another()
    ann, olga = served.person("ann", "analyst"), served.person("olga", "officer")
    served.ledger.prepay("ann: report", pure(0.5), purpose="a year", **TERMS)
    assert approved(ann, olga) == 303
    assert list(served.ledger.state.shares) == ["ann: report (2)"]


def copied(served):
    """A copy of the desk's database as it is now."""
    with raw(served.place) as source, sqlite3.connect(served.place.parent / "copy.db") as target:
        source.backup(target)


def restored(served):
    """The same desk, with the copy in place of its database."""
    served.desk.close()
    for path in served.place.parent.glob("desk.db*"):
        path.unlink()
    (served.place.parent / "copy.db").rename(served.place.parent / "desk.db")
    return Served(served.place)


@pytest.mark.keeps_out(
    "An older copy of the desk's database that adopts shares, makes them twice, or hides what was spent since"
)
def test_an_older_copy_of_the_database_adopts_nothing_and_makes_nothing_twice(another, capsys):
    served = another()
    ann, olga = served.person("ann", "analyst"), served.person("olga", "officer")
    ann.post("/requests", table="people", purpose="report", epsilon="1", reason="a report")
    copied(served)
    assert olga.post("/requests/1/approve").status_code == 303
    assert ann.ask(epsilon=0.5).status_code == 200
    again = restored(served)
    (found,) = restarted(served.place)
    assert "'ann: report' of this desk, whose database does not know it" in found
    assert found in capsys.readouterr().err
    ann.desk = olga.desk = again
    assert ann.ask(epsilon=0.1).status_code == 403
    assert len(again.ledger.state.shares) == 1
    assert olga.post("/requests/1/approve").status_code == 303  # by a decision, and as another share
    assert list(again.ledger.state.shares) == ["ann: report", "ann: report (2)"]
    assert ann.ask(epsilon=0.6).status_code == 200
    assert again.ledger.state.spent_by("ann: report") == pytest.approx(0.5, rel=1e-3)
    again.desk.close()


@pytest.mark.keeps_out(
    "An older copy of the desk's database that adopts shares, makes them twice, or hides what was spent since"
)
def test_a_planned_share_of_an_older_copy_is_made_once(another, capsys):
    served = another()
    wanted = Wanted(team="ann", purpose="report", epsilon=1.0)
    with served.desk.database.write() as connection:
        grants.plan(connection, served.desk, served.desk.dataset("people"), wanted, said="by olga")
    copied(served)
    served.desk.finish()
    again = restored(served)
    again.desk.finish()
    assert list(again.ledger.state.shares) == ["ann: report"]
    assert [one.shares for one in grants.of_team(again.desk, "ann")] == [("ann: report",)]
    again.desk.close()


@pytest.mark.keeps_out(
    "An older copy of the desk's database that adopts shares, makes them twice, or hides what was spent since"
)
def test_spends_that_an_older_copy_does_not_know_are_told_and_count(another, capsys):
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0)
    assert ann.ask(epsilon=0.25).status_code == 200
    assert restarted(served.place) == []
    copied(served)
    assert ann.ask(epsilon=0.25).status_code == 200
    again = restored(served)
    assert ["has 2 charges to allocation 1" in one for one in restarted(served.place)] == [True]
    ann.desk = again
    assert ann.api("GET", "/api/v1/allocations").json()[0]["epsilon_left"] == pytest.approx(0.5, rel=1e-3)
    again.desk.close()


def test_the_step_after_a_restore_ends_what_an_older_copy_brings_back(another):
    """An account was closed since the copy. The ledger knows nothing of accounts: a page says what to do."""
    served = another()
    ann, olga = served.person("ann", "analyst", allocation=1.0), served.person("olga", "officer")
    copied(served)
    assert olga.post("/users/1/close").status_code == 303
    again = restored(served)
    ann.desk = olga.desk = again
    assert ann.ask().status_code == 200
    page = Path(__file__).parents[2] / "docs" / "how-to" / "desk.md"
    with raw(served.place) as database:
        database.executescript(re.search('sqlite3 desk.db "(.+)"', page.read_text())[1])
    assert ann.ask().status_code == 401
    assert [again.sign_in(name).status_code for name in ("ann", "olga")] == [401, 303]
    assert olga.page("/users").status_code == 401
    again.desk.close()


@pytest.mark.keeps_out(
    "A share known by its name: an officer approves ε = .01, and the team spends the 5 of another"
)
def test_a_ledger_that_forgot_the_shares_pays_for_nothing(another, capsys):
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0)
    served.desk.close()
    (served.place.parent / "people.ledger.db").unlink()
    with Ledger.create(served.place.parent / "people.ledger.db", served.ledger.budget) as other:
        other.allocate("ann: questions", 5.0)
    assert ["has no share 'ann: questions'" in one for one in restarted(served.place)] == [True]
    again = Served(served.place)
    ann.desk = again
    assert ann.ask(epsilon=0.1).status_code == 403
    again.desk.close()


@pytest.mark.keeps_out(
    "A share known by its name: an officer approves ε = .01, and the team spends the 5 of another"
)
def test_two_desks_on_one_ledger(tmp_path, desk_files, capsys):
    """Their names collide, both work, and neither spends or reports what is the other's."""
    people = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        served = Served(desk_files(tmp_path / name, more=f'ledger = "{tmp_path}/book.db"'))
        people.append(served.person("ann", "analyst", allocation=1.0))
    first = people[0]
    assert [one.ask(epsilon=0.75).status_code for one in people] == [200, 200]
    assert [one.ask(epsilon=0.75).status_code for one in people] == [409, 409]
    state = first.desk.ledger.state
    assert {name: state.spent_by(name) for name in state.shares} == {
        "ann: questions": pytest.approx(0.75, rel=1e-3),
        "ann: questions (2)": pytest.approx(0.75, rel=1e-3),
    }
    assert [restarted(one.desk.place) for one in people] == [[], []]
    first.desk.ledger.verify()
    for one in people:
        one.desk.desk.close()


@pytest.mark.keeps_out("Jobs known by a number that another desk on the ledger, or a restored copy, has too")
def test_jobs_of_two_desks_and_of_a_restored_copy_settle_and_overwrite_nothing_of_each_other(
    tmp_path, desk_files, monkeypatch
):
    """Each first job has the number 1; one is free, and ends while the other works."""
    monkeypatch.chdir(tmp_path)
    first, second = (tmp_path / name for name in ("first", "second"))
    desks = []
    for place in (first, second):
        place.mkdir()
        served = Served(desk_files(place, more=f'ledger = "{tmp_path}/book.db"'))
        desks.append((served, served.person("ann", "analyst", allocation=1.0)))
    (one, ann), (two, bob) = desks
    copied(one)
    desk, _, dataset, _ = words = _asked(one, ann)
    jobs.start(*words, None)
    running = jobs.take(desk.database)
    ledger = runner._opened(desk.settings, desk.database, running)[1]
    terms = ChargeRequest(event=pure(0.25), purpose="a model", allocations=(None,), **TERMS)
    held = ledger.hold(terms)
    jobs.start(*_asked(two, bob, kind="report", epsilon=0.0, target=None), None)
    monkeypatch.setitem(runner._WORK, "report", lambda *_: {"facts": {}, "files": []})
    runner.run(two.place, 1, jobs.take(two.desk.database).tries)
    assert jobs.state_of(two.desk.database, 1) == jobs.DONE
    assert [charge.settled for charge in dataset.ledger.charges()] == [False]
    jobs.put_back(desk.database)
    again = runner._opened(desk.settings, desk.database, jobs.take(desk.database))[1]
    assert again.hold(terms).head == held.head
    assert len(dataset.ledger.charges()) == 1
    back = restored(one)
    jobs.start(*_asked(back, ann, epsilon=0.25), None)
    later = jobs.take(back.desk.database)
    assert later.id == running.id
    assert later.folder != running.folder
    other = runner._opened(back.desk.settings, back.desk.database, later)[1]
    assert other.hold(terms).head != held.head
    for served in (back, two):
        served.desk.close()


@pytest.mark.keeps_out("One team's jobs before all others")
def test_teams_take_turns_at_jobs(another):
    served = another()
    ann, bob = (served.person(name, "analyst", allocation=1.0) for name in ("ann", "bob"))
    report = {"kind": "report", "epsilon": 0.0, "target": None}
    for person in (ann, ann, ann, bob):
        jobs.start(*_asked(served, person, **report), None)
    assert [jobs.take(served.desk.database).team for _ in range(4)] == ["ann", "bob", "ann", "ann"]


# Two officers


@pytest.fixture
def two(another):
    served = another(more="four_eyes = true")
    return served, served.person("olga", "officer"), served.person("otto", "officer")


def confirm(officer, number=1):
    digest = re.search(
        f'proposals/{number}/confirm".*?name="digest" value="([^"]+)"', officer.page("/requests").text
    )
    return officer.post(f"/proposals/{number}/confirm", digest=digest[1] if digest else "")


def secret_of(page):
    return re.search('class="secret">([^<]+)<', page.text)[1]


@pytest.mark.keeps_out(
    "One officer alone who closes a ledger, makes an analyst in a team with a budget, or takes an account over"
)
def test_one_officer_alone_closes_no_ledger(two):
    served, olga, otto = two
    fields = {"settings": OPINION.format(noise=0.1, rate=1), "dataset": "people", "purpose": "a model"}
    for _ in range(2):
        olga.post("/opinion", action="record", **fields)
    assert confirm(olga).status_code == 409
    assert served.ledger.head.sequence == 0
    assert "closes the ledger" in otto.page("/requests").text
    assert confirm(otto).status_code == 303
    assert served.ledger.exceeded is not None
    assert confirm(otto).status_code == 409  # once


@pytest.mark.keeps_out(
    "One officer alone who closes a ledger, makes an analyst in a team with a budget, or takes an account over"
)
def test_one_officer_alone_makes_no_analyst(two):
    served, olga, otto = two
    grants.give(
        served.desk, served.desk.dataset("people"), Wanted(team="care", purpose="x", epsilon=1), said="x"
    )
    proposed = olga.post("/users", name="evelyn", role="analyst", team="care")
    assert "evelyn" not in olga.page("/users").text
    assert "which may spend ε 1 of people" in otto.page("/requests").text
    first, second = secret_of(proposed), secret_of(confirm(otto))
    for half in (first, second, f"{second}-{first}"):
        assert served.sign_in("evelyn", half).status_code == 401
    assert served.sign_in("evelyn", f"{first}-{second}").status_code == 303
    with raw(served.place) as database:
        assert database.execute("SELECT half FROM proposals").fetchall() == [(None,)]


@pytest.mark.keeps_out(
    "One officer alone who closes a ledger, makes an analyst in a team with a budget, or takes an account over"
)
def test_one_officer_alone_takes_no_account_over(two):
    served, olga, otto = two
    served.person("ann", "analyst", allocation=1.0)
    number = 3
    before = accounts.signs_in
    assert olga.post(f"/users/{number}/password").status_code == 200
    assert served.sign_in("ann").status_code == 303  # the old one still holds
    assert before is accounts.signs_in
    assert olga.post(f"/users/{number}/close").status_code == 303  # what takes a budget away needs one
    assert served.sign_in("ann").status_code == 401
    assert olga.post(f"/users/{number}/open").headers["location"] == "/requests#proposals"
    assert served.sign_in("ann").status_code == 401
    assert confirm(otto, 2).status_code == 303
    assert served.sign_in("ann").status_code == 303


@pytest.mark.keeps_out(
    "One officer alone who closes a ledger, makes an analyst in a team with a budget, or takes an account over"
)
def test_every_form_of_an_officer_waits_for_the_second(two):
    """Each route by which officers change something: one alone changes no account and no ledger."""
    served, olga, _ = two
    ann = served.person("ann", "analyst", allocation=1.0)
    ann.post("/requests", table="people", purpose="report", epsilon="1", reason="x")
    release = {
        "kind": "query",
        "name": "c",
        "epsilon": "0.1",
        "times": "2",
        "details": "SELECT COUNT(*) FROM people",
    }
    lines = json.dumps([release])
    fields = {
        "action": "record",
        "settings": OPINION.format(noise=4, rate=0.01),
        "purpose": "x",
        "lines": lines,
        "plan": "year",
        "table": "people",
        "dataset": "people",
        "team": "ann",
        "epsilon": "1",
        "reason": "x",
        "name": "evelyn",
        "role": "analyst",
    }
    routes = {key: one for key, one in gate.table_of(served.app.inner).items() if Role.OFFICER in one.roles}
    changing = {key: one for key, one in routes.items() if key[0] != "GET"}
    assert {one.act for one in changing.values()} - {None} == set(decisions.ACTS)
    with raw(served.place) as database:
        known = "SELECT id, name, role, team, password, disabled FROM accounts"
        before = served.ledger.head, database.execute(known).fetchall()
        pace = served.desk.pace.all()
        for (_, path), access in changing.items():
            if access.act is None:
                continue
            number = "1" if "requests" in path else "3"
            got = olga.post(path.replace("{number}", number), **fields)
            assert got.status_code in (200, 303), (path, got.text)
        assert (served.ledger.head, database.execute(known).fetchall()) == before
        waiting = database.execute("SELECT act, state FROM proposals").fetchall()
    assert served.desk.pace.all() == pace
    assert {act for act, _ in waiting} == set(decisions.ACTS)
    assert {state for _, state in waiting} == {"open"}
    alone = {path for (_, path), access in changing.items() if access.alone}
    assert alone == {
        "/sign-out",
        "/account/password",
        "/account/tokens/{number}/revoke",
        "/users/{number}/close",
        "/requests/{number}/decline",
        "/proposals/{number}/confirm",
        "/proposals/{number}/withdraw",
    }


@pytest.mark.keeps_out("A new form of an officer that nobody counted among what two must see")
@pytest.mark.parametrize("words", [{}, {"act": "no such act"}, {"act": "add", "alone": "both"}])
def test_a_route_of_officers_without_an_act_is_not_served(words):
    routes = FastAPI(openapi_url=None)
    routes.post("/new")(gate.allow(Role.OFFICER, **words)(lambda: None))
    with pytest.raises(TypeError, match="expected an act of the table"):
        gate.table_of(routes)


@pytest.mark.keeps_out(
    "A confirmation of something else than was shown, of an officer's own proposal, or of one that was cut off"
)
def test_what_is_confirmed_is_what_was_shown(two):
    served, olga, otto = two
    olga.post("/users", name="evelyn", role="analyst", team="care")
    otto.page("/requests")
    with raw(served.place) as database:
        database.execute(
            """UPDATE proposals SET words = '{"name": "evelyn", "role": "analyst", "team": "other"}'"""
        )
    assert confirm(otto).status_code == 409
    assert otto.post("/proposals/1/confirm", digest="").status_code == 409
    assert "evelyn" not in otto.page("/users").text


@pytest.mark.keeps_out("A confirmation of a title that was true when it was proposed, and is not by now")
def test_what_is_confirmed_has_the_effect_that_was_shown(two):
    """The release fitted when it was proposed, and would close the ledger by now."""
    served, olga, otto = two
    settings = OPINION.format(noise=4, rate=0.01)
    fields = {"settings": settings, "dataset": "people", "purpose": "a model", "action": "record"}
    assert olga.post("/opinion", **fields).status_code == 303
    assert "closes the ledger" not in otto.page("/requests").text
    served.ledger.charge(pure(7.99), purpose="meanwhile", **TERMS)
    refused = confirm(otto)
    assert refused.status_code == 409
    assert "would now put on record" in refused.text
    assert otto.post("/opinion", **fields).status_code == 303  # a proposal of its own, which says so
    assert served.ledger.exceeded is None
    assert "closes the ledger" in olga.page("/requests").text
    assert confirm(olga, 2).status_code == 303
    assert served.ledger.exceeded is not None


@pytest.mark.keeps_out("Proposals without number")
def test_an_officer_has_so_many_proposals_and_no_more(two, monkeypatch):
    served, olga, otto = two
    monkeypatch.setattr(decisions, "MOST_OPEN", 2)
    tried = [olga.post("/users", name=f"reader {one}", role="reader").status_code for one in range(3)]
    assert tried == [200, 200, 422]
    assert otto.post("/users", name="another", role="reader").status_code == 200
    olga.post("/proposals/1/withdraw")
    assert olga.post("/users", name="reader 3", role="reader").status_code == 200
    assert (
        olga.page(f"/trail?before={trail.newest(served.desk.database, 1)[0].sequence - 300}").status_code == 422
    )
    assert "Older lines" not in olga.page("/trail?before=5").text


@pytest.mark.keeps_out(
    "A confirmation of something else than was shown, of an officer's own proposal, or of one that was cut off"
)
def test_a_proposal_of_a_closed_officer_or_one_that_was_withdrawn_is_not_confirmed(two):
    served, olga, otto = two
    for name in ("evelyn", "mallory"):
        olga.post("/users", name=name, role="reader")
    assert otto.post("/proposals/1/withdraw").status_code == 303
    assert confirm(otto).status_code == 409
    with served.desk.database.write() as connection:
        accounts.close(connection, accounts.by_name(connection, "olga").id)
    assert confirm(otto, 2).status_code == 409
    assert len(decisions.proposals(served.desk)) == 1


@pytest.mark.keeps_out(
    "A confirmation of something else than was shown, of an officer's own proposal, or of one that was cut off"
)
def test_a_proposal_that_cannot_be_done_waits_on_and_one_that_was_cut_off_is_told(two, monkeypatch, capsys):
    served, olga, otto = two
    ann = served.person("ann", "analyst")
    ann.post("/requests", table="people", purpose="report", epsilon="9", reason="x")
    assert olga.post("/requests/1/approve").status_code == 303
    assert otto.post("/requests/1/approve").status_code == 422  # more than there is
    assert len(decisions.proposals(served.desk)) == 1
    assert served.ledger.head.sequence == 0
    olga.post("/pace/reset")
    monkeypatch.setattr(served.desk.pace, "reset", lambda: (_ for _ in ()).throw(OSError("the disk is full")))
    with served.desk.database.read() as connection:
        officer = accounts.by_id(connection, 2)
    row = decisions.proposals(served.desk)[0]
    with pytest.raises(OSError, match="full"):
        decisions.confirm(served.desk, officer, row["id"], row["digest"])
    assert len(decisions.proposals(served.desk)) == 1
    assert ["may be done: begin with one tick" in one for one in restarted(served.place)] == [True]
    assert olga.post("/pace/reset").headers["location"] == "/requests#proposals"  # proposed anew


@pytest.mark.keeps_out("One ledger under two addresses, taken for two")
@pytest.mark.keeps_out("A policy without four eyes on the ledger of one with them")
def test_what_one_policy_asks_for_holds_for_all_that_have_its_ledger(another, postgres_url):
    other = postgres_url.replace("postgres://", "postgresql://").replace("127.0.0.1", "localhost")
    images = IMAGES.replace("4.0", "8.0").replace("1e-5", "1e-6")
    shared = another(more="four_eyes = true", settings=f'{images}ledger = "people.ledger.db"\n').desk
    assert [shared.four_eyes(name) for name in ("people", "scans", None)] == [True, True, True]
    apart = another(more="four_eyes = true", settings=images).desk
    assert [apart.four_eyes(name) for name in ("people", "scans", None)] == [True, False, True]
    spelled = another(
        more=f'four_eyes = true\nledger = "{postgres_url}"', settings=f'{images}ledger = "{other}"\n'
    ).desk
    assert [spelled.four_eyes(name) for name in ("people", "scans")] == [True, True]
    spelled.aside["people"] = "people is not served"
    assert spelled.four_eyes("scans")


def test_a_proposal_is_too_old_after_a_week(two, monkeypatch):
    served, olga, _ = two
    olga.post("/pace/reset")
    (row,) = decisions.proposals(served.desk)
    now = decisions.time.time()
    monkeypatch.setattr(decisions.time, "time", lambda: now + decisions.LASTS + 1)
    with served.desk.database.read() as connection:
        officer = accounts.by_id(connection, 2)
    with pytest.raises(Refused, match="too old"):
        decisions.confirm(served.desk, officer, row["id"], row["digest"])
    assert decisions.proposals(served.desk) == []


def test_the_command_line_makes_officers_and_the_trail_says_so(two, capsys):
    """Who can write the files is the holder; the officers see that an account was made."""
    served, olga, _ = two
    for words in (["add", "mallory", "--role", "officer"], ["password", "olga"], ["close", "otto"]):
        CliRunner().invoke(app, ["desk", "user", *words, "--config", str(served.place)], catch_exceptions=False)
    said = [(one.body["method"], one.body["route"]) for one in trail.entries(served.desk.database)]
    named = [one for one in said if one[0].startswith("user")]
    assert named == [("user add", "mallory, officer"), ("user password", "olga"), ("user close", "otto")]
    assert olga.page("/trail").status_code == 401  # a new password ends her sessions


def test_officers_are_not_made_by_officers(two):
    served, olga, _ = two
    assert olga.post("/users", name="olga2", role="officer").status_code == 409
    for act in ("password", "open"):
        assert olga.post(f"/users/2/{act}").status_code == 409
    who = Account(id=1, name="olga", role=Role.OFFICER, team="olga")
    with pytest.raises(Refused):
        decisions.submit(served.desk, who, "add", {"name": "x", "role": "officer", "team": "x"})


# Decisions that stay half done


def of_requests(served):
    """The state of each request, and whether each share was made."""
    with raw(served.place) as database:
        states = database.execute("SELECT state FROM requests ORDER BY id").fetchall()
        made = database.execute("SELECT made FROM shares WHERE request IS NOT NULL").fetchall()
    return [state for (state,) in states], [bool(one) for (one,) in made]


@pytest.mark.keeps_out(
    "An approval that the ledger refuses, or whose answer is lost, and that is kept as approved without a share"
)
def test_an_approval_that_fails_in_the_ledger_leaves_the_request_waiting(another, monkeypatch, capsys):
    """Whatever the error, the ledger decides: a share that it made is approved, another undone."""
    served = another()
    ann, olga = served.person("ann", "analyst"), served.person("olga", "officer")
    tiny = ann.post("/requests", table="people", purpose="tiny", epsilon="5e-324", reason="x")
    assert (tiny.status_code, "got epsilon=4.9" in tiny.text) == (422, True)
    for purpose in ("first", "second", "third"):
        ann.post("/requests", table="people", purpose=purpose, epsilon="0.01", reason="x")
    allocate = Ledger.allocate_all

    def fails(self, *words, **more):
        raise OverflowError("cannot convert float infinity to integer")

    def fails_afterwards(self, *words, **more):
        allocate(self, *words, **more)
        raise OSError("the answer of the database was lost")

    monkeypatch.setattr(Ledger, "allocate_all", fails)
    assert olga.post("/requests/1/approve").status_code == 500
    assert of_requests(served) == (["open"] * 3, [])
    monkeypatch.setattr(Ledger, "allocate_all", fails_afterwards)
    assert olga.post("/requests/2/approve").status_code == 303
    assert of_requests(served) == (["open", "approved", "open"], [True])
    monkeypatch.setattr(Ledger, "allocate_all", fails)
    monkeypatch.setattr(grants, "resolve", fails)  # the ledger cannot even be read
    assert olga.post("/requests/3/approve").status_code == 500
    assert of_requests(served) == (["open", "approved", "open"], [True, False])
    monkeypatch.undo()
    assert olga.post("/requests/3/decline").status_code == 303
    assert of_requests(served) == (["open", "approved", "declined"], [True])
    assert restarted(served.place) == []


@pytest.mark.keeps_out(
    "One allocation that cannot be set aside, for which no other is finished or compared at a start"
)
def test_a_start_that_cannot_set_one_allocation_aside_goes_on_to_the_others(another, monkeypatch, capsys):
    served = another()
    served.person("ann", "analyst", signed_in=False)
    dataset = served.desk.dataset("people")
    with served.desk.database.write() as connection:
        for purpose in ("first", "second"):
            wanted = Wanted(team="ann", purpose=purpose, epsilon=0.1)
            grants.plan(connection, served.desk, dataset, wanted, said="by olga")
    with raw(served.place) as database:  # as an older version kept it
        database.execute("UPDATE shares SET epsilon = 5e-324 WHERE name = 'ann: first'")
    (found,) = restarted(served.place)
    assert "allocation 1 of people was approved and cannot be set aside" in found
    assert list(served.ledger.state.shares) == ["ann: second"]
    assert restarted(served.place) == [found]  # told once: the trail has it, and nothing new


@pytest.mark.keeps_out(
    "A ledger that is locked, or a password that is hashed, within a transaction for which every page waits"
)
def test_while_a_ledger_is_locked_the_database_of_the_desk_is_not(another, monkeypatch):
    served = another()
    ann, olga = served.person("ann", "analyst"), served.person("olga", "officer")
    for purpose in ("first", "second"):
        ann.post("/requests", table="people", purpose=purpose, epsilon="0.01", reason="x")
    held = []

    def watched(work):
        def watch(*words, **more):
            held.append(served.desk.database._writing.locked())
            return work(*words, **more)

        return watch

    monkeypatch.setattr(Ledger, "allocate_all", watched(Ledger.allocate_all))
    monkeypatch.setattr(Ledger, "note", watched(Ledger.note))
    monkeypatch.setattr(accounts._HASHER.__class__, "hash", watched(accounts._HASHER.__class__.hash))
    assert olga.post("/requests/1/approve").status_code == 303
    assert olga.post("/requests/2/decline").status_code == 303
    assert olga.post("/users", name="bob", role="reader").status_code == 200
    assert ann.post("/account/password", old=PASSWORD, new="another long password").status_code == 303
    assert held == [False] * 4


@pytest.mark.keeps_out("Proposals about decided requests, which count and cannot be withdrawn")
def test_a_decision_ends_its_proposals_and_any_proposal_can_be_withdrawn(two):
    served, olga, otto = two
    ann = served.person("ann", "analyst")
    for number in (1, 2, 3):
        ann.post("/requests", table="people", purpose=f"report {number}", epsilon="0.01", reason="x")
        assert olga.post(f"/requests/{number}/approve").status_code == 303
    assert otto.post("/requests/1/decline").status_code == 303
    assert otto.post("/requests/2/approve").status_code == 303
    assert [one["words"]["request"] for one in decisions.proposals(served.desk)] == [3]
    assert "/proposals/3/withdraw" in olga.page("/requests").text
    assert "/proposals" not in ann.page("/requests").text
    assert olga.post("/proposals/3/withdraw").status_code == 303
    assert decisions.proposals(served.desk) == []


@pytest.mark.keeps_out("A refused allocation that leaves a request behind")
def test_an_allocation_that_is_refused_leaves_no_request(another):
    served = another()
    olga = served.person("olga", "officer")
    fields = {"table": "people", "team": "bob", "purpose": "x", "reason": "a report"}
    assert olga.post("/allocations", epsilon="99", **fields).status_code == 422
    assert decisions.requests(served.desk) == grants.of_team(served.desk, None) == []
    assert olga.post("/allocations", epsilon="1", **fields).status_code == 303
    assert [entry.body.get("purpose") for entry in served.ledger.entries()][-1] == "set aside by olga: a report"
    assert list(served.ledger.state.shares) == ["bob: x"]


@pytest.mark.keeps_out("A large answer that takes the server's memory at each view")
def test_an_answer_is_shown_in_part_in_turn_and_within_what_may_be_computed(another, monkeypatch):
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0)
    monkeypatch.setattr(ask_pages, "MOST_SHOWN", 1)
    assert ann.ask("SELECT city, COUNT(*) FROM people GROUP BY city").status_code == 200
    page = ann.page("/answers/1").text
    shown, of = re.search(r"The first (\d+) of (\d+) rows", page).groups()
    assert int(shown) == page.split("<tbody>")[1].count("<tr>") == 1 < int(of)
    exported = ann.page("/answers/1/answer.csv").text
    assert len(exported.splitlines()) == int(of) + 1
    account = _asked(served, ann)[1]
    assert "answer" not in asking.history(served.desk, account)[0]._mapping
    served.desk.effort = Effort(size=0.0, rate=0.0)
    for path in ("/answers/1", "/answers/1/answer.csv", "/answers/1/answer.json"):
        assert ann.page(path).status_code == 429


@pytest.mark.keeps_out("Questions that are planned, behind which every request waits to be recognised")
def test_questions_that_are_planned_hold_up_no_page_of_others(another, monkeypatch):
    served = another()
    ann, bob = (served.person(name, "analyst", allocation=1.0) for name in ("ann", "bob"))
    served.warm()
    going, planned = threading.Event(), asking._planned

    def slowly(*words):
        assert going.wait(30)
        return planned(*words)

    monkeypatch.setattr(asking, "_planned", slowly)

    async def together():
        headers = {"authorization": f"Bearer {ann.token}"}
        body = {"sql": "SELECT COUNT(*) FROM people", "epsilon": 9.0}
        path = "/api/v1/tables/people/"
        dear = [
            asyncio.create_task(served.send_async("POST", path + way, headers=headers, json=body))
            for way in ["query", "expect"] * 50
        ]
        await asyncio.sleep(1)
        try:
            page = await asyncio.wait_for(served.send_async("GET", "/account", cookies=bob.cookies), 10)
        finally:
            going.set()
        return page.status_code, {one.status_code for one in await asyncio.gather(*dear)}

    assert asyncio.run(together()) == (200, {409, 200})
