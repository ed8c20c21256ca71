"""Whatever stands in a policy's file, it is a policy or is refused in a sentence."""

import copy
import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from sfumato.errors import SfumatoError
from sfumato.policy import policy_from_dict
from sfumato.synthesis.cells import cell_columns
from sfumato.synthesis.rules import Rules

DAY = datetime.date(2024, 2, 1)
ODD = [
    True, 0, -1, 2**70, 0.5, float("nan"), float("inf"), "", "x", "abc", "\x00", [], {}, ["x"], [[]], [1, "x"],
    {"lower": "a"}, {"lower": []}, {"given": ["a"]}, DAY, datetime.datetime(2024, 1, 1),
]  # fmt: skip
COLUMNS = {
    "a": {"type": "text", "categories": ["x", "y"]},
    "b": {"type": "integer", "lower": 0, "upper": 5},
    "d": {"type": "date", "lower": DAY, "upper": datetime.date(2024, 12, 31)},
    "e": {"type": "boolean"},
}
UNIT = {"column": "person", "rows": 2, "groups": 2}
BUDGET = {"epsilon": 3.0, "delta": 1e-6, "ledger": "l.db", "dataset": "x", "unit": "person", "four_eyes": True}
ONE = {
    "table": {"name": "t", "source": "t.csv", "version": "1"},
    "columns": COLUMNS,
    "unit": UNIT,
    "budget": BUDGET,
    "synthesis": {
        "follows": {"e": {"given": "a", "values": {"x": True, "y": False}}},
        "impossible": [{"b": {"lower": 1, "upper": 3}, "a": "x"}, {"d": {"lower": DAY}, "a": ["x"]}],
    },
}
SEVERAL = {
    "tables": {"v": {"source": "v.csv", "unit": "person", "rows": 1, "groups": 1, "columns": COLUMNS}},
    "public": {"r": {"source": "r.csv", "key": "a", "columns": {"a": {"type": "text"}}}},
    "unit": UNIT,
    "budget": BUDGET,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inside, dict | list):
            yield from places(inside, (*path, key))


def changed(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    found = copy.deepcopy(value)
    inside = found
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = to
    return found


@pytest.mark.keeps_out("A policy whose values are of odd types, or whose categories are the letters of a word")
def test_an_odd_value_anywhere_in_a_policy_is_refused_in_a_sentence():
    for whole in (ONE, SEVERAL):
        for path in places(whole):
            for odd in ODD:
                try:
                    policy = policy_from_dict(changed(whole, path, odd))
                    Rules.of(policy.synthesis, cell_columns(policy)[0])
                except SfumatoError:
                    pass


@pytest.mark.keeps_out("A policy whose values are of odd types, or whose categories are the letters of a word")
def test_letters_of_a_word_are_no_categories():
    refused = False
    try:
        policy_from_dict(changed(ONE, ("columns", "a", "categories"), "abc"))
    except SfumatoError as error:
        refused = "a list" in str(error)
    assert refused
