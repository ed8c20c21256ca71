"""Nobody gets in: every route with every role, forms of other sites, stolen and planted sessions, guesses."""

import re
import time

import pytest
from argon2 import PasswordHasher, extract_parameters
from fastapi import FastAPI

from sfumato.desk import accounts, gate, limits, trail
from sfumato.desk import database as db
from sfumato.desk.accounts import Role
from sfumato.errors import InvalidInput, LedgerTampered

A, O, R = Role.ANALYST, Role.OFFICER, Role.READER  # noqa: E741
ANYBODY = "anybody"
TABLE = {
    ("GET", "/"): ANYBODY,
    ("GET", "/sign-in"): ANYBODY,
    ("POST", "/sign-in"): ANYBODY,
    ("GET", "/static/{name}"): ANYBODY,
    ("GET", "/public"): ANYBODY,
    ("GET", "/api/v1/public"): ANYBODY,
    ("GET", "/api/v1/openapi.json"): ANYBODY,
    ("GET", "/openid"): ANYBODY,
    ("GET", "/openid/back"): ANYBODY,
    ("POST", "/sign-out"): {O, A, R},
    ("GET", "/account"): {O, A, R},
    ("POST", "/account/password"): {O, A, R},
    ("POST", "/account/tokens/{number}/revoke"): {O, A, R},
    ("POST", "/account/tokens"): {A},
    ("GET", "/ask"): {A},
    ("POST", "/ask"): {A},
    ("POST", "/saved/{number}/delete"): {A},
    ("GET", "/answers/{number}"): {A},
    ("GET", "/answers/{number}/answer.{ending}"): {A},
    ("GET", "/jobs"): {A},
    ("POST", "/jobs"): {A},
    ("GET", "/jobs/{number}"): {A},
    ("POST", "/jobs/{number}/cancel"): {A},
    ("GET", "/jobs/{number}/files/{place}"): {A},
    ("GET", "/requests"): {O, A},
    ("POST", "/requests"): {A},
    ("POST", "/requests/{number}/approve"): {O},
    ("POST", "/requests/{number}/decline"): {O},
    ("POST", "/allocations"): {O},
    ("POST", "/proposals/{number}/confirm"): {O},
    ("POST", "/proposals/{number}/withdraw"): {O},
    ("GET", "/plan"): {O, A},
    ("POST", "/plan/charge"): {O},
    ("GET", "/statements"): {O, R},
    ("GET", "/statements/{dataset}.{ending}"): {O, R},
    ("GET", "/opinion"): {O},
    ("POST", "/opinion"): {O},
    ("GET", "/ledger"): {O},
    ("POST", "/pace/reset"): {O},
    ("GET", "/trail"): {O},
    ("GET", "/users"): {O},
    ("POST", "/users"): {O},
    ("POST", "/users/{number}/close"): {O},
    ("POST", "/users/{number}/open"): {O},
    ("POST", "/users/{number}/password"): {O},
    ("POST", "/api/v1/tables/{name}/query"): {A},
    ("POST", "/api/v1/tables/{name}/expect"): {A},
    ("GET", "/api/v1/tables/{name}"): {O, A},
    ("GET", "/api/v1/tables"): {O, A},
    ("GET", "/api/v1/allocations"): {A},
}
"""Who may use what. A new route must be written here too."""


STOPS = ("not for the role", "no longer valid")  # what the gate says, and no page


def in_words(access):
    return ANYBODY if access.everybody else set(access.roles)


def test_the_table_is_the_routes(served):
    assert {route: in_words(access) for route, access in gate.table_of(served.app.inner).items()} == TABLE


def test_a_route_that_does_not_say_who_may_use_it_is_not_served():
    app = FastAPI(openapi_url=None)
    app.get("/new")(lambda: None)
    with pytest.raises(AttributeError):
        gate.table_of(app)


