"""The interface for programs: JSON, one token, no cookies."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from sfumato.desk import asking, grants
from sfumato.desk.accounts import Account, Role
from sfumato.desk.asking import LONGEST_QUESTION, Question
from sfumato.desk.datasets import Dataset
from sfumato.desk.desk import Desk
from sfumato.desk.gate import Stopped, allow, everybody
from sfumato.desk.shown import policy_in_words, public_facts

router = APIRouter(prefix="/api/v1")
Name = Annotated[str, Path(max_length=128, description="A table of the desk.")]
_MOST = 1e6  # ε above which a number is a slip of the hand


class Refusal(BaseModel):
    """Why a request was not granted."""

    error: str
    nearest: str | None = Field(default=None, description="A question that would be answered.")
    epsilon_left: float | None = Field(default=None, description="What is left of the allocation.")


class Asked(BaseModel, extra="forbid", strict=True):
    """A question, and what its answer may cost."""

    sql: str = Field(min_length=1, max_length=LONGEST_QUESTION, description="The question.")
    epsilon: float = Field(gt=0, le=_MOST, allow_inf_nan=False, description="The ε of the answer.")
    delta: float | None = Field(
        default=None, gt=0, lt=1, allow_inf_nan=False, description="Its δ, where groups are not declared."
    )

    def question(self) -> Question:
        return Question(sql=self.sql, epsilon=self.epsilon, delta=self.delta)


class HeadOfLedger(BaseModel):
    """An entry of the ledger."""

    sequence: int
    hash: str


class Answered(BaseModel):
    """Noisy rows with their 95% intervals, as `sfumato query --json` prints them."""

    columns: list[str]
    rows: list[list[str | int | float | bool | None]]
    intervals: list[list[tuple[float, float] | None]]
    epsilon: float
    delta: float
    epsilon_spent: float = Field(description="Of the allocation.")
    epsilon_left: float = Field(description="The largest further ε that the allocation would pay.")
    notes: list[str]
    entry: HeadOfLedger | None
    again: bool


class ErrorOfColumn(BaseModel):
    """Half the width of a column's 95% interval."""

    column: str
    half_width: float
    unit: str
    rows: float | None


class Expectation(BaseModel):
    """What an answer would be like."""

    expected_errors: list[ErrorOfColumn]
    fits: bool = Field(description="Whether the allocation would pay.")
    epsilon: float
    epsilon_left: float


class Allocation(BaseModel):
    """What may be spent, on what."""

    id: int
    table: str
    team: str
    purpose: str
    period: str
    epsilon: float
    epsilon_left: float


_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": text}
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


def dataset_of(desk: Desk, name: str) -> Dataset:
    known = {table.lower() for one in desk.tables() for table in one.policy.private_names}
    if name.lower() not in known:
        raise Stopped(404, "there is no table of that name at this desk")
    return desk.dataset(name)


@router.post("/tables/{name}/query", responses=_REFUSALS, response_model=Answered, tags=["ask"])
@allow(Role.ANALYST)
async def query(request: Request, name: Name, asked: Asked) -> dict[str, Any]:
    """Answer a question in SQL from the token's allocation. The answer leaves at its tick."""
    desk: Desk = request.app.state.desk
    _, answer = await asking.ask(desk, request.state.account, dataset_of(desk, name), asked.question())
    return answer.to_json()


@router.post("/tables/{name}/expect", responses=_REFUSALS, response_model=Expectation, tags=["ask"])
@allow(Role.ANALYST)
async def expect(request: Request, name: Name, asked: Asked) -> Expectation:
    """Tell how wrong an answer would be. Nothing is spent."""
    desk: Desk = request.app.state.desk
    found = await asking.expect(desk, request.state.account, dataset_of(desk, name), asked.question())
    errors = [
        ErrorOfColumn(column=one.column, half_width=one.half_width, unit=one.in_units_of, rows=one.rows)
        for one in found.errors
    ]
    return Expectation(
        expected_errors=errors, fits=found.fits, epsilon=asked.epsilon, epsilon_left=found.epsilon_left
    )


@router.get("/tables/{name}", responses=_REFUSALS, tags=["ask"])
@allow(Role.ANALYST, Role.OFFICER)
def table(request: Request, name: Name) -> dict[str, Any]:
    """Say what is declared about a table: columns, bounds, categories, whose privacy is kept."""
    dataset = dataset_of(request.app.state.desk, name)
    return policy_in_words(dataset.policy)


@router.get("/tables", responses=_REFUSALS, tags=["ask"])
@allow(Role.ANALYST, Role.OFFICER)
def tables(request: Request) -> list[str]:
    """List the tables of the desk."""
    desk: Desk = request.app.state.desk
    return [name for one in desk.tables() for name in one.policy.private_names]


@router.get("/allocations", responses=_REFUSALS, response_model=list[Allocation], tags=["budget"])
@allow(Role.ANALYST)
def allocations(request: Request) -> list[Allocation]:
    """List what the asker's team may spend."""
    desk: Desk = request.app.state.desk
    account: Account = request.state.account
    mine = grants.of_team(desk, account.team)
    mine = [one for one in mine if one.shares and account.grant in (None, one.id)]
    left = {one.id: asking.allocated_to(desk.dataset(one.dataset), account, one).epsilon_left for one in mine}
    return [
        Allocation(
            id=one.id,
            table=one.dataset,
            team=one.team,
            purpose=one.purpose,
            period=one.period,
            epsilon=one.epsilon,
            epsilon_left=left[one.id],
        )
        for one in mine
    ]


@router.get("/public", responses={429: _REFUSALS[429]}, tags=["public"])
@everybody()
def public(request: Request) -> dict[str, Any]:
    """Tell what anyone may know: the promise, what was released, and the heads of the ledgers."""
    return public_facts(request.app.state.desk)


@router.get("/openapi.json", include_in_schema=False)
@everybody()
def openapi(request: Request) -> dict[str, Any]:
    """This interface, described."""
    found: dict[str, Any] = request.app.openapi()
    return found
