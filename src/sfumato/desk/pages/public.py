"""What anyone may see: the promise, how much was released, and the heads of the ledgers."""

from __future__ import annotations

import math
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from sfumato.desk.drawing import share_bar
from sfumato.desk.gate import everybody
from sfumato.desk.pages.page import Page, desk_of, render
from sfumato.desk.shown import public_facts

router = APIRouter()
PAGE = Page(router=router, title="Public", path="/public", order=90)


@router.get("/public")
@everybody()
def page(request: Request) -> HTMLResponse:
    facts = public_facts(desk_of(request))["datasets"]
    bars = {
        one["name"]: share_bar(_spent(one), one["epsilon"], title=f"ε spent of {one['name']}") for one in facts
    }
    return render(
        request,
        "public.html",
        datasets=facts,
        bars=bars,
        sure=_surest(max(facts[0]["epsilon"], _spent(facts[0]))),
    )


def _spent(facts: dict[str, Any]) -> float:
    spent = facts["epsilon_spent"]
    return math.inf if spent is None else float(spent)


def _surest(epsilon: float) -> float:
    """From even odds, how sure ε-DP lets anybody become (Wasserman and Zhou 2010)."""
    return 1.0 / (1.0 + math.exp(-epsilon))
