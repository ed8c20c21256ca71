"""How a model is built, kept so that a step sees at a glance that nothing was changed since the survey."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sfumato.training.devices import device_of


class Structure:
    """The modules of a model, all that hangs on them, and its tensors, as they were when this was made.

    What a module holds is compared by identity, so that a plain attribute, a hook, a parameter or a module that
    was put in another's place is seen, and another `forward` of a class; of tensors their class, and what a
    change of `.data` leaves no other trace of. What is inside other objects is `memory.Memory`'s to look after.
    The model is kept alive.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        self.tensors: dict[str, Tensor] = tensors_of(model)
        held = [one for module in self.modules for one in _dictionaries(module)]
        self._filled = [one for one in held if one]
        self._empty = [one for one in held if not one]
        self._kinds = list(map(type, self.modules))
        self._sizes = list(map(len, self._filled))
        self._names = list(chain.from_iterable(self._filled))
        self._values = list(chain.from_iterable(map(dict.values, self._filled)))
        self._facts = self._facts_now()
        self._code = self._code_now()

    def same(self) -> bool:
        """Whether nothing was added, removed or replaced."""
        return (
            not any(self._empty)
            and list(map(len, self._filled)) == self._sizes
            and all(map(is_, chain.from_iterable(map(dict.values, self._filled)), self._values))
            and list(chain.from_iterable(self._filled)) == self._names
            and list(map(type, self.modules)) == self._kinds
            and self._facts_now() == self._facts
            and self._code_now() == self._code
        )

    def _code_now(self) -> list[Any]:
        """What runs when a module is called; a library's own class can be given another method, too."""
        return [nn.Module.__call__, *(getattr(kind, "forward", None) for kind in self._kinds)]

    def _facts_now(self) -> list[tuple[Any, ...]]:
        tensors = self.tensors.values()
        return [
            (type(t), t.requires_grad, t.dtype, t.device, t.shape, *map(len, filter(None, _hooks(t))))
            for t in tensors
        ]


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Weights, trained or frozen, and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def hooks_on(tensor: Tensor) -> list[Any]:
    """What is to be called with a gradient of this tensor, or after it was added up."""
    return [hook for kind in _hooks(tensor) if kind for hook in kind.values()]


def _hooks(tensor: Any) -> tuple[dict[int, Any] | None, ...]:
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def _dictionaries(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Attributes, and what lies in dictionaries among them: parameters, buffers, modules, hooks."""
    own = vars(module)
    yield own
    yield from (value for value in own.values() if isinstance(value, dict))


def _settings(module: nn.Module) -> tuple[Any, ...]:
    """What may change how a module computes: its plain attributes, and the functions hung on it."""
    own = vars(module)
    plain = tuple((name, value) for name, value in own.items() if type(value) in _PLAIN)
    hooks = [
        *module._forward_hooks.values(),
        *module._forward_pre_hooks.values(),
        *module._backward_hooks.values(),
    ]
    return plain, tuple(map(id, hooks)), id(own.get("forward"))


_PLAIN = (bool, int, float, str, type(None))


def signature(model: nn.Module, *data: Any) -> Any:
    """What a survey holds for: the shapes and types of rows, and how the model is built and set."""
    leaves, tree = pytree.tree_flatten(data)
    shapes = tuple((tuple(leaf.shape[1:]), leaf.dtype) for leaf in leaves if isinstance(leaf, Tensor))
    parts = tuple((type(module), *_settings(module)) for module in model.modules())
    trained = tuple((p.requires_grad, p.dtype, tuple(p.shape)) for p in model.parameters())
    return tree, shapes, parts, trained, device_of(model)