def test_every_route_with_every_role(served, ann, olga, rita):
    """Nobody gets past the gate who is not in the table, and whoever is does."""
    people = {None: None, A: ann, O: olga, R: rita}
    words = {role: None if one is None else one.word() for role, one in people.items()}
    for (method, path), allowed in TABLE.items():
        if path in ("/sign-out", "/sign-in", "/account/password") or allowed == ANYBODY:
            continue
        place = re.sub("{[a-z]+}", lambda name: "people" if name[0] == "{name}" else "99999", path)
        for role, one in people.items():
            if path.startswith("/api/"):
                headers = {} if one is None else {"authorization": f"Bearer {one.token}"}
                got = served.send(method, place, headers=headers, json={} if method == "POST" else None)
            else:
                cookies = {} if one is None else one.cookies
                data = {"csrf": words[role] or ""} if method == "POST" else None
                got = served.send(method, place, cookies=cookies, data=data)
            stopped = got.status_code == 401 or any(word in got.text for word in STOPS)
            assert stopped == (role not in allowed), (method, path, role, got.status_code)
            assert got.status_code < 500


def test_a_token_is_not_for_pages_and_a_cookie_not_for_programs(served, ann):
    assert served.send("GET", "/ask", headers={"authorization": f"Bearer {ann.token}"}).status_code == 401
    assert served.send("GET", "/api/v1/allocations", cookies=ann.cookies).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}],
)
def test_forms_of_other_sites_are_refused_even_with_the_word(ann, headers):
    assert ann.post("/saved/1/delete", headers=headers).status_code == 403


def test_forms_without_the_sessions_own_word_are_refused(served, ann, olga):
    for word in ("", "x", olga.word()):
        assert ann.post("/saved/1/delete", word=word or "-").status_code == 403
    assert served.send("POST", "/saved/1/delete", cookies=ann.cookies, data={}).status_code == 403
    assert served.send("POST", "/sign-in", data={"name": "ann", "password": "x"}).status_code == 403


def test_a_planted_session_is_worth_nothing_after_signing_in(served, ann):
    planted = {accounts.COOKIE: "planted-by-somebody-else"}
    signed_in = served.sign_in("ann", cookies=planted)
    assert signed_in.status_code == 303
    assert signed_in.cookies[accounts.COOKIE] != planted[accounts.COOKIE]
    assert served.send("GET", "/ask", cookies=planted).status_code == 401
    cookie = signed_in.headers.get_list("set-cookie")[0].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    # and the session that the browser had is ended when it signs in anew
    old = dict(signed_in.cookies)
    served.sign_in("ann", cookies={accounts.COOKIE: old[accounts.COOKIE]})
    assert served.send("GET", "/ask", cookies=old).status_code == 401


def test_sessions_end(another, monkeypatch):
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0)
    assert ann.page("/ask").status_code == 200
    now = time.time()
    monkeypatch.setattr(accounts.time, "time", lambda: now + accounts.IDLE + 1)
    assert ann.page("/ask").status_code == 401
    monkeypatch.undo()
    assert ann.post("/sign-out").status_code == 303
    assert ann.page("/ask").status_code == 401
    ann.cookies = dict(served.sign_in("ann").cookies)
    with served.desk.database.write() as connection:
        accounts.close(connection, accounts.by_name(connection, "ann").id)
    assert ann.page("/ask").status_code == 401
    assert ann.ask().status_code == 401


def test_the_database_holds_nothing_to_sign_in_with(served, ann):
    content = (served.place.parent / "desk.db").read_bytes()
    content += (served.place.parent / "desk.db-wal").read_bytes()
    for secret in (ann.token, ann.cookies[accounts.COOKIE], "a long enough password"):
        assert secret.encode() not in content


def test_passwords_are_hashed_by_argon2id_with_memory():
    settings = extract_parameters(PasswordHasher().hash("x"))
    assert settings.type.name == "ID"
    assert settings.memory_cost >= 47104  # OWASP's least


