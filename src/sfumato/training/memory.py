"""What code from outside can remember, and how it is made to forget.

A loss, views and a model are Python. They may keep what they saw of one row in an attribute, a list, a
variable that a function closes over, a default, a global name or an attribute of a class, and act on it when
they see another row. `Memory` finds all places of that kind that can be reached from them, and puts back what
was there: after each block of rows, and after each row where a function is called row by row. Every row then
meets the state that the survey met.

Places are followed through functions, methods, partials, objects, containers and modules of the user's, and of
the packages that these use. Packages that only another package uses, and large ones, are taken to keep nothing
in their modules and classes: with pandas beside a data set half of the interpreter would be looked through for
each row. What their objects and functions hold is put back all the same: a decorator of theirs makes a function
of its own around the user's. What has a state that cannot be put back (a generator, an open file) is refused,
before anything is charged.
"""

from __future__ import annotations

import builtins
import collections
import dis
import functools
import gc
import importlib
import importlib.util
import math
import os
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from operator import and_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.errors import UnsupportedModel
from sfumato.randomness import GENERATORS, GLOBAL_GENERATORS, key_anew
from sfumato.training import places
from sfumato.training.interrupts import undisturbed
from sfumato.training.places import Place
from sfumato.training.replaced import replaced
from sfumato.training.structure import Structure, tensors_of
from sfumato.trust import (
    INSTALLED,
    TRUSTED,
    WRITTEN_IN_PYTHON,
    defined_in,
    home_of,
    is_installed_file,
    is_trusted,
    is_trusted_class,
    is_trusted_module,
)


