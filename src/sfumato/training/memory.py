"""What code from outside can remember, and how it is made to forget.

A loss, views and a model are Python. They may keep what they saw of one row in an attribute, a list, a
variable that a function closes over, a default, a global name or an attribute of a class, and act on it when
they see another row. `Memory` finds all places of that kind that can be reached from them, and puts back what
was there: after each block of rows, and after each row where a function is called row by row. Every row then
meets the state that the survey met.

Places are followed through functions, methods, partials, objects, containers and modules of the user's, and of
the packages that model, loss, views or data set are themselves of. Other packages that are installed are taken
to keep nothing in their modules and classes: with pandas beside a data set half of the interpreter would be
looked through for each row. What their objects and functions hold is put back all the same; functions of the
packages in `TRUSTED` are taken to hold nothing either. What has a state that cannot be put back (a generator,
an open file) is refused, before anything is charged.
"""

from __future__ import annotations

import dis
import functools
import math
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.errors import UnsupportedModel
from sfumato.randomness import GLOBAL_GENERATORS
from sfumato.training import places
from sfumato.training.places import Place
from sfumato.training.replaced import replaced
from sfumato.training.structure import Structure, tensors_of
from sfumato.trust import (
    INSTALLED,
    TRUSTED,
    WRITTEN_IN_PYTHON,
    defined_in,
    home_of,
    is_trusted,
    is_trusted_class,
    is_trusted_module,
    own_code_in,
)


