"""The live ledger and the trail, for officers; and the page that anyone may see."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from sfumato.desk import jobs, trail
from sfumato.desk.accounts import Role
from sfumato.desk.datasets import Dataset
from sfumato.desk.drawing import share_bar, spent_over_time
from sfumato.desk.gate import allow
from sfumato.desk.pages.page import Page, desk_of, render, take
from sfumato.desk.shown import charge_in_words, promise
from sfumato.ledger.statement import OF_A_SHARE, balances

router = APIRouter()
PAGE = Page(router=router, title="Ledger", path="/ledger", roles=(Role.OFFICER,), order=30)
NEWEST, MOST_POINTS, LINES = 100, 500, 200


@router.get("/ledger")
@allow(Role.OFFICER)
def page(request: Request) -> HTMLResponse:
    desk = desk_of(request)
    return render(
        request,
        "ledger.html",
        ledgers=[_shown(one) for one in desk.each()],
        of_a_share=OF_A_SHARE,
        paces=desk.pace.all(),
        failed=jobs.failed(desk),
    )


def _shown(dataset: Dataset) -> dict[str, Any]:
    ledger, budget = dataset.ledger, dataset.ledger.budget
    charges, state, head = dataset.charges()
    drawn = charges[:: 1 + len(charges) // MOST_POINTS]
    points = [(datetime.fromisoformat(one.time).timestamp(), one.epsilon_spent) for one in drawn]
    shares = {} if not state.shares else balances(state)
    return {
        "name": dataset.name,
        "budget": budget,
        "balance": ledger.balance_of(state),
        "broken": None if ledger.exceeded is None else promise(ledger),
        "head": head,
        "chart": spent_over_time(points, budget.epsilon, title=f"ε spent of {dataset.name} over time"),
        "shares": [
            (name, one, share_bar(one.spent, one.total, title=f"{name}: {one.spent:.3g} of {one.total:g}"))
            for name, one in shares.items()
        ],
        "charges": [charge_in_words(ledger, one) for one in reversed(charges[-NEWEST:])],
        "count": len(charges),
    }


@router.post("/pace/reset")
@allow(Role.OFFICER, act="reset")
def reset(request: Request) -> Response:
    return take(request, {}, then="/ledger")


@router.get("/trail")
@allow(Role.OFFICER)
def show_trail(request: Request, before: Annotated[int | None, Query(ge=1, lt=2**31)] = None) -> HTMLResponse:
    found = trail.newest(desk_of(request).database, LINES, before=before)
    older = found[-1].sequence if len(found) == LINES else None
    return render(request, "trail.html", entries=found, older=older)
