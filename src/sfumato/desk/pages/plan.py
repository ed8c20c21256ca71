"""Planning: releases with sliders, their price together, and one charge for all of them.

The plan is in the address of the page: a bookmark saves it, and a link shows it to somebody else.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from sfumato.desk.accounts import Role, checked_line
from sfumato.desk.datasets import Dataset
from sfumato.desk.desk import Desk
from sfumato.desk.gate import allow, effort
from sfumato.desk.pages.page import Fields, Page, desk_of, render, take
from sfumato.desk.trade_off import trade_off
from sfumato.errors import InvalidInput, Refused, SfumatoError
from sfumato.governance import Plan, PlanPrice
from sfumato.query.names import Names

router = APIRouter()
PAGE = Page(router=router, title="Plan", path="/plan", roles=(Role.OFFICER, Role.ANALYST), order=25)
MOST_LINES = 12
KINDS = ("query", "model", "survey")
"""Those of a table whose policy is known: all that is asked of it is priced as a question."""


def _starts(dataset: Dataset) -> dict[str, dict[str, str]]:
    """The lines to begin with; questions are such that the table answers them."""
    name = dataset.policy.private_names[0]
    policy = dataset.policy.private(name) or dataset.policy
    names = Names(policy=policy, table=policy.table)
    bounded = next((column.name for column in policy.columns.values() if column.bounds is not None), None)
    average = None if bounded is None else names.example_for(bounded)
    lines = {
        "counts": ("query", "a table of counts, monthly for a year", "0.05", "12", names.example_group_by()),
        "average": ("query", "an average, monthly for a year", "0.02", "12", average),
        "query": ("query", "a question", "0.1", "1", names.example()),
        "model": ("model", "a model", "1", "1", "size=60000 batch=600 epochs=10"),
        "survey": ("survey", "a survey", "1", "1", "answers=2 people=1000"),
    }
    fields = ("kind", "name", "epsilon", "times", "details")
    return {
        button: {field: value or "" for field, value in zip(fields, line, strict=True)}
        for button, line in lines.items()
        if line[-1] is not None
    }


@router.get("/plan")
@allow(Role.OFFICER, Role.ANALYST)
def page(request: Request) -> HTMLResponse:
    asked = request.query_params
    lines = _lines(asked)
    dataset = _chosen(desk_of(request), asked.get("dataset"))
    added = _starts(dataset).get(asked.get("add", ""))
    if added is not None and len(lines) < MOST_LINES:
        lines.append(added)
    return _page(request, lines, dataset.name, asked.get("plan", "year"))


def _chosen(desk: Desk, name: str | None) -> Dataset:
    if not name and not desk.tables():
        raise InvalidInput(
            "expected a desk with a table to plan for, got one of images; price a job of them instead"
        )
    return desk.dataset(name) if name else desk.tables()[0]


@router.post("/plan/charge")
@allow(Role.OFFICER, act="charge")
def charge(request: Request, fields: Fields) -> Response:
    """Charge what the page showed, as one."""
    desk = desk_of(request)
    try:
        lines = json.loads(fields.get("lines", ""))
    except (ValueError, RecursionError):
        lines = None
    if not isinstance(lines, list) or not all(_is_line(line) for line in lines):
        raise InvalidInput("expected the plan that the page showed; load the page again")
    dataset, name = (
        desk.dataset(fields.get("dataset")),
        checked_line("name of the plan", fields.get("plan", "")),
    )
    words = {"dataset": dataset.name, "plan": _settings(dataset, name, lines)}
    try:
        return take(request, words, then="/ledger")
    except Refused as error:
        return _page(request, lines, dataset.name, name, refusal=str(error), status=409)


def _page(
    request: Request,
    lines: list[dict[str, str]],
    dataset: str | None,
    name: str,
    *,
    refusal: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    desk, price = desk_of(request), None
    chosen = _chosen(desk, dataset)
    try:
        if lines:
            with effort(request):
                price = _plan(desk, chosen, name, lines).price()
    except SfumatoError as error:
        refusal = refusal or str(error)
    return render(
        request,
        "plan.html",
        status=status,
        lines=lines,
        plan=name,
        kinds=list(KINDS),
        starts={button: line["name"] for button, line in _starts(chosen).items()},
        dataset=chosen.name,
        datasets=[one.name for one in desk.tables()],
        left=chosen.ledger.epsilon_left,
        price=price,
        chart=None if price is None else trade_off(price.attacker),
        saved=json.dumps(lines),
        link=_link(lines, chosen.name, name),
        refusal=refusal,
        most=MOST_LINES,
        cheaper=None if price is None else _cheaper(price),
    )


def _cheaper(price: PlanPrice) -> str:
    if not price.one_by_one > price.together:
        return "as much as one after another"
    return f"{1 - price.together / price.one_by_one:.0%} less than one after another"


def _plan(desk: Desk, dataset: Dataset, name: str, lines: list[dict[str, str]]) -> Plan:
    settings = _settings(dataset, name, lines)
    return Plan.from_settings(settings, policy=lambda asked: desk.dataset(asked).table)


def _settings(dataset: Dataset, name: str, lines: list[dict[str, str]]) -> dict[str, Any]:
    budget = dataset.ledger.budget
    return {
        "name": name[:100] or "plan",
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "unit": budget.unit,
        "relation": str(budget.relation),
        "releases": [_release(line, dataset) for line in lines[:MOST_LINES]],
    }


def _release(line: dict[str, str], dataset: Dataset) -> dict[str, Any]:
    if line["kind"] not in KINDS:
        raise InvalidInput(
            f"expected kind to be one of {', '.join(KINDS)}, got {line['kind'][:40]!r}; plan counts and "
            "averages as a question in SQL"
        )
    release: dict[str, Any] = {"name": line["name"] or line["kind"], "kind": line["kind"]}
    if line["epsilon"]:
        release["epsilon"] = _number(line["epsilon"])
    release["times"] = _number(line["times"] or "1")
    if line["kind"] == "query":
        return {**release, "sql": line["details"], "policy": dataset.name}
    for word in line["details"].replace(",", " ").split():
        key, equals, value = word.partition("=")
        if not equals:
            raise InvalidInput(f"expected details as name=value, such as people=1000, got {word[:40]!r}")
        release[key[:40]] = _number(value)
    return release


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text[:100]


_FIELDS = ("name", "kind", "epsilon", "times", "details")


def _is_line(line: object) -> bool:
    return isinstance(line, dict) and all(isinstance(line.get(name), str) for name in _FIELDS)


def _lines(asked: Any) -> list[dict[str, str]]:
    """The lines of the address, but for those whose box to leave them out is ticked."""
    columns = [[str(value)[:2000] for value in asked.getlist(name)] for name in _FIELDS]
    gone = {str(value) for value in asked.getlist("gone")}
    rows = zip(*columns, strict=False)
    found = [dict(zip(_FIELDS, row, strict=True)) for place, row in enumerate(rows) if str(place) not in gone]
    return found[:MOST_LINES]


def _link(lines: list[dict[str, str]], dataset: str, name: str) -> str:
    pairs = [(field, line[field]) for line in lines for field in _FIELDS]
    return "/plan?" + urlencode([("dataset", dataset), ("plan", name), *pairs])
