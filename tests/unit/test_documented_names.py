"""Every public name describes its arguments and its result, and shows how it is called."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
PACKAGES = [
    name.removeprefix("sfumato.")
    for name in re.findall(r"^::: (\S+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
]

# Packages whose names describe every argument and show a call; elsewhere a docstring of one line is enough.
DESCRIBED = {"sfumato", "training", "ledger", "accounting", "mechanisms", "query"}

# Classes whose methods are documented as functions are: what users call directly.
WITH_METHODS = {
    "Ledger",
    "PrivateClassifier",
    "PrivateTrainer",
    "TrainingPlan",
    "Table",
    "Certificate",
    "Classifier",
}

SECTION = re.compile(r"^(Args|Attributes|Terms|Returns|Yields|Raises):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
ITEM = re.compile(r"^ {4}(?! )\**(\w+)(?: \([^)]*\))?: (.+)$", re.MULTILINE)


def public() -> Iterator[tuple[str, Any]]:
    """Functions and classes of our own that the reference shows, each once."""
    seen: set[int] = set()
    for package in PACKAGES:
        module = import_module("sfumato" if package == "sfumato" else f"sfumato.{package}")
        for name in getattr(module, "__all__", dir(module)):
            found = getattr(module, name)
            ours = getattr(found, "__module__", "").startswith("sfumato")
            if ours and (inspect.isclass(found) or inspect.isfunction(found)) and id(found) not in seen:
                seen.add(id(found))
                yield f"{package}.{name}", found


def methods(found: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    own = [kind for kind in reversed(found.__mro__) if kind.__module__.startswith("sfumato")]
    for name, value in {name: value for kind in own for name, value in vars(kind).items()}.items():
        function = inspect.unwrap(getattr(value, "__func__", value))
        if not name.startswith("_") and inspect.isfunction(function):
            yield f"{found.__name__}.{name}", function


EVERY = dict(public())
NAMES = {name: found for name, found in EVERY.items() if name.partition(".")[0] in DESCRIBED}
CALLED = {
    **{name: found for name, found in NAMES.items() if inspect.isfunction(found)},
    **dict(
        method
        for found in NAMES.values()
        if getattr(found, "__name__", "") in WITH_METHODS
        for method in methods(found)
    ),
}
CLASS_OF = {
    function: found for found in NAMES.values() if inspect.isclass(found) for _, function in methods(found)
}
CLASSES = {name: found for name, found in NAMES.items() if inspect.isclass(found)}


def returned() -> set[str]:
    """Classes that users are handed by a function or method of another one, and do not make."""
    handed: set[str] = set()
    for found in NAMES.values():
        owner = found.__name__
        functions = [found] if inspect.isfunction(found) else [function for _, function in methods(found)]
        for function in functions:
            named = set(re.findall(r"\w+", str(inspect.signature(function).return_annotation)))
            handed |= named - {owner}
    return handed


def sections(text: str) -> dict[str, dict[str, str]]:
    found = SECTION.findall(inspect.cleandoc(text or "") + "\n\n")
    return {title: dict(ITEM.findall(body)) or {"": body.strip()} for title, body in found}


TERMS = {
    found: sections(import_module(f"sfumato.{name.partition('.')[0]}").__doc__ or "").get("Terms", {})
    for name, found in NAMES.items()
    if not name.startswith("sfumato.") and inspect.isfunction(found)
}


def parameters(found: Any) -> list[str]:
    return [
        name for name in inspect.signature(found).parameters if name not in ("self", "cls") and name[0] != "_"
    ]


def undescribed(found: Any) -> list[str]:
    """What a reader of the docstring would have to guess.

    A class describes the words that several of its methods take once, among its fields or under `Terms`; a
    package those of its functions. A first line that begins with `Return` says what is returned.
    """
    parts = sections(found.__doc__)
    of_class = sections(CLASS_OF[found].__doc__) if found in CLASS_OF else {}
    of_class = of_class | {"Terms": of_class.get("Terms", {}) | TERMS.get(found, {})}
    described = [
        name
        for part in (parts, of_class)
        for kind in ("Args", "Attributes", "Terms")
        for name in part.get(kind, {})
    ]
    missing = [name for name in parameters(found) if name not in described]
    unknown = [name for name in parts.get("Args", {}) if name not in parameters(found)]
    gives = inspect.isfunction(found) and str(inspect.signature(found).return_annotation) not in (
        "None",
        "NoReturn",
    )
    told = {"Returns", "Yields"} & set(parts) or (found.__doc__ or "").startswith(("Return ", "Yield "))
    return missing + unknown + (["what is returned"] if gives and not told else [])


def has_example(found: Any) -> bool:
    return bool(re.search(r"^\s*(>>> |```python)", found.__doc__ or "", re.MULTILINE))


def spared(found: type) -> bool:
    """Protocols, enumerations and exceptions without fields of their own: nobody passes them arguments."""
    plain_error = issubclass(found, BaseException) and "__init__" not in vars(found)
    return plain_error or issubclass(found, enum.Enum) or getattr(found, "_is_protocol", False)


def test_the_walk_finds_names_of_every_page():
    assert {name.split(".")[0] for name in EVERY} >= set(PACKAGES) - {"sfumato"}
    assert "training.train" in NAMES or "sfumato.train" in NAMES


def test_every_public_name_has_a_docstring():
    assert [name for name, found in EVERY.items() if not (found.__doc__ or "").strip()] == []


def test_functions_and_methods_describe_their_arguments_and_what_they_return():
    gaps = {name: undescribed(found) for name, found in CALLED.items()}
    assert {name: gap for name, gap in gaps.items() if gap} == {}


def test_classes_describe_their_fields():
    gaps = {name: undescribed(found) for name, found in CLASSES.items() if not spared(found)}
    assert {name: gap for name, gap in gaps.items() if gap} == {}


def test_classes_have_a_docstring_of_their_own():
    generated = [
        name
        for name, found in CLASSES.items()
        if (found.__doc__ or f"{found.__name__}(").startswith(f"{found.__name__}(")
    ]
    assert generated == []


def test_functions_have_an_example():
    assert [name for name, found in NAMES.items() if inspect.isfunction(found) and not has_example(found)] == []


def test_classes_that_users_make_have_an_example():
    handed = returned()
    made = [name for name, found in CLASSES.items() if found.__name__ not in handed and not spared(found)]
    assert [
        name for name in made if not has_example(CLASSES[name]) and not issubclass(CLASSES[name], Exception)
    ] == []


def test_the_guard_sees_what_is_missing():
    def silent(epsilon: float, delta: float) -> float:
        """Give a number.

        Args:
            epsilon: The ε of one release.
            gamma: There is no such argument.
        """
        return epsilon + delta

    @dataclasses.dataclass
    class Bare:
        value: int

    assert undescribed(silent) == ["delta", "gamma", "what is returned"]
    assert undescribed(Bare) == ["value"]
    assert not has_example(silent)
