"""Every caveat that code can put on a certificate has its place on the page that explains them.

Caveats are found in the source: whatever is passed as `caveats=`, put under a name with "caveat" or "notes"
in it, or returned by a function of such a name, followed through constants, local names and functions to the
texts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

import sfumato
from sfumato.ledger.certificate import UNRECORDED
from sfumato.training.data import ITEMS_BY_OWN_CODE

SOURCE = Path(sfumato.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "caveats.md"
HOLE = "…"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    tree: ast.Module
    constants: dict[str, ast.expr] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


@cache
def module(name: str) -> Module | None:
    place = SOURCE.joinpath(*name.split(".")[1:])
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if name.startswith("sfumato") and path.exists():
            return _read(path)
    return None


def _read(path: Path) -> Module:
    found = Module(ast.parse(path.read_text(encoding="utf-8")))
    for node in ast.walk(found.tree):
        if isinstance(node, Function):
            found.functions[node.name] = node
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.imports |= {each.asname or each.name: (node.module, each.name) for each in node.names}
    for node in found.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.constants[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.constants[node.target.id] = node.value
    return found


class Texts:
    """The texts that expressions of one package come to."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._seen: set[tuple[int, int]] = set()

    def follow(self, node: ast.AST, of: Module, within: Function | None) -> None:
        if (id(node), id(within)) in self._seen:
            return
        self._seen.add((id(node), id(within)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.found.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
            self.found.add("".join(map(str, parts)))
            for part in node.values:  # a part may be a caveat by itself
                if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
                    self._name(part.value.id, of, None)
        elif isinstance(node, ast.Name):
            self._name(node.id, of, within)
        elif isinstance(node, ast.Attribute):
            self._name(node.attr, of, None)
        elif isinstance(node, ast.Call):
            self._call(node, of, within)
        elif isinstance(node, ast.IfExp):
            self.follow(node.body, of, within)
            self.follow(node.orelse, of, within)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp):
            self.follow(node.elt, of, within)
        elif isinstance(node, ast.Dict):
            for value in node.values:
                self.follow(value, of, within)
        else:
            for child in ast.iter_child_nodes(node):
                self.follow(child, of, within)

    def _call(self, node: ast.Call, of: Module, within: Function | None) -> None:
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant | ast.Name):
            self.follow(node.func.value, of, within)  # TEXT.format(…), TEXTS.get(…)
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in ("tuple", "list", "sorted", "dict", "fromkeys", "get"):
            for argument in node.args:
                self.follow(argument, of, within)
        else:
            self._name(name, of, None)

    def _name(self, name: str, of: Module, within: Function | None) -> None:
        for node in ast.walk(within) if within is not None else ():
            for value in _put_under(node, name):
                self.follow(value, of, within)
        if name in of.constants:
            self.follow(of.constants[name], of, None)
        elif name in of.functions:
            self._returned(of.functions[name], of)
        elif name in of.imports:
            home, original = of.imports[name]
            other = module(home)
            if other is not None:
                self._name(original, other, None)

    def _returned(self, function: Function, of: Module) -> None:
        for node in ast.walk(function):
            if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
                self.follow(node.value, of, function)


def _put_under(node: ast.AST, name: str) -> Iterator[ast.expr]:
    """What a statement puts under a local name."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(_named(target) == name for target in targets):
            yield node.value
    elif _adds_to(node) == name:
        assert isinstance(node, ast.Call)
        yield from node.args


def _adds_to(node: ast.AST) -> str | None:
    """The name of a list or set to which a call adds."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    return _named(node.func.value) if node.func.attr in ("append", "add", "extend") else None


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


@cache
def caveats() -> frozenset[str]:
    texts = Texts()
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(("sfumato", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        of = module(name)
        assert of is not None
        for within, node in _nodes(of.tree):
            for seed in _seeds(node):
                texts.follow(seed, of, within)
    return frozenset(text for text in texts.found if len(text.split()) > 2)


def _nodes(tree: ast.AST, within: Function | None = None) -> Iterator[tuple[Function | None, ast.AST]]:
    for child in ast.iter_child_nodes(tree):
        yield within, child
        yield from _nodes(child, child if isinstance(child, Function) else within)


def _tells(name: str) -> bool:
    """Whether a name says that caveats are under it; notes of an answer or a table become caveats."""
    return "caveat" in name.lower() or "notes" in name.lower()


def _seeds(node: ast.AST) -> Iterator[ast.AST]:
    """Expressions that become caveats."""
    if isinstance(node, ast.Call):
        yield from (word.value for word in node.keywords if word.arg in ("caveats", "notes"))
        if _tells(_adds_to(node) or ""):
            yield from node.args
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(_tells(_named(target)) for target in targets):
            yield node.value
    elif isinstance(node, Function) and _tells(node.name):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Return | ast.Yield | ast.YieldFrom) and inner.value is not None:
                yield inner.value


def _plain(text: str) -> str:
    """One spelling of texts and holes, for source and page."""
    return " ".join(re.sub(rf"\{{\w+\}}|{HOLE}{HOLE}+", HOLE, text).split())


def _is_open(text: str) -> bool:
    """A text to which something is added, as a sum of texts has no hole."""
    return text.endswith(": ")


def explained() -> list[str]:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    assert all(len(row) == 3 and all(row) for row in cells)  # what it is, what it means, how to get rid of it
    return [row[0] for row in cells if row[0] != "Caveat"]


def test_every_caveat_is_explained_and_every_explanation_is_of_a_caveat() -> None:
    wanted = {_plain(f"{text}{HOLE}" if _is_open(text) else text) for text in caveats()}
    assert set(explained()) == wanted


def test_no_caveat_is_explained_twice() -> None:
    assert len(explained()) == len(set(explained()))


@pytest.mark.parametrize(
    "text",
    [
        ITEMS_BY_OWN_CODE,  # a constant of another module, added to a set
        UNRECORDED,  # put under a local name before
        "a tensor of shape … in the code at … was taken as public",  # with names to fill in
        "the float64 normal … taken as ideal",  # with holes
        "left out on purpose: …",  # of a function
    ],
)
def test_caveats_are_found_in_the_source(text: str) -> None:
    assert text in caveats()
