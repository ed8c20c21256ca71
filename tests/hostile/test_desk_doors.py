"""A desk behind real sockets: guesses in parallel, borrowed addresses, noise, idle connections, timing."""

import contextlib
import http.client
import json
import re
import socket
import threading
import time
import urllib.parse
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="needs the desk: pip install 'sfumato[desk]'")

from argon2 import PasswordHasher
from sqlalchemy import func, select

from sfumato.desk import accounts, asking, server, trail
from sfumato.desk import database as db
from sfumato.desk.accounts import add_person
from sfumato.desk.desk import Desk
from sfumato.desk.grants import Wanted
from sfumato.desk.limits import FREE_TRIES, Buckets
from sfumato.errors import InvalidInput, LedgerTampered

FORM = "application/x-www-form-urlencoded"
COUNT = "SELECT COUNT(*) FROM people"


class Running:
    """A desk that a thread of this process serves."""

    def __init__(self, place):
        self.desk = Desk.open(place)
        ready, told = threading.Event(), []
        tell = lambda port: (told.append(port), ready.set())  # noqa: E731
        self.server = server.server_of(self.desk, host="127.0.0.1", port=0, ready=tell)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        assert ready.wait(30)
        self.port = told[0]

    def stop(self):
        self.server.should_exit = True
        self.thread.join(30)

    def send(self, method, path, *, headers=(), body=None, source="127.0.0.1"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20, source_address=(source, 0))
        try:
            connection.request(method, path, body=body, headers={"connection": "close", **dict(headers)})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def guess(self, name, form, *, password="a wrong password", browser=None, source="127.0.0.1"):
        """Try to sign in, in the form that was loaded before."""
        cookie, word = form
        body = urllib.parse.urlencode({"name": name, "password": password, "csrf": word})
        headers = {"cookie": "; ".join(filter(None, (cookie, browser))), "content-type": FORM}
        return self.send("POST", "/sign-in", body=body, headers=headers, source=source)

    def ask(self, token, epsilon=0.001, *, sql=COUNT):
        body = json.dumps({"sql": sql, "epsilon": epsilon})
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        return self.send("POST", "/api/v1/tables/people/query", body=body, headers=headers)[0]

    def form(self):
        _, headers, page = self.send("GET", "/sign-in")
        return headers["set-cookie"].split(";")[0], re.search('name="csrf" value="([^"]+)"', page)[1]

    def idle(self, count, *, source, begun=b""):
        """Connections on which no request is complete."""
        found = [socket.create_connection(("127.0.0.1", self.port), 5, (source, 0)) for _ in range(count)]
        for one in found:
            one.sendall(begun)
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory, desk_files):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        found = Running(desk_files(tmp_path_factory.mktemp("desk")))
        wanted = Wanted(team="ann", purpose="questions", epsilon=1)
        found.ann = add_person(found.desk, "ann", role="analyst", wanted=wanted)
        yield found
        found.stop()


@pytest.fixture(autouse=True)
def _fresh_limits(request):
    if "running" in request.fixturenames:
        desk = request.getfixturevalue("running").desk
        for name in ("buckets", "strangers", "guesses", "visitors", "arrivals"):
            setattr(desk, name, Buckets(size=500, rate=100.0))


@pytest.fixture
def looked_at(monkeypatch):
    """Passwords that are compared, each for as long as real ones, after how many at once."""
    seen, now, lock = [], Counter(), threading.Lock()

    def compare(stored, password):
        with lock:
            now["busy"] += 1
            seen.append((now["busy"], password))
        time.sleep(0.1)
        with lock:
            now["busy"] -= 1
        return False

    monkeypatch.setattr(accounts, "_verified", compare)
    return seen


@pytest.mark.keeps_out(
    "Passwords guessed in parallel, of which more are compared than of guesses in turn; hashing that "
    "takes every thread"
)
def test_of_parallel_guesses_no_more_are_looked_at_than_in_turn(running, looked_at):
    form = running.form()
    with ThreadPoolExecutor(58) as pool:
        found = list(pool.map(lambda _: running.guess("ann", form), range(58)))
    assert 1 <= len(looked_at) <= FREE_TRIES
    assert Counter(status for status, _, _ in found) == {401: len(looked_at), 429: 58 - len(looked_at)}
    assert all(int(headers["retry-after"]) >= 1 for status, headers, _ in found if status == 429)


