"""A second opinion on a run of other software, and its place in a ledger."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from sfumato.desk.accounts import Role, checked_line
from sfumato.desk.gate import allow, effort
from sfumato.desk.pages.page import Fields, Page, desk_of, render, take
from sfumato.errors import SfumatoError
from sfumato.governance import Opinion, opinion_of
from sfumato.governance.settings import parse_settings

router = APIRouter()
PAGE = Page(router=router, title="Opinion", path="/opinion", roles=(Role.OFFICER,), order=45)
LARGEST = 20_000


@router.get("/opinion")
@allow(Role.OFFICER)
def opinion_page(request: Request) -> HTMLResponse:
    return _opinion(request, {})


@router.post("/opinion")
@allow(Role.OFFICER, act="record")
def opinion(request: Request, fields: Fields) -> Response:
    """Price what was pasted; on request, put it on record in a ledger."""
    try:
        with effort(request):
            found = opinion_of(parse_settings(fields.get("settings", "")[:LARGEST], fields.get("form", "toml")))
    except SfumatoError as error:
        return _opinion(request, fields, refusal=str(error), status=422)
    if fields.get("action") != "record":
        return _opinion(request, fields, found=found)
    words = {"dataset": desk_of(request).dataset(fields.get("dataset")).name}
    words |= {"purpose": checked_line("what was released", fields.get("purpose", ""))}
    words |= {"settings": fields["settings"][:LARGEST], "form": fields.get("form", "toml")}
    try:
        return take(request, words, then="/ledger")
    except SfumatoError as error:
        return _opinion(request, fields, found=found, refusal=str(error), status=409)


def _opinion(
    request: Request,
    fields: dict[str, str],
    *,
    found: Opinion | None = None,
    refusal: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    return render(
        request,
        "opinion.html",
        status=status,
        settings=fields.get("settings", ""),
        form=fields.get("form", "toml"),
        purpose=fields.get("purpose", ""),
        found=found,
        datasets=[one.name for one in desk_of(request).each()],
        refusal=refusal,
    )
