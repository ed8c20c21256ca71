"""Old names of the public interface: they work for one version more, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def old_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module some of whose names have changed: old → new."""

    def find(name: str) -> Any:
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
