"""Results of every kind, with any values that their types allow: a file keeps them, and the page draws them."""

import json
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import runs as results
from sfumato.errors import InvalidInput
from sfumato.report import write_report
from sfumato.runs import kinds
from sfumato.schema import Model
from sfumato.storage import RunFolder, json_bytes

LARGEST = 1e12
_SCALARS = {
    bool: st.booleans(),
    int: st.integers(-(2**40), 2**40),
    float: st.floats(-LARGEST, LARGEST),
    str: st.text(max_size=12),
    Any: st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.text(max_size=3)),
}


def any_result():
    """A result of any kind, with any values that its fields allow."""
    return st.sampled_from(sorted(kinds())).flatmap(lambda kind: record(kinds()[kind]))


def record(made):
    hints = get_type_hints(made, include_extras=True)
    return st.builds(made, **{name: _of(hints[name]) for name in made.__struct_fields__})


def _of(hint):
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of(*(st.none() if arm is type(None) else _of(arm) for arm in arguments))
    if origin is Annotated:
        base, room = arguments
        high = LARGEST if room.le is None else room.le
        if base is int:
            return st.integers(int(room.ge), int(high))
        return st.floats(room.ge, 1 if room.lt is not None else high, exclude_max=room.lt is not None)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(_of(arguments[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_of, arguments))
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=5), _of(arguments[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Model):
        return record(hint)
    return _SCALARS[hint]


@given(any_result())
def test_what_is_written_is_read_again(result):
    text = json_bytes(result.to_json()).decode()
    assert results.from_json(json.loads(text, parse_constant=pytest.fail)) == result


@settings(max_examples=60, deadline=None)
@given(st.lists(any_result(), min_size=1, max_size=5))
def test_any_runs_can_be_drawn_on_one_page(found):
    with tempfile.TemporaryDirectory() as place:
        for number, result in enumerate(found):
            results.write_run(RunFolder.make(Path(place, str(number))), result, certificate=None)
        page = write_report([Path(place)], Path(place, "report.html"))
        assert page.headline in page.path.read_text(encoding="utf-8")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def tampered(draw):
    """The JSON of a result with one field replaced by anything, left out, or added."""
    data = draw(any_result()).to_json()
    name = draw(st.sampled_from(sorted(data)) | st.text(max_size=9))
    if draw(st.booleans()):
        data.pop(name, None)
    else:
        data[name] = draw(JSON)
    return data


@pytest.mark.keeps_out("A report that draws what a tampered file says")
@given(tampered() | st.dictionaries(st.sampled_from(["kind", "stage", "algorithm", "format", "runs"]), JSON))
def test_whatever_a_file_says_is_a_result_or_is_refused(data):
    try:
        result = results.from_json(data)
    except InvalidInput:
        return
    assert type(result) in kinds().values()
    assert results.from_json(json.loads(json_bytes(result.to_json()))) == result
