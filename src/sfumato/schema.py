"""The one layer that reads from outside: files, requests and results become declared models or one error.

A model is a frozen class with annotated fields. Making one checks it, from code as from a file:

>>> class Town(Model):
...     name: Words
...     share: Share = 0.5
...     twins: tuple[Count, ...] = ()
>>> read(Town, {"name": "Delft", "twins": [3]})
Town(name='Delft', share=0.5, twins=(3,))
>>> read(Town, {"name": "Delft", "share": 2}, name="town")
Traceback (most recent call last):
    ...
sfumato.errors.InvalidInput: expected town.share to be a number from 0 to 1, got 2
>>> Town(name="Delft").to_json()
{'name': 'Delft', 'share': 0.5, 'twins': []}
"""

from __future__ import annotations

import functools
import json
import math
import numbers
import os
import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from datetime import date
from enum import Enum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from sfumato._validate import shown
from sfumato.display import HIDDEN, visible
from sfumato.errors import InvalidInput

Share = Annotated[float, Meta(ge=0, le=1)]
Epsilon = Annotated[float, Meta(ge=0)]
Delta = Annotated[float, Meta(ge=0, lt=1)]
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]
Whole = Annotated[int, Meta(ge=1)]
Words = Annotated[str, Meta(pattern=rf"\A(?!\s*\Z)[^{HIDDEN}]+\Z", description="a few printable words")]
"""A text in which every character is seen."""
Json = Any  # a JSON value that no code looks inside

Made = TypeVar("Made")
_LARGEST = 4 * 2**20  # bytes of a file that is read at all; certificates have a few thousand
_DEEPEST = 64
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


class _KeywordOnly(msgspec.StructMeta):
    def __new__(mcls, name: str, bases: tuple[type, ...], body: dict[str, Any], **config: Any) -> Any:
        return super().__new__(mcls, name, bases, body, **{"kw_only": True, **config})


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Model(msgspec.Struct, metaclass=_KeywordOnly, frozen=True, forbid_unknown_fields=True):
    """A frozen value whose fields are of their annotated types, made by code or read from a file.

    Made by code, a number that is not finite becomes None in a field that may be None; elsewhere it is refused.
    """

    def __post_init__(self) -> None:
        own = type(self)
        for name, hint in _hints(own).items():
            value = getattr(self, name)
            force_setattr(self, name, _converted(hint, value, f"{own.__name__}.{name}"))

    def to_json(self) -> dict[str, Any]:
        """Return the model as JSON values; one with a tag begins with it."""
        config = type(self).__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        return {**tag, **{name: plain(getattr(self, name)) for name in self.__struct_fields__}}


def read(hint: type[Made] | Any, data: Any, *, name: str | None = None, remedy: str = "") -> Made:
    """Return untrusted values as a type declares them.

    Args:
        hint: A model, or any annotation of its fields.
        data: Values as JSON or TOML give them.
        name: How errors name the whole.
        remedy: The end of the error for a field that is missing or unknown.

    Returns:
        The value.

    Raises:
        InvalidInput: If it is another; the sentence names the field, the expectation and the value.
    """
    root = name if name is not None else hint.__name__ if isinstance(hint, type) else "the value"
    try:
        for way, number in _numbers(data):
            if not math.isfinite(number):
                where = ".".join(part for part in (root, *way) if part)
                raise InvalidInput(f"expected {visible(where)} to be a finite number, got {number}")
        return _converted(hint, data, root, remedy)
    except RecursionError:
        raise InvalidInput(f"expected {root} with fewer levels, got it nested too deeply") from None


def _converted(hint: Any, data: Any, root: str, remedy: str = "") -> Any:
    try:
        return msgspec.convert(_prepared(data), hint)
    except msgspec.ValidationError as error:
        raise _refusal(hint, data, str(error), error.__cause__, root, remedy) from None


