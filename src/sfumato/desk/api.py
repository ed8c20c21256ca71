"""The interface for programs: JSON, one token, no cookies. Its bodies are models of the schema layer."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Request
from msgspec import Meta

from sfumato.desk import asking, grants
from sfumato.desk.accounts import Role
from sfumato.desk.asking import LONGEST_QUESTION, Question
from sfumato.desk.desk import Dataset, Desk, policy_in_words, public_facts
from sfumato.desk.gate import Stopped, allow, everybody
from sfumato.query import Answer
from sfumato.schema import Model, parse_json, read

router = APIRouter(prefix="/api/v1")
Name = Annotated[str, Path(max_length=128, description="A table of the desk.")]
_MOST = 1e6  # ε above which a number is a slip of the hand


class Refusal(Model):
    """The reason why a request was not granted."""

    error: str
    nearest: Annotated[str | None, Meta(description="A question that would be answered.")] = None
    epsilon_left: Annotated[float | None, Meta(description="The rest of the allocation.")] = None


class Asked(Model):
    """A question, and the price of its answer."""

    sql: Annotated[str, Meta(min_length=1, max_length=LONGEST_QUESTION)]
    epsilon: Annotated[float, Meta(gt=0, le=_MOST)]
    delta: Annotated[float, Meta(gt=0, lt=1)] | None = None  # where groups are not declared

    def question(self) -> Question:
        return Question(sql=self.sql, epsilon=self.epsilon, delta=self.delta)


class ErrorOfColumn(Model):
    """Half the width of a column's 95% interval."""

    column: str
    half_width: float
    unit: str
    rows: float | None


class Expectation(Model):
    """The expected errors of an answer."""

    expected_errors: list[ErrorOfColumn]
    fits: Annotated[bool, Meta(description="Whether the allocation would pay.")]
    epsilon: float
    epsilon_left: float


class Allocation(Model):
    """An amount that may be spent, and its purpose."""

    id: int
    table: str
    team: str
    purpose: str
    period: str
    epsilon: float
    epsilon_left: float


_MODELS = (Refusal, Asked, Answer, Expectation, Allocation)
_, COMPONENTS = msgspec.json.schema_components(_MODELS, ref_template="#/components/schemas/{name}")


def _content(model: type[Any], *, several: bool = False) -> dict[str, Any]:
    one = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"application/json": {"schema": {"type": "array", "items": one} if several else one}}


_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"content": _content(Refusal), "description": text}
    for status, text in {
        400: "A body that is no JSON.",
        401: "No token, or one that is not valid.",
        403: "Not for this role, or nothing was set aside.",
        404: "No such table.",
        409: "Refused by the budget. Nothing was spent.",
        422: "Refused by the policy. Nothing was spent.",
        429: "Too many requests.",
        503: "Not answered.",
    }.items()
}


def _answers(
    model: type[Any], *, several: bool = False, tag: str = "ask", asked: bool = True
) -> dict[str, Any]:
    """Return the options of a route that answers with a model, and takes a question."""
    found = {"content": _content(model, several=several), "description": str(model.__doc__).partition("\n")[0]}
    body = {"requestBody": {"required": True, "content": _content(Asked)}} if asked else None
    return {
        "responses": {**_REFUSALS, 200: found},
        "openapi_extra": body,
        "tags": [tag],
        "response_model": None,
    }


async def _asked(request: Request) -> Asked:
    try:
        data = parse_json(await request.body())
    except (ValueError, RecursionError):
        raise Stopped(400, 'expected a body in JSON, such as {"sql": "SELECT …", "epsilon": 0.1}') from None
    return read(Asked, data, name="the body")


def _dataset(request: Request, name: Name) -> Dataset:
    desk: Desk = request.app.state.desk
    if name.lower() not in {table.lower() for one in desk.tables() for table in one.policy.private_names}:
        raise Stopped(404, "there is no table of that name at this desk")
    return desk.dataset(name)


Body = Annotated[Asked, Depends(_asked)]
Chosen = Annotated[Dataset, Depends(_dataset)]


@router.post("/tables/{name}/query", **_answers(Answer))
@allow(Role.ANALYST)
async def query(request: Request, dataset: Chosen, asked: Body) -> dict[str, Any]:
    """Answer a question in SQL from the token's allocation. The answer leaves at its tick."""
    _, answer = await asking.ask(request.app.state.desk, request.state.account, dataset, asked.question())
    return answer.to_json()


@router.post("/tables/{name}/expect", **_answers(Expectation))
@allow(Role.ANALYST)
async def expect(request: Request, dataset: Chosen, asked: Body) -> dict[str, Any]:
    """Tell how wrong an answer would be. Nothing is spent."""
    found = await asking.expect(request.app.state.desk, request.state.account, dataset, asked.question())
    errors = [
        ErrorOfColumn(column=one.column, half_width=one.half_width, unit=one.in_units_of, rows=one.rows)
        for one in found.errors
    ]
    left = found.epsilon_left
    return Expectation(
        expected_errors=errors, fits=found.fits, epsilon=asked.epsilon, epsilon_left=left
    ).to_json()


@router.get("/tables/{name}", responses=_REFUSALS, tags=["ask"])
@allow(Role.ANALYST, Role.OFFICER)
def table(dataset: Chosen) -> dict[str, Any]:
    """Return the declarations about a table: columns, bounds, categories, whose privacy is kept."""
    return policy_in_words(dataset.policy)


@router.get("/tables", responses=_REFUSALS, tags=["ask"])
@allow(Role.ANALYST, Role.OFFICER)
def tables(request: Request) -> list[str]:
    """List the tables of the desk."""
    desk: Desk = request.app.state.desk
    return [name for one in desk.tables() for name in one.policy.private_names]


@router.get("/allocations", **_answers(Allocation, several=True, tag="budget", asked=False))
@allow(Role.ANALYST)
def allocations(request: Request) -> list[dict[str, Any]]:
    """List the allocations that the token may spend."""
    desk, account = request.app.state.desk, request.state.account
    mine = grants.of_team(desk, account.team)
    return [
        Allocation(
            id=one.id,
            table=one.dataset,
            team=one.team,
            purpose=one.purpose,
            period=one.period,
            epsilon=one.epsilon,
            epsilon_left=asking.allocated_to(desk.dataset(one.dataset), account, one).epsilon_left,
        ).to_json()
        for one in mine
        if one.shares and account.grant in (None, one.id)
    ]


@router.get("/public", responses={429: _REFUSALS[429]}, tags=["public"])
@everybody()
def public(request: Request) -> dict[str, Any]:
    """Return the promise, the number of releases, and the heads of the ledgers."""
    return public_facts(request.app.state.desk)


@router.get("/openapi.json", include_in_schema=False)
@everybody()
def openapi(request: Request) -> dict[str, Any]:
    """Describe this interface."""
    found: dict[str, Any] = request.app.openapi()
    schemas = {**found.get("components", {}).get("schemas", {}), **COMPONENTS}
    return {**found, "components": {**found.get("components", {}), "schemas": schemas}}
