"""The pages: one file each. A file of this folder with a `PAGE` is served, and has its place in the menu."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from sfumato.desk.accounts import Role
from sfumato.desk.pages.page import Page, render


@cache
def all_pages() -> tuple[Page, ...]:
    """Every page, in the order of the menu."""
    modules = (import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return tuple(sorted((one.PAGE for one in modules if hasattr(one, "PAGE")), key=lambda page: page.order))


def routers() -> list[APIRouter]:
    return [page.router for page in all_pages()]


def menu(role: Role | None) -> list[tuple[str, str]]:
    """What somebody of this role finds in the menu: titles and where they lead."""
    return [
        (page.title, page.path)
        for page in all_pages()
        if page.title is not None and (not page.roles or role in page.roles)
    ]


def error_page(request: Request, status: int, sentence: str) -> HTMLResponse:
    """One sentence, and the way on."""
    return render(request, "error.html", status=status, sentence=sentence, code=status)
