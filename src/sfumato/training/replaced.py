"""What stands in the place of a library's own functions: names of torch and of a model's classes, and kernels.

Anybody can write `torch.relu = mine`, or set a kernel with `torch.library`. What stands there runs beside the
rows like code of a model, so that it counts as the user's own; what an installed library puts there does not. A
run notes what stands where when it begins, and compares by identity before each step.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
import types
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any, TypeAlias

import torch
from torch import library, nn

from sfumato.errors import UnsupportedModel
from sfumato.trust import INSTALLED, is_class_of, is_installed_file, is_trusted_module, own_code_in

Owner: TypeAlias = type | types.ModuleType

MODULES = (  # through whose functions rows pass in a step; those of the model's classes come on top
    *("torch", "torch._C._nn", "torch._VF", "torch._tensor", "torch.functional", "torch.linalg"),
    *("torch.autograd", "torch.autograd.graph", "torch.autograd.function", "torch.nn.functional"),
    *("torch.nn._reduction", "torch.nn.modules.module", "torch.nn.parameter", "torch.nn.utils.stateless"),
    *("torch.nn.utils._named_member_accessor", "torch.utils._pytree", "torch.func", "torch._functorch.apis"),
    *("torch._functorch.vmap", "torch._functorch.predispatch", "torch._functorch.functional_call"),
)
_CLASSES: tuple[type, ...] = (
    *(torch.Tensor, nn.Parameter, nn.Module, torch.autograd.Function),
    torch._ops.OpOverloadPacket,
)


def replaced(model: nn.Module) -> dict[str, Any]:
    """Code of the user's in the place of a library's, by name; of a kernel, the files that it was set in."""
    found: dict[str, Any] = dict(_kernels_now().own)
    for owner in _owners(model):
        found |= _names_now(owner).own
    return found


def versions(model: nn.Module) -> list[object]:
    """Objects that are others once something was replaced."""
    return [*(_names_now(owner).version for owner in _owners(model)), _kernels_now().version]


class Standing:
    """What stands under all names that matter to a model, at the beginning of a run."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._note()

    def _note(self) -> None:
        self._then = [_names_now(owner) for owner in _owners(self._model)]
        self._kernels = _kernels_now()
        self._views = [vars(each.owner).values() for each in self._then]  # they show what stands there now
        self._values = list(chain.from_iterable(each.names.values() for each in self._then))
        self._functions = _called(self._model, {id(each.owner): each for each in self._then})
        self._codes = list(map(_CODE, self._functions))

    def same(self) -> bool:
        """Whether nothing was replaced; names that are new and hide no others do not count."""
        now = chain.from_iterable(self._views)
        if (
            sum(map(len, self._views)) == len(self._values)
            and all(map(is_, now, self._values))
            and all(map(is_, map(_CODE, self._functions), self._codes))
            and self._kernels.hold()
        ):
            return True
        if self._changed():
            return False
        self._note()
        return True

    def refuse_own(self) -> None:
        """Refuse what the user has replaced meanwhile."""
        own = replaced(self._model)
        changed = [name for name in self._changed() if name in own]
        if changed:
            raise UnsupportedModel(
                "expected functions of libraries to stay what they were when the run began, got code of your "
                f"own as {', '.join(changed)}; put back what was there, or replace it before the first step"
            )

    def _changed(self) -> list[str]:
        pairs = ((then, _names_now(then.owner)) for then in self._then)
        names = [name for then, now in pairs for name in now.unlike(then)]
        return names + _kernels_now().unlike(self._kernels)


_CODE = attrgetter("__code__")


def _called(model: nn.Module, known: dict[int, _Names]) -> list[types.FunctionType]:
    """The methods of a model's classes, and functions of `torch.nn.functional` that they call by name."""
    classes = {id(kind): kind for module in model.modules() for kind in type(module).__mro__}
    methods = [known[each] for each in classes if each in known and classes[each] is not nn.Module]
    module, others = known[id(nn.Module)].functions, known[id(nn.functional)].functions
    waiting: list[Any] = [one for each in methods for one in each.functions.values()]
    waiting += [vars(kind).get("forward") for kind in classes.values()]
    waiting += [module.get(name) for name in _CALLING]
    waiting += [others.get("cross_entropy")]
    found: dict[int, types.FunctionType] = {}
    while waiting:
        one = waiting.pop()
        if type(one) is types.FunctionType and id(one) not in found:
            found[id(one)] = one
            waiting += [others[name] for name in one.__code__.co_names if name in others]
    return list(found.values())


