"""Pages that name a test for every row of a table: each of them must exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAST = {"mistakes.md": 22, "models.md": 50}  # rows


def functions_of(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def read(page):
    return (ROOT / "docs" / page).read_text()


@pytest.mark.parametrize("page", LEAST)
def test_every_named_test_exists(page):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", read(page))
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(path)]
    assert missing == []


@pytest.mark.parametrize("page", LEAST)
def test_every_row_has_a_test(page):
    rows = [line for line in read(page).splitlines() if line.startswith("|")]
    rows = [
        row for row in rows if not row.startswith("|---") and not row.rstrip().endswith(("test |", "it out |"))
    ]
    assert len(rows) >= LEAST[page]
    assert all("`tests/" in row for row in rows)
