"""The page of the planner: releases with sliders, their price together, and one charge for all of them.

The plan is in the address of the page: a bookmark saves it, and a link shows it to others.
"""

from __future__ import annotations

import json
import math
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from sfumato.desk.accounts import Role, checked_line
from sfumato.desk.desk import Dataset, Desk
from sfumato.desk.gate import allow, effort
from sfumato.desk.pages import Fields, render, take
from sfumato.errors import InvalidInput, Refused, SfumatoError
from sfumato.governance import Plan, PlanPrice
from sfumato.query.names import Names

router = APIRouter(include_in_schema=False)
MOST_LINES = 12
FIELDS = ("name", "kind", "epsilon", "times", "details")
KINDS = ("query", "model", "survey")
"""Kinds of releases from a table whose policy is known: counts and averages are priced as questions."""


def _starts(dataset: Dataset) -> dict[str, dict[str, str]]:
    """Return the lines to begin with; their questions are such that the table answers them."""
    name = dataset.policy.private_names[0]
    policy = dataset.policy.private(name) or dataset.policy
    names = Names(policy=policy, table=policy.table)
    bounded = next((column.name for column in policy.columns.values() if column.bounds is not None), None)
    average = None if bounded is None else names.example_for(bounded)
    lines = {
        "counts": ("a table of counts, monthly for a year", "query", "0.05", "12", names.example_group_by()),
        "average": ("an average, monthly for a year", "query", "0.02", "12", average),
        "query": ("a question", "query", "0.1", "1", names.example()),
        "model": ("a model", "model", "1", "1", "size=60000 batch=600 epochs=10"),
        "survey": ("a survey", "survey", "1", "1", "answers=2 people=1000"),
    }
    return {
        button: {field: value or "" for field, value in zip(FIELDS, line, strict=True)}
        for button, line in lines.items()
        if line[-1] is not None
    }


@router.get("/plan")
@allow(Role.OFFICER, Role.ANALYST)
def page(request: Request) -> HTMLResponse:
    asked = request.query_params
    columns = [[str(value)[:2000] for value in asked.getlist(name)] for name in FIELDS]
    gone = set(asked.getlist("gone"))  # lines whose box to leave them out is ticked
    lines = [
        dict(zip(FIELDS, row, strict=True))
        for place, row in enumerate(zip(*columns, strict=False))
        if str(place) not in gone
    ][:MOST_LINES]
    dataset = _chosen(request.app.state.desk, asked.get("dataset"))
    added = _starts(dataset).get(asked.get("add", ""))
    if added is not None and len(lines) < MOST_LINES:
        lines.append(added)
    return _page(request, lines, dataset, asked.get("plan", "year"))


def _chosen(desk: Desk, name: str | None) -> Dataset:
    if not name and not desk.tables():
        raise InvalidInput(
            "expected a desk with a table to plan for, got one of images; price a job of them instead"
        )
    return desk.dataset(name) if name else desk.tables()[0]


@router.post("/plan/charge")
@allow(Role.OFFICER, act="charge")
def charge(request: Request, fields: Fields) -> Response:
    """Charge the plan that the page showed, as one."""
    try:
        lines = json.loads(fields.get("lines", ""))
    except (ValueError, RecursionError):
        lines = None
    if not isinstance(lines, list) or not all(
        isinstance(line, dict) and all(isinstance(line.get(name), str) for name in FIELDS) for line in lines
    ):
        raise InvalidInput("expected the plan that the page showed; load the page again")
    dataset = request.app.state.desk.dataset(fields.get("dataset"))
    name = checked_line("name of the plan", fields.get("plan", ""))
    words = {"dataset": dataset.name, "plan": _settings(dataset, name, lines)}
    try:
        return take(request, words, then="/ledger")
    except Refused as error:
        return _page(request, lines, dataset, name, refusal=str(error), status=409)


def _page(
    request: Request,
    lines: list[dict[str, str]],
    dataset: Dataset,
    name: str,
    *,
    refusal: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    desk: Desk = request.app.state.desk
    price: PlanPrice | None = None
    try:
        if lines:
            with effort(request):
                settings = _settings(dataset, name, lines)
                price = Plan.from_settings(settings, policy=lambda asked: desk.dataset(asked).table).price()
    except SfumatoError as error:
        refusal = refusal or str(error)
    pairs = [(field, line[field]) for line in lines for field in FIELDS]
    return render(
        request,
        "plan.html",
        status=status,
        lines=lines,
        plan=name,
        kinds=list(KINDS),
        starts={button: line["name"] for button, line in _starts(dataset).items()},
        dataset=dataset.name,
        datasets=[one.name for one in desk.tables()],
        left=dataset.ledger.epsilon_left,
        price=price,
        curve=[] if price is None else _curve(price),
        saved=json.dumps(lines),
        link="/plan?" + urlencode([("dataset", dataset.name), ("plan", name), *pairs]),
        refusal=refusal,
        most=MOST_LINES,
        cheaper="" if price is None else _cheaper(price),
    )


def _cheaper(price: PlanPrice) -> str:
    if not price.one_by_one > price.together:
        return "as much as one after another"
    return f"{1 - price.together / price.one_by_one:.0%} less than one after another"


def _curve(price: PlanPrice) -> list[tuple[float, ...]]:
    """Return false and true accusations on logarithmic axes: 0.1% is 0, and 100% is 1."""
    rates = sorted(price.attacker.items())
    return [tuple(1 + math.log10(max(rate, 1e-3)) / 3 for rate in pair) for pair in rates]


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
