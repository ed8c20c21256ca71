"""What a run was set up with beside its plan, and what is said when it goes on with something else.

None of it touches privacy: the plan has all that does. A learning rate may be changed on the way, and it is
said which one goes on. An optimizer of another class could not read the state of the first, and first weights
are of no use to a run that has others by now: those are refused, as somebody meant another run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sfumato.errors import Refused, SettingsChanged

_FIXED = {
    "optimizer": "its state fits no other: give the same one, or begin anew in another folder",
    "first_weights": "the run has others by now: give the same seed, or begin anew in another folder",
}
Setup = Mapping[str, Any]
"""Plain settings by name."""


def setup_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The class of an optimizer, and the settings of each of its groups."""
    found: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for number, group in enumerate(optimizer.param_groups):
        settings = plain({name: value for name, value in group.items() if name != "params"})
        found |= {
            name if not number else f"{name} of group {number}": value for name, value in settings.items()
        }
    return found


def check_setup(before: Setup, now: Setup, target: Path) -> None:
    """Refuse to go on with what a run cannot change."""
    for name, old, new in _changed(before, now):
        if name in _FIXED:
            raise Refused(f"expected {name}={old!r}, with which {target} began, got {new!r}; {_FIXED[name]}")


def warn_that_kept_go_on(began: Setup, given: Setup, kept: Setup) -> None:
    """Say where a run goes on with what its checkpoint kept, and was given what it never had."""
    unlike = {name: new for name, _, new in _changed(began, given)}
    changed = _changed(kept, unlike)
    if changed:
        old, new = _said(changed)
        _warn(f"this run goes on with {old} of its checkpoint, not with {new}; set another after resume()")


def warn_that_given_go_on(began: Setup, given: Setup) -> None:
    """Say where a run goes on with other settings than it began with."""
    changed = _changed(began, given)
    if changed:
        old, new = _said(changed)
        _warn(f"this run goes on with {new}; it began with {old}")


def in_words(before: Setup, now: Setup) -> tuple[str, str]:
    """What differs between two lots of settings, as each has it; a name that only one has is None in the other.

    >>> in_words({"steps": 8, "clip_norm": 1.0}, {"steps": 16, "clip_norm": 1.0})
    ('steps=8', 'steps=16')
    """
    names = dict.fromkeys((*before, *now))
    return _said(_changed({name: before.get(name) for name in names}, {name: now.get(name) for name in names}))


def _warn(sentence: str) -> None:
    warnings.warn(sentence, SettingsChanged, stacklevel=3)


def _said(changed: list[tuple[str, Any, Any]]) -> tuple[str, str]:
    return (
        ", ".join(f"{name}={old}" for name, old, _ in changed),
        ", ".join(f"{name}={new}" for name, _, new in changed),
    )


def _changed(before: Setup, now: Setup) -> list[tuple[str, Any, Any]]:
    """Names that both have, with other values; JSON makes a list of a tuple."""
    return [
        (name, _listed(before[name]), _listed(now[name]))
        for name in before
        if name in now and _listed(before[name]) != _listed(now[name])
    ]


def _listed(value: Any) -> Any:
    return list(map(_listed, value)) if isinstance(value, list | tuple) else value


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that JSON can hold: learning rates and the like, no functions."""
    return {name: value for name, value in settings.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
