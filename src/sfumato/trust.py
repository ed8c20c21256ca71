"""Whose code it is: a library's, or the user's own.

Code is told by where it lies: by the names that a function looks up, by the file that it was compiled from, and
by the module that holds a class. What code says of itself (`__module__`, `__class__`, equality) counts for
nothing. A library's function that carries a function of the user's is the user's.
"""

from __future__ import annotations

import functools
import gc
import os
import site
import sys
import sysconfig
import types
import weakref
from typing import Any, TypeAlias

Packages: TypeAlias = frozenset[str] | None  # None: any that is installed

TRUSTED = frozenset(["torch", "torchvision", "torchaudio", "numpy", "scipy", "transformers", "peft", "sfumato"])
INSTALLED: Packages = None
WRITTEN_IN_PYTHON = 1 << 9  # of a class: it can be written

OWN_NOISE = (
    "the noise came from a sampler of the user's own; that its draws are secret, and as random as the price "
    "assumes, is taken on trust"
)
_GENERATORS = frozenset(["randomgen"])


def is_trusted(thing: Any, packages: Packages = TRUSTED) -> bool:
    """Whether a function, or an object by its class, is code of these packages, and carries no other."""
    return not own_code_in(thing, packages)


def own_code_in(thing: Any, packages: Packages = TRUSTED) -> list[Any]:
    """Functions, classes and objects of the user's that a library's function, method or partial carries.

    A decorator of a library makes a function of its own, which holds the user's in its closure.
    """
    found: list[Any] = []
    waiting, seen = [thing], {}
    while waiting:
        one = waiting.pop()
        kind: Any = type(one)  # what it is; `isinstance` believes what it says
        if id(one) in seen or kind in _PLAIN:
            continue
        seen[id(one)] = one
        if kind is types.FunctionType:
            if _is_function_of(one, packages):
                waiting += _carried(one)
            else:
                found.append(one)
        elif kind in _HOLDERS:
            waiting += _HOLDERS[kind](one)
        elif not is_trusted_class(one if issubclass(kind, type) else kind, packages):
            found.append(one)
        elif issubclass(kind, dict):
            waiting += dict.values(one)
    return found


def is_trusted_class(kind: type, packages: Packages = TRUSTED) -> bool:
    """By all classes that it inherits from: one that a library makes of the user's runs the user's code."""
    return all(is_class_of(one, packages) for one in kind.__mro__)


def is_class_of(kind: type, packages: Packages) -> bool:
    """Whether a class by itself, whatever it inherits from, is of one of the packages or of Python's own."""
    return is_trusted_module(home_of(kind), packages)


def home_of(kind: type) -> str | None:
    """The module that a class is found in under its name; what it says of itself later counts for nothing.

    A class that a library makes in a function is found nowhere. It is the library's if all it holds is. Classes
    are known by identity: equality and hashes may be the user's code.
    """
    known = _found.get(id(kind))
    if known is None or known[0]() is not kind:
        number = id(kind)
        known = weakref.ref(kind, lambda _: _found.pop(number, None)), _found_in(kind)
        _found[number] = known
    if known[1] is not None:
        return known[1]
    return _said(kind, "__module__") if _holds_nothing_else(kind) else None


def defined_in(function: types.FunctionType) -> str | None:
    """The module whose names it looks up, whatever it or its file says of itself; generated code has none."""
    defined = function.__globals__.get("__name__")
    module = sys.modules.get(defined) if isinstance(defined, str) else None
    return defined if module is not None and vars(module) is function.__globals__ else None


@functools.lru_cache(maxsize=4096)
def is_trusted_module(module: str | None, packages: Packages = TRUSTED) -> bool:
    """By its name, and by where its file and its package's lie: one of the user's may have a library's name."""
    package = (module or "").partition(".")[0]
    if package in ("", "__main__"):
        return False
    if package == "sfumato":
        return True
    if package not in sys.stdlib_module_names:
        if packages is None and _file_of(package) is None:
            return False
        if packages is not None and package not in packages:
            return False
    return _is_installed(sys.modules.get(package)) and _is_installed(sys.modules.get(module or ""))


@functools.lru_cache(maxsize=4096)
def is_installed_file(path: str) -> bool:
    """Whether a file lies where Python, its packages or Sfumato are installed."""
    return any(os.path.realpath(path).startswith(folder + os.sep) for folder in (*_INSTALLED, _SFUMATO))