_CALLING = ("_wrapped_call_impl", "_call_impl", "__getattr__", "__setattr__")


class _Names:
    """What stands under the names of a module or a class at one moment, kept alive, and its code.

    `own`: what is no library's. `version`: that of the moment before, if nothing was replaced since.
    """

    def __init__(self, owner: Owner, before: _Names | None) -> None:
        self.owner, self.names = owner, dict(vars(owner))
        self.functions = {name: one for name, one in self.names.items() if type(one) is types.FunctionType}
        self.codes = {name: function.__code__ for name, function in self.functions.items()}
        self._said = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
        self.own: dict[str, Any] = {
            self._full(name): one for name, one in self.names.items() if self._is_own(name, one, before)
        }
        self.version: object = before.version if before and not self.unlike(before) else object()

    def _is_own(self, name: str, thing: Any, before: _Names | None) -> bool:
        """Not decided again for what was there before."""
        if before and self._is_as(before, name):
            return self._full(name) in before.own
        return not _is_librarys(thing)

    def hold(self) -> bool:
        """Whether all is as it was."""
        now = vars(self.owner)
        return (
            len(now) == len(self.names)
            and all(map(is_, now.values(), self.names.values()))
            and all(map(is_, map(_CODE, self.functions.values()), self.codes.values()))
        )

    def unlike(self, before: _Names) -> list[str]:
        """Names under which something else stood, and new ones that hide something."""
        known = before.names
        names = (name for name in {**known, **self.names} if not self._is_as(before, name))
        return [self._full(name) for name in names if name in known or self._hides(name)]

    def _is_as(self, before: _Names, name: str) -> bool:
        same = self.names.get(name, self) is before.names.get(name, before)
        return same and self.codes.get(name) is before.codes.get(name)

    def _full(self, name: str) -> str:
        return f"{self._said}.{name}"

    def _hides(self, name: str) -> bool:
        """Whether a name would be found elsewhere if it were not there, or says how others are found."""
        if isinstance(self.owner, type):
            return name[:2] == "__" or any(name in vars(kind) for kind in self.owner.__mro__[1:])
        return hasattr(builtins, name) or name == "__getattr__" or type(self.owner) is not types.ModuleType


_known: dict[int, _Names] = {}  # by the identity of the owner, which it keeps alive


def _names_now(owner: Owner) -> _Names:
    known = _known.get(id(owner))
    if known is None or not known.hold():
        if len(_known) >= _MOST:
            _known.clear()
        known = _known[id(owner)] = _Names(owner, known)
    return known


_MOST = 1024  # libraries make classes on the way, which would be kept for ever


def _owners(model: nn.Module) -> list[Owner]:
    """Modules and classes of libraries whose names decide what is computed."""
    found: dict[int, Owner] = {}
    for owner in chain(map(sys.modules.get, MODULES), _CLASSES, _homes(model)):
        if owner is not None:
            found[id(owner)] = owner
    return list(found.values())


def _homes(model: nn.Module) -> Iterator[Owner | None]:
    kinds = {id(kind): kind for kind in map(type, model.modules())}.values()
    for one in {id(one): one for kind in kinds for one in kind.__mro__[:-1]}.values():
        home = sys.modules.get(one.__module__)
        if home is not None and is_class_of(one, INSTALLED) and one.__module__ not in sys.stdlib_module_names:
            yield one
            yield home


def _is_librarys(thing: Any) -> bool:
    """Whether what stands under a name is code of an installed library, or no code."""
    kind = type(thing)
    if issubclass(kind, types.ModuleType):
        return _is_module(thing)
    if issubclass(kind, type):
        return _is_class(thing)
    if not any("__call__" in vars(one) or "__get__" in vars(one) for one in kind.__mro__):
        return _is_class(kind)  # data
    if kind is types.FunctionType and not _is_from_a_file(thing.__code__.co_filename):
        return False
    carried = [thing, *map(vars, thing.modules())] if issubclass(kind, nn.Module) else [thing]
    return not issubclass(kind, _COMPILED) and all(map(_is_made_on_the_way, own_code_in(carried, INSTALLED)))