def _numbers(value: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield each number with a fraction, and the way to it."""
    if isinstance(value, float):
        yield way, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, (*way, str(key)))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _numbers(item, (*way, str(place)))


def plain(value: Any) -> Any:
    """Return a value as JSON: models as objects, tuples as lists, numbers that are not finite as None."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | frozenset | set):
        return [plain(item) for item in value]
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return _number(value)


def read_file(path: str | os.PathLike[str], kind: str, *, largest: int = _LARGEST) -> dict[str, Any]:
    """Return the one object in a JSON or TOML file of bounded size.

    Args:
        path: The file; its ending says which, and JSON is the default.
        kind: The kind of file for errors, such as "a certificate".
        largest: The most bytes.

    Raises:
        InvalidInput: For a file that is too large, not UTF-8, nested too deeply or no object, for repeated keys
            (readers differ about which one counts) and for numbers that are not finite.
    """
    place = os.fspath(path)
    with Path(path).open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise InvalidInput(f"expected {place} to be {kind} of at most {largest} bytes, got more")
    form = "TOML" if place.lower().endswith(".toml") else "JSON"
    try:
        data = parse_toml(content) if form == "TOML" else parse_json(content)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        reason = "it is nested too deeply" if deep else visible(" ".join(str(error).split())[:200])
        raise InvalidInput(f"expected {place} to be {kind} in {form}: {reason}") from error
    if not isinstance(data, dict):
        raise InvalidInput(f"expected {place} to hold {kind}, one JSON object, got {type(data).__name__}")
    return data


def parse_json(content: bytes | str) -> Any:
    """Read one JSON value strictly, or raise ValueError.

    >>> parse_json(b'{"delta": 1e-5, "delta": 0.5}')
    Traceback (most recent call last):
        ...
    ValueError: the key 'delta' stands twice
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    data = json.loads(text, object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite)
    _check_depth(data)
    return data


def parse_toml(content: bytes | str) -> dict[str, Any]:
    """Read a TOML text; raise ValueError for one that is none."""
    data = tomllib.loads(content if isinstance(content, str) else content.decode("utf-8"), parse_float=_finite)
    _check_depth(data)
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} stands twice")
        found[key] = value
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


def _check_depth(data: Any) -> None:
    layer = [data]
    for _ in range(_DEEPEST):
        layer = [item for value in layer for item in _inside(value)]
        if not layer:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


# Values


def _number(value: Any) -> Any:
    """Return NumPy's numbers as Python's, and None for one that is not finite."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    return value


def _prepared(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key) if isinstance(key, int) else key: _prepared(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_prepared(item) for item in value]
    return _number(value)


@functools.cache
def _hints(made: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(made, include_extras=True)
    return {name: hints[name] for name in made.__struct_fields__}


# Errors


def _refusal(
    hint: Any, data: Any, message: str, cause: BaseException | None, root: str, remedy: str
) -> InvalidInput:
    """Return our own sentence for a value that does not fit: the library tells the place, the type the rest."""
    if isinstance(cause, InvalidInput):
        return cause  # of a model inside, which checked itself
    text, _, tail = message.rpartition(" - at `")
    if not text:
        text, tail = message, "$`"
    if tail.startswith("key"):
        return InvalidInput(f"expected {root} with texts for names, got another name")
    steps: list[str | int] = [
        one[1] or (int(one[2]) if one[2] != "..." else "...") for one in _STEP.finditer(tail)
    ]
    steps = _named(hint, data, steps)
    inner, around, value, where = hint, hint, data, root
    for step in steps:
        around, inner, value = inner, _inner(inner, step), value[step]
        where += f"[{step}]" if isinstance(step, int) else f".{visible(step)}" if where else visible(step)
    where, end = where or "the file", f"; {remedy}" if remedy else ""
    field = re.search(r"(missing required|unknown) field `(.*)`", text, re.DOTALL)
    if field is not None and field[1] == "missing required":
        return InvalidInput(f"expected {where}.{visible(field[2])}, got none{end}")
    if field is not None:
        known = ", ".join(_hints(_meant(inner, value)))
        return InvalidInput(f"expected {where} to hold only {known}, got {shown(field[2])}{end}")
    if cause is not None:
        return InvalidInput(f"expected {where} to be {visible(text)}, got {_seen(value)}")
    tags = [arm.__struct_config__ for arm in _models(around) if arm.__struct_config__.tag_field]
    if tags and steps and steps[-1] == tags[0].tag_field:
        allowed = ", ".join(str(one.tag) for one in tags)
        return InvalidInput(f"expected {where} to be one of {allowed}, got {_seen(value)}")
    return InvalidInput(f"expected {where} to be {_in_words(inner)}, got {_seen(value)}")


def _named(hint: Any, data: Any, steps: list[str | int]) -> list[str | int]:
    """Return the way to a value with the names of the objects on it, which the library does not tell."""
    way: list[str | int] = []
    for step in steps:
        within = functools.reduce(lambda value, part: value[part], way, data)
        if step == "..." and isinstance(within, Mapping):
            inner = functools.reduce(_inner, way, hint)
            step = next((name for name, item in within.items() if not _fits(item, _inner(inner, "..."))), step)
        elif isinstance(step, str) and isinstance(within, Mapping) and step not in within:
            break  # a tag that is missing
        way.append(step)
    return way


def _fits(value: Any, hint: Any) -> bool:
    try:
        msgspec.convert(_prepared(value), hint)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


def _arms(hint: Any) -> tuple[Any, ...]:
    """Return the types that a union allows, without None."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(arm for arm in get_args(hint) if arm is not type(None))
    return (hint,)


def _inner(hint: Any, step: str | int) -> Any:
    """Return the declared type of a part."""
    for arm in _arms(hint):
        arm = get_args(arm)[0] if get_origin(arm) is Annotated else arm
        arguments = get_args(arm)
        if isinstance(arm, type) and issubclass(arm, Model) and step in _hints(arm):
            return _hints(arm)[str(step)]
        if get_origin(arm) in (tuple, list) and isinstance(step, int):
            several = len(arguments) == 1 or arguments[1] is Ellipsis
            return arguments[0] if several else arguments[step]
        if arguments and isinstance(step, str) and isinstance(get_origin(arm), type):
            return arguments[1] if issubclass(get_origin(arm), Mapping) else Any
    return Any


def _models(hint: Any) -> list[type[Model]]:
    return [arm for arm in _arms(hint) if isinstance(arm, type) and issubclass(arm, Model)]


def _meant(hint: Any, value: Any) -> type[Model]:
    """Return the model that an object was meant for, by its tag."""
    configs = {arm.__struct_config__.tag: (arm, arm.__struct_config__.tag_field) for arm in _models(hint)}
    fitting = [arm for tag, (arm, field) in configs.items() if field is None or value.get(field) == tag]
    return fitting[0]


_BASES = {bool: "true or false", str: "text", int: "a whole number", float: "a number", date: "a day"}


def _in_words(hint: Any) -> str:
    """Describe a type in a sentence."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_in_words(arm) for arm in _arms(hint)))
    if get_origin(hint) is Annotated:
        base, *metas = get_args(hint)
        given = next((one.description for one in metas if one.description), None)
        return given or f"{_in_words(base)}{''.join(_range(one) for one in metas)}"
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(str(one.value) for one in hint)
    if get_origin(hint) is tuple and get_args(hint)[-1] is not Ellipsis:
        return f"a list of {len(get_args(hint))} items"
    if get_origin(hint) in (tuple, list):
        return "a list"
    return _BASES.get(hint, "an object")


def _range(meta: Meta) -> str:
    low = "" if meta.ge is None else f"at least {meta.ge:g}"
    low = low if meta.gt is None else f"above {meta.gt:g}"
    high = "" if meta.le is None else f"at most {meta.le:g}"
    high = high if meta.lt is None else f"below {meta.lt:g}"
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge:g} to {meta.le:g}"
    return f" {' and '.join(part for part in (low, high) if part)}" if low or high else ""


def _seen(value: Any) -> str:
    infinite = not isinstance(value, int) and isinstance(value, numbers.Real) and not math.isfinite(value)
    return "a number that is not finite" if infinite else shown(value)
