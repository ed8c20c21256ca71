"""A desk in this process: example people, three accounts, and a client that keeps no cookies of its own."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the desk: pip install 'sfumato[desk]'")

from sfumato.desk import accounts
from sfumato.desk import database as db
from sfumato.desk.accounts import add_person
from sfumato.desk.desk import Desk
from sfumato.desk.grants import Wanted
from sfumato.desk.server import create_app

PASSWORD = "a long enough password"
COUNT = "SELECT COUNT(*) FROM people"


@dataclass
class Someone:
    """One person with a browser and a token."""

    desk: Served
    name: str
    token: str
    cookies: dict[str, str]

    def api(self, method, path, **more):
        return self.desk.send(method, path, headers={"authorization": f"Bearer {self.token}"}, **more)

    def ask(self, sql=COUNT, epsilon=0.1, **more):
        self.desk.warm()
        body = {"sql": sql, "epsilon": epsilon, **more}
        return self.api("POST", "/api/v1/tables/people/query", json=body)

    def page(self, path):
        return self.desk.send("GET", path, cookies=self.cookies)

    def word(self):
        return re.search('name="csrf" value="([^"]+)"', self.page("/account").text)[1]

    def post(self, path, *, word=None, headers=None, **fields):
        fields["csrf"] = self.word() if word is None else word
        return self.desk.send("POST", path, cookies=self.cookies, data=fields, headers=headers or {})


class Served:
    """A desk and its application, asked without a network."""

    def __init__(self, place):
        self.place = place
        self.desk = Desk.open(place)
        self.app = create_app(self.desk)
        self._warm = False

    def warm(self):
        """Open the table, as the server does when it starts."""
        if not self._warm:
            self._warm = True
            self.desk.dataset("people").warm()

    async def send_async(self, method, path, **more):
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        cookies = more.pop("cookies", None)
        async with httpx.AsyncClient(transport=transport, base_url="http://desk", cookies=cookies) as client:
            return await client.request(method, path, **more)

    def send(self, method, path, **more):
        return asyncio.run(self.send_async(method, path, **more))

    def sign_in(self, name, password=PASSWORD, *, cookies=None):
        form = self.send("GET", "/sign-in", cookies=cookies)
        word = re.search('name="csrf" value="([^"]+)"', form.text)[1]
        visit = {**(cookies or {}), **dict(form.cookies)}
        fields = {"name": name, "password": password, "csrf": word}
        return self.send("POST", "/sign-in", cookies=visit, data=fields)

    def person(self, name, role, *, allocation=None, team=None, signed_in=True):
        wanted = None
        if allocation is not None:
            wanted = Wanted(team=team or name, purpose="questions", epsilon=allocation)
        made = add_person(self.desk, name, role=role, team=team, wanted=wanted)
        cookies = {}
        if signed_in:
            with self.desk.database.write() as connection:
                mine = db.accounts.c.id == made.account.id
                connection.execute(db.accounts.update().where(mine).values(password=accounts.hashed(PASSWORD)))
            cookies = dict(self.sign_in(name).cookies)
        return Someone(self, name, made.token, cookies)

    @property
    def ledger(self):
        return self.desk.dataset("people").ledger


@pytest.fixture(scope="session", autouse=True)
def _cheap_passwords():
    """Hashing costs a tenth of a second each at its real settings, which one test looks at."""
    from argon2 import PasswordHasher

    real, accounts._HASHER = accounts._HASHER, PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    yield
    accounts._HASHER = real


@pytest.fixture(scope="module")
def served(tmp_path_factory, desk_files):
    found = Served(desk_files(tmp_path_factory.mktemp("desk")))
    yield found
    found.desk.close()


@pytest.fixture(scope="module")
def ann(served):
    return served.person("ann", "analyst", allocation=2.0)


@pytest.fixture(scope="module")
def bob(served):
    return served.person("bob", "analyst", allocation=1.0)


@pytest.fixture(scope="module")
def olga(served):
    return served.person("olga", "officer")


@pytest.fixture(scope="module")
def rita(served):
    return served.person("rita", "reader")


@pytest.fixture
def another(tmp_path, desk_files):
    """A desk of one test's own, with what it wants in the policy."""
    opened = []

    def make(**options):
        opened.append(Served(desk_files(tmp_path, **options)))
        return opened[-1]

    yield make
    for one in opened:
        one.desk.close()