_COMPILED = (torch.jit.ScriptFunction, torch.jit.ScriptModule)  # out of what, nobody can tell


def _is_from_a_file(path: str) -> bool:
    """What has a name in a library comes from one of its files; Python's own may be frozen into it."""
    return is_installed_file(path) or path.startswith("<frozen ")


def _is_module(module: types.ModuleType) -> bool:
    """One that Python loaded for a library; another that has its name is judged by all that it holds."""
    name = vars(module).get("__name__")
    if isinstance(name, str) and sys.modules.get(name) is module:
        return is_trusted_module(name, INSTALLED)
    return is_class_of(type(module), INSTALLED) and all(map(_is_librarys, vars(module).values()))


def _is_class(kind: type) -> bool:
    """By where its classes are found, and by the files of their methods: anybody can put a class there."""
    return all(
        _is_made_on_the_way(one) or (is_class_of(one, INSTALLED) and all(map(_is_method, vars(one).values())))
        for one in kind.__mro__
    )


def _is_method(thing: Any) -> bool:
    """Whether a function in a class comes from a file of a library, or was generated by one."""
    if type(thing) is not types.FunctionType:
        return True
    path = thing.__code__.co_filename
    return _is_from_a_file(path) or (path[:1] == "<" and thing.__globals__.get("__name__") != "__main__")


def _is_made_on_the_way(thing: Any) -> bool:
    """Classes that may be in no module: those of C++, in which no function of Python's is, and named tuples."""
    if not issubclass(type(thing), type):
        return False
    if type(thing) is _OF_CPP:
        return not any(type(each) is types.FunctionType for each in vars(thing).values())
    new: Any = getattr(vars(thing).get("__new__"), "__func__", None)
    named = thing.__bases__ == (tuple,) and type(new) is types.FunctionType
    return named and new.__code__.co_names == ("_tuple_new",)


_OF_CPP = type(torch._C.Tag)


class _Kernels:
    """The kernels that the user has set in the place of torch's, at one moment.

    Torch notes which were set from Python, and for each the file it was set in. That of a function of
    `torch.library` says nothing of who called it, which is then taken to be the user.
    """

    def __init__(self, before: _Kernels | None) -> None:
        self._count = len(library._impls)
        entries = [entry.split("/") for entry in library._impls]
        operations = {f"{space}::{name}" for space, name, key in entries if space in _SPACES and key != "Meta"}
        self._set = {each: lines for each in sorted(operations) if (lines := _set_by_user(each))}
        self.own = {f"the kernel of {operation}": lines for operation, lines in self._set.items()}
        self.version: object = before.version if before and not self.unlike(before) else object()

    def hold(self) -> bool:
        """Whether all is as it was."""
        known = all(_set_by_user(operation) == lines for operation, lines in self._set.items())
        return len(library._impls) == self._count and known

    def unlike(self, before: _Kernels) -> list[str]:
        """Those that were set, set anew or taken back since."""
        return [name for name in {**before.own, **self.own} if self.own.get(name) != before.own.get(name)]


_SPACES = frozenset(["aten", "mkldnn", "mkl", "onednn", "quantized", "torchvision", "torchaudio"])
_SET = re.compile(
    r"^(?!Meta)\S+(?: \(inactive\))?: registered at (.*):\d+ :: \(none\) \[ boxed \]$", re.MULTILINE
)
_ON_BEHALF = tuple(
    os.path.join(os.path.dirname(torch.__file__), *parts) for parts in (["library.py"], ["_library", ""])
)
_last_kernels: list[_Kernels] = []


def _set_by_user(operation: str) -> str:
    """The files in which an operation got kernels from Python that no library set; empty if there are none."""
    files = _SET.findall(torch._C._dispatch_dump(operation))
    own = [file for file in files if file.startswith(_ON_BEHALF) or not is_installed_file(file)]
    return ", ".join(own)


def _kernels_now() -> _Kernels:
    known = _last_kernels[-1] if _last_kernels else None
    if known is None or not known.hold():
        _last_kernels[:] = [known := _Kernels(known)]
    return known
