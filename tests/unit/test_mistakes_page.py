"""Faults and the tests that keep them out name each other; so do the page of models and its tests."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def read(page):
    return (ROOT / "docs" / page).read_text()


def kept_out(path):
    """The faults that the markers of a file name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "keeps_out":
            yield ast.literal_eval(node.args[0])


def functions_of(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_fault_has_a_test_and_every_marker_a_line():
    listed = re.findall(r"^- (.+)$", read("mistakes.md"), re.MULTILINE)
    marked = {fault for path in sorted((ROOT / "tests").rglob("*.py")) for fault in kept_out(path)}
    assert len(listed) > 200
    assert set(listed) == marked


def test_every_named_test_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", read("models.md"))
    assert len(named) >= 50
    assert [f"{path}::{name}" for path, name in named if name not in functions_of(path)] == []
