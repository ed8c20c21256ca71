"""A part of the page: which results it draws, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.report.context import Context
from sfumato.runs import Result

Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Section:
    """`facts` returns the variables of the template `name`.html, or None if there is nothing to draw."""

    name: str  # its address within the page
    title: str
    kinds: tuple[type[Result], ...]  # the results that it draws; of any other it says nothing
    facts: Callable[[Context], Facts | None]

    @property
    def template(self) -> str:
        return f"{self.name}.html"
