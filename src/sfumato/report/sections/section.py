"""What a section function hands to the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page: `template` is the file under templates/ that is filled with `facts`."""

    name: str  # its address within the page
    title: str
    template: str
    facts: Mapping[str, Any] = field(default_factory=dict)
