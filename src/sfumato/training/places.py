"""Places that Python code can write, each able to put back what it held."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import functools
import io
import itertools
import logging
import math
import mmap
import multiprocessing.synchronize
import sqlite3
import sys
import threading
import types
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from operator import is_
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sfumato.errors import UnsupportedModel
from sfumato.randomness import GENERATORS
from sfumato.trust import INSTALLED, is_class_of

_ABSENT = object()
_ALL_ABSENT = itertools.repeat(_ABSENT)


class Place(Protocol):
    """Remembers what it held when it was made."""

    def held(self) -> Iterable[Any]:
        """What it held: may have places of its own."""

    def seen(self) -> Iterable[Any]:
        """What code could learn from it, to be compared with what it held at another moment."""

    def put_back(self) -> bool:
        """Restore it; whether it had changed."""


def alike(one: Place, other: Place) -> bool:
    """Whether two places, of two moments, hold the very same, or equal plain values."""
    if type(one) is not type(other):
        return False
    mine, theirs = list(one.seen()), list(other.seen())
    return len(mine) == len(theirs) and all(map(_is_same, mine, theirs))


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return isinstance(one, bool | int | float | complex | str | bytes) and bool(one == other or one != one)


class Mapping:
    """A dictionary; written by the base class, past what a subclass overrides."""

    def __init__(self, target: dict[Any, Any]) -> None:
        self._target = target
        ordered = issubclass(type(target), collections.OrderedDict)  # whose order is not that of its base
        self._kind: Any = collections.OrderedDict if ordered else dict
        self._names, self._values = list(self._kind.keys(target)), list(self._kind.values(target))

    def held(self) -> Iterable[Any]:
        return [part for part in (*self._names, *self._values) if type(part) is not str]

    def seen(self) -> Iterable[Any]:
        return [*self._names, *self._values]

    def put_back(self) -> bool:
        target, names, values = self._target, self._names, self._values
        if dict.__len__(target) == len(names) and (
            not names
            or (
                all(map(is_, self._kind.values(target), values))
                and all(map(is_, self._kind.keys(target), names))
            )
        ):
            return False
        self._kind.clear(target)
        self._kind.update(target, zip(names, values, strict=True))
        return True


class Marks(Mapping):
    """The attributes of a logger or a handler; what it holds by itself is nobody's memory."""

    def held(self) -> Iterable[Any]:
        pairs = zip(self._names, self._values, strict=True)
        return [value for name, value in pairs if name not in _OF_EVERY_LOGGER]


class Items:
    """A list or a deque."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._kept = list(target)

    def held(self) -> Iterable[Any]:
        return self._kept

    def seen(self) -> Iterable[Any]:
        return self._kept

    def put_back(self) -> bool:
        if len(self._target) == len(self._kept) and all(map(is_, self._target, self._kept)):
            return False
        kind: Any = list if isinstance(self._target, list) else collections.deque
        kind.clear(self._target)
        kind.extend(self._target, self._kept)
        return True


class Members:
    """A set."""

    def __init__(self, target: set[Any]) -> None:
        self._target = target
        self._kept = {id(member): member for member in target}

    def held(self) -> Iterable[Any]:
        return self._kept.values()

    def seen(self) -> Iterable[Any]:
        return sorted(self._kept)

    def put_back(self) -> bool:
        if {id(member) for member in self._target} == self._kept.keys():
            return False
        set.clear(self._target)
        set.update(self._target, self._kept.values())
        return True


class Cell:
    """A variable that a function closes over."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell
        self._kept = _content(cell)

    def held(self) -> Iterable[Any]:
        return (self._kept,) if self._kept is not _ABSENT else ()

    def seen(self) -> Iterable[Any]:
        return (self._kept,)

    def put_back(self) -> bool:
        if _content(self._cell) is self._kept:
            return False
        if self._kept is _ABSENT:
            del self._cell.cell_contents
        else:
            self._cell.cell_contents = self._kept
        return True