class Memory:
    """Every place that code at `roots` could write, as it was when this was made.

    `name` says in errors whose it is. The values of the tensors in `but` are somebody else's to look after. The
    global generators are passed over: every step keys them anew. With `largest`, as for a data set, what is not
    known is passed over; of what has more entries only the length is put back, and of large arrays a sample is
    compared, until `compare_large` looks at all of it; and generators are not refused but keyed anew, as the
    global ones are.
    """

    def __init__(self, *roots: Any, name: str, but: Iterable[Tensor] = (), largest: int | None = None) -> None:
        self._name = name
        self._largest = largest
        others = list(but)
        self._seen: dict[int, Any] = {id(thing): thing for thing in (*others, *GLOBAL_GENERATORS)}
        self._places: list[Place] = []
        self._own: list[bool] = []  # whether each lies in code or objects of the user's
        self._inside_own = True
        self._generators: list[Any] = []
        self._whole: list[places.Whole] = []  # what is too large to be compared for each item
        self._compared, self._since = 0.0, 0.0  # seconds that it took so far, and since when
        self._names: set[tuple[int, str]] = set()
        self._named: dict[int, str] = {}  # the global name under which a thing was found
        self._above: str | None = None  # the one under which the present thing was
        self._classes: set[type] = set()  # of libraries
        self._large = _large_packages(len(sys.modules))
        self._via: str | None = None  # the package through which a thing is reached; None: from the user's code
        self._follow([*roots, *(value for tensor in others for value in self._beside(tensor))])
        if largest is not None:
            self._bring_together()

    def _follow(self, direct: list[Any]) -> None:
        """Note the places of things and of all that they hold; what only a package reaches comes last."""
        known = set(self._seen)  # what was reached from the user's code
        through: list[tuple[Any, str]] = []
        while direct or through:
            thing, self._via = (direct.pop(), None) if direct else through.pop()
            self._above = self._named.get(id(thing))
            met = known if self._via is None else self._seen
            if id(thing) in met or _is_plain(thing):
                continue
            self._seen[id(thing)] = thing  # kept, so that no other object gets its identity
            if self._via is None:
                known.add(id(thing))
            package = self._package_of(thing)
            self._inside_own = package is None
            held = list(self._enter(thing))
            if self._above is not None:
                self._named.update((id(each), self._above) for each in held if id(each) not in self._named)
            if package is None:
                direct += held
            else:
                through += zip(held, repeat(package))

    def _bring_together(self) -> None:
        """Compare many places of a kind at once."""
        kept = list(zip(self._places, self._own, strict=True))
        mine, others = (
            places.together(place for place, own in kept if own is whose) for whose in (True, False)
        )
        self._places, self._own = [*mine, *others], [True] * len(mine) + [False] * len(others)

    def like(self, other: Memory) -> bool:
        """Whether code finds the same in all places as at the moment of another one."""
        return len(self._places) == len(other._places) and all(map(places.alike, self._places, other._places))

    def put_back(self) -> bool:
        """Restore every place; whether one of the user's own had changed, and not only a cache of a library."""
        with undisturbed():
            self.key_generators()
            changed = [place.put_back() for place in self._places]
        return any(map(and_, changed, self._own))

    def compare_large(self) -> None:
        """Refuse that something large was written: at the first call, then in a tenth of the time at most."""
        before = time.perf_counter()
        if self._compared > _MOST_TIME * (before - self._since):
            return
        for each in self._whole:
            each.compare()
        self._since = self._since or before
        self._compared += time.perf_counter() - before

    def key_generators(self) -> None:
        """Give the generators that code holds states that nobody knows: no row draws what follows another's."""
        for generator in self._generators:
            key_anew(generator)

    def _beside(self, tensor: Tensor) -> Iterator[Any]:
        """What code could find beside the values of a weight: hung on it, and in a class of the user's."""
        yield from (value for place in _hung_on(tensor) for value in self._note(place))
        yield type(tensor)

    def _enter(self, thing: Any) -> Iterator[Any]:
        """Note the places of one object, and yield what they hold."""
        kind: Any = type(thing)  # what it is: a proxy says that it is what it stands for
        if kind is types.FunctionType:
            yield from self._function(thing)
        elif issubclass(kind, types.ModuleType):
            if not self._is_library(thing.__name__):
                yield from self._globals(vars(thing), frozenset(vars(thing)), frozenset(), frozenset())
        elif issubclass(kind, type):
            yield from self._class(thing)
        else:
            yield from self._object(thing)

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        yield from self._note(places.Function(function))
        if self._is_library(defined_in(function)):
            yield from (value for cell in function.__closure__ or () for value in self._note(places.Cell(cell)))
            return
        found = _names_in(function.__code__)
        if found.reaches:
            self._note(places.Mapping(function.__globals__))
        for cell in function.__closure__ or ():
            yield from self._by_name(self._note(places.Cell(cell)), found.attributes, found.stored)
        modules = [sys.modules[name] for name in sorted(found.modules) if _is_loaded(name)]
        yield from self._by_name(modules, found.attributes, found.stored)
        yield from self._globals(function.__globals__, found.names, found.attributes, found.stored)

    def _globals(
        self, where: dict[str, Any], names: frozenset[str], used: frozenset[str], stored: frozenset[str]
    ) -> Iterator[Any]:
        """Global names that a function uses, and what it uses of the modules among them."""
        fresh = [name for name in sorted(names) if (id(where), name) not in self._names]
        self._names.update((id(where), name) for name in fresh)
        if fresh:
            self._named.update((id(where[name]), name) for name in fresh if name in where)
            yield from self._by_name(self._note(places.Names(where, fresh)), used, stored)
            yield from _hung_up(vars(builtins), [name for name in fresh if name not in where])

    def _by_name(self, values: Iterable[Any], used: frozenset[str], stored: frozenset[str]) -> Iterator[Any]:
        """The values; of a module, what a function uses of it."""
        for value in values:
            if not isinstance(value, types.ModuleType):
                yield value
            elif not self._is_library(value.__name__):
                yield from self._globals(vars(value), used | stored, used, stored)
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
            own = vars(thing)
            yield from _hung_up(own, used)
            if isinstance(thing, types.ModuleType):
                found = [own[name] for name in used if name in own]
                waiting += [value for value in found if isinstance(value, type | types.ModuleType)]
                yield from (vars(value)["_data"] for value in found if value is os.environ)

    def _class(self, kind: type) -> Iterator[Any]:
        yield type(kind)
        for one in kind.__mro__:
            if not self._is_library(home_of(one)):
                yield from self._note(places.ClassAttributes(one))
            elif one.__flags__ & WRITTEN_IN_PYTHON and one not in self._classes:
                self._classes.add(one)
                self._note(places.ClassAttributes(one))  # what code hangs on it; its own keeps nothing

    def _object(self, thing: Any) -> Iterator[Any]:
        if self._largest is not None and self._of_data(thing, self._largest):
            return
        found = (places.of_data(thing, self._name) if self._largest is not None else []) or places.of(thing)
        if found is None:
            if self._largest is None or places.moves_on(thing):
                raise self._cannot_put_back(thing)
            return
        held = [value for place in found for value in self._note(place)]
        if not _is_ours(thing):
            yield from (*held, *_inside(thing), type(thing))

    def _cannot_put_back(self, thing: Any) -> UnsupportedModel:
        kind = type(thing).__name__ + (f" (under the global name {self._above!r})" if self._above else "")
        if self._largest is not None:
            return UnsupportedModel(
                f"expected {self._name} to hold nothing that moves on with each item, got {kind}; what it gave "
                "before would reach later items: read items by their number, as from a list"
            )
        return UnsupportedModel(
            f"expected {self._name} to hold only what can be put back after each row, got {kind}, which keeps "
            "a state of its own; leave it out (of a LightningModule hand over the network inside), and draw "
            "from torch's generator"
        )

    def _of_data(self, thing: Any, largest: int) -> bool:
        """Whether it is what data sets may hold: a generator, or too much to look at each entry."""
        kind: Any = type(thing)
        if issubclass(kind, (*GENERATORS, torch.Generator)):
            self._generators.append(thing)
        elif issubclass(kind, Tensor | np.ndarray) and thing.nbytes > _LARGEST_ARRAY:
            self._note(places.LargeArray(thing, self._name))
            self._whole.append(places.Whole(thing, self._name))
        elif _entries(thing) > largest:
            self._note(places.Length(thing, self._name))
            self._whole.append(places.Whole(thing, self._name))
        elif places.is_buffer(thing) and places.size_of_buffer(thing) > _LARGEST_ARRAY:
            self._whole.append(places.Whole(thing, self._name))
        else:
            return False
        return True

    def _package_of(self, thing: Any) -> str | None:
        """The package through which what a thing holds is reached; None where that is the user's code."""
        kind: Any = type(thing)
        if kind is types.FunctionType:
            module = defined_in(thing)
        elif issubclass(kind, types.ModuleType):
            module = thing.__name__
        else:
            module = home_of(thing if issubclass(kind, type) else kind)
        package = (module or "").partition(".")[0]
        if package in TRUSTED or package in sys.stdlib_module_names:
            return self._via
        return package if is_trusted_module(module, INSTALLED) else None

    def _is_library(self, module: str | None) -> bool:
        """Whether a module, and classes in it, are taken to keep nothing."""
        package = (module or "").partition(".")[0]
        known = package in TRUSTED or package in sys.stdlib_module_names or package in self._large
        lends = known or self._via not in (None, package)
        return lends and is_trusted_module(module, INSTALLED)

    def _note(self, place: Place) -> Iterable[Any]:
        self._places.append(place)
        self._own.append(self._inside_own)
        return place.held()


