"""Values that know their types: what a result is made of, checked as it is made, as JSON and back.

A record is a frozen dataclass. Making one checks every field against its annotation, so that one made from a
file and one made by code hold the same promises: shares lie in [0, 1], counts are whole numbers, and no number
is NaN or infinite. Where a field may be None, a number that is not finite becomes None; elsewhere it is
refused.
"""

from __future__ import annotations

import functools
import math
import numbers
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from sfumato.errors import InvalidInput
from sfumato.storage import finite


@dataclass(frozen=True)
class Range:
    """Where a number lies, ends included."""

    low: float
    high: float = math.inf

    def __str__(self) -> str:
        return f"at least {self.low:g}" if self.high == math.inf else f"from {self.low:g} to {self.high:g}"


Share = Annotated[float, Range(0, 1)]
Epsilon = Annotated[float, Range(0)]
Delta = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(0)]
Json = Any  # a JSON value: nobody looks inside

Made = TypeVar("Made", bound="Record")


@dataclass(frozen=True, kw_only=True)
class Record:
    """A frozen value; each field is of its annotated type, whoever made it."""

    def __post_init__(self) -> None:
        own: Any = type(self)
        for name, hint in _hints(own).items():
            checked = _checked(getattr(self, name), hint, f"{own.__name__}.{name}")
            object.__setattr__(self, name, checked)

    def to_json(self) -> dict[str, Any]:
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


def build(made: type[Made], data: Mapping[str, Any]) -> Made:
    """The record that `data` describes: each of its fields, and nothing else."""
    known = {field.name: field for field in fields(made)}
    if unknown := sorted(set(data) - set(known)):
        raise InvalidInput(f"expected a {made.__name__} without {unknown[0]!r}; it has {', '.join(known)}")
    for name, field in known.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise InvalidInput(f"expected a {made.__name__} with {name!r}, got none")
    return made(**data)


@functools.cache
def _hints(made: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(made, include_extras=True)
    return {field.name: hints[field.name] for field in fields(made)}


def _checked(value: Any, hint: Any, where: str) -> Any:
    """`value` as `hint` wants it; JSON's lists become tuples, and its objects records."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return finite(value)
    if origin in (Union, types.UnionType):
        return _one_of(value, arguments, where)
    if origin is Annotated:
        return _within(_checked(value, arguments[0], where), arguments[1], where)
    if origin is tuple:
        return _tuple(value, arguments, where)
    if origin is Mapping:
        return _mapping(value, arguments[1], where)
    if isinstance(hint, type) and issubclass(hint, Record):
        return _record(value, hint, where)
    return _scalar(value, hint, where)


def _one_of(value: Any, arms: tuple[Any, ...], where: str) -> Any:
    if type(None) in arms and (value is None or _not_finite(value)):
        return None
    rest = [arm for arm in arms if arm is not type(None)]
    for arm in rest[:-1]:
        try:
            return _checked(value, arm, where)
        except InvalidInput:
            continue
    return _checked(value, rest[-1], where)


def _within(value: Any, room: Range, where: str) -> Any:
    if not room.low <= value <= room.high:
        raise InvalidInput(f"expected {where} {room}, got {value:g}")
    return value


def _tuple(value: Any, arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(value, "a list", where)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_checked(item, arguments[0], where) for item in value)
    if len(value) != len(arguments):
        raise InvalidInput(f"expected {where} with {len(arguments)} items, got {len(value)}")
    return tuple(_checked(item, hint, where) for item, hint in zip(value, arguments, strict=True))


def _mapping(value: Any, hint: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(value, "an object", where)
    return {str(key): _checked(item, hint, f"{where}[{str(key)!r}]") for key, item in value.items()}


def _record(value: Any, made: type[Record], where: str) -> Record:
    if type(value) is made:  # a subclass would have fields that nobody reads back
        return value
    if not isinstance(value, Mapping):
        raise _wrong(value, f"a {made.__name__}", where)
    return build(made, value)


def _scalar(value: Any, hint: Any, where: str) -> Any:
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str):
        return value
    if hint is int and _is_number(value, numbers.Integral):
        return int(value)
    if hint is float and _is_number(value, numbers.Real) and math.isfinite(_as_float(value)):
        return _as_float(value)
    raise _wrong(
        value, {bool: "true or false", str: "text", int: "a whole number"}.get(hint, "a number"), where
    )


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _as_float(value: numbers.Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _not_finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not math.isfinite(_as_float(value))


def _wrong(value: Any, expected: str, where: str) -> InvalidInput:
    got = "a number that is not finite" if _not_finite(value) else type(value).__name__
    return InvalidInput(f"expected {where} to be {expected}, got {got}")


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