def test_guessing_gets_slower_and_says_nothing(another, monkeypatch):
    served = another()
    served.person("ann", "analyst", signed_in=False)
    wrong = [served.sign_in("ann", "wrong password") for _ in range(5)]
    nobody = [served.sign_in("nobody", "wrong password") for _ in range(5)]
    sentences = {re.search('role="alert">(.*?)<', one.text)[1] for one in [*wrong, *nobody]}
    assert sentences == {"the name or the password is wrong"}
    waits = served.sign_in("ann", "wrong password")
    assert waits.status_code == 429
    assert int(waits.headers["retry-after"]) >= 0
    assert served.sign_in("ＡNN", "wrong password").status_code == 429  # the same account
    now = time.time() + 2
    for _ in range(12):  # each after the delay of the one before
        monkeypatch.setattr(limits.time, "time", lambda now=now: now)
        assert served.desk.tries.reserve("ann") == 0
        wait = served.desk.tries.reserve("ann")
        now += wait
    assert 200 < wait <= 300
    monkeypatch.setattr(limits.time, "time", lambda: now + limits.FORGOTTEN + 1)
    assert [served.desk.tries.reserve("ann") for _ in range(4)] == [0, 0, 0, 0]


@pytest.mark.parametrize("name", ["", " ", "a" * 65, "ann\u202egro", "a\nb", "a\0b", "\ud800"])
def test_names_that_cannot_be_shown_are_refused(name):
    with pytest.raises((InvalidInput, UnicodeEncodeError)):
        accounts.checked_name(name).encode()


def test_names_that_look_the_same_are_the_same(served, ann):
    for name in ("Ann", "ＡＮＮ", "ann "):
        with pytest.raises(InvalidInput, match="no account has"), served.desk.database.write() as connection:
            accounts.add(connection, name, role="reader")


@pytest.mark.parametrize(
    "path",
    [
        "/static/../desk.toml",
        "/static/..%2f..%2fdesk.toml",
        "/static/%2e%2e/desk.toml",
        "/static//etc/passwd",
        "/jobs/1/files/..%2f..%2fdesk.db",
        "/answers/1/answer.csv%00",
        "/answers/99999999999999999999",
        "/answers/-1",
        "/ask?saved=99999999999999999999",
    ],
)
def test_paths_lead_nowhere_else(ann, path):
    got = ann.page(path)
    assert got.status_code in (200, 404, 422)
    assert "policies" not in got.text


def test_what_is_too_large_is_not_read(ann):

    large = ann.api("POST", "/api/v1/tables/people/query", content=b"x" * (gate.LARGEST_BODY + 1))
    assert large.status_code == 413


def test_an_account_has_a_limit(served, ann, monkeypatch):
    from sfumato.desk.limits import Buckets

    monkeypatch.setattr(served.desk, "buckets", Buckets(size=2, rate=0.0))
    assert [ann.api("GET", "/api/v1/tables").status_code for _ in range(3)] == [200, 200, 429]


def test_every_answer_has_the_headers(served):
    for path in ("/public", "/static/desk.css", "/nowhere", "/ask", "/api/v1/tables"):
        headers = served.send("GET", path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_the_page_of_the_trail_shows_what_was_counted(served, olga):
    served.send("GET", "/nowhere/<b>")
    served.desk.counted.write()
    served.desk.database.soon(lambda connection: None).result()
    assert "× not signed in: GET unknown 404" in olga.page("/trail").text


def test_the_trail_has_every_request_and_shows_changes(another):
    served = another()
    ann = served.person("ann", "analyst", allocation=1.0, signed_in=False)
    ann.ask()
    ann.api("GET", "/nowhere")
    lines = [
        (one.body["who"], one.body["route"], one.body["status"]) for one in trail.entries(served.desk.database)
    ]
    assert lines[-1:] == [("ann", "/api/v1/tables/{name}/query", 200)]
    with served.desk.database.write() as connection:
        text = trail.newest(served.desk.database, 1)[0]
        changed = db.trail.update().where(db.trail.c.sequence == text.sequence).values(text=b"{}")
        connection.execute(changed)
    with pytest.raises(LedgerTampered):
        list(trail.entries(served.desk.database))