@functools.lru_cache(maxsize=4)
def _large_packages(loaded: int) -> frozenset[str]:
    """Of more than fifty modules, while so many are loaded."""
    counts = collections.Counter(name.partition(".")[0] for name in list(sys.modules))
    return frozenset(package for package, count in counts.items() if count > _LARGE)


def _hung_up(names: Mapping[str, Any], used: Iterable[str]) -> Iterator[Any]:
    """Containers under names that code uses of a library, which it may have hung there itself."""
    found = (names.get(name) for name in used)
    return (value for value in found if type(value) in _CONTAINERS and value is not sys.modules)


_CONTAINERS = frozenset(
    [
        *(dict, list, set, bytearray),
        *(collections.deque, collections.defaultdict, collections.OrderedDict, collections.Counter),
    ]
)


def _is_loaded(name: str) -> bool:
    """Whether a module that code imports is there; one of the user's is imported now, not first by a row."""
    if name in sys.modules:
        return True
    try:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None or is_installed_file(found.origin):
            return False
        importlib.import_module(name)
    except Exception:  # whoever imports it will be told
        return False
    return name in sys.modules


_LARGE = 50
_MOST_TIME = 0.1  # of all, to compare what is large
_LARGEST_ARRAY = 1 << 20  # bytes of an array that is compared after each item


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
    kind: Any = type(thing)
    if issubclass(kind, weakref.ref):
        return (thing(),)
    if issubclass(kind, types.MappingProxyType):
        return tuple(thing.values())  # the dictionary of a class is written by its class
    if issubclass(kind, functools._lru_cache_wrapper) or places.is_quiet(kind):
        return ()  # a cache is emptied; what a logger or a lock holds is nobody's memory
    if places.is_file(kind) or places.is_buffer(thing):
        return ()
    # What C holds: the function behind a method, a partial, a property, a proxy of another library.
    return [held for held in gc.get_referents(thing) if type(held) not in _OF_THE_INTERPRETER]