@pytest.mark.keeps_out(
    "Passwords guessed in parallel, of which more are compared than of guesses in turn; hashing that "
    "takes every thread"
)
def test_guesses_at_many_names_leave_the_desk_free_for_others(running, looked_at):
    form = running.form()
    with ThreadPoolExecutor(50) as pool:
        waiting = [pool.submit(running.guess, f"name {one}", form) for one in range(50)]
        while not looked_at:
            time.sleep(0.01)
        began = time.monotonic()
        assert running.send("GET", "/public")[0] == 200
        assert time.monotonic() - began < 2.0  # and not after the 2.5 s that 50 guesses take
        found = Counter(one.result()[0] for one in waiting)
    assert max(looked_at)[0] <= 2
    assert found[401] == len(looked_at) >= 8  # two at work, six that wait
    assert found[429] == 50 - found[401] > 0


@pytest.mark.keeps_out(
    "Addresses that guess together, so that others find no place to sign in; a name that strangers "
    "lock for its owner"
)
def test_ten_addresses_that_guess_leave_another_its_turn(running, looked_at):
    form = running.form()
    with ThreadPoolExecutor(80) as pool:
        for last in range(2, 12):
            for one in range(8):
                pool.submit(running.guess, f"name {last} {one}", form, source=f"127.0.0.{last}")
        while len(looked_at) < 4:
            time.sleep(0.01)
        before = len(looked_at)
        mine = running.guess("another", form, password="another's password", source="127.0.0.99")
        after = [password for _, password in looked_at].index("another's password") - before
    assert mine[0] == 401
    assert after <= 20 < 40 < len(looked_at) - before  # ten others have a turn before, and two have theirs now


@pytest.mark.keeps_out(
    "Addresses that guess together, so that others find no place to sign in; a name that strangers "
    "lock for its owner"
)
def test_strangers_who_guess_keep_nobody_out_of_a_browser_that_is_known(running):
    bea = add_person(running.desk, "bea", role="analyst").account
    form, right = running.form(), "a right password"
    with running.desk.database.write() as connection:
        accounts.set_password(connection, bea.id, accounts.hashed(right))
    cookies = running.guess("bea", form, password=right)[1].get_all("set-cookie")
    known = next(one for one in cookies if one.startswith("desk_browser=")).split(";")[0]
    assert [running.guess("bea", form)[0] for _ in range(6)] == [401] * 5 + [429]
    assert running.guess("bea", form, password=right)[0] == 429
    forged = [known[:-1] + "-", known.replace("=", "=x"), "desk_browser=", "desk_browser=.", "desk_browser=é"]
    for one in forged:
        assert running.guess("bea", form, password=right, browser=one.encode().decode("latin-1"))[0] == 429
    assert running.guess("bea", form, password=right, browser=known)[0] == 303
    assert [running.guess("bea", form, browser=known)[0] for _ in range(6)] == [401] * 5 + [429]
    with running.desk.database.write() as connection:
        connection.execute(db.failures.delete().where(db.failures.c.key != "bea"))
        accounts.set_password(connection, bea.id, accounts.hashed(right))
    assert running.guess("bea", form, password=right, browser=known)[0] == 429  # of the password before
    running.desk.tries.succeeded("bea")


def test_guessed_tokens_are_limited_and_right_ones_are_not(running):
    running.desk.guesses = Buckets(size=10, rate=0.0)
    wrong = [running.send("GET", "/api/v1/tables", headers={"authorization": "Bearer x"})[0] for _ in range(15)]
    assert wrong == [401] * 10 + [429] * 5
    right = running.send("GET", "/api/v1/tables", headers={"authorization": f"Bearer {running.ann.token}"})
    assert right[0] == 200


def statuses(running, addresses):
    running.desk.visitors = Buckets(size=10, rate=0.0)
    headers = ({"x-forwarded-for": one, "forwarded": f"for={one}"} for one in addresses)
    return Counter(running.send("GET", "/public", headers=one)[0] for one in headers)


@pytest.mark.keeps_out("An address that a visitor names for itself and limits then count")
def test_an_address_that_a_visitor_names_is_not_believed(running):
    assert statuses(running, [f"192.0.2.{one}" for one in range(20)]) == {200: 10, 429: 10}


