"""The pages: one function for each address, and a template for most of them."""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from fastapi import APIRouter, Depends, Query, Request
from fastapi import Path as InPath
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import select

from sfumato.desk import accounts, asking, decisions, grants, jobs, openid, trail
from sfumato.desk import database as db
from sfumato.desk.accounts import Account, Role, checked_line, checked_name
from sfumato.desk.asking import Question
from sfumato.desk.decisions import Outcome, Words
from sfumato.desk.desk import Dataset, Desk, charge_in_words, policy_in_words, promise, public_facts
from sfumato.desk.gate import Stopped, access_of, address_of, allow, effort, everybody
from sfumato.desk.grants import PERIODS, Grant, Wanted
from sfumato.desk.limits import Crowded
from sfumato.display import csv_bytes
from sfumato.errors import BudgetExceeded, InvalidInput, Refused, SfumatoError
from sfumato.governance import Opinion, Statement, checklist, opinion_of, registry_entry, write_statement
from sfumato.governance.settings import parse_settings
from sfumato.ledger.signing import environment_key
from sfumato.ledger.statement import OF_A_SHARE, balances
from sfumato.query import Answer, QueryRefused

_F = TypeVar("_F", bound=Callable[..., Any])
router = APIRouter(include_in_schema=False)
FOLDER = Path(__file__).parent
OFFICER, ANALYST, READER = Role.OFFICER, Role.ANALYST, Role.READER
HOME = {OFFICER: "/requests", ANALYST: "/ask", READER: "/public"}
MENU = (
    ("Ask", "/ask", (ANALYST,)),
    ("Jobs", "/jobs", (ANALYST,)),
    ("Requests", "/requests", (OFFICER, ANALYST)),
    ("Plan", "/plan", (OFFICER, ANALYST)),
    ("Ledger", "/ledger", (OFFICER,)),
    ("Statements", "/statements", (OFFICER, READER)),
    ("Opinion", "/opinion", (OFFICER,)),
    ("Users", "/users", (OFFICER,)),
    ("Public", "/public", (None, OFFICER, ANALYST, READER)),
)
BROWSER, BROWSER_KEPT = "desk_browser", 180 * 24 * 3600
NO_ANSWER = "there is no such answer of your team"
MOST_SHOWN, MOST_BARS = 200, 40
"""Rows of an answer that its page shows, and that its picture shows; all of them are in the files."""
NEWEST, MOST_POINTS, LINES = 100, 500, 200
"""Charges and points that the page of the ledger shows, and lines of a page of the trail."""
LARGEST_SETTINGS = 20_000
ENDINGS = {
    "csv": "text/csv; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
    "pdf": "application/pdf",
    "yaml": "application/yaml; charset=utf-8",
}


# Shared parts of pages


def get(path: str, *roles: Role | None) -> Callable[[_F], _F]:
    """Serve a page to these roles; None is every visitor."""
    return lambda view: router.get(path)(_allowed(roles)(view))


def post(
    path: str, *roles: Role | None, act: str | None = None, alone: str | None = None
) -> Callable[[_F], _F]:
    """Take a form from these roles, as `allow` says."""
    return lambda view: router.post(path)(_allowed(roles, act=act, alone=alone)(view))


def _allowed(roles: tuple[Role | None, ...], **terms: Any) -> Callable[[_F], _F]:
    return everybody() if None in roles else allow(*(role for role in roles if role), **terms)


async def _fields(request: Request) -> dict[str, str]:
    found: dict[str, str] = request.state.form
    for name, value in found.items():
        if "\0" in value:
            raise InvalidInput(f"expected {name[:40]!r} to be text")
    return {name: value.strip() for name, value in found.items()}


Fields = Annotated[dict[str, str], Depends(_fields)]
Number = Annotated[int, InPath(ge=1, le=2**31 - 1)]


def _number(fields: dict[str, str], name: str) -> float:
    try:
        return float(fields.get(name, ""))
    except ValueError:
        raise InvalidInput(f"expected {name} to be a number, such as 0.1") from None