_OF_THE_INTERPRETER = (
    *(types.FrameType, types.TracebackType, types.CodeType, types.ModuleType, type),
    type(torch._C._get_tracing_state.__self__),  # type: ignore[attr-defined]  # behind each function of torch that is written in C++
)


def _is_ours(thing: Any) -> bool:
    """A trainer, a ledger: nothing can be hung on them, and what is inside is none of the code's business."""
    home = home_of(type(thing)) or ""
    return home.partition(".")[0] == "sfumato" and not isinstance(thing, nn.Module)


def _entries(thing: Any) -> int:
    return len(thing) if issubclass(type(thing), dict | list | set | tuple | bytearray) else 0


class _Names(NamedTuple):
    """Of some code: global names, attributes that it uses or could set on something, modules that it imports.

    `reaches` says that it finds names by texts, in all globals or among all modules.
    """

    names: frozenset[str]
    attributes: frozenset[str]
    stored: frozenset[str]
    modules: frozenset[str]
    reaches: bool


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> _Names:
    names, attributes, stored, modules = set(), set(), set(), set()
    for step in dis.get_instructions(code):
        if step.opcode not in dis.hasname:
            continue
        name = str(step.argval)
        if step.opname == "IMPORT_NAME":
            modules.add(name)
        elif step.opname not in _OF_ATTRIBUTES:  # what a later Python adds is taken for a global name
            names.add(name)
        else:
            attributes.add(name)
        if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
            stored.add(name)
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}
    used = names | attributes
    if used & _SETTING:
        stored |= texts
    if "getattr" in names:
        attributes |= texts
    reaches = bool(names & _FINDING or used & _REACHING or {"sys", "modules"} <= used | modules)
    if reaches:
        names, attributes, modules = names | texts, attributes | texts, modules | texts
    return _Names(
        names=frozenset(names.union(*(each.names for each in inner))),
        attributes=frozenset(attributes.union(*(each.attributes for each in inner))),
        stored=frozenset(stored.union(*(each.stored for each in inner))),
        modules=frozenset(modules.union(*(each.modules for each in inner))),
        reaches=reaches or any(each.reaches for each in inner),
    )


_OF_ATTRIBUTES = frozenset(
    ["LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM"]
)
_SETTING = frozenset(["setattr", "__setattr__", "__dict__", "vars"])
_FINDING = frozenset(["globals", "eval", "exec", "__import__"])  # as functions: torch's modules have `eval`
_REACHING = frozenset(["__globals__", "f_globals", "import_module"])