def draws_by_own_code(sampler: Any) -> bool:
    """Whether a sampler draws by code of the user's: of its class, or hung on it or on that."""
    kinds = type(sampler).__mro__
    functions = [each for kind in kinds for each in vars(kind).values() if type(each) is types.FunctionType]
    held = getattr(sampler, "__dict__", {}).values()
    return not all(is_trusted(each) or _is_generator(each) for each in (type(sampler), *functions, *held))


def caveats_of_sampler(sampler: Any) -> tuple[str, ...]:
    """What a certificate says of where the noise came from, if that is not Sfumato's own."""
    return (OWN_NOISE,) if draws_by_own_code(sampler) else ()


def _is_generator(thing: Any) -> bool:
    """One of those behind Sfumato's own streams."""
    kind = type(thing)
    return kind.__module__.partition(".")[0] == "randomgen" and is_class_of(kind, _GENERATORS)


def _is_function_of(function: types.FunctionType, packages: Packages) -> bool:
    """By its names, and by the file of its code: with a library's names anybody can make a function.

    Code that a library writes and runs on the way has no file.
    """
    path = function.__code__.co_filename
    return is_trusted_module(defined_in(function), packages) and (path[:1] == "<" or is_installed_file(path))


def _carried(function: types.FunctionType) -> list[Any]:
    """What a function holds in its closure, its defaults and its attributes."""
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return held


def _of_builtin(one: Any) -> list[Any]:
    """What a method of C is bound to, if that holds functions or its class has some, which may be called."""
    owner = one.__self__
    kind: Any = type(owner)
    if issubclass(kind, type | types.ModuleType):
        return []
    functions = any(type(each) is types.FunctionType for base in kind.__mro__ for each in vars(base).values())
    return [owner] if functions or kind in _HOLDERS or kind is types.FunctionType else []


def _of_cache(one: Any) -> list[Any]:
    """The function behind `functools.lru_cache`, also where nobody says `__wrapped__` any more."""
    return [held for held in gc.get_referents(one) if callable(held) and not isinstance(held, type)]


_PLAIN = frozenset(
    [*(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice), types.CodeType]
)
_HOLDERS: dict[type, Any] = {  # of which nobody can make a class of his own, or which are taken exactly
    types.MethodType: lambda one: [one.__func__, one.__self__],
    functools.partial: lambda one: [one.func, *one.args, *one.keywords.values()],
    types.BuiltinMethodType: _of_builtin,
    types.MethodWrapperType: lambda one: [one.__self__],
    staticmethod: lambda one: [one.__func__],
    classmethod: lambda one: [one.__func__],
    property: lambda one: [one.fget, one.fset, one.fdel],
    functools._lru_cache_wrapper: _of_cache,
    types.MappingProxyType: lambda one: list(one.values()),
    dict: lambda one: list(one.values()),
    **dict.fromkeys((list, tuple, set, frozenset), list),
}


_found: dict[int, tuple[weakref.ref[type], str | None]] = {}
_in_question: set[int] = set()  # classes that may hold objects of their own


def _found_in(kind: type) -> str | None:
    said = _said(kind, "__module__")
    if not kind.__flags__ & WRITTEN_IN_PYTHON:  # Python code makes none of these
        return said
    found: Any = sys.modules.get(said or "")
    for name in (_said(kind, "__qualname__") or "").split("."):
        found = vars(found).get(name) if isinstance(found, type | types.ModuleType) else None
    return said if found is kind else None


def _said(kind: type, name: str) -> str | None:
    said = getattr(kind, name, None)
    return said if isinstance(said, str) else None


def _holds_nothing_else(kind: type) -> bool:
    """Whether no code of the user's is in a class; objects of its own in it decide nothing."""
    if id(kind) in _in_question:
        return True
    _in_question.add(id(kind))
    try:
        return all(map(is_trusted, vars(kind).values()))
    finally:
        _in_question.discard(id(kind))


def _file_of(package: str) -> str | None:
    module = sys.modules.get(package)
    return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)


def _is_installed(module: types.ModuleType | None) -> bool:
    """By the file it was loaded from: built-in modules have none, and torch gives two of its own no place."""
    where = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    if where is None or not os.path.isabs(where):
        return True
    return any(os.path.realpath(where).startswith(folder + os.sep) for folder in _INSTALLED)


_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_INSTALLED = {
    os.path.realpath(folder)
    for folder in (
        *_LIBRARIES,
        *site.getsitepackages(),
        site.getusersitepackages(),
        os.path.dirname(os.__file__),
    )
}
_SFUMATO = os.path.dirname(os.path.realpath(__file__))
