"""Settings files from strangers: an opinion, or one sentence; never a crash, never a run of anything."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfumato.errors import InvalidInput, SfumatoError
from sfumato.governance import opinion_of, read_settings
from sfumato.governance.settings import NAMES

WORDS = [name for names in NAMES.values() for name in names]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.sampled_from(
        [0, 1, 1e-5, 0.5, 64, 60000, "poisson", "shuffle", "opacus", "flower", "nvflare", "pate", "local"]
    ),
    st.text(max_size=20),
    st.lists(st.integers(0, 3), max_size=3),
)
TREES = st.recursive(
    st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=12),
    lambda inner: st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES)
def test_any_file_gets_an_opinion_or_one_sentence(tmp_path, tree):
    place = tmp_path / "run.json"
    place.write_text(json.dumps(tree))
    found, said = judged(place)
    assert "\n" not in said
    if found is not None:
        assert found.epsilon >= 0
        json.dumps(found.to_json()["event"])


def judged(place):
    try:
        return opinion_of(place), ""
    except SfumatoError as error:
        return None, str(error)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.json", "[" * 100_000),
        ("deep.toml", "a = " + "[" * 100_000),
        ("deep.yaml", "[" * 20_000),
        ("wide.json", "[" + "1," * 20_000 + "1]"),
        ("laughs.yaml", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"),
        ("code.yaml", "!!python/object/apply:os.system ['touch pwned']\n"),
        ("number.json", '{"noise_multiplier": ' + "9" * 10_000 + "}"),
        ("binary.json", "\x00\x01"),
        ("empty.toml", ""),
        ("table.csv", "noise_multiplier,1\n"),
        ("large.json", " " * (2**18 + 1)),
    ],
)
def test_a_hostile_file_is_refused_in_one_sentence(tmp_path, name, text):
    place = tmp_path / name
    place.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        opinion_of(place)
    assert "\n" not in str(refused.value)
    assert [child.name for child in tmp_path.iterdir()] == [name]


def test_pickles_are_not_read(tmp_path):
    place = tmp_path / "run.pkl"
    place.write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(InvalidInput, match="ends in"):
        read_settings(place)