def _whole(fields: dict[str, str], name: str, otherwise: int | None = None) -> int:
    text = fields.get(name, "")
    if not text and otherwise is not None:
        return otherwise
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidInput(f"expected {name} to be a whole number")
    return int(text)


def _desk(request: Request) -> Desk:
    found: Desk = request.app.state.desk
    return found


def _me(request: Request) -> Account:
    found: Account = request.state.account
    return found


def _asker(request: Request) -> str:
    return f"account {_me(request).id}"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"when": _when, "figure": _figure, "cell": _cell}
    return made


def _when(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page in its frame; all values in it are escaped."""
    account: Account | None = getattr(request.state, "account", None)
    session = getattr(request.state, "session", None)
    role = None if account is None else account.role
    frame = {
        "desk": _desk(request).settings.name,
        "account": account,
        "csrf": None if session is None else session.csrf,
        "menu": [(title, path) for title, path, roles in MENU if role in roles],
        "here": request.url.path,
        "tick": _desk(request).settings.tick,
    }
    text = _environment().get_template(template).render(frame | values)
    return HTMLResponse(text, status_code=status)


def error_page(request: Request, status: int, sentence: str) -> HTMLResponse:
    return render(request, "error.html", status=status, sentence=sentence, code=status)


def _go(path: str) -> RedirectResponse:
    return RedirectResponse(path, status_code=303)


def _file(content: bytes, name: str) -> Response:
    header = {"content-disposition": f'attachment; filename="{name}"'}
    kind = ENDINGS.get(name.rpartition(".")[2], "application/octet-stream")
    return Response(content, media_type=kind, headers=header)


def take(request: Request, words: Words, *, then: str) -> Response:
    """Do the act that the route is marked with, or propose it; then show a page, or the secret to pass on."""
    act = access_of(request.scope["route"]).act
    assert act is not None
    with effort(request):
        found = decisions.submit(_desk(request), _me(request), act, words)
    return _after(request, found, then="/requests#proposals" if found.waits else then)


def _after(request: Request, found: Outcome, *, then: str) -> Response:
    return _go(then) if found.told is None else render(request, "told.html", told=found.told, waits=found.waits)


def _spendable(request: Request) -> list[Grant]:
    return [one for one in grants.of_team(_desk(request), _me(request).team) if one.shares]


def _chosen_dataset(desk: Desk, account: Account, grant: int | None) -> Dataset:
    """Return the data set of the chosen allocation, which must be the team's."""
    mine = {one.id: one.dataset for one in grants.of_team(desk, account.team)}
    if grant not in mine:
        raise asking.NoAllocation("expected an allocation of your team; request one from an officer")
    return desk.dataset(mine[grant])


@get("/static/{name}", None)
def static(name: str) -> Response:
    """Send the style sheet or the script, each by its name: no path leads elsewhere."""
    kinds = {"desk.css": "text/css", "desk.js": "text/javascript"}
    if name not in kinds:
        raise Stopped(404, "there is no such page")
    return Response((FOLDER / "static" / name).read_bytes(), media_type=kinds[name])


# Signing in and out, and the own account


@get("/", None)
def home(request: Request) -> Response:
    account: Account | None = request.state.account
    return _go("/public" if account is None else HOME[account.role])


@get("/sign-in", None)
def sign_in_page(request: Request) -> HTMLResponse:
    return _sign_in_page(request)


def _sign_in_page(request: Request, *, status: int = 200, sentence: str = "", name: str = "") -> HTMLResponse:
    desk = _desk(request)
    visit = request.cookies.get(accounts.VISIT) or secrets.token_urlsafe(24)
    shown = {"sentence": sentence, "name": name, "word": desk.visits.word(visit)}
    page = render(request, "sign_in.html", status=status, **shown, openid=desk.settings.openid is not None)
    _cookie(page, desk, accounts.VISIT, visit, max_age=3600)
    return page


def _cookie(response: Response, desk: Desk, name: str, value: str, **options: Any) -> None:
    options = {"samesite": "strict", "httponly": True, "secure": desk.settings.secure, **options}
    response.set_cookie(name, value, **options)


def _check_stranger(request: Request) -> None:
    if not _desk(request).strangers.take(address_of(request)):
        raise Stopped(429, "too many people try to sign in from here; wait a minute", seconds=60)


@post("/sign-in", None)
async def sign_in(request: Request, fields: Fields) -> Response:
    """Sign in. A wrong name and a wrong password look the same; too many of them make the next one wait."""
    _check_stranger(request)
    return await _desk(request).hashing.run(address_of(request), _sign_in, request, fields)


def _sign_in(request: Request, fields: dict[str, str]) -> Response:
    desk, name = _desk(request), fields.get("name", "")
    browser, password = request.cookies.get(BROWSER), fields.get("password", "")
    try:
        found = accounts.signs_in(desk.database, desk.tries, name, password, browser=browser)
    except Crowded as error:
        page = _sign_in_page(request, status=429, sentence=str(error), name=name)
        page.headers["retry-after"] = f"{math.ceil(error.seconds)}"
        return page
    if found is None:
        return _sign_in_page(request, status=401, sentence="the name or the password is wrong", name=name)
    response = _begin_session(request, found[0])
    _cookie(response, desk, BROWSER, found[1], max_age=BROWSER_KEPT, path="/sign-in")
    return response


def _begin_session(request: Request, account: Account) -> Response:
    """Give the browser a new secret, and end the session that it came with."""
    request.state.account, desk = account, _desk(request)
    with desk.database.write() as connection:
        before = request.cookies.get(accounts.COOKIE)
        secret = accounts.begin_session(connection, account, before=before)
    response = _go(HOME[account.role])
    _cookie(response, desk, accounts.COOKIE, secret, samesite="lax")
    response.delete_cookie(accounts.VISIT)
    return response


@get("/openid", None)
async def to_provider(request: Request) -> Response:
    return await _desk(request).provider.run(address_of(request), _to_provider, request)


def _to_provider(request: Request) -> Response:
    client = _client(request)
    place, kept = client.begin()
    response = _go(place)
    _cookie(response, _desk(request), openid.COOKIE, kept, samesite="lax", max_age=600)
    return response


@get("/openid/back", None)
async def from_provider(request: Request, code: str = "", state: str = "") -> Response:
    """Sign in the account that names the provider's subject."""
    return await _desk(request).provider.run(address_of(request), _from_provider, request, code, state)


def _from_provider(request: Request, code: str, state: str) -> Response:
    found = _client(request).subject(request.cookies.get(openid.COOKIE, ""), state=state, code=code)
    with _desk(request).database.read() as connection:
        account = accounts.by_subject(connection, found)
    if account is None:
        raise Stopped(403, f"there is no account for {found}; ask an officer for one")
    response = _begin_session(request, account)
    response.delete_cookie(openid.COOKIE)
    return response


def _client(request: Request) -> openid.Client:
    settings = _desk(request).settings
    if settings.openid is None:
        raise Stopped(404, "this desk has no provider to sign in with")
    _check_stranger(request)
    return openid.Client(settings.openid, back=f"{settings.address}/openid/back")


@post("/sign-out", *Role, alone="ends the own session")
def sign_out(request: Request) -> Response:
    with _desk(request).database.write() as connection:
        accounts.end_session(connection, request.cookies[accounts.COOKIE])
    response = _go("/sign-in")
    response.delete_cookie(accounts.COOKIE)
    return response


@get("/account", *Role)
def account(request: Request) -> HTMLResponse:
    return _account(request)


def _account(request: Request, *, token: str | None = None, said: str = "", status: int = 200) -> HTMLResponse:
    mine = (db.tokens.c.account == _me(request).id) & db.tokens.c.revoked.is_(False)
    query = select(db.tokens).join(db.accounts, db.accounts.c.id == db.tokens.c.account).where(mine)
    with _desk(request).database.read() as connection:
        tokens = connection.execute(query.where(accounts.of_now(db.tokens)).order_by(db.tokens.c.id)).all()
    allocations = _spendable(request) if _me(request).role is ANALYST else []
    values = {"tokens": tokens, "allocations": allocations, "token": token, "said": said}
    return render(request, "account.html", status=status, **values)


@post("/account/password", *Role, alone="the own password, for the old one")
async def change_password(request: Request, fields: Fields) -> Response:
    return await _desk(request).hashing.run(_asker(request), _change_password, request, fields)


def _change_password(request: Request, fields: dict[str, str]) -> Response:
    desk, me = _desk(request), _me(request)
    own = f"change\n{me.id}"  # no name has a line's end
    fits = accounts.signs_in(desk.database, desk.tries, me.name, fields.get("old", ""), counted_as=own)
    if fits is None:
        return _account(request, said="the old password is wrong", status=403)
    stored, epoch = accounts.hashed(fields.get("new", "")), fits[0].epoch
    with desk.database.write() as connection:
        if not accounts.set_password(connection, me.id, stored, epoch=epoch):
            raise Refused("expected the password that the account has now; it was changed meanwhile")
    return _begin_session(request, replace(me, epoch=epoch + 1))


@post("/account/tokens", ANALYST)
def add_token(request: Request, fields: Fields) -> HTMLResponse:
    grant, purpose = _whole(fields, "grant"), fields.get("purpose", "")
    if grant not in {one.id for one in _spendable(request)}:
        raise InvalidInput("expected an allocation of your team that is set aside")
    with _desk(request).database.write() as connection:
        token = accounts.add_token(connection, _me(request), purpose=purpose, grant=grant)
    return _account(request, token=token)


@post("/account/tokens/{number}/revoke", *Role, alone="takes an own token back")
def revoke(request: Request, number: Number) -> Response:
    mine = (db.tokens.c.id == number) & (db.tokens.c.account == _me(request).id)
    with _desk(request).database.write() as connection:
        connection.execute(db.tokens.update().where(mine).values(revoked=True))
    return _go("/account")


# Questions


@get("/ask", ANALYST)
def ask_page(request: Request, saved: Annotated[int, Query(ge=0, lt=2**31)] = 0) -> HTMLResponse:
    mine = (db.saved.c.id == saved) & (db.saved.c.team == _me(request).team)
    with _desk(request).database.read() as connection:
        row = connection.execute(select(db.saved).where(mine)).first()
    return _ask_page(request, {} if row is None else {"sql": row.sql, "title": row.title})


def _ask_page(request: Request, fields: dict[str, str], *, status: int = 200, **values: Any) -> HTMLResponse:
    desk, me = _desk(request), _me(request)
    mine = [(one, desk.dataset(one.dataset)) for one in _spendable(request)]
    with desk.database.read() as connection:
        saved = connection.execute(select(db.saved).where(db.saved.c.team == me.team)).all()
    shown: dict[str, Any] = {
        "fields": {"sql": "", "epsilon": "", "title": "", "grant": "", **fields},
        "allocations": [
            (one, asking.allocated_to(data, me, one).epsilon_left) for one, data in mine if not data.images
        ],
        "tables": {one.name: policy_in_words(one.policy) for one in desk.tables()},
        "history": asking.history(desk, me),
        "saved": saved,
    }
    shown |= {"expected": None, "refusal": None, "nearest": None, "over": False}
    return render(request, "ask.html", status=status, **(shown | values))


@post("/ask", ANALYST)
async def ask(request: Request, fields: Fields) -> Response:
    """Show the expected error, ask, or save, as the button says; a refusal keeps the fields of the form."""
    desk, me = _desk(request), _me(request)

    async def again(**shown: Any) -> Response:
        return await asyncio.to_thread(_ask_page, request, fields, **shown)

    try:
        sql, epsilon, grant = fields.get("sql", ""), _number(fields, "epsilon"), _whole(fields, "grant", 0)
        question = Question(sql=sql, epsilon=epsilon, grant=grant)
        dataset = await asyncio.to_thread(_chosen_dataset, desk, me, grant)
        if fields.get("action") == "ask":
            found, _ = await asking.ask(desk, me, dataset, question)
            return _go(f"/answers/{found}")
        expected = await asking.expect(desk, me, dataset, question)
    except QueryRefused as error:
        return await again(status=422, refusal=error.reason, nearest=error.nearest)
    except Refused as error:
        status = 409 if isinstance(error, BudgetExceeded) else 403
        return await again(status=status, refusal=str(error), over=True)
    except SfumatoError as error:
        return await again(status=422, refusal=str(error))
    if fields.get("action") != "save":
        return await again(expected=expected)
    title = checked_line("title", fields.get("title") or sql[:60], longest=100)
    values = {"account": me.id, "team": me.team, "dataset": dataset.name, "title": title, "sql": sql}
    await asyncio.wrap_future(
        desk.database.soon(lambda connection: db.inserted(connection, db.saved, **values))
    )
    return _go("/ask#saved")


@post("/saved/{number}/delete", ANALYST)
def forget(request: Request, number: Number) -> Response:
    mine = (db.saved.c.id == number) & (db.saved.c.team == _me(request).team)
    with _desk(request).database.write() as connection:
        connection.execute(db.saved.delete().where(mine))
    return _go("/ask#saved")


@get("/answers/{number}", ANALYST)
async def answer(request: Request, number: Number) -> Response:
    return await _shown(request, number, _answer)


@get("/answers/{number}/answer.{ending}", ANALYST)
async def export(request: Request, number: Number, ending: Annotated[str, InPath(max_length=10)]) -> Response:
    if ending not in ("csv", "json", "parquet"):
        raise Stopped(404, NO_ANSWER)
    return await _shown(request, number, partial(_exported, ending))


async def _shown(request: Request, number: int, show: Callable[[Request, Any, Answer], Response]) -> Response:
    """Show an answer of the team, in the account's turn and within its limit of computing."""

    def work() -> Response:
        with effort(request):
            found = asking.answer_of(_desk(request), _me(request), number)
            if found is None:
                raise Stopped(404, NO_ANSWER)
            return show(request, *found)

    return await _desk(request).showing.run(_asker(request), work)


def _answer(request: Request, question: Any, given: Answer) -> Response:
    measured = [any(row[place] is not None for row in given.intervals) for place in range(len(given.columns))]
    shown = {"question": question, "answer": given, "measured": measured, "rows": given.rows[:MOST_SHOWN]}
    chart = f"{given.columns[measured.index(True)]}, with 95% intervals" if any(measured) else ""
    return render(request, "answer.html", **shown, bars=_bars(given, measured), chart=chart)


def _bars(given: Answer, measured: list[bool]) -> list[tuple[str, float, tuple[float, float] | None]]:
    """Return labels and values with intervals, of an answer with groups and a numeric value."""
    if True not in measured or not 1 < len(given.rows) <= MOST_BARS:
        return []
    place, found = measured.index(True), []
    for line, row in enumerate(given.rows, 1):
        label = ", ".join(str(value) for value, noisy in zip(row, measured, strict=True) if not noisy)
        if isinstance(value := row[place], int | float):
            found.append((label or f"row {line}", float(value), given.intervals[line - 1][place]))
    return found


def _exported(ending: str, request: Request, question: Any, given: Answer) -> Response:
    table = given.to_arrow()
    if ending == "csv":
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        content = csv_bytes([table.column_names, *rows])
    elif ending == "json":
        content = json.dumps(given.to_json(), ensure_ascii=False).encode()
    else:
        from pyarrow import parquet

        buffer = io.BytesIO()
        parquet.write_table(table, buffer)
        content = buffer.getvalue()
    return _file(content, f"answer-{question.id}.{ending}")


# Jobs


@get("/jobs", ANALYST)
def jobs_page(request: Request) -> HTMLResponse:
    return _jobs_page(request, {})


def _jobs_page(request: Request, fields: dict[str, str], *, status: int = 200, **values: Any) -> HTMLResponse:
    desk, images = _desk(request), any(one.images for one in _desk(request).each())
    blank = {"kind": "train", "grant": "", "target": "", "model": "boosted", "epsilon": "", "rows": "1000"}
    blank |= {"teachers": "100", "leave_out": ""}
    shown = {
        "fields": blank | fields,
        "allocations": _spendable(request),
        "columns": {one.name: list(one.policy.columns) for one in desk.tables()},
        "images": images,
        "kinds": jobs.KINDS if images else jobs.OF_TABLES,
        "models": jobs.MODELS,
        "jobs": jobs.of_team(desk, _me(request).team),
        "price": None,
        "refusal": None,
    }
    return render(request, "jobs.html", status=status, **(shown | values))


@post("/jobs", ANALYST)
def price_or_start(request: Request, fields: Fields) -> Response:
    """Show the price, or start the job that was priced, as the button says."""
    desk, me, grant = _desk(request), _me(request), _whole(fields, "grant", 0)
    dataset, kind = _chosen_dataset(desk, me, grant), fields.get("kind", "")
    left_out = (part.strip() for part in fields.get("leave_out", "").split(","))
    try:
        job = jobs.Job(
            kind=kind,
            epsilon=0.0 if kind == "report" else _number(fields, "epsilon"),
            target=fields.get("target") or None,
            model=fields.get("model") or "boosted",
            rows=_whole(fields, "rows", 1000),
            teachers=_whole(fields, "teachers", 100),
            leave_out=tuple(name for name in left_out if name),
        )
        with effort(request):
            if fields.get("action") == "start":
                return _go(f"/jobs/{jobs.start(desk, me, dataset, job, grant)}")
            price = jobs.price(desk, me, dataset, job, grant)
        return _jobs_page(request, fields, price=price)
    except SfumatoError as error:
        # without the dashes of a command's options: the form's fields have their names
        said = re.sub(r"--([a-z][a-z-]*)", lambda found: f'"{found[1].replace("-", " ")}"', str(error))
        status = 409 if isinstance(error, BudgetExceeded) else 422
        return _jobs_page(request, fields, status=status, refusal=said)


@get("/jobs/{number}", ANALYST)
def job(request: Request, number: Number) -> HTMLResponse:
    found = _job(request, number)
    return render(request, "job.html", job=found, going=found.state in jobs.GOING)


def _job(request: Request, number: int) -> Any:
    found = jobs.one_of_team(_desk(request), _me(request).team, number)
    if found is None:
        raise Stopped(404, "there is no such job of your team")
    return found


@post("/jobs/{number}/cancel", ANALYST)
def cancel(request: Request, number: Number) -> Response:
    jobs.cancel(_desk(request), _me(request), number)
    return _go(f"/jobs/{number}")


@get("/jobs/{number}/files/{place}", ANALYST)
def file(request: Request, number: Number, place: Number) -> Response:
    """Send a released file, by its number in the list: no name of a file comes from outside."""
    found = _job(request, number)
    names = (found.result or {}).get("files", [])
    if place > len(names):
        raise Stopped(404, "there is no such file")
    path = _desk(request).settings.runs / found.folder / names[place - 1]
    return _file(path.read_bytes(), path.name)


# Requests, allocations and proposals


@get("/requests", OFFICER, ANALYST)
def requests_page(request: Request) -> HTMLResponse:
    desk, me = _desk(request), _me(request)
    officer, proposals = me.role is OFFICER, decisions.proposals(desk)
    team = None if officer else me.team
    held = [
        (one, asking.allocated_to(desk.dataset(one.dataset), me, one)) for one in grants.of_team(desk, team)
    ]
    return render(
        request,
        "requests.html",
        requests=decisions.requests(desk, team),
        allocations=[(one, share.epsilon_spent, share.epsilon_left) for one, share in held],
        tables=[one.name for one in desk.each()],
        periods=list(PERIODS),
        officer=officer,
        proposals=proposals if officer else [],
        seconded={one["words"]["request"]: one for one in proposals if one["act"] == "approve"},
        unclaimed={one.name: one.ledger.state.left() for one in desk.each()} if officer else {},
        four_eyes=[one.name for one in desk.each() if desk.four_eyes(one.name)],
    )


def _wanted(fields: dict[str, str], team: str) -> Wanted:
    return Wanted(
        team=team,
        purpose=checked_line("purpose", fields.get("purpose") or "questions", longest=80),
        epsilon=_number(fields, "epsilon"),
        period=fields.get("period") or "once",
        periods=_whole(fields, "periods", 1),
    )


@post("/requests", ANALYST)
def ask_for_more(request: Request, fields: Fields) -> Response:
    desk, me = _desk(request), _me(request)
    dataset, reason = desk.dataset(fields.get("table") or None), fields.get("reason", "")
    grant = _whole(fields, "grant", 0) or None
    decisions.request(desk, me, dataset, _wanted(fields, me.team), reason=reason, grant=grant)
    return _go("/requests")


@post("/requests/{number}/approve", OFFICER, act="approve")
def approve(request: Request, number: Number) -> Response:
    with _desk(request).database.read() as connection:
        dataset = decisions.waiting_request(connection, number).dataset
    return take(request, {"dataset": dataset, "request": number}, then="/requests")


@post("/requests/{number}/decline", OFFICER, alone="spends nothing")
def decline(request: Request, number: Number) -> Response:
    decisions.decline(_desk(request), _me(request), number)
    return _go("/requests")


@post("/allocations", OFFICER, act="aside")
def set_aside(request: Request, fields: Fields) -> Response:
    """Set an allocation aside that was not requested."""
    dataset = _desk(request).dataset(fields.get("table") or None)
    words = {"wanted": asdict(_wanted(fields, fields.get("team", ""))), "dataset": dataset.name}
    reason = checked_line("reason", fields.get("reason", ""))
    return take(request, {**words, "reason": reason}, then="/requests")


@post("/proposals/{number}/confirm", OFFICER, alone="is the second officer of an act")
def confirm(request: Request, number: Number, fields: Fields) -> Response:
    with effort(request):
        found = decisions.confirm(_desk(request), _me(request), number, fields.get("digest", ""))
    return _after(request, found, then="/requests#proposals")


@post("/proposals/{number}/withdraw", OFFICER, alone="spends nothing")
def withdraw(request: Request, number: Number) -> Response:
    decisions.withdraw(_desk(request), number)
    return _go("/requests#proposals")


# Accounts. Officers are made, and get new passwords, at the command line only: one of them could else be two.


@get("/users", OFFICER)
def users(request: Request) -> HTMLResponse:
    desk, roles = _desk(request), [ANALYST, READER]
    people, eyes = accounts.people(desk), desk.four_eyes(None)
    return render(request, "users.html", people=people, roles=roles, four_eyes=eyes)


@post("/users", OFFICER, act="add")
def add_user(request: Request, fields: Fields) -> Response:
    name = checked_name(fields.get("name", ""))
    team = checked_name(fields.get("team") or name, "team")
    return take(request, {"name": name, "role": fields.get("role", ""), "team": team}, then="/users")


@post("/users/{number}/close", OFFICER, alone="takes a budget out of hands, and may be urgent")
def close_user(request: Request, number: Number) -> Response:
    with _desk(request).database.write() as connection:
        accounts.of_no_officer(connection, number)
        accounts.close(connection, number)
    return _go("/users")


@post("/users/{number}/open", OFFICER, act="open")
def open_user(request: Request, number: Number) -> Response:
    return take(request, {"account": number}, then="/users")


@post("/users/{number}/password", OFFICER, act="password")
def new_password(request: Request, number: Number) -> Response:
    return take(request, {"account": number}, then="/users")


# Ledger, trail, statements, opinions, public facts


@get("/ledger", OFFICER)
def ledger(request: Request) -> HTMLResponse:
    desk = _desk(request)
    shown: dict[str, Any] = {"of_a_share": OF_A_SHARE, "paces": desk.pace.all(), "failed": jobs.failed(desk)}
    return render(request, "ledger.html", ledgers=[_ledger(one) for one in desk.each()], **shown)


def _ledger(dataset: Dataset) -> dict[str, Any]:
    book = dataset.ledger
    charges, state, head = dataset.charges()
    drawn = charges[:: 1 + len(charges) // MOST_POINTS]
    return {
        "name": dataset.name,
        "budget": book.budget,
        "balance": book.balance_of(state),
        "broken": None if book.exceeded is None else promise(book),
        "head": head,
        "points": [(datetime.fromisoformat(one.time).timestamp(), one.epsilon_spent) for one in drawn],
        "shares": balances(state) if state.shares else {},
        "charges": [charge_in_words(book, one) for one in reversed(charges[-NEWEST:])],
        "count": len(charges),
    }


@post("/pace/reset", OFFICER, act="reset")
def reset(request: Request) -> Response:
    return take(request, {}, then="/ledger")


@get("/trail", OFFICER)
def trail_page(request: Request, before: Annotated[int | None, Query(ge=1, lt=2**31)] = None) -> HTMLResponse:
    found = trail.newest(_desk(request).database, LINES, before=before)
    older = found[-1].sequence if len(found) == LINES else None
    return render(request, "trail.html", entries=found, older=older)


@get("/statements", OFFICER, READER)
def statements(request: Request) -> HTMLResponse:
    desk = _desk(request)
    with effort(request):
        made = [(one.name, Statement.of(one.ledger, holder=desk.settings.name)) for one in desk.each()]
    shown = [(name, statement.data, checklist(statement)) for name, statement in made]
    return render(request, "statements.html", statements=shown)


@get("/statements/{dataset}.{ending}", OFFICER, READER)
def statement(
    request: Request, dataset: str, ending: Annotated[str, InPath(pattern="^(html|pdf|json|yaml)$")]
) -> Response:
    """Send a statement, signed where SFUMATO_KEY names the desk's key; .yaml is the registry's entry."""
    desk = _desk(request)
    with effort(request):
        book, key = desk.dataset(dataset).ledger, environment_key()
        made = Statement.of(book, holder=desk.settings.name, key=key)
    if ending == "yaml":
        entry = yaml.safe_dump(registry_entry(made), sort_keys=False, allow_unicode=True)
        return _file(entry.encode(), "registry.yaml")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, f"statement.{ending}")
        write_statement(made, place, checklist(made))
        return _file(place.read_bytes(), place.name)


@get("/opinion", OFFICER)
def opinion_page(request: Request) -> HTMLResponse:
    return _opinion(request, {})


def _opinion(
    request: Request,
    fields: dict[str, str],
    *,
    found: Opinion | None = None,
    refusal: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    blank = {"settings": "", "purpose": "", "form": "toml"}
    typed: dict[str, Any] = {name: fields.get(name, value) for name, value in blank.items()}
    shown = {"found": found, "refusal": refusal, "datasets": [one.name for one in _desk(request).each()]}
    return render(request, "opinion.html", status=status, **(typed | shown))


@post("/opinion", OFFICER, act="record")
def opinion(request: Request, fields: Fields) -> Response:
    """Price the settings of another tool's run; on request, put it on record in a ledger."""
    settings, form = fields.get("settings", "")[:LARGEST_SETTINGS], fields.get("form", "toml")
    try:
        with effort(request):
            found = opinion_of(parse_settings(settings, form))
    except SfumatoError as error:
        return _opinion(request, fields, refusal=str(error), status=422)
    if fields.get("action") != "record":
        return _opinion(request, fields, found=found)
    purpose = checked_line("purpose", fields.get("purpose", ""))
    words = {"dataset": _desk(request).dataset(fields.get("dataset")).name, "purpose": purpose}
    try:
        return take(request, {**words, "settings": settings, "form": form}, then="/ledger")
    except SfumatoError as error:
        return _opinion(request, fields, found=found, refusal=str(error), status=409)


@get("/public", None)
def public(request: Request) -> HTMLResponse:
    """Show the promise, the number of releases and the heads of the ledgers.

    From even odds, ε-DP moves a guess about one unit to at most 1 / (1 + e^-ε) (Wasserman and Zhou 2010).
    """
    facts = public_facts(_desk(request))["datasets"]
    spent = facts[0]["epsilon_spent"]
    sure = 1.0 / (1.0 + math.exp(-max(facts[0]["epsilon"], math.inf if spent is None else spent)))
    return render(request, "public.html", datasets=facts, sure=sure)
