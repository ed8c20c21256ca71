"""A computation as the list of its operations, so that it can be done again without the Python around it.

A step on a small model spends a third of its time in Python (modules, hooks, autograd's graph, rules), to
arrive at the same operations each time. `record` notes them once, those of forward and backward pass and all
that follows, and `Recording.play` calls them on other values of the tensors that were given.

*Holds for* code that decides nothing by what is in a tensor: the caller's to know. Where Python is told a
number all the same, as by `bool(doubtful.any())`, the number is noted, and `play` gives up where it is another
one, so that the computation can be done the ordinary way.

Tensors are known by where they lie in memory, not by their Python objects: autograd makes others for the same
elements. Views are not played; where an operation needs one, it is laid out anew over a tensor that has its
elements.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from sfumato.training.dependence import bound, tensors_in, written
from sfumato.training.listing import AS_STRIDED, Function, Line, Listing, Room

Layout: TypeAlias = tuple[Any, ...]


class Unrecordable(Exception):
    """A computation does what a list of operations cannot hold."""


@dataclass(frozen=True)
class Recording:
    """What was done, as a function of the tensors that were given."""

    function: Function
    layouts: Sequence[Layout]  # of what was given
    own: Tensor  # memory that it uses, which holds nothing afterwards

    def play(self, given: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Do it again; None where tensors lie otherwise, or where Python would be told another number."""
        if [_layout(tensor) for tensor in given] != self.layouts:
            return None
        try:
            with torch.no_grad():
                return self.function(*given)
        finally:
            self.own.zero_()


class Example(NamedTuple):
    """A computation on values of its own, and the tensors that have them."""

    compute: Callable[[], Sequence[Tensor]]  # it keeps nothing for the next time
    given: Sequence[Tensor]


def record(
    examples: Sequence[Example], *, into: Sequence[Tensor] = (), scratch: Sequence[Tensor] = ()
) -> Recording | None:
    """How the first example is computed, to be played with `[*given, *into]`.

    None if random numbers are drawn, if a length depends on values, or if others are written than `into`
    (zeros, now and afterwards) and `scratch` (which is written before it is read); or if played, the examples
    come to other bits than they have.
    """

    def bits(found: Sequence[Tensor]) -> list[int]:
        digests = [hash(tensor.detach().numpy().tobytes()) for tensor in found]
        for zeros in into:
            zeros.zero_()
        return digests

    if len({tensor.untyped_storage()._cdata for tensor in examples[0].given}) < len(examples[0].given):
        return None  # the next time they may share nothing
    try:
        expected = [bits(example.compute()) for example in examples]
        given = [*examples[0].given, *into]
        with _Recorder(given, len(examples[0].given), scratch) as recorder:
            found = examples[0].compute()
        function, layouts = recorder.function(found), [_layout(tensor) for tensor in given]
        recording = Recording(function, layouts, recorder.listing.own)
        bits(found)
        del found
    except Unrecordable:
        return None
    for example, digests in zip(examples, expected, strict=True):
        played = recording.play([*example.given, *into])
        if played is None or bits(played) != digests:
            return None
    return recording


Result = TypeVar("Result")


class Recordings(Generic[Result]):
    """Computations that come again and again: recorded the second time, played from then on."""

    def __init__(self) -> None:
        self._once: OrderedDict[Hashable, None] = OrderedDict()
        self._known: OrderedDict[Hashable, Recorded[Result] | None] = OrderedDict()

    def play(
        self,
        key: Hashable,
        given: Sequence[Tensor],
        into: Sequence[Tensor],
        make: Callable[[], Recorded[Result] | None],
    ) -> Result | None:
        """What the recording with this key comes to; None where the ordinary way is to be taken, to the same.

        `into` holds zeros then.
        """
        if key not in self._known:
            if key not in self._once:
                _keep(self._once, key, None)
                return None
            _keep(self._known, key, make())
        recorded = self._known[key]
        if recorded is None:
            return None
        try:
            found = recorded.recording.play([*given, *into])
        except KeyboardInterrupt:  # somebody wants to stop
            raise
        except BaseException:  # as by a row that raises; its text may quote the row
            found = None
        if found is not None:
            return recorded.read(found)
        for zeros in into:
            zeros.zero_()
        return None