class Memory:
    """Every place that code at `roots` could write, as it was when this was made.

    `name` says in errors whose it is. The values of the tensors in `but` are somebody else's to look after. The
    global generators are passed over: every step keys them anew. With `largest`, as for a data set, what is not
    known (an open file) is passed over, and of what has more entries only the length is kept.
    """

    def __init__(self, *roots: Any, name: str, but: Iterable[Tensor] = (), largest: int | None = None) -> None:
        self._name = name
        self._largest = largest
        others = list(but)
        self._seen: dict[int, Any] = {id(thing): thing for thing in (*others, *GLOBAL_GENERATORS)}
        self._places: list[Place] = []
        self._names: set[tuple[int, str]] = set()
        self._classes: set[type] = set()  # of libraries
        self._looked_through = _packages_of(roots)
        waiting = [*roots, *(value for tensor in others for value in self._beside(tensor))]
        while waiting:
            thing = waiting.pop()
            if id(thing) not in self._seen and not _is_plain(thing):
                self._seen[id(thing)] = thing  # kept, so that no other object gets its identity
                waiting.extend(self._enter(thing))
        if largest is not None:
            self._places = places.together(self._places)

    def like(self, other: Memory) -> bool:
        """Whether code finds the same in all places as at the moment of another one."""
        return len(self._places) == len(other._places) and all(map(places.alike, self._places, other._places))

    def put_back(self) -> bool:
        """Restore every place; whether one had changed."""
        return any([place.put_back() for place in self._places])  # noqa: C419  (all of them, not up to the first)

    def _beside(self, tensor: Tensor) -> Iterator[Any]:
        """What code could find beside the values of a weight: hung on it, and in a class of the user's."""
        yield from (value for place in _hung_on(tensor) for value in self._note(place))
        yield type(tensor)

    def _enter(self, thing: Any) -> Iterator[Any]:
        """Note the places of one object, and yield what they hold."""
        if isinstance(thing, types.FunctionType):
            yield from self._function(thing)
        elif isinstance(thing, types.ModuleType):
            if not self._is_library(thing.__name__):
                yield from self._globals(vars(thing), frozenset(vars(thing)), frozenset())
        elif isinstance(thing, type):
            yield from self._class(thing)
        else:
            yield from self._object(thing)

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        if is_trusted_module(defined_in(function)):
            yield from own_code_in(function)
            return
        yield from self._note(places.Function(function))
        if self._is_library(defined_in(function)):
            yield from (value for cell in function.__closure__ or () for value in self._note(places.Cell(cell)))
            return
        used, stored, modules, reaches = _names_in(function.__code__)
        if reaches:
            self._note(places.Mapping(function.__globals__))
        for cell in function.__closure__ or ():
            yield from self._by_name(self._note(places.Cell(cell)), used, stored)
        found = [sys.modules[name] for name in sorted(modules) if name in sys.modules]
        yield from self._by_name(found, used, stored)
        yield from self._globals(function.__globals__, used, stored)

    def _globals(self, names: dict[str, Any], used: frozenset[str], stored: frozenset[str]) -> Iterator[Any]:
        """Global names that a function uses."""
        fresh = [name for name in sorted(used) if (id(names), name) not in self._names]
        self._names.update((id(names), name) for name in fresh)
        if fresh:
            yield from self._by_name(self._note(places.Names(names, fresh)), used, stored)

    def _by_name(self, values: Iterable[Any], used: frozenset[str], stored: frozenset[str]) -> Iterator[Any]:
        """The values; of a module, what a function uses of it."""
        for value in values:
            if not isinstance(value, types.ModuleType):
                yield value
            elif not self._is_library(value.__name__):
                yield from self._globals(vars(value), used, stored)
            else:
                yield from self._on_library(value, used, stored)

    def _on_library(
        self, module: types.ModuleType, used: frozenset[str], stored: frozenset[str]
    ) -> Iterator[Any]:
        """What a function could hang on a trusted module, or on the classes that it takes from there."""
        waiting: list[Any] = [module]
        seen: set[int] = set()
        while waiting:
            thing = waiting.pop()
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            for name in stored:
                if (id(thing), name) not in self._names:
                    self._names.add((id(thing), name))
                    yield from self._note(places.Hung(thing, name))
            if isinstance(thing, types.ModuleType):
                own = vars(thing)
                found = [own[name] for name in used if name in own]
                waiting += [value for value in found if isinstance(value, type | types.ModuleType)]
                yield from (vars(value)["_data"] for value in found if value is os.environ)

    def _class(self, kind: type) -> Iterator[Any]:
        for one in kind.__mro__:
            if not self._is_library(home_of(one)):
                yield from self._note(places.ClassAttributes(one))
            elif one.__flags__ & WRITTEN_IN_PYTHON and one not in self._classes:
                self._classes.add(one)
                self._note(places.ClassAttributes(one))  # what code hangs on it; its own keeps nothing

    def _object(self, thing: Any) -> Iterator[Any]:
        if self._largest is not None and _entries(thing) > self._largest:
            self._note(places.Length(thing))
            return
        found = places.of(thing)
        if found is None and self._largest is not None:
            return
        if found is None:
            raise UnsupportedModel(
                f"expected {self._name} to hold only what can be put back after each row, got "
                f"{type(thing).__name__}, which keeps a state of its own; leave it out (of a LightningModule "
                "hand over the network inside), and draw from torch's generator"
            )
        held = [value for place in found for value in self._note(place)]
        if not _is_ours(thing):
            yield from (*held, *_inside(thing), type(thing))

    def _is_library(self, module: str | None) -> bool:
        package = (module or "").partition(".")[0]
        return package not in self._looked_through and is_trusted_module(module, INSTALLED)

    def _note(self, place: Place) -> Iterable[Any]:
        self._places.append(place)
        return place.held()


def _packages_of(roots: Iterable[Any]) -> frozenset[str]:
    """The packages that some code is of, but those that are taken to keep nothing."""
    modules = [one for root in roots for one in (root.modules() if isinstance(root, nn.Module) else (root,))]
    homes = [defined_in(one) if isinstance(one, types.FunctionType) else home_of(type(one)) for one in modules]
    found = {(home or "").partition(".")[0] for home in homes}
    return frozenset(found - TRUSTED - _OF_TABLES - {*sys.stdlib_module_names})


_OF_TABLES = frozenset(
    ["datasets", "pandas", "polars", "pyarrow", "sklearn"]
)  # large, and only lend their objects


