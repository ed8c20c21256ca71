"""What model, loss and views could read besides their rows, at one moment; and who listens in on all modules.

A survey tells what code does as things stand. Its owner may change them between two steps: an entry of a
configuration, a global name, an attribute of a class, a tensor that is no weight. What was found before then
says nothing any more, so that moments are compared before a step, and another survey is made if they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from sfumato.errors import UnsupportedModel
from sfumato.training.memory import Memory, keeps_nothing
from sfumato.training.replaced import replaced
from sfumato.training.rowwise import LossFunction, Views, memory_of
from sfumato.training.structure import tensors_of
from sfumato.trust import is_trusted


class Moment:
    """All that code of the user's could read, as it is now; of trusted code, nothing.

    Values of weights and buffers are left out: the survey takes them for what they may become.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        views: Views | None,
        *,
        trusted: bool | None = None,
        weights: Iterable[Tensor] | None = None,
        beside: Iterable[Any] | None = None,
    ) -> None:
        """`trusted`: whether the model runs no code of the user's; `weights`: its tensors; `beside`: what the
        user has put in the place of libraries' functions. If known.
        """
        weights = list(tensors_of(model).values() if weights is None else weights)
        trusted = keeps_nothing(model) if trusted is None else trusted
        roots = () if trusted else (model, *(replaced(model).values() if beside is None else beside))
        found = [Memory(*roots, name="the model", but=weights) if roots else None]
        found.append(memory_of(loss_fn, "loss_fn", weights))
        found.append(None if views is None else memory_of(views, "views", weights))
        self._memories = [memory for memory in found if memory is not None]

    def like(self, other: Moment) -> bool:
        """Whether nothing was changed between two moments."""
        mine, theirs = self._memories, other._memories
        return len(mine) == len(theirs) and all(map(Memory.like, mine, theirs))


def refuse_listeners() -> None:
    """Refuse code of the user's that runs with every operation or module, and that no survey knows."""
    for what, thing in _listeners():
        if not is_trusted(thing):
            name = getattr(thing, "__name__", type(thing).__name__)
            raise UnsupportedModel(
                f"expected no {what} of your own around a step, got {name}; it could bring rows together or "
                "keep them: remove it, or make it a part of the model"
            )


def listens() -> bool:
    """Whether any code, a library's too, runs with every operation or module."""
    return any(True for _ in _listeners())


def _listeners() -> Iterator[tuple[str, Any]]:
    for hooks in _HOOKS_OF_ALL:
        yield from (("hook on all modules", hook) for hook in hooks.values())
    modes: Any = _get_current_function_mode_stack
    for mode in (*modes(), *_get_current_dispatch_mode_stack()):
        yield "mode of torch", mode
    saved: Any = torch._C._autograd._top_saved_tensors_default_hooks
    for hook in saved(False) or ():
        yield "hook on saved tensors", hook


_HOOKS_OF_ALL: tuple[dict[int, Any], ...] = (
    *(modules._global_forward_hooks, modules._global_forward_pre_hooks),
    *(modules._global_backward_hooks, modules._global_backward_pre_hooks),
)
