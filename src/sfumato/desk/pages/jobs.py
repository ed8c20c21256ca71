"""Jobs: the price, then the start, then what came of it."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from sfumato.desk import grants, jobs
from sfumato.desk.accounts import Role
from sfumato.desk.datasets import Dataset
from sfumato.desk.desk import Desk
from sfumato.desk.gate import Stopped, allow, effort
from sfumato.desk.jobs import Job
from sfumato.desk.pages.page import Fields, Number, Page, account_of, desk_of, go, number, render, whole
from sfumato.errors import BudgetExceeded, SfumatoError

router = APIRouter()
PAGE = Page(router=router, title="Jobs", path="/jobs", roles=(Role.ANALYST,), order=15)


@router.get("/jobs")
@allow(Role.ANALYST)
def page(request: Request) -> HTMLResponse:
    return _page(request, {})


def _page(request: Request, fields: dict[str, str], *, status: int = 200, **values: Any) -> HTMLResponse:
    desk, me = desk_of(request), account_of(request)
    mine = [one for one in grants.of_team(desk, me.team) if one.shares]
    blank = {"kind": "train", "grant": "", "target": "", "model": "boosted", "epsilon": "", "rows": "1000"}
    blank |= {"teachers": "100", "leave_out": ""}
    shown = {
        "fields": blank | fields,
        "allocations": mine,
        "columns": {one.name: list(one.policy.columns) for one in desk.tables()},
        "images": any(one.images for one in desk.each()),
        "kinds": jobs.KINDS if any(one.images for one in desk.each()) else jobs.OF_TABLES,
        "models": jobs.MODELS,
        "jobs": jobs.of_team(desk, me.team),
        "price": None,
        "refusal": None,
    }
    return render(request, "jobs.html", status=status, **(shown | values))


def _job(fields: dict[str, str]) -> Job:
    kind = fields.get("kind", "")
    return Job(
        kind=kind,
        epsilon=0.0 if kind == "report" else number(fields, "epsilon"),
        target=fields.get("target") or None,
        model=fields.get("model") or "boosted",
        rows=whole(fields, "rows", 1000),
        teachers=whole(fields, "teachers", 100),
        leave_out=tuple(name for part in fields.get("leave_out", "").split(",") if (name := part.strip())),
    )


def _dataset(desk: Desk, team: str, fields: dict[str, str]) -> tuple[Dataset, int]:
    """The data set of the chosen allocation."""
    grant = whole(fields, "grant", 0)
    mine = {one.id: one.dataset for one in grants.of_team(desk, team)}
    if grant not in mine:
        raise Stopped(403, "expected an allocation of your team; request one from an officer")
    return desk.dataset(mine[grant]), grant


@router.post("/jobs")
@allow(Role.ANALYST)
def price_or_start(request: Request, fields: Fields) -> Response:
    """Show the price, or start what was priced, as the button says."""
    desk, me = desk_of(request), account_of(request)
    dataset, grant = _dataset(desk, me.team, fields)
    try:
        job = _job(fields)
        with effort(request):
            if fields.get("action") == "start":
                return go(f"/jobs/{jobs.start(desk, me, dataset, job, grant)}")
            price = jobs.price(desk, me, dataset, job, grant)
        return _page(request, fields, price=price)
    except BudgetExceeded as error:
        return _page(request, fields, status=409, refusal=_said(error))
    except SfumatoError as error:
        return _page(request, fields, status=422, refusal=_said(error))


def _said(error: SfumatoError) -> str:
    """A refusal, without the dashes of a command's options: the form's fields have their names."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: f'"{found[1].replace("-", " ")}"', str(error))


@router.get("/jobs/{number}")
@allow(Role.ANALYST)
def show(request: Request, number: Number) -> HTMLResponse:
    job = _mine(request, number)
    going = job.state in (jobs.QUEUED, jobs.RUNNING, jobs.CANCELLING)
    return render(request, "job.html", job=job, going=going)


def _mine(request: Request, number: int) -> Any:
    job = jobs.one_of_team(desk_of(request), account_of(request).team, number)
    if job is None:
        raise Stopped(404, "there is no such job of your team")
    return job


@router.post("/jobs/{number}/cancel")
@allow(Role.ANALYST)
def cancel(request: Request, number: Number) -> Response:
    jobs.cancel(desk_of(request), account_of(request), number)
    return go(f"/jobs/{number}")


@router.get("/jobs/{number}/files/{place}")
@allow(Role.ANALYST)
def file(request: Request, number: Number, place: Number) -> Response:
    """A released file, by its number in the list: no name of a file comes from outside."""
    job = _mine(request, number)
    names = (job.result or {}).get("files", [])
    if place > len(names):
        raise Stopped(404, "there is no such file")
    path = desk_of(request).settings.runs / jobs.folder_of(job) / names[place - 1]
    header = {"content-disposition": f'attachment; filename="{path.name}"'}
    return Response(path.read_bytes(), media_type="application/octet-stream", headers=header)