def test_paths_that_lead_nowhere_are_limited_too(running):
    running.desk.visitors = Buckets(size=10, rate=0.0)
    assert Counter(running.send("GET", f"/{one}")[0] for one in range(20)) == {404: 10, 429: 10}


@pytest.mark.keeps_out("Requests beyond a limit that are read, routed and looked up before they are refused")
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer x"}, {"cookie": "desk_session=x"}])
def test_what_is_beyond_the_limit_of_an_address_reaches_no_route(running, monkeypatch, headers):
    shield, reached = running.server.config.app, []
    inner = shield.inner
    monkeypatch.setattr(shield, "inner", lambda *words: reached.append(1) or inner(*words))
    running.desk.visitors = running.desk.arrivals = Buckets(size=5, rate=0.0)
    found = [running.send("GET", f"/nowhere/{one}", headers=headers) for one in range(10)]
    assert [status for status, _, _ in found] == [404] * 5 + [429] * 5
    assert len(reached) == 5
    assert int(found[-1][1]["retry-after"]) >= 1


PART = '--x\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n{}\r\n--x--\r\n'


@pytest.mark.keeps_out(
    "A form in an encoding that takes seconds to read, or of a kind that ends in a traceback"
)
@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data; boundary=x; charset=punycode",
        "multipart/form-data; boundary=x",
        "multipart/form-data",
        f"{FORM}; charset=idna",
        f"{FORM}; charset=utf-8; charset=punycode",
        "application/json; charset=utf-7",
        "text/plain",
    ],
)
def test_bodies_of_another_kind_are_refused_unread(running, kind):
    for body in (PART.format("a-" + 100_000 * "z"), "--x", "csrf=x"):
        began = time.thread_time()
        assert running.send("POST", "/sign-in", body=body, headers={"content-type": kind})[0] == 415
        assert time.thread_time() - began < 1.0
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
    connection.putrequest("POST", "/sign-in")
    for each in (FORM, kind):
        connection.putheader("content-type", each)
    connection.putheader("content-length", "6")
    connection.endheaders(b"csrf=x")
    assert connection.getresponse().status == 415
    connection.close()


@pytest.mark.keeps_out(
    "A form in an encoding that takes seconds to read, or of a kind that ends in a traceback"
)
@pytest.mark.parametrize(
    ("body", "status"), [("csrf=%ff", 400), (b"csrf=\xff", 400), ("a=&" * 1001, 400), ("csrf=x", 403)]
)
def test_forms_are_utf_8_and_short(running, body, status):
    kind = f'{FORM}; charset="UTF-8"'
    found = running.send("POST", "/sign-in", body=body, headers={"content-type": kind})
    assert found[0] == status
    assert "Traceback" not in found[2]


@pytest.mark.keeps_out("An address that a visitor names for itself and limits then count")
def test_of_a_proxy_the_last_address_is_believed_that_is_no_proxy(tmp_path, desk_files):
    behind = Running(desk_files(tmp_path, settings='proxies = ["127.0.0.1", "198.51.100.0/24"]\n'))
    try:
        added = [f"192.0.2.{one}, 203.0.113.9, 198.51.100.7" for one in range(20)]  # the first is the visitor's
        assert statuses(behind, added) == {200: 10, 429: 10}
        assert statuses(behind, [f"203.0.113.{one}" for one in range(20)]) == {200: 20}
        assert statuses(behind, [f"2001:db8::{one}" for one in range(20)]) == {200: 10, 429: 10}  # one customer
    finally:
        behind.stop()


@pytest.mark.parametrize("proxies", ['["*"]', '"127.0.0.1"', '["proxy"]', "[1.5]", "1"])
def test_proxies_are_addresses(tmp_path, desk_files, proxies):
    with pytest.raises(InvalidInput, match="proxies"):
        Desk.open(desk_files(tmp_path, settings=f"proxies = {proxies}\n"))


def hung_up(sockets):
    count = 0
    for one in sockets:
        one.settimeout(0.01)
        try:
            count += one.recv(1) == b""
        except ConnectionResetError:
            count += 1
        except TimeoutError:
            pass
    return count


HEAD = b"POST /sign-in HTTP/1.1\r\nhost: desk\r\n"


