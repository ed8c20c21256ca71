"""Model files from anybody: refused in one sentence, or read; nothing in them runs, and none is believed."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as parsed
from safetensors.torch import save
from torch import nn

import sfumato
from sfumato import models
from sfumato.accounting import GaussianEvent
from sfumato.datasets import Dataset
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput, SfumatoError
from sfumato.learn import DIGITS, features
from sfumato.ledger import Certificate
from sfumato.released import MODEL, ModelCard, Released
from sfumato.storage import CERTIFICATE, RunFolder

SMALL = replace(DIGITS, drawn=60, directions=8)
IMAGES = np.linspace(0, 1, 3 * 64, dtype=np.float32).reshape(3, 8, 8)
CARD = ModelCard(architecture="mlp", classes=("0", "1", "2"), shape=(1, 8, 8))
WEIGHTS = models.build("mlp", classes=3, side=8, seed=1).state_dict()
HEADER = "sfumato-model"


def finished(path, content):
    """A run folder with this model and a certificate."""
    folder = RunFolder.make(path)
    folder.write(MODEL, content)
    Certificate.of(GaussianEvent(4.0), purpose="a model", delta=1e-5).write(folder.release / CERTIFICATE)
    return path


def described(card, weights=WEIGHTS):
    """A file whose header says anything at all."""
    whole = {name: value.contiguous() for name, value in weights.items()}
    return save(whole, metadata={HEADER: card if isinstance(card, str) else json.dumps(card)})


@pytest.fixture(scope="module")
def on_features():
    rows = Dataset(
        inputs=np.zeros((2, 1, 28, 28), np.float32),
        targets=np.zeros(2, np.int64),
        name="strokes",
        visibility="public",
        classes=10,
    )
    network = features.build(SMALL, classes=10)
    with torch.no_grad():
        network.head.weight.copy_(torch.linspace(-1, 1, 80).reshape(10, 8))
    return Released(module=network, card=features.card(SMALL, rows))


def test_a_sound_file_is_read(tmp_path):
    made = Released(module=models.build("mlp", classes=3, side=8, seed=1), card=CARD)
    model = sfumato.load(finished(tmp_path, made.to_bytes()))
    with torch.no_grad():
        expected = made.module(torch.from_numpy(IMAGES)[:, None]).argmax(1)
    assert model.predict(IMAGES).tolist() == expected.tolist()
    published = sfumato.load(tmp_path / "release")  # a copy of the release half is enough
    assert published.predict(IMAGES).tolist() == expected.tolist()


@pytest.mark.keeps_out("A model file that runs code, or builds whatever its header asks for")
@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "", "../mlp", "MLP"])
def test_an_architecture_is_a_name_that_is_known(tmp_path, name):
    with pytest.raises(InvalidInput, match="expected an architecture among"):
        sfumato.load(finished(tmp_path, described({**CARD.to_json(), "architecture": name})))


@pytest.mark.keeps_out("A model file that runs code, or builds whatever its header asks for")
@pytest.mark.parametrize(
    "change",
    [
        {"shape": [1, 10**9, 10**9]},
        {"shape": [10**12, 8, 8]},
        {"shape": [1, 8]},
        {"shape": [1, 9, 9]},
        {"shape": [-1, 8, 8]},
        {"shape": None},
        {"classes": ["0"] * 5000},
        {"classes": []},
        {"classes": [0, 1, 2]},
        {"architecture": "resnet18"},
        {"architecture": ["mlp"]},
        {"format": 2},
        {"format": None},
        {"code": "import os"},
        {"settings": [1]},
        {"priors": {"strokes": 1}},
        {"priors": {"strokes": "0" * 64}},
        {"priors": {"nothing": "0" * 64}},
    ],
    ids=str,
)
def test_a_card_that_does_not_fit_its_weights_is_refused_before_anything_is_allocated(tmp_path, change):
    with pytest.raises(DataCorrupted, match="expected"):
        sfumato.load(finished(tmp_path, described({**CARD.to_json(), **change})))


def answered_or_refused(place):
    try:
        return sfumato.load(place).predict(IMAGES).shape == (3,)
    except SfumatoError as error:
        return "\n" not in str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.keeps_out("A model file that runs code, or builds whatever its header asks for")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.sampled_from([*CARD.to_json(), "other"]), value=json_values)
def test_whatever_a_card_says_a_model_answers_or_the_file_is_refused(tmp_path, field, value):
    place = finished(tmp_path / "run", described({**CARD.to_json(), field: value}))
    assert answered_or_refused(place)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), cut=st.booleans())
def test_damaged_bytes_are_refused_or_read(tmp_path, position, value, cut):
    content = bytearray(described(CARD.to_json()))
    length = struct.unpack("<Q", content[:8])[0] + 8  # where the weights begin
    place = int(position * length)
    content[place] = value
    assert answered_or_refused(finished(tmp_path / "run", bytes(content[:place] if cut else content)))


@pytest.mark.keeps_out("Other weights in the place of the public ones that a certificate names")
def test_other_weights_in_the_place_of_the_prior_are_found(tmp_path, on_features):
    """Who changes the features makes the head say what they like, under a certificate that names the prior."""
    content = on_features.to_bytes()
    assert sfumato.load(finished(tmp_path / "sound", content)).predict(IMAGES).shape == (3,)
    weights = parsed(content)
    name = next(name for name in weights if name.startswith("extractors.0.") and name.endswith("weight"))
    weights[name] = weights[name] + 1e-3
    changed = described(on_features.card.to_json(), weights)
    with pytest.raises(DataCorrupted, match="public prior"):
        sfumato.load(finished(tmp_path / "changed", changed))
    card = replace(on_features.card, priors={"strokes": "0" * 64})
    other = finished(tmp_path / "other", described(card.to_json(), parsed(content)))
    with pytest.raises(DataCorrupted, match="public prior"):
        sfumato.load(other)


@pytest.mark.parametrize(
    "change",
    [{"directions": 10**12}, {"directions": 9}, {"extractors": ["photographs"]}, {"code": 1}, {"steps": 0}],
)
def test_a_recipe_that_does_not_fit_is_refused_before_anything_is_allocated(tmp_path, on_features, change):
    recipe = {**on_features.card.settings["recipe"], **change}
    card = {**on_features.card.to_json(), "settings": {"recipe": recipe}}
    with pytest.raises(DataCorrupted, match="public features"):
        sfumato.load(finished(tmp_path, described(card, on_features.module.state_dict())))


def test_a_module_of_ones_own_is_given_and_left_as_it_is(tmp_path):
    plan = sfumato.TrainingPlan(sample_rate=0.5, expected_batch=20, steps=2, noise_multiplier=1.0)
    rows, model = (torch.zeros(40, 5), torch.zeros(40, dtype=torch.int64)), nn.Linear(5, 3)
    trained = sfumato.train(model, rows, plan, out=tmp_path)
    with pytest.raises(InvalidInput, match="model="):
        sfumato.load(tmp_path)
    fresh = nn.Linear(5, 3)
    before = fresh.weight.detach().clone()
    found = sfumato.load(tmp_path, model=fresh)
    assert fresh.weight.equal(before)
    inputs = torch.eye(5)
    with torch.no_grad():
        assert found.predict(inputs).tolist() == trained.model(inputs).argmax(1).tolist()
    assert found.certificate == Certificate.read(tmp_path / "release" / CERTIFICATE)
    with pytest.raises(DataCorrupted, match="layers"):
        sfumato.load(tmp_path, model=nn.Linear(4, 3))


def test_a_run_that_is_not_finished_is_not_loaded(tmp_path):
    finished(tmp_path, described(CARD.to_json()))
    (tmp_path / "release" / CERTIFICATE).unlink()
    with pytest.raises(DataUnavailable, match="not finished"):
        sfumato.load(tmp_path)
    with pytest.raises(DataUnavailable, match="--out"):
        sfumato.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    "images",
    [
        np.full((1, 8, 8), np.nan),
        np.full((1, 8, 8), 16.0),
        np.zeros((8, 8)),
        np.zeros((1, 2, 8, 8)),
        np.array(["a"]),
        np.zeros((1, 8, 8), complex),
    ],
    ids=["nan", "levels", "one image", "two channels", "text", "complex"],
)
def test_inputs_that_make_no_sense_are_refused(tmp_path, images):
    card = replace(CARD, architecture="cnn", shape=(3, 28, 28))
    network = models.build("cnn", classes=3, in_channels=3)
    model = sfumato.load(finished(tmp_path, Released(module=network, card=card).to_bytes()))
    with pytest.raises(InvalidInput, match="expected"):
        model.predict(images)


def test_weights_that_are_not_real_are_refused(tmp_path):
    weights = {name: value.to(torch.complex64) for name, value in WEIGHTS.items()}
    with pytest.raises(DataCorrupted):
        sfumato.load(finished(tmp_path, described(CARD.to_json(), weights)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_answer_nothing(tmp_path, value):
    last = list(WEIGHTS)[-1]
    weights = {**WEIGHTS, last: torch.full_like(WEIGHTS[last], value)}
    model = sfumato.load(finished(tmp_path, described(CARD.to_json(), weights)))
    for ask in (model.predict, model.predict_proba):
        with pytest.raises(DataCorrupted, match="diverged"):
            ask(IMAGES)
