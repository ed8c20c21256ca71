"""dp-accounting's events without the rest of it.

Its package imports most of scipy when any part of it is imported, which takes about a second. Events are needed
wherever a ledger is read, the accountants only where something is priced.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from importlib import _bootstrap
from types import ModuleType


def load_alone(name: str) -> ModuleType:
    """The module `package.module`, without running its package.

    It is registered under its own name: whoever imports the package later gets this module and its classes. The
    lock is the one that imports take, so that another thread gets it whole, and never a second one.

    >>> load_alone("dp_accounting.dp_event") is load_alone("dp_accounting.dp_event")
    True
    """
    with _bootstrap._ModuleLockManager(name):  # type: ignore[attr-defined]
        if name in sys.modules:
            return sys.modules[name]
        package = importlib.util.find_spec(name.rpartition(".")[0])
        places = None if package is None else package.submodule_search_locations
        spec = importlib.machinery.PathFinder.find_spec(name, places) if places else None
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