def keeps_nothing(model: nn.Module) -> bool:
    """Whether all code of a model comes from the packages in `TRUSTED`: its modules, and what hangs on them.

    A weight of a class of the user's runs that class's code whenever something is computed with it; so does a
    function that was put in the place of one of torch's.
    """
    tensors = tensors_of(model).values()
    return (
        not replaced(model)
        and all(is_trusted_class(type(tensor)) and not vars(tensor) for tensor in tensors)
        and all(
            is_trusted_class(type(module)) and is_trusted(type(module).forward) and _holds_trusted(module)
            for module in model.modules()
        )
    )


def _holds_trusted(module: nn.Module) -> bool:
    for name, value in vars(module).items():
        if name in _PARTS:  # weights, buffers and modules, which are looked at by themselves
            continue
        if isinstance(value, dict) and not value:  # no hooks
            continue
        if _is_plain(value) or (isinstance(value, tuple) and all(map(_is_plain, value))):
            continue
        if not (isinstance(value, types.FunctionType) and is_trusted(value)):
            return False
    return True


_PARTS = frozenset(["_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"])


class Tensors:
    """The weights and buffers of a model, which no forward pass may write; room for a copy of them."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        self._room: tuple[list[Any], list[Tensor]] = [], []  # kept from step to step, for its pages

    def noted(self) -> Callable[[], list[str]]:
        """Takes a copy; what it returns restores what was written since, and says its names."""
        tensors, rooms = self._structure.tensors, self._rooms()
        if rooms:
            with torch.no_grad():
                torch._foreach_copy_(rooms, list(tensors.values()))
        pairs = zip(tensors.items(), rooms, strict=True)
        before = {name: (places.TensorContent(each, room), each._version) for (name, each), room in pairs}

        def put_back() -> list[str]:
            now, found = self._now(), []
            for name, (place, version) in before.items():
                written = place.tensor._version != version  # perhaps with the same values
                if place.put_back() or written:
                    found.append(name)
            return [*found, *_replaced({name: place.tensor for name, (place, _) in before.items()}, now)]

        return put_back

    def counted(self) -> Callable[[], list[str]]:
        """Takes no copy, but torch's counts of writes in place; what it returns wipes what was written since.

        For code that is trusted to write nothing, so that a copy at each step would be for nothing.
        """
        tensors = self._structure.tensors
        before = [each._version for each in tensors.values()]

        def wipe() -> list[str]:
            pairs = zip(tensors.items(), before, strict=True)
            written = [
                (name, each) for (name, each), version in pairs if each._version != version or vars(each)
            ]
            for _, each in written:
                vars(each).clear()
                _wipe(each)
            return [*(name for name, _ in written), *_replaced(tensors, self._now())]

        return wipe

    def _now(self) -> dict[str, Tensor]:
        structure = self._structure
        return structure.tensors if structure.same() else tensors_of(structure.modules[0])

    def _rooms(self) -> list[Tensor]:
        """One for each tensor, as long as none changes its shape, type or device."""
        tensors = list(self._structure.tensors.values())
        kinds = [(each.shape, each.dtype, each.device) for each in tensors]
        if self._room[0] != kinds:
            sizes = [-(-each.nbytes // _ALIGNED) * _ALIGNED for each in tensors]
            whole = torch.empty(sum(sizes), dtype=torch.uint8, device=tensors[0].device)
            parts = zip(tensors, torch.split(whole, sizes), strict=True)
            self._room = kinds, [part[: t.nbytes].view(t.dtype).view(t.shape) for t, part in parts]
        return self._room[1]


def _replaced(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[str]:
    """Names under which another tensor is found than before, or none, or which are new; those are wiped."""
    if now is before:
        return []
    found = [name for name in {**before, **now} if before.get(name) is not now.get(name)]
    for name in found:
        if name in now:
            _wipe(now[name])
    return found


def _wipe(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.fill_(math.nan if tensor.is_floating_point() else 0)


_ALIGNED = 64  # bytes


@contextmanager
def written_nowhere(tensors: Tensors, *, by_version: bool = False) -> Iterator[None]:
    """Refuse a forward pass that writes a weight or a buffer: that would hold something of the rows, unnoised.

    Afterwards they hold what they held, whatever happened. `by_version`: all code that runs is of packages that
    keep nothing; then torch's count of writes in place is enough, which only a write past it would escape, and
    what was written all the same is wiped.
    """
    forget, failed = tensors.counted() if by_version else tensors.noted(), True
    try:
        yield
        failed = False
    finally:
        written = forget()
        if written and not failed:
            raise UnsupportedModel(
                "expected the forward pass to write no buffer or weight, but it wrote "
                f"{', '.join(written)}; what it keeps of the examples is not private: remove it, or switch the "
                "module to eval()"
            )


def _hung_on(tensor: Tensor) -> Iterator[Place]:
    """What code could hang on a weight, besides its values."""
    yield places.Mapping(vars(tensor))
    if tensor.is_leaf:
        yield places.Gradient(tensor)


_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice, types.CodeType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, np.generic, np.dtype, np.ufunc),
)


@functools.lru_cache(maxsize=1024)
def _is_plain_kind(kind: type) -> bool:
    return kind in _PLAIN or issubclass(kind, np.generic | np.dtype)


def _is_plain(thing: Any) -> bool:
    kind: Any = type(thing)
    return _is_plain_kind(kind)


def _inside(thing: Any) -> Iterable[Any]:
    """What an object refers to in a place that cannot be written."""
    if isinstance(thing, types.MethodType):
        return (thing.__func__, thing.__self__)
    if isinstance(thing, functools.partial):
        return (thing.func, thing.args, thing.keywords)
    if isinstance(thing, tuple | frozenset):
        return tuple(thing)
    if isinstance(thing, types.MappingProxyType):
        return tuple(thing.values())
    if isinstance(thing, staticmethod | classmethod):
        return (thing.__func__,)
    if isinstance(thing, property):
        return (thing.fget, thing.fset, thing.fdel)
    if isinstance(thing, types.BuiltinMethodType | types.MethodWrapperType):
        return (thing.__self__,)
    try:
        return (getattr(thing, "__wrapped__", None),)
    except Exception:  # a class may answer for names that it lacks as it likes
        return (None,)


def _is_ours(thing: Any) -> bool:
    """A trainer, a ledger: nothing can be hung on them, and what is inside is none of the code's business."""
    home = home_of(type(thing)) or ""
    return home.partition(".")[0] == "sfumato" and not isinstance(thing, nn.Module)


