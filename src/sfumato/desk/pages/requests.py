"""Allocations, requests for more, and an officer's one click."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from sfumato.desk import approvals, asking, grants
from sfumato.desk.accounts import Role, checked_line, checked_name
from sfumato.desk.drawing import share_bar
from sfumato.desk.gate import allow
from sfumato.desk.grants import Wanted
from sfumato.desk.pages.page import Fields, Number, Page, account_of, desk_of, go, number, render, whole
from sfumato.desk.periods import PERIODS

router = APIRouter()
PAGE = Page(router=router, title="Requests", path="/requests", roles=(Role.OFFICER, Role.ANALYST), order=20)


@router.get("/requests")
@allow(Role.OFFICER, Role.ANALYST)
def page(request: Request) -> HTMLResponse:
    desk, me = desk_of(request), account_of(request)
    team = None if me.role is Role.OFFICER else me.team
    with desk.database.read() as connection:
        found = grants.of_team(connection, team)
    lines = []
    for one in found:
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
        officer=me.role is Role.OFFICER,
        unclaimed={one.name: one.ledger.state.left() for one in desk.each()} if me.role is Role.OFFICER else {},
        four_eyes=[one.name for one in desk.each() if one.policy.four_eyes],
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
@allow(Role.OFFICER)
def approve(request: Request, number: Number) -> Response:
    approvals.approve(desk_of(request), account_of(request), number)
    return go("/requests")


@router.post("/requests/{number}/decline")
@allow(Role.OFFICER)
def decline(request: Request, number: Number) -> Response:
    approvals.decline(desk_of(request), account_of(request), number)
    return go("/requests")


@router.post("/allocations")
@allow(Role.OFFICER)
def set_aside(request: Request, fields: Fields) -> Response:
    desk = desk_of(request)
    dataset, wanted = desk.dataset(fields.get("table") or None), _wanted(fields, fields.get("team", ""))
    approvals.set_aside(desk, account_of(request), dataset, wanted, reason=fields.get("reason", ""))
    return go("/requests")
