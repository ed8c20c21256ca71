"""Names of a package that are not there from the start: loaded when asked for, or old ones, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def old_names(
    module: str, names: Mapping[str, str], *, later: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """The `__getattr__` of a module some of whose names have changed: old → new.

    Those in `later` are found in other modules of the package (name → module) when they are first asked for:
    what these import takes seconds, and most users need none of it.
    """
    homes = later or {}

    def find(name: str) -> Any:
        if name in homes:
            found = getattr(importlib.import_module(f"{module}.{homes[name]}"), name)
            setattr(sys.modules[module], name, found)
            return found
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name]
        warnings.warn(
            f"{module}.{name} is now {module}.{new}; the old name goes with the next version",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(sys.modules[module], new)

    return find