def _entries(thing: Any) -> int:
    if isinstance(thing, Tensor):
        return thing.numel()
    if isinstance(thing, np.ndarray):
        return int(thing.size)
    return len(thing) if isinstance(thing, dict | list | set | tuple | bytearray) else 0


class _Names(NamedTuple):
    """Of some code: names that it uses, those that it could set on something, modules that it imports.

    `reaches` says that it finds names by texts, in all globals or among all modules.
    """

    used: frozenset[str]
    stored: frozenset[str]
    modules: frozenset[str]
    reaches: bool


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> _Names:
    used, stored, modules = set(code.co_names), set(), set()
    loaded = set()
    for step in dis.get_instructions(code):
        name = str(step.argval)
        if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
            stored.add(name)
        elif step.opname == "IMPORT_NAME":
            modules.add(name)
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.add(name)
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}
    if used & _SETTING:
        stored |= texts
    reaches = bool(loaded & _FINDING or used & _REACHING or {"sys", "modules"} <= used)
    if reaches:
        used, modules = used | texts, modules | texts
    return _Names(
        used=frozenset(used.union(*(each.used for each in inner))),
        stored=frozenset(stored.union(*(each.stored for each in inner))),
        modules=frozenset(modules.union(*(each.modules for each in inner))),
        reaches=reaches or any(each.reaches for each in inner),
    )


_SETTING = frozenset(["setattr", "__setattr__", "__dict__", "vars"])
_FINDING = frozenset(["globals", "eval", "exec", "__import__"])  # as functions: torch's modules have `eval`
_REACHING = frozenset(["__globals__", "f_globals", "import_module"])
