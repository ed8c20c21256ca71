"""Declared models: each value is of its type, however it was made, and each refusal is one sentence of ours."""

import json
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.display import visible
from sfumato.errors import InvalidInput
from sfumato.schema import Count, Delta, Json, Model, Positive, Share, Words, parse_json, read, read_file


class Leaf(Model):
    name: Words
    share: Share = 0.5


class Circle(Model, tag_field="kind", tag="circle"):
    radius: Positive


class Square(Model, tag_field="kind", tag="square"):
    side: Positive


class Tree(Model):
    delta: Delta
    leaf: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    pair: tuple[Count, Count] = (0, 0)
    named: Mapping[str, Leaf] = {}
    shape: Circle | Square | None = None
    size: Literal["small", "large"] = "small"
    loss: float | None = None
    extra: Json = None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"delta": 1}, "expected tree.delta to be a number at least 0 and below 1, got 1"),
        ({"delta": math.nan}, "tree.delta to be a finite number, got nan"),
        ({"delta": True}, "got True"),
        ({"delta": 10**400}, "expected tree.delta to be a number"),
        ({"more": 1}, "expected tree to hold only delta, leaf, leaves, .*, got 'more'"),
        ({"leaf": {}}, "expected tree.leaf.name, got none"),
        ({"leaf": {"name": "a\x1b[2J"}}, r"expected tree.leaf.name to be a few printable words, got 'a\\x1b"),
        ({"leaf": {"name": "  "}}, "a few printable words"),
        ({"leaf": {"name": "a\u202eb"}}, "a few printable words"),
        (
            {"leaves": [{"name": "a"}, {"name": "b", "share": 2}]},
            r"tree.leaves\[1\].share to be a number from 0",
        ),
        ({"pair": [1]}, "tree.pair to be a list of 2 items"),
        ({"pair": [1, 1.5]}, r"tree.pair\[1\] to be a whole number at least 0, got 1.5"),
        ({"named": {"a": {"name": "a"}, "b\x9b": {"name": 7}}}, r"tree.named.b\\x9b.name"),
        ({"shape": {"kind": "star"}}, "tree.shape.kind to be one of circle, square, got 'star'"),
        ({"shape": {"radius": 1}}, "tree.shape.kind, got none"),
        ({"shape": {"kind": "square", "radius": 1}}, "tree.shape to hold only side, got 'radius'"),
        ({"size": "big"}, "tree.size to be one of small, large, got 'big'"),
        ({"leaf": 7}, "tree.leaf to be an object, got 7"),
    ],
)
def test_each_refusal_names_the_field_the_expectation_and_the_value(change, sentence):
    with pytest.raises(InvalidInput, match=f"^.*{sentence}") as raised:
        read(Tree, {"delta": 0, **change}, name="tree")
    assert "\x1b" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_model_made_by_code_is_checked_as_one_from_a_file():
    made = Tree(delta=np.float32(0), pair=(np.int64(1), 2), loss=math.inf, extra={"a": [math.nan]})
    assert type(made.delta) is float
    assert (made.pair, made.loss, made.extra) == ((1, 2), None, {"a": [None]})
    with pytest.raises(InvalidInput, match=r"Leaf\.share to be a number from 0 to 1, got 3"):
        Leaf(name="a", share=3)


def test_json_and_back():
    tree = Tree(delta=0.1, leaf=Leaf(name="a"), named={"b": Leaf(name="b")}, shape=Square(side=2))
    assert read(Tree, json.loads(json.dumps(tree.to_json()))) == tree


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(Tree.__struct_fields__) | st.text(max_size=3), ANY, max_size=4))
def test_any_value_is_read_or_refused_in_one_line(data):
    said = ""
    try:
        read(Tree, data)
    except InvalidInput as error:
        said = str(error)
    assert visible(said) == said


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": NaN}', "finite"),
        ('{"a": 1e999}', "finite"),
        ("[" * 70 + "]" * 70, "nested"),
        ("{", "Expecting"),
    ],
)
def test_json_is_read_strictly(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


@pytest.mark.parametrize("content", [b"\xff", b"[1, 2]", b"{" * 100_000, b"[" * 100_000, b'"' + b"x" * 200])
@pytest.mark.parametrize("name", ["x.json", "x.toml"])
def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"x\.(json|toml) to (be|hold) a study"):
        read_file(path, "a study", largest=150_000)


def test_a_file_that_is_too_large_is_refused(tmp_path):
    (tmp_path / "x.json").write_bytes(b" " * 200)
    with pytest.raises(InvalidInput, match="at most 100 bytes"):
        read_file(tmp_path / "x.json", "a study", largest=100)