class Names:
    """Some names of a module."""

    def __init__(self, target: dict[str, Any], names: Sequence[str]) -> None:
        self._target = target
        self._kept = {name: target.get(name, _ABSENT) for name in names}

    def held(self) -> Iterable[Any]:
        return [value for value in self._kept.values() if value is not _ABSENT]

    def seen(self) -> Iterable[Any]:
        return [*self._kept, *self._kept.values()]

    def put_back(self) -> bool:
        if all(map(is_, map(self._target.get, self._kept, _ALL_ABSENT), self._kept.values())):
            return False
        changed = [name for name, kept in self._kept.items() if self._target.get(name, _ABSENT) is not kept]
        for name in changed:
            if self._kept[name] is _ABSENT:
                del self._target[name]
            else:
                self._target[name] = self._kept[name]
        return bool(changed)


class Hung:
    """One name that code could hang on a module or a class of a library."""

    def __init__(self, target: Any, name: str) -> None:
        self._target, self._name = target, name
        self._kept = vars(target).get(name, _ABSENT)

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return (self._kept,)

    def put_back(self) -> bool:
        if vars(self._target).get(self._name, _ABSENT) is self._kept:
            return False
        if self._kept is _ABSENT:
            delattr(self._target, self._name)
        else:
            setattr(self._target, self._name, self._kept)
        return True


class Length:
    """What has too many entries to look at each for each item: what was added is taken away again."""

    def __init__(self, target: Any, name: str) -> None:
        self._target, self._name = target, name
        self._kept = len(target)
        self._members = frozenset(target) if isinstance(target, set) else frozenset()

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return (self._kept,)

    def put_back(self) -> bool:
        target = self._target
        if len(target) == self._kept:
            return False
        if isinstance(target, set):
            set.intersection_update(target, self._members)
            set.update(target, self._members)
        elif len(target) < self._kept:
            raise _written("something of many entries", self._name)
        elif isinstance(target, dict):
            kind: Any = collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict
            while len(target) > self._kept:
                kind.popitem(target)
        else:
            del target[self._kept :]
        return True


