"""docs/mistakes.md names a test for every fault; each of them must exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mistakes.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def functions_of(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists():
    missing = [f"{path}::{name}" for path, name in NAMED if name not in functions_of(path)]
    assert missing == []


def test_every_fault_has_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 22
    assert all("`tests/" in row for row in rows)