class Recorded(NamedTuple, Generic[Result]):
    """A recording, and what its tensors mean."""

    recording: Recording
    read: Callable[[Sequence[Tensor]], Result]


def _keep(some: OrderedDict[Hashable, Any], key: Hashable, value: Any) -> None:
    some[key] = value
    while len(some) > _MOST:
        some.popitem(last=False)


_MOST = 16  # kinds of computations


class _Storage(NamedTuple):
    """Memory that is known: a reference keeps its number from being used again, but not what is in it."""

    reference: Any
    kind: str
    tensors: list[tuple[str, tuple[int, int], torch.dtype]]  # names, and the elements that they span


_GIVEN, _INTO, _SCRATCH, _OUTSIDE, _MADE = "given", "into", "scratch", "outside", "made"


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, every operation becomes a line."""

    def __init__(self, given: Sequence[Tensor], read_only: int, scratch: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.listing = Listing([f"g{number}" for number in range(len(given))])
        self._names: dict[Room, str] = {}
        self._storages: dict[int, _Storage] = {}
        self._written: set[int] = set()  # storages
        self._refused: list[str] = []
        for number, (name, tensor) in enumerate(zip(self.listing.parameters, given, strict=True)):
            self._enter(tensor, name, _GIVEN if number < read_only else _INTO)
        for tensor in scratch:
            self._enter(tensor, self.listing.value(tensor), _SCRATCH)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def function(self, results: Sequence[Tensor]) -> Function:
        """What was done, as a function of what was given."""
        names = [self._name(tensor) for tensor in results]
        if self._refused:
            raise Unrecordable(self._refused[0])
        return self.listing.function(names, self._written)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_refused(func) and not _by_numbers(func, args):
            self._refuse(f"{func} cannot be repeated")
        needs: list[str] = []
        arguments = [self._argument(value, needs) for value in args]
        arguments += [f"{name}={self._argument(value, needs)}" for name, value in kwargs.items()]
        line = Line(func, arguments, needs)
        changed = {tensor.untyped_storage()._cdata for tensor in _changed(func, args, kwargs)}
        with self._drawing_nothing(func, kwargs):
            result = func(*args, **kwargs)
        if torch.Tag.data_dependent_output in func.tags:
            self._tell(line, result)
        else:
            self._note(line, result, changed)
        return result

    @contextmanager
    def _drawing_nothing(self, func: Any, kwargs: Any) -> Iterator[None]:
        """Refuse an operation that draws; one that could, such as attention without dropout, may not."""
        may = torch.Tag.nondeterministic_seeded in func.tags
        before = torch.get_rng_state() if may else None
        yield
        if before is not None and (kwargs.get("generator") or not torch.equal(before, torch.get_rng_state())):
            self._refuse(f"{func} draws")

    def _tell(self, line: Line, number: Any) -> None:
        """Python is told a number: the next time it must be the same."""
        if any(self._storages[where].kind == _INTO for where in self._written):
            self._refuse("a number is asked for after what was given was written")
        self.listing.lines.append(replace(line, told=self.listing.value(number)))

    def _note(self, line: Line, result: Any, changed: set[int]) -> None:
        """An operation that makes or writes something; a view needs no line."""
        if any(self._storages[where].kind in (_GIVEN, _OUTSIDE) for where in changed):
            self._refuse("a tensor is written that is somebody else's")
        self._written |= changed
        one = not isinstance(result, list | tuple)
        makes = []
        for tensor in [result] if one else result:
            new = isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._storages
            makes.append(self._enter(tensor, f"v{len(self._names)}", _MADE) if new else "_")
            if new and (not line.needs or line.func in _ALWAYS_THE_SAME):
                self.listing.kept[makes[-1]] = tensor
        if changed or any(name != "_" for name in makes):
            self.listing.lines.append(replace(line, makes=makes, one=one, writes=bool(changed)))

    def _argument(self, value: Any, needs: list[str]) -> str:
        """The source of an argument; tensors in it are added to what is needed."""
        if isinstance(value, Tensor):
            needs.append(self._name(value))
            return needs[-1]
        if isinstance(value, list | tuple):
            if any(isinstance(each, Tensor) for each in value):
                return f"[{', '.join(self._argument(each, needs) for each in value)}]"
            value = tuple(value)
        plain = value if isinstance(value, tuple) else (value,)
        is_literal = all(each is None or type(each) in (bool, int) for each in plain)
        return repr(value) if is_literal else self.listing.value(value)

    def _enter(self, tensor: Tensor, name: str, kind: str) -> str:
        """From now on this tensor has a name, and its memory is known."""
        storage, room = tensor.untyped_storage(), _room(tensor)
        self._names.setdefault(room, name)
        known = self._storages.setdefault(room.memory, _Storage(_reference(storage), kind, []))
        known.tensors.append((name, _span(tensor), tensor.dtype))
        if known.kind == _MADE:
            self.listing.rooms[name] = room
        return name

    def _name(self, tensor: Tensor) -> str:
        """What a tensor is called; one that nobody made before is from outside, and stays as it is."""
        room = _room(tensor)
        found = self._names.get(room)
        if found is not None:
            return found
        known = self._storages.get(room.memory)
        if known is None or known.kind in (_OUTSIDE, _SCRATCH):
            return self._enter(tensor, self.listing.value(tensor), _OUTSIDE)
        first, end = _span(tensor)
        for base, (start, stop), dtype in known.tensors:
            if dtype == tensor.dtype and start <= first and end <= stop:
                name, layout = f"v{len(self._names)}", map(repr, room.layout[:3])
                self.listing.lines.append(Line(AS_STRIDED, [base, *layout], [base], [name]))
                return self._enter(tensor, name, known.kind)
        self._refuse("no tensor spans these elements")
        return self.listing.value(tensor)

    def _refuse(self, reason: str) -> None:
        """Said at the end: code in between could catch it and go on."""
        self._refused.append(reason)


_reference: Callable[[Any], Any] = StorageWeakRef


def _changed(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors whose elements an operation writes."""
    if torch.Tag.inplace_view not in func.tags:  # which writes where they lie
        arguments = bound(func, args, kwargs)
        yield from (tensor for name in written(func) for tensor in tensors_in(arguments[name]))


def _room(tensor: Tensor) -> Room:
    return Room(tensor.untyped_storage()._cdata, _layout(tensor))


def _layout(tensor: Tensor) -> Layout:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first of a tensor's elements in its storage, and the one after the last."""
    first = int(tensor.storage_offset())
    if not tensor.numel():
        return first, first
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return first, first + sum((size - 1) * step for size, step in steps) + 1


@lru_cache(maxsize=4096)
def _is_refused(func: Any) -> bool:
    """Whether an operation has a result as long as values say, or moves a tensor to other memory."""
    return torch.Tag.dynamic_output_shape in func.tags or func.overloadpacket.__name__ in _MOVING


def _by_numbers(func: Any, args: Any) -> bool:
    """Whether elements are chosen by whole numbers, as many as there are numbers, and not by yes and no."""
    if func.overloadpacket.__name__ != "index":
        return False
    return all(each is None or each.dtype not in (torch.bool, torch.uint8) for each in args[1])


_ALWAYS_THE_SAME = frozenset([torch.ops.aten.ones_like.default, torch.ops.aten.zeros_like.default])
_MOVING = frozenset(["set_", "set", "resize_", "resize_as_", "_resize_output_"])
