"""The style sheet and the script: files that are read once, by name, so that no path leads anywhere else."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response

from sfumato.desk.gate import Stopped, everybody
from sfumato.desk.pages.page import Page

router = APIRouter()
PAGE = Page(router=router)
FOLDER = Path(__file__).parents[1] / "static"
TYPES = {"desk.css": "text/css", "desk.js": "text/javascript"}


@cache
def _content(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@router.get("/static/{name}")
@everybody()
def static(name: str) -> Response:
    if name not in TYPES:
        raise Stopped(404, "there is no such page")
    return Response(_content(name), media_type=TYPES[name])
