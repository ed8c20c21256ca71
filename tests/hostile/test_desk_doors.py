"""A desk behind real sockets: guesses in parallel, borrowed addresses, noise, idle connections."""

import http.client
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

from sfumato.desk import accounts, serving, trail
from sfumato.desk import database as db
from sfumato.desk.desk import Desk
from sfumato.desk.people import add_person
from sfumato.desk.throttle import FREE_TRIES, Buckets
from sfumato.errors import InvalidInput, LedgerTampered


class Running:
    """A desk that a thread of this process serves."""

    def __init__(self, place):
        self.desk = Desk.open(place)
        ready, told = threading.Event(), []
        tell = lambda port: (told.append(port), ready.set())  # noqa: E731
        self.server = serving.server_of(self.desk, host="127.0.0.1", port=0, ready=tell)
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

    def guess(self, name, form):
        """Try to sign in with a wrong password, in the form that was loaded before."""
        cookie, word = form
        body = urllib.parse.urlencode({"name": name, "password": "a wrong password", "csrf": word})
        kind = "application/x-www-form-urlencoded"
        return self.send("POST", "/sign-in", body=body, headers={"cookie": cookie, "content-type": kind})

    def form(self):
        _, headers, page = self.send("GET", "/sign-in")
        return headers["set-cookie"].split(";")[0], re.search('name="csrf" value="([^"]+)"', page)[1]

    def idle(self, count, *, source):
        return [socket.create_connection(("127.0.0.1", self.port), 5, (source, 0)) for _ in range(count)]


@pytest.fixture(scope="module")
def running(tmp_path_factory, desk_files):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        found = Running(desk_files(tmp_path_factory.mktemp("desk")))
        found.ann = add_person(found.desk, "ann", role="analyst")
        yield found
        found.stop()


@pytest.fixture(autouse=True)
def _fresh_limits(request):
    if "running" in request.fixturenames:
        desk = request.getfixturevalue("running").desk
        desk.strangers, desk.guesses, desk.visitors = (Buckets(size=500, rate=100.0) for _ in range(3))


@pytest.fixture
def looked_at(monkeypatch):
    """Passwords that are compared, each for as long as real ones, and how many at once."""
    seen, now, lock = [], Counter(), threading.Lock()

    def compare(stored, password):
        with lock:
            now["busy"] += 1
            seen.append(now["busy"])
        time.sleep(0.1)
        with lock:
            now["busy"] -= 1
        return False

    monkeypatch.setattr(accounts, "_verified", compare)
    return seen


def test_of_parallel_guesses_no_more_are_looked_at_than_in_turn(running, looked_at):
    form = running.form()
    with ThreadPoolExecutor(58) as pool:
        found = list(pool.map(lambda _: running.guess("ann", form), range(58)))
    assert 1 <= len(looked_at) <= FREE_TRIES
    assert Counter(status for status, _, _ in found) == {401: len(looked_at), 429: 58 - len(looked_at)}
    assert all(int(headers["retry-after"]) >= 1 for status, headers, _ in found if status == 429)


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
    assert max(looked_at) <= 2
    assert found[401] == len(looked_at) >= 8  # two at work, six that wait
    assert found[429] == 50 - found[401] > 0


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


def test_an_address_that_a_visitor_names_is_not_believed(running):
    assert statuses(running, [f"192.0.2.{one}" for one in range(20)]) == {200: 10, 429: 10}


def test_paths_that_lead_nowhere_are_limited_too(running):
    running.desk.visitors = Buckets(size=10, rate=0.0)
    assert Counter(running.send("GET", f"/{one}")[0] for one in range(20)) == {404: 10, 429: 10}


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


def test_idle_connections_of_one_client_and_of_several_stop_nobody(running, monkeypatch):
    monkeypatch.setattr(serving, "MOST_OF_ONE", 30)
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 50)
    quiet = running.idle(1, source="127.0.0.9")
    one = running.idle(45, source="127.0.0.2")
    assert running.send("GET", "/public")[0] == 200
    assert running.send("GET", "/public", source="127.0.0.2")[0] == 200  # others behind the same address too
    assert hung_up(one) == 16  # 15, and one for the request
    assert hung_up(quiet) == 0  # another client's are left alone
    more = [found for last in range(3, 7) for found in running.idle(20, source=f"127.0.0.{last}")]
    assert running.send("GET", "/public")[0] == 200
    assert len(running.server.server_state.connections) <= 50
    for each in (*quiet, *one, *more):
        each.close()


def lines(desk):
    with desk.database.read() as connection:
        return connection.execute(select(func.count()).select_from(db.trail)).scalar()


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
    """300 lines where 40 are kept in full; of each 25 an officer decides one, and two more are changes."""
    monkeypatch.setattr(trail, "MOST_LINES", 40)
    monkeypatch.setattr(trail, "STEP", 10)
    desk = Desk.open(desk_files(tmp_path))
    first = (
        ("olga", "officer", "POST", "/x", 200),
        ("ann", "analyst", "POST", "/api/v1/tables/{name}/query", 200),
        ("the command line", None, "user add", "mallory, officer", "done"),
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


def test_the_trail_is_thinned_and_keeps_every_change(long_trail):
    old = [one.body["numbers"].get("n", 0) for one in trail.entries(long_trail.database)]
    assert set(old) >= {25 * each + place for each in range(12) for place in range(3)}
    assert lines(long_trail) <= 40 + 10 + 12 * 3
    every = [one.sequence for one in trail.entries(long_trail.database)]
    assert list(seen_in_pages(long_trail)) == every[::-1]


def seen_in_pages(desk):
    """The trail's lines, page by page as the page shows them."""
    before = None
    while page := trail.newest(desk.database, 7, before=before):
        yield from (one.sequence for one in page)
        before = page[-1].sequence


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
