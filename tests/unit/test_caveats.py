"""Caveats are values: code, parameters and a sentence; the page lists all, and files cannot forge a code."""

import copy
import importlib.util
import pickle
from pathlib import Path

import pytest

from sfumato.accounting import LaplaceEvent
from sfumato.caveats import Caveat, Code, as_caveats
from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate

ROOT = Path(__file__).parents[2]
MADE = [code(**dict.fromkeys(code.names, 2)) for code in Code if code is not Code.OTHER]


@pytest.mark.parametrize("caveat", MADE, ids=lambda caveat: caveat.code.value)
def test_a_caveat_keeps_its_code_and_parameters(caveat):
    for same in (Caveat.from_json(caveat.to_json()), copy.deepcopy(caveat), pickle.loads(pickle.dumps(caveat))):  # noqa: S301
        assert (same, same.code, same.parameters) == (caveat, caveat.code, caveat.parameters)


@pytest.mark.parametrize(
    "data",
    [
        "seeded",
        {"code": "seeded", "text": "all is well"},
        {"code": "unheard-of", "text": "a sentence"},
        {"code": "reserved", "text": Code.RESERVED(entry=3), "parameters": {"entry": 4}},
        {"code": "each-adversary", "text": "x", "parameters": {"delta": "text", "epsilons": ""}},
        {"code": "reserved", "text": "x", "parameters": {"entry": [1]}},
        {"code": ["seeded"], "text": "x"},
    ],
)
def test_a_text_that_is_not_that_of_its_code_has_no_code(data):
    found = Caveat.from_json(data)
    assert found.code is Code.OTHER
    assert found.to_json() == data  # a signature covers it


def test_characters_that_are_not_seen_become_escapes():
    assert Caveat.from_json({"code": "x", "text": "a\x1b[2J"}) == "a\\x1b[2J"
    assert Code.LEFT_OUT(columns="a\nb") == "left out on purpose: a\\x0ab"


@pytest.mark.parametrize("data", [7, None, [], {}, {"code": "seeded"}, {"text": ""}, {"code": "a", "text": 1}])
def test_other_values_are_refused(data):
    with pytest.raises(InvalidInput, match="caveats"):
        Caveat.from_json(data)


def test_a_certificate_states_codes():
    stated = Certificate.of(
        LaplaceEvent(2.0), purpose="mean age", delta=0, caveats=["rows of 2024", Code.EXCERPT()], private=False
    )
    assert [item["code"] for item in stated.to_json()["caveats"]] == [
        "seeded",
        "unrecorded",
        "other",
        "excerpt",
    ]
    assert Certificate.from_json(stated.to_json()).caveats == stated.caveats


def test_sentences_are_a_list():
    with pytest.raises(InvalidInput, match="list of sentences"):
        as_caveats("one")


def test_the_page_lists_every_code():
    path = ROOT / "docs" / "generate_caveats.py"
    spec = importlib.util.spec_from_file_location("generate_caveats", path)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    written = generator.PAGE.read_text(encoding="utf-8")
    assert written == generator.page(), "write it anew: .venv/bin/python docs/generate_caveats.py"
