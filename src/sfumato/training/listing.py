"""Operations one below the other, and the Python function that does them.

Lines that nobody needs are left out, what is the same each time is kept as a value, and memory is let go, or
written over, as soon as it is not needed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Function: TypeAlias = Callable[..., tuple[Tensor, ...] | None]


class Room(NamedTuple):
    """Where a tensor lies: its memory, and how it is laid out there."""

    memory: int
    layout: tuple[Any, ...]  # shape, strides, offset and type

    @property
    def size(self) -> int:
        """Bytes that it spans."""
        shape, strides, _, dtype = self.layout
        steps = [(size - 1) * step for size, step in zip(shape, strides, strict=True)]
        return 0 if 0 in shape else (sum(steps) + 1) * int(dtype.itemsize)


@dataclass(frozen=True)
class Line:
    """One operation. Tensors have names; all other arguments are written out."""

    func: Any
    arguments: Sequence[str]
    needs: Sequence[str]  # the tensors among them
    makes: Sequence[str] = ()  # `_` for what is known by another name
    one: bool = True  # whether it returns a tensor, not several
    told: str | None = None  # the value of a number that Python is told
    writes: bool = False

    @property
    def stays(self) -> bool:
        """Whether it does more than make tensors."""
        return self.writes or self.told is not None

    def source(self, func: str, wanted: Set[str]) -> str:
        call = f"{func}({', '.join(self.arguments)})"
        if self.told is not None:
            return f"if {call} != {self.told}: return None"
        if not self.makes:
            return call
        names = [name if name in wanted else "_" for name in self.makes]
        return f"{names[0]} = {call}" if self.one else f"{', '.join(names)}, = {call}"


@dataclass
class Listing:
    """A computation: lines from the tensors in `parameters` on."""

    parameters: Sequence[str]
    lines: list[Line] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)  # what names stand for from the start
    rooms: dict[str, Room] = field(default_factory=dict)  # of what lines make
    kept: dict[str, Tensor] = field(default_factory=dict)  # what came out of no tensors at all
    own: Tensor = field(default_factory=lambda: torch.zeros(0))  # memory of what a function keeps to itself

    def value(self, value: Any) -> str:
        """A name for something that stays as it is."""
        name = f"k{len(self.values)}"
        self.values[name] = value
        return name

    def function(self, results: Sequence[str], written: Set[int]) -> Function:
        """Does what the lines say, and returns the results; `written` is memory that some line writes."""
        lines = _live(self._without_kept(results, written), results)
        lines = list(self._in_one_place(list(self._laid_out_alike(lines)), results))
        lines = list(_in_place(lines, results, self.rooms))
        source = [f"def play({', '.join(self.parameters)}):", *self._body(lines, results)]
        source.append(f"    return ({''.join(f'{name}, ' for name in results)})")
        made: dict[str, Any] = {}
        exec(compile("\n".join(source), "<recording>", "exec"), self.values, made)
        play: Function = made["play"]
        return play

    def _without_kept(self, results: Sequence[str], written: Set[int]) -> Iterator[Line]:
        """The lines but those that make the same each time, which nobody writes or is handed."""
        for line in self.lines:
            fixed = [name for name in line.makes if name in self.kept and name not in results]
            changed = any(self.rooms[name].memory in written for name in fixed)
            if line.stays or changed or len(fixed) < len(line.makes):
                yield line
            else:
                self.values.update((name, self.kept[name]) for name in fixed)

    def _laid_out_alike(self, lines: Sequence[Line]) -> Iterator[Line]:
        """The same, but gradients come to pooling laid out as what was pooled: it is slow to do so itself."""
        for line in lines:
            if line.func is _aten.max_pool2d_with_indices_backward.default:
                gradient, pooled = line.needs[:2]
                lasts = [
                    name in self.rooms and _is_channels_last(self.rooms[name]) for name in (gradient, pooled)
                ]
                if lasts == [False, True]:
                    name, form = f"{gradient}_", f"memory_format={self.value(torch.channels_last)}"
                    yield Line(_aten.clone.default, [gradient, form], [gradient], [name])
                    line = replace(line, arguments=[name, *line.arguments[1:]], needs=[name, *line.needs[1:]])
            yield line

    def _in_one_place(self, lines: Sequence[Line], results: Sequence[str]) -> Iterator[Line]:
        """The same, but small tensors that nobody is handed lie in memory of their own, as do their views."""
        handed = {self.rooms[name].memory for name in results if name in self.rooms}
        first = {
            room.memory: line.makes[0]
            for line in reversed(lines)
            if (room := self._made(line))
            and room.size <= _SMALL
            and room.memory not in handed
            and _writing(line.func)
        }
        places = self._laid_side_by_side(first.values())
        for line in lines:
            room = self._made(line)
            place = None if room is None else places.get(room.memory)
            if room is None or place is None:
                yield line
                continue
            name, (shape, strides, offset, _) = line.makes[0], room.layout
            self.values[name] = place.as_strided(shape, strides, place.storage_offset() + offset)
            twin = _writing(line.func)
            if name == first[room.memory] and twin is not None:
                yield Line(twin.func, [*line.arguments, f"{twin.keyword}={name}"], line.needs, writes=True)

    def _made(self, line: Line) -> Room | None:
        """Where the one tensor lies that a line makes."""
        return self.rooms.get(line.makes[0]) if len(line.makes) == 1 else None

    def _laid_side_by_side(self, names: Iterable[str]) -> dict[int, Tensor]:
        """Memory for tensors, one after the other in `own`."""
        rooms = [self.rooms[name] for name in names]
        sizes = [-(-room.size // _ALIGNED) * _ALIGNED for room in rooms]
        self.own = torch.zeros(sum(sizes), dtype=torch.uint8)
        parts = zip(rooms, torch.split(self.own, sizes), strict=True)
        return {room.memory: part[: room.size].view(room.layout[3]) for room, part in parts}

    def _body(self, lines: Sequence[Line], results: Sequence[str]) -> Iterator[str]:
        last = _last_needs(lines)
        wanted = last.keys() | set(results)
        made: set[str] = set()
        checked: set[str] = set()
        for number, line in enumerate(lines):
            base = line.needs[0] if line.func is AS_STRIDED else None
            if base in made and base not in checked:  # a kernel may lay out its result otherwise another time
                checked.add(base)
                yield f"    if {base}.stride() != {self.rooms[base].layout[1]}: return None"
            yield f"    {line.source(self.value(line.func), wanted)}"
            made.update(line.makes)
            done = [name for name in dict.fromkeys(line.needs) if name in made and last[name] == number]
            done = [name for name in done if name not in results]
            if done:
                yield f"    del {', '.join(done)}"


def _is_channels_last(room: Room) -> bool:
    shape, strides, _, dtype = room.layout
    tensor = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _live(lines: Iterable[Line], results: Iterable[str]) -> list[Line]:
    """The lines that somebody needs."""
    wanted, kept = set(results), []
    for line in reversed(list(lines)):
        if line.stays or not wanted.isdisjoint(line.makes):
            kept.append(line)
            wanted.update(line.needs)
    return kept[::-1]


def _last_needs(lines: Sequence[Line]) -> dict[str, int]:
    return {name: number for number, line in enumerate(lines) for name in line.needs}


def _in_place(lines: Sequence[Line], results: Iterable[str], rooms: dict[str, Room]) -> Iterator[Line]:
    """The same, but elementwise operations write over what nobody needs afterwards: it is in the cache."""
    made_here = {name for line in lines for name in line.makes}
    memory = {name: room.memory for name, room in rooms.items() if name in made_here}
    last: dict[int, int] = {}  # line that needs anything of some memory
    for name, number in _last_needs(lines).items():
        if name in memory:
            last[memory[name]] = max(number, last.get(memory[name], 0))
    last.update((memory[name], len(lines)) for name in results if name in memory)
    for number, line in enumerate(lines):
        twin = _IN_PLACE.get(line.func)
        if twin is None or line.writes or len(line.makes) != 1 or line.needs[0] not in memory:
            yield line
            continue
        over, made = line.needs[0], line.makes[0]
        others = [memory.get(name) for name in line.needs if name != over]
        fits = rooms[over].layout == rooms[made].layout and memory[over] not in others
        if not fits or last[memory[over]] > number:
            yield line
            continue
        keyword = [f"{twin.keyword}={over}"] if twin.keyword else []
        last[memory[over]] = last.get(memory[made], number)
        for name in [name for name, where in memory.items() if where == memory[made]]:
            memory[name] = memory[over]
        yield replace(line, func=twin.func, arguments=[*line.arguments, *keyword])


class _Twin(NamedTuple):
    """The same operation, which writes its result over its first argument, or to where a keyword says."""

    func: Any
    keyword: str = ""


@lru_cache(maxsize=4096)
def _writing(func: Any) -> _Twin | None:
    """The kernel of an operation that writes one result to memory that it is given, if there is one."""
    wanted = [(argument.name, str(argument.type)) for argument in func._schema.arguments]
    for overload in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, overload)
        outs = [argument.name for argument in other._schema.arguments if argument.is_out]
        others = [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]
        if len(outs) == 1 and others == wanted and has_kernel(other.name(), "CPU"):
            return _Twin(other, outs[0])
    return None


has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_SMALL = 1 << 16  # bytes
_ALIGNED = 64


_aten = torch.ops.aten
AS_STRIDED = _aten.as_strided.default
_IN_PLACE = {
    _aten.relu.default: _Twin(_aten.relu_.default),
    _aten.tanh.default: _Twin(_aten.tanh_.default),
    _aten.sigmoid.default: _Twin(_aten.sigmoid_.default),
    _aten.add.Tensor: _Twin(_aten.add_.Tensor),
    _aten.mul.Tensor: _Twin(_aten.mul_.Tensor),
    _aten.threshold_backward.default: _Twin(_aten.threshold_backward.grad_input, "grad_input"),
    _aten.tanh_backward.default: _Twin(_aten.tanh_backward.grad_input, "grad_input"),
    _aten.sigmoid_backward.default: _Twin(_aten.sigmoid_backward.grad_input, "grad_input"),
}
