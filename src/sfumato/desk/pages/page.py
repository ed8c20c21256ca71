"""What every page shares: its place in the menu, the frame around it, and the fields of its forms."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path as File
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import Row

from sfumato.desk import acts
from sfumato.desk.accounts import Account, Role
from sfumato.desk.acts import Outcome, Words
from sfumato.desk.desk import Desk
from sfumato.desk.gate import access_of, effort
from sfumato.errors import InvalidInput

TEMPLATES = File(__file__).parents[1] / "templates"
Number = Annotated[int, Path(ge=1, le=2**31 - 1)]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A file of pages: its routes, and where the menu shows it.

    Args:
        router: The routes, each marked with who may use it.
        title: In the menu; None for no entry.
        path: Where the entry leads.
        roles: Who sees the entry.
        order: Its place in the menu.
    """

    router: APIRouter
    title: str | None = None
    path: str = ""
    roles: tuple[Role, ...] = ()
    order: int = 100


async def _fields(request: Request) -> dict[str, str]:
    """The fields of a form, as plain text."""
    found: dict[str, str] = request.state.form
    for name, value in found.items():
        if "\0" in value:
            raise InvalidInput(f"expected {name[:40]!r} to be text")
    return {name: value.strip() for name, value in found.items()}


Fields = Annotated[dict[str, str], Depends(_fields)]


def number(fields: dict[str, str], name: str) -> float:
    """A field that must hold a number."""
    try:
        return float(fields.get(name, ""))
    except ValueError:
        raise InvalidInput(f"expected {name} to be a number, such as 0.1") from None


def whole(fields: dict[str, str], name: str, otherwise: int | None = None) -> int:
    """A field that must hold a whole number."""
    text = fields.get(name, "")
    if not text and otherwise is not None:
        return otherwise
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidInput(f"expected {name} to be a whole number")
    return int(text)


def desk_of(request: Request) -> Desk:
    found: Desk = request.app.state.desk
    return found


def account_of(request: Request) -> Account:
    found: Account = request.state.account
    return found


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
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
    """A page in its frame; whatever is put into it is shown and never run."""
    from sfumato.desk.pages import menu

    account: Account | None = getattr(request.state, "account", None)
    session = getattr(request.state, "session", None)
    frame = {
        "desk": desk_of(request).settings.name,
        "account": account,
        "csrf": None if session is None else session.csrf,
        "menu": menu(None if account is None else account.role),
        "here": request.url.path,
        "tick": desk_of(request).settings.tick,
    }
    text = _environment().get_template(template).render(frame | values)
    return HTMLResponse(text, status_code=status)


def take(request: Request, words: Words, *, then: str) -> Response:
    """Do the act that the route is marked with, or propose it; then to a page, or to what is told once."""
    act = access_of(request.scope["route"]).act
    assert act is not None
    with effort(request):
        found = acts.submit(desk_of(request), account_of(request), act, words)
    return after(request, found, then="/requests#proposals" if found.waits else then)


def after(request: Request, found: Outcome, *, then: str) -> Response:
    return go(then) if found.told is None else render(request, "told.html", told=found.told, waits=found.waits)


def go(path: str) -> RedirectResponse:
    """To another page, after a form was taken."""
    return RedirectResponse(path, status_code=303)


def plain(row: Row[Any]) -> dict[str, Any]:
    return dict(row._mapping)