@pytest.mark.keeps_out("Requests without their bodies, or answers that are not taken, that hold every place")
@pytest.mark.keeps_out("Idle connections of one client that keep all others out")
@pytest.mark.parametrize(
    "begun", [b"", HEAD, HEAD + b"content-length: 9\r\n\r\n123", HEAD + b"transfer-encoding: chunked\r\n\r\n"]
)
def test_idle_connections_of_one_client_and_of_several_stop_nobody(running, monkeypatch, begun):
    monkeypatch.setattr(server, "MOST_OF_ONE", 30)
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 50)
    quiet = running.idle(1, source="127.0.0.9", begun=begun)
    one = running.idle(45, source="127.0.0.2", begun=begun)
    assert running.send("GET", "/public")[0] == 200
    assert running.send("GET", "/public", source="127.0.0.2")[0] == 200  # others behind the same address too
    assert hung_up(one) == 16  # 15, and one for the request
    assert hung_up(quiet) == 0  # another client's are left alone
    more = [found for last in range(3, 7) for found in running.idle(20, source=f"127.0.0.{last}", begun=begun)]
    assert running.send("GET", "/public")[0] == 200
    assert len(running.server.server_state.connections) <= 50
    for each in (*quiet, *one, *more):
        each.close()


@pytest.mark.keeps_out("Requests without their bodies, or answers that are not taken, that hold every place")
@pytest.mark.parametrize("head", [HEAD, HEAD + b"content-length: 100000\r\n\r\n"])
def test_a_request_that_comes_slowly_is_given_up(running, monkeypatch, head):
    monkeypatch.setattr(server, "SLOWEST_REQUEST", 0.3)
    (slow,) = running.idle(1, source="127.0.0.8", begun=head)
    began = time.monotonic()
    while not hung_up([slow]) and time.monotonic() - began < 5:
        with contextlib.suppress(OSError):
            slow.send(b"x")
        time.sleep(0.05)
    assert time.monotonic() - began < 3
    slow.close()


def in_the_history(desk, number=None):
    with desk.database.read() as connection:
        rows = connection.execute(select(db.questions).order_by(db.questions.c.id.desc())).all()
    return rows[0] if number is None else next(row for row in rows if row.id == number)


def until(said, *, seconds=20):
    began = time.monotonic()
    while not said():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)


@pytest.mark.keeps_out("An answer that a page shows before its tick, or a failure in the history")
@pytest.mark.parametrize("fails", [False, True])
def test_what_came_of_a_question_is_nowhere_before_its_tick(running, monkeypatch, fails):
    desk, token, table = running.desk, running.ann.token, running.desk.dataset("people").table
    with desk.database.write() as connection:
        secret = accounts.begin_session(connection, running.ann.account, before=None)
    cookie = {"cookie": f"{accounts.COOKIE}={secret}"}
    assert running.ask(token) == 200
    before, done, answer = in_the_history(desk).id, threading.Event(), table.answer

    def watched(*words, **more):
        try:
            if fails:
                raise RuntimeError("the rows are read and something is wrong")
            return answer(*words, **more)
        finally:
            done.set()

    monkeypatch.setattr(table, "answer", watched)
    desk.pace.reset()
    monkeypatch.setattr(desk.pace, "tick", 1.0)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(running.ask, token)
        assert done.wait(20)
        number = in_the_history(desk).id
        assert number > before
        if not fails:
            until(lambda: in_the_history(desk).answer is not None)
        for path in (f"/answers/{number}", f"/answers/{number}/answer.json"):
            assert running.send("GET", path, headers=cookie)[0] == 404
        assert f"/answers/{number}" not in running.send("GET", "/ask", headers=cookie)[2]
        assert in_the_history(desk).state == asking.ASKED
        assert not asked.done()
        assert asked.result() == (503 if fails else 200)
    shown = 404 if fails else 200
    assert running.send("GET", f"/answers/{number}", headers=cookie)[0] == shown
    with desk.database.write() as connection:  # as if the server had been stopped before the tick
        connection.execute(db.questions.update().values(state=asking.ASKED))
    assert running.send("GET", f"/answers/{number}", headers=cookie)[0] == 404
    asking.finish(desk)
    assert running.send("GET", f"/answers/{number}", headers=cookie)[0] == shown


