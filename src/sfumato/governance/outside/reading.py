"""Read a settings file from outside: JSON, TOML or YAML, bounded, and nothing in it is ever run."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput

LARGEST_FILE = 2**18
MOST_SETTINGS = 10_000
DEEPEST = 20
"""How many tables may lie inside each other."""

Setting = tuple[str, Any]
"""The last name on the way to a value, in snake case, and the value."""


def read_settings(path: str | os.PathLike[str]) -> list[Setting]:
    """All single values of a file, each under its own name, in the order of the file.

    Names are written in snake case, so that `maxGradNorm`, `max-grad-norm` and `max_grad_norm` are one.

    Args:
        path: A file that ends in .json, .toml, .yaml or .yml.

    Returns:
        The names and values.

    Raises:
        InvalidInput: If the file is of another kind, too large, or cannot be read as its kind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = Path(folder, "run.json")
    ...     _ = place.write_text('{"privacy": {"maxGradNorm": 1.0}}')
    ...     read_settings(place)
    [('max_grad_norm', 1.0)]
    """
    place = Path(path)
    form = place.suffix.lower().removeprefix(".")
    if form not in _PARSERS:
        raise InvalidInput(f"expected a file that ends in {', '.join(_PARSERS)}, got {place.name!r}")
    with place.open("rb") as file:
        raw = file.read(LARGEST_FILE + 1)
    if len(raw) > LARGEST_FILE:
        raise InvalidInput(f"expected settings of at most {LARGEST_FILE} bytes, got more in {place.name!r}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"expected text in UTF-8 in {place.name!r}, got other bytes") from error
    return parse_settings(text, form)


def parse_settings(text: str, form: str) -> list[Setting]:
    """The same of a text.

    Args:
        text: The settings.
        form: "json", "toml", "yaml" or "yml".

    Returns:
        The names and values.
    """
    if form not in _PARSERS:
        raise InvalidInput(f"expected settings as {', '.join(_PARSERS)}, got {form[:20]!r}")
    try:
        value = _PARSERS[form](text)
    except InvalidInput:
        raise
    except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"expected settings in {form.upper()}, got a text that is none ({type(error).__name__}"
            f"{_line(error)}); mend it, or give the settings with --set"
        ) from error
    return list(_flattened(value))


def _line(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    return f" in line {line}" if isinstance(line, int) else ""


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A table in which no name stands twice: which of the values the run used, only its owner knows."""
    found: dict[Any, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidInput(
                f"expected each name once in a table, got {str(name)[:40]!r} twice; keep what the run used"
            )
        found[name] = value
    return found


def _yaml(text: str) -> Any:
    import yaml  # slow to import, and needed for one kind of file

    class OnceLoader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            self.flatten_mapping(node)
            return _once(
                (self.construct_object(key, deep=True), self.construct_object(value, deep=True))
                for key, value in node.value
            )

    depth = 0
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken):
                raise InvalidInput("expected YAML without aliases, got one; write each value out")
            kind = type(token).__name__
            depth += kind.endswith("StartToken") - kind.endswith("EndToken")
            if depth > DEEPEST:  # before it is parsed: that takes time with the square of the depth
                raise _too_much()
        return OnceLoader(text).get_single_data()
    except yaml.YAMLError as error:
        raise ValueError("not YAML") from error


_PARSERS: dict[str, Callable[[str], Any]] = {
    "json": _json,
    "toml": tomllib.loads,
    "yaml": _yaml,
    "yml": _yaml,
}


def _flattened(value: Any) -> Iterator[Setting]:
    """Single values in the order of the file; a list's values take the name of the list."""
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    found = 0
    while waiting:
        name, item, depth = waiting.pop()
        found += 1
        if found > MOST_SETTINGS or depth > DEEPEST:
            raise InvalidInput(
                f"expected at most {MOST_SETTINGS} settings and {DEEPEST} levels of tables, got more; keep "
                "what concerns privacy"
            )
        if isinstance(item, dict):
            waiting += [(snake_case(str(key)), inner, depth + 1) for key, inner in reversed(item.items())]
        elif isinstance(item, list | tuple | set):
            waiting += [(name, inner, depth + 1) for inner in reversed(list(item))]
        elif name:
            yield name, item


def _too_much() -> InvalidInput:
    return InvalidInput(
        f"expected at most {MOST_SETTINGS} settings and {DEEPEST} levels of tables, got more; keep what "
        "concerns privacy"
    )


def snake_case(name: str) -> str:
    """
    >>> snake_case("maxGradNorm"), snake_case("num-server-rounds"), snake_case("L2 norm clip")
    ('max_grad_norm', 'num_server_rounds', 'l2_norm_clip')
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^0-9a-z]+", "_", apart.lower()).strip("_")
