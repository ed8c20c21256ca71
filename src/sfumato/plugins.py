"""Commands and parts that another package brings, found by its entry points.

`sfumato_lab`, in the same wheel, registers its own this way: `sfumato` imports nothing of it.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sfumato.errors import SfumatoError

COMMANDS = "sfumato.commands"
PARTS = "sfumato.parts"


@lru_cache
def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name."""
    return {found.name: found for found in entry_points(group=group)}


def part(name: str) -> Any:
    """Load the module that is registered under this name, such as "drawings" or "images"."""
    if name not in registered(PARTS):
        raise SfumatoError(f"expected a package that brings {name}, got none; reinstall sfumato")
    return registered(PARTS)[name].load()
