"""The application: routers behind one gate, errors as one sentence, the shield around all."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from sfumato import __version__
from sfumato.desk import api, gate, pages, trail
from sfumato.desk.asking import NoAllocation, Unanswered, answer_all, charge_all
from sfumato.desk.datasets import Busy
from sfumato.desk.desk import Desk
from sfumato.desk.gate import Stopped
from sfumato.desk.shield import Shield
from sfumato.desk.throttle import Crowded
from sfumato.errors import BudgetExceeded, InvalidInput, Refused, SfumatoError
from sfumato.query import QueryRefused

_private_log = logging.getLogger("sfumato.private.desk")
_WARM_AFTER = 0.5  # seconds, so that the first page does not wait for the tables
_STATUS: dict[type[SfumatoError], int] = {
    Busy: 503,
    NoAllocation: 403,
    Unanswered: 503,
    BudgetExceeded: 409,
    QueryRefused: 422,
    InvalidInput: 422,
    Refused: 409,
}


def create_app(desk: Desk) -> Shield:
    """The desk as an ASGI application.

    Args:
        desk: What it serves; closed with the application.

    Returns:
        The application, in its shield.
    """
    app = FastAPI(
        title=desk.settings.name,
        version=__version__,
        description="Statistics under a privacy budget. Send `Authorization: Bearer TOKEN`.",
        dependencies=[Depends(gate.gate)],
        openapi_url=None,
        lifespan=_lifespan,
        redirect_slashes=False,
    )
    app.state.desk = desk
    for dataset in desk.each():
        dataset.served_by(charge_all, answer_all)
    app.include_router(api.router)
    for router in pages.routers():
        app.include_router(router, include_in_schema=False)
    gate.table_of(app)  # raises for a route that does not say who may use it
    app.add_exception_handler(Stopped, _stopped)
    app.add_exception_handler(Crowded, _crowded)
    app.add_exception_handler(SfumatoError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _failed)
    return Shield(app, desk)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    desk: Desk = app.state.desk
    later = asyncio.get_running_loop().call_later
    warming = [later(_WARM_AFTER, dataset.warm) for dataset in desk.each()]
    counting = asyncio.create_task(_write_counts(desk))
    yield
    counting.cancel()
    for one in warming:  # of a desk that ends before it begins
        one.cancel()
    desk.close()


async def _write_counts(desk: Desk) -> None:
    while True:
        await asyncio.sleep(trail.COUNTED_FOR)
        desk.counted.write()


def _said(request: Request, status: int, sentence: str, **more: Any) -> Response:
    if request.scope["path"].startswith(gate.API):
        return JSONResponse({"error": sentence, **more}, status_code=status)
    return pages.error_page(request, status, sentence)


def _stopped(request: Request, error: Exception) -> Response:
    assert isinstance(error, Stopped)
    response = _said(request, error.status, error.sentence)
    if error.seconds is not None:
        response.headers["retry-after"] = f"{error.seconds:.0f}"
    if error.status == 401 and request.scope["path"].startswith(gate.API):
        response.headers["www-authenticate"] = "Bearer"
    return response


def _crowded(request: Request, error: Exception) -> Response:
    assert isinstance(error, Crowded)
    return _stopped(request, Stopped(429, str(error), seconds=math.ceil(error.seconds)))


def _refused(request: Request, error: Exception) -> Response:
    """What was refused from public facts is told; of everything else nothing is."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 503)
    if not isinstance(error, tuple(_STATUS)):
        _private_log.error("a request failed", exc_info=error)
        return _said(request, status, "this does not work now; tell an officer the time of day")
    if isinstance(error, BudgetExceeded):
        return _said(request, status, str(error), epsilon_left=error.epsilon_left)
    if isinstance(error, QueryRefused):
        return _said(request, status, error.reason, nearest=error.nearest or None)
    return _said(request, status, str(error))


def _malformed(request: Request, error: Exception) -> Response:
    """Without the values that were sent: some, as NaN, are no JSON."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    status = 400 if first["type"] == "json_invalid" else 422
    return _said(request, status, f"{where or 'the body'}: {first['msg']}")


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "there is no such page", 405: "this page takes no such request"}
    response = _said(request, error.status_code, words.get(error.status_code, "this request cannot be read"))
    response.headers.update(error.headers or {})
    return response


def _failed(request: Request, error: Exception) -> Response:
    _private_log.error("a request failed", exc_info=error)
    return _said(request, 500, "something failed; tell an officer the time of day")