class LargeArray:
    """An array of which only a sample is compared; what was written cannot be put back, and is refused."""

    def __init__(self, target: Any, name: str) -> None:
        self._target, self._name = target, name
        size = math.prod(target.shape)
        self._sample = np.unravel_index(np.arange(0, size, -(-size // _SAMPLED)), tuple(target.shape))
        self._kept = self._now()

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return self._kept

    def put_back(self) -> bool:
        if not all(map(_is_same, self._now(), self._kept)):
            raise _written("a large array", self._name)
        return False

    def _now(self) -> tuple[Any, ...]:
        if issubclass(type(self._target), Tensor):
            return self._target._version, self._target.detach()[tuple(map(torch.as_tensor, self._sample))]
        return (self._target[self._sample],)


class Whole:
    """All that lies in something large, too dear to compare for each item; a change is refused.

    Entries are compared by identity, and theirs again where they are containers or objects of the user's;
    arrays by a checksum of their bytes.
    """

    def __init__(self, target: Any, name: str) -> None:
        self._target, self._name = target, name
        self._entries, self._sums = _flattened(target)
        self._comparable = self._same()  # entries of some arrays are made anew whenever they are asked for

    def compare(self) -> None:
        if self._comparable and not self._same():
            array = issubclass(type(self._target), Tensor | np.ndarray)
            raise _written("a large array" if array else "something of many entries", self._name)

    def _same(self) -> bool:
        entries, sums = _flattened(self._target)
        same = len(entries) == len(self._entries) and all(map(is_, entries, self._entries))
        return same and sums == self._sums


def _written(what: str, name: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"expected {name} to write nothing into {what} while it reads an item, but it did; what it keeps of "
        "one item reaches others: prepare things in __init__"
    )


def _flattened(thing: Any) -> tuple[list[Any], list[int]]:
    """Every entry in a nest of containers; lengths, and checksums of arrays."""
    entries: list[Any] = []
    sums: list[int] = []
    waiting, seen = [thing], {id(thing)}
    while waiting:
        one = waiting.pop()
        kind: Any = type(one)
        if issubclass(kind, Tensor | np.ndarray | bytearray) and not _holds_objects(one):
            sums.append(_checksum(one))
            continue
        if is_buffer(one):
            with memoryview(one) as view, view.cast("B") as memory:
                sums.append(_checksum(np.asarray(memory)))
            continue
        inside = _entries_of(one)
        sums.append(len(inside))
        entries += inside
        for each in inside:
            if type(each) not in _NUMBERS_AND_TEXTS and id(each) not in seen:
                seen.add(id(each))
                waiting.append(each)
    return entries, sums


def _entries_of(thing: Any) -> list[Any]:
    kind: Any = type(thing)
    if issubclass(kind, dict):
        base: Any = collections.OrderedDict if issubclass(kind, collections.OrderedDict) else dict
        return [*base.keys(thing), *base.values(thing)]
    if issubclass(kind, list | tuple | collections.deque):
        return list(thing)
    if issubclass(kind, set | frozenset):
        return sorted(thing, key=id)  # whose order may be another one once something was added
    if issubclass(kind, np.ndarray):
        return list(thing.flat)
    if issubclass(kind, type) or is_class_of(kind, INSTALLED):
        return []  # libraries may load what they hold when they are asked
    return [value for place in _attributes_of(thing) for value in place.seen()]


def _holds_objects(thing: Any) -> bool:
    return issubclass(type(thing), np.ndarray) and bool(thing.dtype.hasobject)


def _checksum(array: Any) -> int:
    """Of all bytes, or of many of them; of what lies on another device or was mapped to be read, nothing."""
    if issubclass(type(array), Tensor):
        array = array.detach().as_subclass(Tensor)
        if not _is_strided(array):
            return 0
        array = array.contiguous().reshape(-1).view(torch.uint8).numpy()
    elif issubclass(type(array), np.memmap) and not array.flags.writeable:
        return 0
    elif issubclass(type(array), np.ndarray):
        array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    else:
        array = np.frombuffer(array, dtype=np.uint8)
    if len(array) <= _MOST_SUMMED:
        return zlib.crc32(array)
    pages = array[: len(array) // _PAGE * _PAGE].reshape(-1, _PAGE)
    return zlib.crc32(np.ascontiguousarray(pages[:: -(-len(array) // _MOST_SUMMED)]).data)


class Attributes:
    """Attributes that lie in no dictionary: slots, and those of functions."""

    def __init__(self, target: Any, names: Sequence[str]) -> None:
        self._target = target
        self._kept = {name: _attribute(target, name) for name in names}

    def held(self) -> Iterable[Any]:
        return [value for value in self._kept.values() if value is not _ABSENT]

    def seen(self) -> Iterable[Any]:
        return [*self._kept, *self._kept.values()]

    def put_back(self) -> bool:
        changed = [name for name, kept in self._kept.items() if _attribute(self._target, name) is not kept]
        for name in changed:
            if self._kept[name] is _ABSENT:
                object.__delattr__(self._target, name)
            else:
                object.__setattr__(self._target, name, self._kept[name])
        return bool(changed)


class Function:
    """What can be put in a function: its code, its defaults, and what hangs on it."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self._kept = function.__code__, function.__defaults__, function.__kwdefaults__
        self._hung = Mapping(function.__dict__)

    def held(self) -> Iterable[Any]:
        return [*self._kept, *self._hung.held()]

    def seen(self) -> Iterable[Any]:
        """A function that is written in a loop is another one each time, of the same code and defaults."""
        code, defaults, named = self._kept
        return [code, *(defaults or ()), *(named or {}), *(named or {}).values(), *self._hung.seen()]

    def put_back(self) -> bool:
        function, (code, defaults, named) = self._function, self._kept
        same = (
            function.__code__ is code and function.__defaults__ is defaults and function.__kwdefaults__ is named
        )
        if not same:
            function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, named
        return self._hung.put_back() or not same


class Gradient:
    """The `.grad` of a weight."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._kept = tensor, tensor.grad

    def held(self) -> Iterable[Any]:
        return (self._kept,)

    def seen(self) -> Iterable[Any]:
        """Nothing: a step begins without one."""
        return ()

    def put_back(self) -> bool:
        if self._tensor.grad is self._kept:
            return False
        self._tensor.grad = self._kept
        return True


class ClassAttributes:
    """What a class holds: methods, constants, and whatever code hangs on it."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._kept = dict(vars(kind))
        self._identity = list(map(id, self._kept.values()))

    def held(self) -> Iterable[Any]:
        return [value for name, value in self._kept.items() if name not in _OF_EVERY_CLASS]

    def seen(self) -> Iterable[Any]:
        return [*self._kept, *self._identity]

    def put_back(self) -> bool:
        now = vars(self._kind)
        if list(map(id, now.values())) == self._identity:
            return False
        changed = [name for name in {**self._kept, **now} if now.get(name) is not self._kept.get(name, _ABSENT)]
        for name in changed:
            if name in self._kept:
                type.__setattr__(self._kind, name, self._kept[name])
            else:
                type.__delattr__(self._kind, name)
        self._identity = list(map(id, vars(self._kind).values()))
        return bool(changed)


class TensorContent:
    """The values of a tensor, compared one by one: a write to `.data` leaves no other trace."""

    def __init__(self, tensor: Tensor, copy: Tensor | None = None) -> None:
        """`copy`: of its values, if there is one already."""
        self.tensor = tensor
        self._kept = tensor.detach().clone() if copy is None else copy

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return (self._kept,)

    def put_back(self) -> bool:
        now = self.tensor.detach()
        same = now.shape == self._kept.shape and now.dtype == self._kept.dtype
        if same and torch.equal(_bits(now.contiguous()), _bits(self._kept.contiguous())):
            return False
        if same:
            self.tensor.data.copy_(self._kept)
        else:
            self.tensor.data = self._kept.clone()
        return True


class ArrayContent:
    """The values of a NumPy array."""

    def __init__(self, target: np.ndarray[Any, Any]) -> None:
        self._target = target
        self._kept = target.copy()
        self._bytes = target.tobytes()

    def held(self) -> Iterable[Any]:
        return list(self._target.flat) if self._target.dtype.hasobject else ()

    def seen(self) -> Iterable[Any]:
        return (self._kept,)

    def put_back(self) -> bool:
        if self._target.tobytes() == self._bytes:
            return False
        self._target[...] = self._kept
        return True


class ManyTensors:
    """Tensors of one shape and type, compared at once: by themselves each costs a few calls of torch."""

    def __init__(self, each: Sequence[TensorContent]) -> None:
        self._each = each
        self._tensors = [one.tensor for one in each]
        self._types = [one.tensor.dtype for one in each]
        self._kept = torch.stack([one._kept for one in each])
        for one, kept in zip(each, self._kept, strict=True):
            one._kept = kept  # the same memory, once

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return (self._kept,)

    def put_back(self) -> bool:
        if self._same():
            return False
        return any([one.put_back() for one in self._each])  # noqa: C419  (all of them, not up to the first)

    def _same(self) -> bool:
        if [tensor.dtype for tensor in self._tensors] != self._types:  # stacked, they would become one type
            return False
        try:
            with torch.no_grad():
                now = torch.stack(self._tensors)
        except RuntimeError:  # one has another shape
            return False
        return now.shape == self._kept.shape and torch.equal(_bits(now), _bits(self._kept))


class ManyEmpty:
    """Dictionaries that held nothing, such as the attributes of tensors."""

    def __init__(self, each: Sequence[Mapping]) -> None:
        self._each = each
        self._targets = [one._target for one in each]

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return (len(self._each),)

    def put_back(self) -> bool:
        if not any(self._targets):
            return False
        return any([one.put_back() for one in self._each])  # noqa: C419  (all of them, not up to the first)


def together(places: Iterable[Place]) -> list[Place]:
    """The same places, with those that are alike compared at once; what each puts back stays the same."""
    found: list[Place] = []
    groups: dict[Any, list[Any]] = {}
    for place in places:
        key = _group_of(place)
        found += [] if key else [place]
        if key:
            groups.setdefault(key, []).append(place)
    for key, each in groups.items():
        found.append(each[0] if len(each) == 1 else ManyEmpty(each) if key == _EMPTY else ManyTensors(each))
    return found


def _group_of(place: Place) -> Any:
    """The same for places that can be compared at once; None for the others."""
    if type(place) is Mapping:
        return _EMPTY if type(place._target) is dict and not place._target else None
    if type(place) is TensorContent and type(place.tensor) is Tensor and _is_strided(place.tensor):
        return place.tensor.shape, place.tensor.dtype
    return None


def _is_strided(tensor: Tensor) -> bool:
    whole = tensor.layout is torch.strided and not (tensor.is_neg() or tensor.is_conj() or tensor.is_quantized)
    return whole and tensor.device.type == "cpu"


_EMPTY = "empty"


class Bytes:
    """Bytes that can be written."""

    def __init__(self, target: bytearray) -> None:
        self._target = target
        self._kept = bytes(target)

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return (self._kept,)

    def put_back(self) -> bool:
        changed = self._target != self._kept
        self._target[:] = self._kept
        return changed


def _closed() -> UnsupportedModel:
    return UnsupportedModel(
        "expected memory that is open and as large after each item as before, got some that was closed or has "
        "another size; prepare things in __init__"
    )


class Buffer:
    """Memory that an object of C lets others write: an `array`, numbers of ctypes, a mapped file."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._kept = self._now()

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return (self._kept,)

    def put_back(self) -> bool:
        now = self._now()
        if now == self._kept:
            return False
        if isinstance(self._target, array.array):
            del self._target[:]
            self._target.frombytes(self._kept)
        elif len(now) != len(self._kept):
            raise _closed()
        else:
            with memoryview(self._target) as view, view.cast("B") as inside:
                inside[:] = self._kept
        return True

    def _now(self) -> bytes:
        try:
            with memoryview(self._target) as view:
                return view.tobytes()
        except ValueError as error:
            raise _closed() from error


class ContextVariable:
    """A variable of the present context that has a value: what was never set cannot be unset."""

    def __init__(self, target: contextvars.ContextVar[Any]) -> None:
        self._target = target
        self._kept = target.get()

    def held(self) -> Iterable[Any]:
        return (self._kept,)

    def seen(self) -> Iterable[Any]:
        return (self._kept,)

    def put_back(self) -> bool:
        if self._target.get() is self._kept:
            return False
        self._target.set(self._kept)
        return True


class Position:
    """Where an open file is read: at its end before each item, so that none finds what follows another."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._end = self._moved()

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return ()

    def put_back(self) -> bool:
        """Never a change of the user's: whoever seeks before he reads has kept nothing."""
        if self._end is not None and not self._target.closed and self._now() != self._end:
            self._target.seek(self._end)
        return False

    def _moved(self) -> Any:
        try:
            return self._target.seek(0, io.SEEK_END)
        except (OSError, ValueError):  # no file with places, or one that is unpacked on the way
            return self._now()

    def _now(self) -> Any:
        try:
            return self._target.tell()
        except (OSError, ValueError):  # in the middle of its lines
            return None


class InMemoryFile:
    """A file that lies in memory: what it holds; read from its end before each item, like any other."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._kept = () if target.closed else (target.getvalue(),)
        self.put_back()

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return self._kept

    def put_back(self) -> bool:
        target = self._target
        if not self._kept or target.closed:
            return False
        changed = target.getvalue() != self._kept[0]
        if changed:
            target.seek(0)
            target.truncate()
            target.write(self._kept[0])
        target.seek(0, io.SEEK_END)
        return bool(changed)


class Database:
    """A connection to a database of SQLite, of which only is known how many rows it has written."""

    def __init__(self, target: sqlite3.Connection, name: str) -> None:
        self._target, self._name = target, name
        self._kept = self._now()

    def held(self) -> Iterable[Any]:
        return ()

    def seen(self) -> Iterable[Any]:
        return (self._kept,)

    def put_back(self) -> bool:
        if self._now() != self._kept:
            raise _written("a database", self._name)
        return False

    def _now(self) -> int | None:
        try:
            return self._target.total_changes
        except sqlite3.Error:  # closed, or opened in another thread
            return None


class Table:
    """The blocks of a table of pandas; their arrays are places of their own."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._blocks, self._axes = target.blocks, list(target.axes)
        self._parts = self._now()

    def held(self) -> Iterable[Any]:
        return [*(block.values for block in self._blocks), *self._axes]

    def seen(self) -> Iterable[Any]:
        return self._parts

    def put_back(self) -> bool:
        now, target = self._now(), self._target
        if len(now) == len(self._parts) and all(map(is_, now, self._parts)):
            return False
        for block, values, where in zip(*(iter(self._parts[: 3 * len(self._blocks)]),) * 3, strict=True):
            block.values, block._mgr_locs = values, where
        target.blocks, target.axes = self._blocks, list(self._axes)
        for name, value in _CACHES_OF_TABLES.items():
            if hasattr(target, name):
                setattr(target, name, value)
        return True

    def _now(self) -> list[Any]:
        parts = [part for block in self._target.blocks for part in (block, block.values, block._mgr_locs)]
        return [*parts, *self._target.axes]


class Cache:
    """What `functools.lru_cache` keeps."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def held(self) -> Iterable[Any]:
        return (self._function.__wrapped__,)

    def seen(self) -> Iterable[Any]:
        return ()

    def put_back(self) -> bool:
        kept = self._function.cache_info().currsize > 0
        self._function.cache_clear()
        return bool(kept)


def of(thing: Any) -> list[Place] | None:
    """The places of an object; None where it has a state that cannot be put back, or may have one."""
    kind: Any = type(thing)
    if is_quiet(kind):
        own = getattr(thing, "__dict__", None)
        return [Marks(own)] if isinstance(own, dict) else []
    if _is_opaque(kind):
        return None
    found = [*_attributes_of(thing), *_content_of(thing)]
    known = (
        found or issubclass(kind, _WITHOUT_PLACES) or _has_value(thing) or _is_written(kind) or kind is object
    )
    return found if known else None


def of_data(thing: Any, name: str) -> list[Place]:
    """Of what only a data set may hold; `name` says in errors whose it is."""
    kind: Any = type(thing)
    if is_file(kind):
        if issubclass(kind, io.BytesIO | io.StringIO):
            return [InMemoryFile(thing)]
        read = thing is not sys.stdin and not thing.closed and thing.readable()
        return [Position(thing)] if read else []
    if issubclass(kind, sqlite3.Connection):
        return [Database(thing, name)]
    tables = getattr(sys.modules.get("pandas.core.internals.managers"), "BaseBlockManager", None)
    return [Table(thing)] if isinstance(tables, type) and issubclass(kind, tables) else []


@functools.lru_cache(maxsize=1024)
def is_file(kind: type) -> bool:
    """Whether it is an open file of Python's or a library's; what such a file holds is its own business."""
    return issubclass(kind, io.IOBase) and is_class_of(kind, INSTALLED)


def is_buffer(thing: Any) -> bool:
    """Whether it is of those kinds of C whose memory can be written, and put back."""
    kind: Any = type(thing)
    if not _has_memory(kind) or getattr(kind, "_type_", "") in _POINTERS:
        return False
    try:
        with memoryview(thing) as view:
            return not view.readonly
    except (ValueError, TypeError, BufferError):  # a mapped file that was closed
        return False


@functools.lru_cache(maxsize=1024)
def _has_memory(kind: type) -> bool:
    return issubclass(kind, _WITH_MEMORY)


def size_of_buffer(thing: Any) -> int:
    with memoryview(thing) as view:
        return view.nbytes


def moves_on(thing: Any) -> bool:
    """Whether it goes on when it is asked, and never back: a generator of values, an iterator."""
    kind: Any = type(thing)
    return issubclass(kind, collections.abc.Iterator) and not issubclass(kind, io.IOBase)


def _content_of(thing: Any) -> Iterator[Place]:
    kind: Any = type(thing)
    if issubclass(kind, dict):
        yield Mapping(thing)
    elif issubclass(kind, list | collections.deque):
        yield Items(thing)
    elif issubclass(kind, set):
        yield Members(thing)
    elif issubclass(kind, Tensor):
        yield TensorContent(thing)
    elif issubclass(kind, np.ndarray):
        yield ArrayContent(thing)
    elif issubclass(kind, bytearray):
        yield Bytes(thing)
    elif is_buffer(thing):
        yield Buffer(thing)
    elif issubclass(kind, contextvars.ContextVar) and thing.get(_ABSENT) is not _ABSENT:
        yield ContextVariable(thing)
    elif issubclass(kind, types.CellType):
        yield Cell(thing)
    elif issubclass(kind, _LRU_CACHE):
        yield Cache(thing)


def _attributes_of(thing: Any) -> Iterator[Place]:
    kind: Any = type(thing)
    base: Any = _LOCAL if issubclass(kind, _LOCAL) else object  # of the former, what the present thread finds
    try:
        own = base.__getattribute__(thing, "__dict__")  # what its class says of names it lacks is not asked
    except AttributeError:
        own = None
    if isinstance(own, dict):
        yield Mapping(own)
    slots = _slots_of(kind)
    if slots:
        yield Attributes(thing, slots)


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: type) -> tuple[str, ...]:
    members = [pair for one in kind.__mro__ if _is_written(one) for pair in vars(one).items()]
    return tuple(name for name, value in members if isinstance(value, types.MemberDescriptorType))


@functools.lru_cache(maxsize=1024)
def is_quiet(kind: type) -> bool:
    return issubclass(kind, _QUIET)


@functools.lru_cache(maxsize=1024)
def _is_opaque(kind: type) -> bool:
    return issubclass(kind, _OPAQUE)


def _is_written(kind: type) -> bool:
    """Whether a class with slots was written in Python; a member of another one is no slot."""
    return "__slots__" in vars(kind)


def _has_value(thing: Any) -> bool:
    """Whether it is a constant, such as a compiled pattern: equal and hashed by value, and so never written."""
    kind: Any = type(thing)
    return kind.__hash__ is not None and kind.__eq__ is not object.__eq__


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _attribute(target: Any, name: str) -> Any:
    try:
        return object.__getattribute__(target, name)
    except AttributeError:
        return _ABSENT


def _bits(values: Tensor) -> Tensor:
    """Compared as bits, so that NaN is like itself."""
    if values.is_floating_point() and values.is_contiguous() and values.numel():
        return values.view(_WHOLE.get(values.element_size(), torch.uint8))
    return values


_NUMBERS_AND_TEXTS = frozenset([bool, int, float, complex, str, bytes, type(None)])
_MOST_SUMMED = 1 << 29  # bytes of an array that a checksum is made of
_PAGE = 1 << 12
_SAMPLED = 64  # entries of a large array: few, as they lie far apart in memory and are read for each item
_WITH_MEMORY = (
    *(array.array, mmap.mmap),
    *(ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union),
)
_POINTERS = frozenset("zZPO")  # of ctypes: what they point at is elsewhere
_LOCAL: Any = threading.local
_CACHES_OF_TABLES = {
    **dict.fromkeys(["_blknos", "_blklocs", "_interleaved_dtype", "_dtypes_cache"]),
    "_known_consolidated": False,
}
_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_LRU_CACHE = type(functools.lru_cache(lambda: None))
_OF_EVERY_CLASS = frozenset(["__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl", "__slots__"])
_WITHOUT_PLACES = (
    *(tuple, frozenset, types.MethodType, functools.partial, staticmethod, classmethod, property),
    types.MappingProxyType,
    *(
        types.BuiltinMethodType,
        types.MethodWrapperType,
        types.WrapperDescriptorType,
        types.MethodDescriptorType,
    ),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType),
)
_OF_EVERY_LOGGER = frozenset(
    [
        *("manager", "root", "parent", "stream", "baseFilename", "target", "buffer"),
        *vars(logging.Logger("")),
        *vars(logging.StreamHandler()),
    ]
)
_QUIET = (
    *(logging.Logger, logging.Handler, weakref.ref, type(threading.Lock()), type(threading.RLock())),
    multiprocessing.synchronize.SemLock,
)
_OPAQUE = (
    *(collections.abc.Iterator, io.IOBase, memoryview, types.CoroutineType),
    *(*GENERATORS, torch.Generator),
)
