"""Statements, the registry's entry and the checklist of hazards."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import yaml
from fastapi import APIRouter, Request
from fastapi import Path as InPath
from fastapi.responses import HTMLResponse, Response

from sfumato.desk.accounts import Role
from sfumato.desk.gate import allow, effort
from sfumato.desk.pages.page import Page, desk_of, render
from sfumato.governance import Statement, checklist, registry_entry, write_statement
from sfumato.ledger.signing import environment_key

router = APIRouter()
PAGE = Page(router=router, title="Statements", path="/statements", roles=(Role.OFFICER, Role.READER), order=40)
ENDINGS = {
    "html": "text/html; charset=utf-8",
    "pdf": "application/pdf",
    "json": "application/json",
    "yaml": "application/yaml; charset=utf-8",
}
Ending = Annotated[str, InPath(pattern="^(html|pdf|json|yaml)$")]


@router.get("/statements")
@allow(Role.OFFICER, Role.READER)
def page(request: Request) -> HTMLResponse:
    desk = desk_of(request)
    with effort(request):
        made = [(one.name, Statement.of(one.ledger, holder=desk.settings.name)) for one in desk.each()]
    shown = [(name, statement.data, checklist(statement)) for name, statement in made]
    return render(request, "statements.html", statements=shown)


@router.get("/statements/{dataset}.{ending}")
@allow(Role.OFFICER, Role.READER)
def download(request: Request, dataset: str, ending: Ending) -> Response:
    """A signed statement where SFUMATO_KEY names the desk's key; .yaml is the registry's entry."""
    desk = desk_of(request)
    with effort(request):
        book, key = desk.dataset(dataset).ledger, environment_key()
        statement = Statement.of(book, holder=desk.settings.name, key=key)
    if ending == "yaml":
        content = yaml.safe_dump(registry_entry(statement), sort_keys=False, allow_unicode=True).encode()
    else:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder, f"statement.{ending}")
            write_statement(statement, place, checklist(statement))
            content = place.read_bytes()
    name = f"statement.{ending}" if ending != "yaml" else "registry.yaml"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=ENDINGS[ending], headers=headers)