@pytest.mark.keeps_out("Requests without their bodies, or answers that are not taken, that hold every place")
@pytest.mark.keeps_out("A charge whose time tells how long rows were read for the question before it")
def test_a_charge_is_shown_at_once_however_long_rows_are_read_for_another(running, monkeypatch):
    desk, token, table = running.desk, running.ann.token, running.desk.dataset("people").table
    assert running.ask(token) == 200
    reading, going, answer = threading.Event(), threading.Event(), table.answer

    def slowly(*words, **more):
        reading.set()
        assert going.wait(30)
        return answer(*words, **more)

    def left():
        headers = {"authorization": f"Bearer {token}"}
        return json.loads(running.send("GET", "/api/v1/allocations", headers=headers)[2])[0]["epsilon_left"]

    monkeypatch.setattr(table, "answer", slowly)
    before, releases = left(), len(desk.dataset("people").charges()[0])
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(running.ask, token, 0.1)
        assert reading.wait(20)
        second = pool.submit(running.ask, token, 0.2)
        try:
            until(lambda: left() == pytest.approx(before - 0.3))
            facts = json.loads(running.send("GET", "/api/v1/public")[2])["datasets"][0]
            assert facts["releases"] == releases + 2
            assert not first.done()
            busy = [one for one in running.server.server_state.connections if one._busy()]
            assert len(busy) == 2
            busy[
                0
            ].flow.pause_writing()  # its answer is not taken: then it is idle, and may be closed for others
            assert [one._busy() for one in busy] == [False, True]
            busy[0].flow.resume_writing()
        finally:
            going.set()
        assert (first.result(), second.result()) == (200, 200)
    number = in_the_history(desk).id
    left = [in_the_history(desk, one).answer["epsilon_left"] for one in (number - 1, number)]
    assert left == pytest.approx([before - 0.1, before - 0.3])  # and not what was left when the rows were read


def lines(desk):
    with desk.database.read() as connection:
        return connection.execute(select(func.count()).select_from(db.trail)).scalar()


@pytest.mark.keeps_out("A trail that strangers fill, or that forgets what officers decided when it is cut")
def test_noise_without_an_account_is_one_line(running):
    running.desk.counted.write()
    running.desk.database.soon(lambda connection: None).result()
    before = lines(running.desk)
    for one in range(40):
        running.send("GET", f"/nowhere/{one}")
        running.send("GET", "/ask")
    assert lines(running.desk) == before
    running.desk.counted.write()
    running.desk.database.soon(lambda connection: None).result()
    assert lines(running.desk) == before + 1
    (last,) = trail.newest(running.desk.database, 1)
    assert last.body["counted"] == {"not signed in: GET unknown 404": 40, "not signed in: GET /ask 401": 40}


def test_an_account_that_asks_too_often_does_not_fill_the_trail(running, monkeypatch):
    monkeypatch.setattr(running.desk, "buckets", Buckets(size=2, rate=0.0))
    before = lines(running.desk)
    for _ in range(10):
        running.send("GET", "/api/v1/tables", headers={"authorization": f"Bearer {running.ann.token}"})
    assert lines(running.desk) == before + 2


@pytest.fixture
def long_trail(tmp_path, desk_files, monkeypatch):
    """300 lines where 40 are kept in full; of each 25 an officer decides one, and four more are changes."""
    monkeypatch.setattr(trail, "MOST_LINES", 40)
    monkeypatch.setattr(trail, "STEP", 10)
    desk = Desk.open(desk_files(tmp_path))
    first = (
        ("olga", "officer", "POST", "/x", 200),
        ("ann", "analyst", "POST", "/api/v1/tables/{name}/query", 200),
        ("the command line", None, "user add", "mallory, officer", "done"),
        ("ann", "analyst", "GET", "/openid/back", 303),
        ("ann", "analyst", "POST", "/api/v1/tables/{name}/query", 503),
        ("ann", "analyst", "POST", "/api/v1/tables/{name}/query", 409),
        ("ann", "analyst", "POST", "/api/v1/tables/{name}/expect", 200),
        ("ann", "analyst", "POST", "/ask", 200),
    )
    for one in range(300):
        line = first[one % 25] if one % 25 < len(first) else ("olga", "officer", "GET", "/trail", 200)
        said = dict(zip(("who", "role", "method", "route", "status"), line, strict=True))
        trail.record(desk.database, **said, numbers={"n": one}).result()
    yield desk
    desk.close()


