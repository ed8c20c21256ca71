"""Asking: what it would be like, the answer with a picture, what the team asked before, and what it saved."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select

from sfumato.desk import asking, grants
from sfumato.desk import database as db
from sfumato.desk.accounts import Account, Role, checked_line
from sfumato.desk.asking import Question
from sfumato.desk.desk import Desk
from sfumato.desk.drawing import answer_chart
from sfumato.desk.gate import Stopped, allow, effort
from sfumato.desk.pages.page import Fields, Number, Page, account_of, desk_of, go, number, render, whole
from sfumato.desk.shown import policy_in_words
from sfumato.display import csv_bytes
from sfumato.errors import BudgetExceeded, Refused, SfumatoError
from sfumato.query import Answer, QueryRefused

router = APIRouter()
PAGE = Page(router=router, title="Ask", path="/ask", roles=(Role.ANALYST,), order=10)
MOST_SHOWN = 200
"""Rows of an answer that its page shows; all of them are in the files."""
ENDINGS = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}


@router.get("/ask")
@allow(Role.ANALYST)
def page(request: Request, saved: int | None = None) -> HTMLResponse:
    return _page(request, _begun(desk_of(request), account_of(request), saved))


def _begun(desk: Desk, account: Account, number: int | None) -> dict[str, str]:
    """What the form begins with: a saved question of the team, or nothing."""
    if number is None or not 0 < number < 2**31:
        return {}
    with desk.database.read() as connection:
        row = connection.execute(
            select(db.saved).where(db.saved.c.id == number, db.saved.c.team == account.team)
        ).first()
    return {} if row is None else {"sql": row.sql, "dataset": row.dataset, "title": row.title}


def _page(request: Request, fields: dict[str, str], *, status: int = 200, **values: Any) -> HTMLResponse:
    desk, account = desk_of(request), account_of(request)
    mine = [one for one in grants.of_team(desk, account.team) if one.shares]
    mine = [one for one in mine if not desk.dataset(one.dataset).images]
    with desk.database.read() as connection:
        kept = connection.execute(select(db.saved).where(db.saved.c.team == account.team)).all()
    left = {one.id: asking.allocated_to(desk.dataset(one.dataset), account, one).epsilon_left for one in mine}
    shown = {
        "fields": {"sql": "", "epsilon": "", "title": "", "grant": "", **fields},
        "allocations": [(one, left[one.id]) for one in mine],
        "tables": {one.name: policy_in_words(one.policy) for one in desk.tables()},
        "history": asking.history(desk, account),
        "saved": kept,
        "expected": None,
        "refusal": None,
        "nearest": None,
        "over": False,
    }
    return render(request, "ask.html", status=status, **(shown | values))


def _question(fields: dict[str, str]) -> Question:
    return Question(
        sql=fields.get("sql", ""), epsilon=number(fields, "epsilon"), grant=whole(fields, "grant", 0)
    )


@router.post("/ask")
@allow(Role.ANALYST)
async def ask(request: Request, fields: Fields) -> Response:
    """Show the expected error, ask, or save, as the button says; a refusal keeps what was typed."""
    desk, account = desk_of(request), account_of(request)
    try:
        question = _question(fields)
        dataset = desk.dataset(await asyncio.to_thread(_dataset_of, desk, account, question))
        if fields.get("action") == "ask":
            found, _ = await asking.ask(desk, account, dataset, question)
            return go(f"/answers/{found}")
        expected = await asking.expect(desk, account, dataset, question)
    except QueryRefused as error:
        return await asyncio.to_thread(
            _page, request, fields, status=422, refusal=error.reason, nearest=error.nearest
        )
    except BudgetExceeded as error:
        return await asyncio.to_thread(_page, request, fields, status=409, refusal=str(error), over=True)
    except Refused as error:
        return await asyncio.to_thread(_page, request, fields, status=403, refusal=str(error), over=True)
    except SfumatoError as error:
        return await asyncio.to_thread(_page, request, fields, status=422, refusal=str(error))
    if fields.get("action") == "save":
        await asyncio.to_thread(_save, desk, account, dataset.name, fields)
        return go("/ask#saved")
    return await asyncio.to_thread(_page, request, fields, expected=expected)


def _dataset_of(desk: Desk, account: Account, question: Question) -> str | None:
    """The data set of the chosen allocation."""
    mine = {one.id: one.dataset for one in grants.of_team(desk, account.team)}
    if question.grant not in mine:
        raise asking.NoAllocation("expected an allocation of your team; request one from an officer")
    return mine[question.grant]


def _save(desk: Desk, account: Account, dataset: str, fields: dict[str, str]) -> None:
    title = checked_line("title", fields.get("title") or fields["sql"][:60], longest=100)
    values = {"account": account.id, "team": account.team, "dataset": dataset, "title": title}
    with desk.database.write() as connection:
        connection.execute(db.saved.insert().values(**values, sql=fields["sql"]))


@router.post("/saved/{number}/delete")
@allow(Role.ANALYST)
def forget(request: Request, number: Number) -> Response:
    mine = (db.saved.c.id == number) & (db.saved.c.team == account_of(request).team)
    with desk_of(request).database.write() as connection:
        connection.execute(db.saved.delete().where(mine))
    return go("/ask#saved")


@router.get("/answers/{number}")
@allow(Role.ANALYST)
async def answer(request: Request, number: Number) -> Response:
    return await _shown(request, number, _answer)


async def _shown(request: Request, number: int, show: Callable[[Request, Any, Answer], Response]) -> Response:
    """An answer of the team, in the account's turn and within what it may have computed."""

    def work() -> Response:
        with effort(request):
            found = asking.answer_of(desk_of(request), account_of(request), number)
            if found is None:
                raise Stopped(404, "there is no such answer of your team")
            return show(request, *found)

    return await desk_of(request).showing.run(f"account {account_of(request).id}", work)


def _answer(request: Request, question: Any, given: Answer) -> Response:
    measured = [any(row[place] is not None for row in given.intervals) for place in range(len(given.columns))]
    values = {"question": question, "answer": given, "measured": measured, "chart": answer_chart(given)}
    return render(request, "answer.html", **values, rows=given.rows[:MOST_SHOWN])


@router.get("/answers/{number}/answer.{ending}")
@allow(Role.ANALYST)
async def export(request: Request, number: Number, ending: Annotated[str, Path(max_length=10)]) -> Response:
    if ending not in ENDINGS:
        raise Stopped(404, "there is no such answer of your team")
    return await _shown(request, number, partial(_exported, ending))


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
    name = f'attachment; filename="answer-{question.id}.{ending}"'
    return Response(content, media_type=ENDINGS[ending], headers={"content-disposition": name})
