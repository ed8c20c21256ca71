"""The desk as it is served: three people in a browser at once, and processes that are killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

import sfumato
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Ledger
from sfumato.randomness import public_generator

pytest.importorskip("fastapi", reason="needs the desk: pip install 'sfumato[desk]'")
CHROMIUM = os.environ.get("SFUMATO_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
KILLS = int(os.environ.get("SFUMATO_DESK_KILLS", "2"))


class Server:
    """A desk in a process of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.start()

    def start(self):
        words = [sys.executable, "-m", "sfumato", "serve", "desk.toml", "--port", "0", "--json"]
        self.process = subprocess.Popen(words, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        self.url = json.loads(self.process.stdout.readline())["address"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, desk_files):
    return desk_files(tmp_path_factory.mktemp("desk"), tick=0.1).parent


@pytest.fixture(scope="module")
def people(folder):
    """Whom the command line added, with what it told of them."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, role, *more in (
            ("ann", "analyst", "--allocation", "0.2"),
            ("kim", "analyst", "--allocation", "5"),
            ("olga", "officer"),
            ("rita", "reader"),
        ):
            words = ["sfumato", "desk", "user", "add", name, "--role", role, *more, "--json"]
            patch.setattr(sys, "argv", [*words, "--config", str(folder / "desk.toml")])
            found[name] = json.loads(_printed())
    return found


def _printed():
    import contextlib
    import io

    from sfumato.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    return out.getvalue()


@pytest.fixture(scope="module")
def server(folder, people):
    found = Server(folder)
    yield found
    found.stop()


def test_from_python_as_data_frames(server, people):
    desk = sfumato.connect(server.url, token=people["kim"]["token"])
    frame = desk.query("SELECT COUNT(*) FROM people", epsilon=0.5).to_pandas()
    assert list(frame.columns) == ["count(*)", "count(*)_low", "count(*)_high"]
    assert abs(frame["count(*)"][0] - 400) < 60  # Laplace(2): beyond with probability e^-30
    assert desk.epsilon_left["questions"] == pytest.approx(4.5)
    with pytest.raises(BudgetExceeded):
        desk.query("SELECT COUNT(*) FROM people", epsilon=4.6)
    with pytest.raises(sfumato.errors.Refused):
        sfumato.connect(server.url, token="sfd_wrong").query("SELECT COUNT(*) FROM people", epsilon=0.1)


def test_a_head_that_never_ends_is_hung_up_on(server):
    import socket

    host, port = re.match(r"http://(.+):(\d+)", server.url).groups()
    with socket.create_connection((host, int(port))) as slow:
        slow.settimeout(20)
        slow.sendall(b"GET /public HTTP/1.1\r\nHost: desk\r\nX-Slow: ")
        assert slow.recv(100) == b""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install 'sfumato[dev]'"
    )
    if CHROMIUM is None:
        pytest.skip("needs a browser: install Debian's chromium, or name one in SFUMATO_CHROMIUM")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def opened(browser, server, people):
    """A signed-in page for somebody, in a window of a kind; nothing may complain but refusals we asked for."""
    complaints, contexts = [], []

    def open_page(name, *, keyboard=False, **window):
        contexts.append(browser.new_context(**window))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda told: told.type == "error" and complaints.append(told.text))
        page.goto(server.url + "/sign-in")
        password = people[name]["password"]
        if keyboard:
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
            page.get_by_label("Name").focus()
            page.keyboard.type(name)
            page.keyboard.press("Tab")
            page.keyboard.type(password)
            page.keyboard.press("Enter")
        else:
            page.get_by_label("Name").fill(name)
            page.get_by_label("Password").fill(password)
            page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Sign out").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [one for one in complaints if "409" not in one] == []


def _ask(page, epsilon):
    page.get_by_label("Question, in SQL").fill("SELECT ill, COUNT(*) FROM people GROUP BY ill")
    page.get_by_label("ε to spend").fill(epsilon)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.wait_for_load_state()


def _fits(page):
    return page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def test_three_people_at_once(server, opened, folder):
    """Asked until refused, requested, approved on a phone, and on; a reader sees what is public."""
    ann = opened("ann", keyboard=True, color_scheme="light", viewport={"width": 1200, "height": 800})
    olga = opened("olga", color_scheme="dark", viewport={"width": 390, "height": 844}, has_touch=True)
    rita = opened("rita", viewport={"width": 320, "height": 640})
    ann.get_by_label("Question, in SQL").fill("SELECT ill, COUNT(*) FROM people GROUP BY ill")
    ann.get_by_label("ε to spend").fill("0.15")
    ann.get_by_role("button", name="Show the expected error").click()
    ann.get_by_role("status").filter(has_text="Nothing was spent").wait_for()
    ann.get_by_role("button", name="Ask", exact=True).press("Enter")
    ann.wait_for_url("**/answers/*")
    assert ann.get_by_role("img", name="count(*), with 95% intervals").is_visible()
    ann.goto(server.url + "/ask")
    _ask(ann, "0.15")
    assert "does not" in ann.get_by_role("alert").inner_text()
    ann.get_by_role("link", name="Request more").click()
    ann.get_by_label("ε", exact=True).fill("0.5")
    ann.get_by_label("Reason, for the ledger").fill("the spring report")
    ann.get_by_role("button", name="Request", exact=True).click()
    olga.goto(server.url + "/requests")
    assert olga.get_by_text("the spring report").is_visible()
    assert _fits(olga)
    olga.get_by_role("button", name="Approve request").tap()
    olga.get_by_text("Approved by olga").wait_for()
    ann.goto(server.url + "/ask")
    _ask(ann, "0.15")
    ann.wait_for_url("**/answers/*")
    assert "public" in rita.url
    assert rita.get_by_role("heading", name="people").is_visible()
    assert _fits(rita)
    for page, roles in ((ann, ("ledger", "users", "trail")), (rita, ("ask", "ledger", "requests"))):
        for path in roles:
            assert page.request.get(f"{server.url}/{path}").status == 403
    for path in ("ledger", "users", "trail", "account"):
        olga.goto(f"{server.url}/{path}")
        assert _fits(olga)
        assert olga.locator("h1").count() == 1
        assert olga.locator("input:not([type=hidden]), select, textarea").evaluate_all(
            "all => all.every(one => one.labels && one.labels.length)"
        )
    colour = "getComputedStyle(document.body).backgroundColor"
    assert ann.evaluate(colour) == "rgb(251, 250, 248)"
    assert olga.evaluate(colour) == "rgb(22, 24, 27)"


def _post(url, token, **asked):
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    request = urllib.request.Request(url, data=json.dumps(asked).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def _queue_job(folder):
    from sfumato.desk.accounts import Account, Role
    from sfumato.desk.desk import Desk
    from sfumato.desk.jobs import Job, start

    desk = Desk.open(folder / "desk.toml")
    with desk.database.read() as connection:
        number, team = connection.exec_driver_sql("SELECT id, team FROM accounts WHERE name = 'kim'").one()
    kim = Account(id=number, name="kim", role=Role.ANALYST, team=team)
    made = start(desk, kim, desk.dataset("people"), Job(kind="train", target="ill", epsilon=1.0), None)
    return desk, made


def test_kills_lose_nothing_and_jobs_go_on(server, people, folder):
    """kill -9 at any moment: every answer that was given is in the ledger, and a job is charged once."""
    desk, job = _queue_job(folder)
    answered, moments = [], public_generator(1).uniform(0.2, 1.5, KILLS)
    for moment in moments:
        url = f"{server.url}/api/v1/tables/people/query"
        until = time.monotonic() + moment
        while time.monotonic() < until:
            answer = _post(url, people["kim"]["token"], sql="SELECT COUNT(*) FROM people", epsilon=0.01)
            answered.append(answer["entry"])
        server.kill()
        server.start()
    ended = _ended(desk, job)
    assert ended.state == "done", ended.sentence
    with Ledger.open(folder / "people.ledger.db") as ledger:
        ledger.verify()
        heads = {charge.head.sequence: charge.head.hash for charge in ledger.charges()}
        assert all(heads[one["sequence"]] == one["hash"] for one in answered)
        of_job = [charge for charge in ledger.charges() if f"desk job {job}" in charge.purpose]
        assert len(of_job) == 1
    desk.close()


def _ended(desk, job):
    from sfumato.desk.jobs import one_of_team

    for _ in range(600):
        found = one_of_team(desk, "kim", job)
        if found.state not in ("queued", "running"):
            return found
        time.sleep(0.2)
    raise AssertionError(f"the job is still {found.state}")
