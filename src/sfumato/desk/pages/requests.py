"""Allocations, requests for more, and an officer's one click."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from sfumato.desk import acts, approvals, asking, grants
from sfumato.desk.accounts import Role, checked_line, checked_name
from sfumato.desk.drawing import share_bar
from sfumato.desk.gate import allow, effort
from sfumato.desk.grants import Wanted
from sfumato.desk.pages.page import (
    Fields,
    Number,
    Page,
    account_of,
    after,
    desk_of,
    go,
    number,
    render,
    take,
    whole,
)
from sfumato.desk.periods import PERIODS

router = APIRouter()
PAGE = Page(router=router, title="Requests", path="/requests", roles=(Role.OFFICER, Role.ANALYST), order=20)


@router.get("/requests")
@allow(Role.OFFICER, Role.ANALYST)
def page(request: Request) -> HTMLResponse:
    desk, me = desk_of(request), account_of(request)
    team = None if me.role is Role.OFFICER else me.team
    officer, proposals = me.role is Role.OFFICER, acts.waiting(desk)
    lines = []
    for one in grants.of_team(desk, team):
        allocated = asking.allocated_to(desk.dataset(one.dataset), me, one)
        spent, left = allocated.epsilon_spent, allocated.epsilon_left
        lines.append(
            (one, spent, left, share_bar(spent, spent + left, title=f"spent {spent:.3g}, left {left:.3g}"))
        )
    return render(
        request,
        "requests.html",
        requests=approvals.waiting(desk, team),
        allocations=lines,
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
        team=checked_name(team, "team"),
        purpose=checked_line("purpose", fields.get("purpose") or "questions", longest=80),
        epsilon=number(fields, "epsilon"),
        period=fields.get("period") or "once",
        periods=whole(fields, "periods", 1),
    )


@router.post("/requests")
@allow(Role.ANALYST)
def ask_for_more(request: Request, fields: Fields) -> Response:
    desk, me = desk_of(request), account_of(request)
    dataset = desk.dataset(fields.get("table") or None)
    grant = whole(fields, "grant", 0) or None
    reason = fields.get("reason", "")
    approvals.request(desk, me, dataset, _wanted(fields, me.team), reason=reason, grant=grant)
    return go("/requests")


@router.post("/requests/{number}/approve")
@allow(Role.OFFICER, act="approve")
def approve(request: Request, number: Number) -> Response:
    with desk_of(request).database.read() as connection:
        dataset = approvals.waiting_request(connection, number).dataset
    return take(request, {"dataset": dataset, "request": number}, then="/requests")


@router.post("/requests/{number}/decline")
@allow(Role.OFFICER, alone="spends nothing")
def decline(request: Request, number: Number) -> Response:
    approvals.decline(desk_of(request), account_of(request), number)
    return go("/requests")


@router.post("/allocations")
@allow(Role.OFFICER, act="aside")
def set_aside(request: Request, fields: Fields) -> Response:
    """Set an allocation aside that was not requested."""
    dataset = desk_of(request).dataset(fields.get("table") or None)
    wanted = asdict(_wanted(fields, fields.get("team", "")))
    words = {
        "dataset": dataset.name,
        "wanted": wanted,
        "reason": checked_line("reason", fields.get("reason", "")),
    }
    return take(request, words, then="/requests")


@router.post("/proposals/{number}/confirm")
@allow(Role.OFFICER, alone="is the second officer of an act")
def confirm(request: Request, number: Number, fields: Fields) -> Response:
    desk, me = desk_of(request), account_of(request)
    with effort(request):
        found = acts.confirm(desk, me, number, fields.get("digest", ""))
    return after(request, found, then="/requests#proposals")


@router.post("/proposals/{number}/withdraw")
@allow(Role.OFFICER, alone="spends nothing")
def withdraw(request: Request, number: Number) -> Response:
    acts.withdraw(desk_of(request), number)
    return go("/requests#proposals")