@pytest.mark.keeps_out("An audit trail that forgets spending and what the command line did")
@pytest.mark.keeps_out("A trail that strangers fill, or that forgets what officers decided when it is cut")
def test_the_trail_is_thinned_and_keeps_every_change(long_trail):
    old = [one.body["numbers"].get("n", 0) for one in trail.entries(long_trail.database)]
    assert set(old) >= {25 * each + place for each in range(12) for place in range(5)}
    assert lines(long_trail) <= 40 + 10 + 12 * 5
    every = [one.sequence for one in trail.entries(long_trail.database)]
    assert list(seen_in_pages(long_trail)) == every[::-1]


def seen_in_pages(desk):
    """The trail's lines, page by page as the page shows them."""
    before = None
    while page := trail.newest(desk.database, 7, before=before):
        yield from (one.sequence for one in page)
        before = page[-1].sequence


@pytest.mark.keeps_out("A trail that strangers fill, or that forgets what officers decided when it is cut")
@pytest.mark.parametrize("place", [0, 3, -1, "thinned"])
def test_what_is_kept_of_the_trail_cannot_be_taken_out(long_trail, place):
    found = list(trail.entries(long_trail.database))
    old = [one for one in found if one.body["method"] not in ("GET", "several")]
    marks = [one for one in found if one.body["route"] == trail.THINNED]
    gone = marks[-1] if place == "thinned" else old[place]
    with long_trail.database.write() as connection:
        connection.execute(db.trail.delete().where(db.trail.c.sequence == gone.sequence))
    with pytest.raises(LedgerTampered):
        list(trail.entries(long_trail.database))


TOWNS = """
[public.towns]
source = "towns.csv"
key = "city"
[public.towns.columns]
city = { type = "text", categories = ["Delft", "Utrecht"] }
region = { type = "text", categories = ["north", "south"] }
"""
JOINED = "SELECT region, COUNT(*) FROM people JOIN towns ON people.city = towns.city GROUP BY region"


@pytest.mark.keeps_out("A charge whose time tells how long rows were read for the question before it")
def test_a_charge_waits_for_no_connection_that_reads(tmp_path, desk_files, postgres_url, monkeypatch):
    import pandas as pd

    psycopg = pytest.importorskip("psycopg", reason="pip install 'sfumato[postgres]'")
    place = desk_files(tmp_path, more=TOWNS)
    rows = pd.read_csv(tmp_path / "people.csv")
    (tmp_path / "towns.csv").write_text("city,region\nDelft,south\nUtrecht,north\n")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE doors")
    source = postgres_url.rpartition("/")[0] + "/doors"
    with psycopg.connect(source) as connection:
        connection.execute("CREATE TABLE public.people (age integer, ill integer, city text)")
        for row in rows[["age", "ill", "city"]].itertuples(index=False):
            connection.execute("INSERT INTO public.people VALUES (%s, %s, %s)", tuple(row))
    policy = (tmp_path / "people.toml").read_text()
    (tmp_path / "people.toml").write_text(
        policy.replace('source = "people.csv"', f'name = "people"\nsource = "{source}"')
    )
    running = Running(place)
    try:
        desk = running.desk
        token = add_person(desk, "ann", role="analyst", wanted=Wanted(team="ann", purpose="q", epsilon=1)).token
        assert [running.ask(token, sql=sql) for sql in (JOINED, COUNT)] == [200, 200]
        dataset = desk.dataset("people")
        reading, answer = threading.Event(), dataset.table.answer

        def slowly(*words, **more):
            reading.set()
            dataset.table._engine.fetch("SELECT pg_catalog.pg_advisory_lock(77)::text")
            return answer(*words, **more)

        monkeypatch.setattr(dataset.table, "answer", slowly)
        with ThreadPoolExecutor(2) as pool:
            with psycopg.connect(source) as connection:  # which ends with the lock
                connection.execute("SELECT pg_advisory_lock(77)")
                first = pool.submit(running.ask, token, sql=JOINED)
                assert reading.wait(20)
                second = pool.submit(running.ask, token)
                until(lambda: len(dataset.charges()[0]) == 4)
                assert not first.done()
            assert (first.result(), second.result()) == (200, 200)
    finally:
        running.stop()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP DATABASE doors WITH (FORCE)")
