"""Model files of a few kilobytes that ask for gigabytes, and files that are nearly sound: refused, or read."""

from __future__ import annotations

import copy
import io
import json
import resource
import struct
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

import sfumato
from sfumato import array_files, models
from sfumato.accounting import Budget, GaussianEvent
from sfumato.array_files import read_archive, read_tensors
from sfumato.datasets import Dataset
from sfumato.errors import DataCorrupted
from sfumato.learn import DIGITS, features
from sfumato.learn.table import TableTraining, mlp
from sfumato.learn.table.model import read_table_model
from sfumato.ledger import Certificate
from sfumato.models import JoinedPriors, PriorNet
from sfumato.policy import Column, Policy
from sfumato.randomness import SecretStream
from sfumato.released import MODEL, ModelCard, model_bytes
from sfumato.storage import CERTIFICATE, RunFolder
from sfumato.synthesis.cells import CellColumn, to_table
from sfumato.synthesis.model import SyntheticModel

ROOM = 3 * 2**30  # bytes that a reader may take beside what the process has: a bomb wants far more
COLUMNS = {
    "age": Column(name="age", type="integer", lower=0, upper=9),
    "town": Column(name="town", type="text", categories=("Delft", "Ghent")),
    "ill": Column(name="ill", type="boolean"),
}
ROWS = pd.DataFrame({"age": range(10), "town": ["Delft", "Ghent"] * 5, "ill": [True, False] * 5})


@pytest.fixture(autouse=True)
def cap():
    """An allocation beyond the room fails at once, in place of filling the machine."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def finished(path, content):
    folder = RunFolder.make(path)
    folder.write(MODEL, content)
    Certificate.of(GaussianEvent(4.0), purpose="a model", delta=1e-5).write(folder.release / CERTIFICATE)
    return path


def refused(path, content):
    with pytest.raises(DataCorrupted, match=r"^expected [^\n]*$") as caught:
        sfumato.load(finished(path, content))
    cause = caught.value.__cause__
    assert not isinstance(cause, MemoryError | RuntimeError), "it was refused before anything was allocated"


# One reader


@pytest.mark.keeps_out("A model file of a few kilobytes that makes its reader allocate gigabytes")
@pytest.mark.parametrize("shape", [(0, 10**12), (10**9, 0, 10**9), (0, 5000)])
def test_an_axis_beside_an_empty_one_is_not_free(tmp_path, shape):
    """A tensor without elements takes no byte, and its other axes once decided how much was allocated."""
    header = json.dumps({"head.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "m").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ValueError, match="short axis"):
        read_tensors(tmp_path / "m", "pt")


def test_a_header_and_a_description_are_short(tmp_path):
    (tmp_path / "m").write_bytes(struct.pack("<Q", 2**26) + b" " * 64)
    with pytest.raises(ValueError, match="header"):
        read_tensors(tmp_path / "m", "pt")
    card = {**ModelCard(architecture="mlp", classes=(), shape=None).to_json(), "settings": {"a": [[]] * 2**21}}
    content = save({"a": np.zeros(1)}, metadata={"sfumato-model": json.dumps(card)})
    refused(tmp_path / "run", content)


def archive(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return file.getvalue()


def npy(array, shape=None):
    file = io.BytesIO()
    np.save(file, array)
    if shape is None:
        return file.getvalue()
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + array.tobytes()


@pytest.mark.keeps_out("A model file of a few kilobytes that makes its reader allocate gigabytes")
@pytest.mark.parametrize(
    "members",
    [
        {"a.npy": bytes(2**20 + 1)},
        {f"{number}.npy": b"" for number in range(1001)},
        {"a.npy": npy(np.zeros(4), shape=(10**12,))},
        {"a.npy": npy(np.zeros(4), shape=(3,))},
        {"a.npy": npy(np.zeros(0), shape=(0, 10**12))},
        {"a.npy": npy(np.zeros(2), shape=(-1, -2))},
    ],
    ids=["bomb", "many members", "longer", "shorter", "empty", "negative"],
)
def test_an_archive_is_measured_before_it_is_unpacked(tmp_path, members, monkeypatch):
    monkeypatch.setattr(array_files, "_LARGEST_ARCHIVE", 2**20)
    (tmp_path / "m.npz").write_bytes(archive(members))
    with pytest.raises(ValueError):
        read_archive(tmp_path / "m.npz")
    with pytest.raises(DataCorrupted, match="synthetic table"):
        SyntheticModel.read(tmp_path / "m.npz")


# Models of images


@pytest.mark.keeps_out("A model file of a few kilobytes that makes its reader allocate gigabytes")
@pytest.mark.parametrize("shape", [(1, 10**5, 10**5), (1, 28, 10**6), (4, 4096, 4096), (1,) * 9])
def test_an_input_of_a_network_is_as_large_as_an_image(tmp_path, shape):
    """A residual network takes any side: a file of 45 MB once had every image resized to ten gigapixels."""
    card = {**ModelCard(architecture="resnet18", classes=("a",), shape=None).to_json(), "shape": shape}
    weights = models.build("resnet18", classes=1).state_dict()
    whole = {name: value.contiguous().numpy() for name, value in weights.items()}
    refused(tmp_path, save(whole, metadata={"sfumato-model": json.dumps(card)}))


@pytest.mark.parametrize(
    "change", [{"extractors": ["strokes"] * 100_000}, {"directions": 10**7}, {"directions": -1}], ids=str
)
def test_a_recipe_is_held_against_the_weights_before_it_is_built(tmp_path, change):
    rows = Dataset(
        inputs=np.zeros((2, 1, 28, 28), np.float32),
        targets=np.zeros(2, np.int64),
        name="strokes",
        visibility="public",
        classes=2,
    )
    card = features.card(DIGITS, rows).to_json()
    card["settings"]["recipe"] |= change
    width = abs(change.get("directions", 8))
    weights = {"head.weight": np.zeros((2, min(width, 10**6)), np.float32), "centre": np.zeros(8, np.float32)}
    refused(tmp_path, save(weights, metadata={"sfumato-model": json.dumps(card)}))


def test_a_students_heads_are_held_against_its_weights(tmp_path):
    """Only the bias said how many classes there are: 40 MB of it made a layer of 5 GB."""
    card = ModelCard(
        architecture=PriorNet.architecture, classes=("0",), shape=features.SHAPE, settings={"answers": "head"}
    )
    tensors = dict(PriorNet(classes=1).state_dict())
    tensors["head.2.bias"] = torch.zeros(10**7)
    with pytest.raises(DataCorrupted, match="architecture 'prior'") as caught:
        sfumato.load(finished(tmp_path, model_bytes(card, tensors)))
    assert "alloc" not in str(caught.value.__cause__)


@pytest.mark.parametrize("nets", [None, 0, -1, 1.5, "2", 3, 10**9])
def test_a_student_stands_on_the_nets_that_its_file_holds(tmp_path, nets):
    tensors = JoinedPriors([PriorNet(classes=1), PriorNet(classes=1)], classes=1).state_dict()
    card = ModelCard(
        architecture=JoinedPriors.architecture, classes=("0",), shape=features.SHAPE, settings={"nets": nets}
    )
    with pytest.raises(DataCorrupted, match="architecture 'joined priors'"):
        sfumato.load(finished(tmp_path, model_bytes(card, tensors)))


@pytest.mark.parametrize(
    ("dtype", "readable"),
    [(torch.float64, True), (torch.bfloat16, True), (torch.complex64, False), (torch.int64, False)],
)
def test_a_student_computes_with_real_numbers_of_one_width(tmp_path, dtype, readable):
    nets = JoinedPriors([PriorNet(classes=1), PriorNet(classes=1)], classes=2)
    card = ModelCard(
        architecture=JoinedPriors.architecture, classes=("0", "1"), shape=features.SHAPE, settings={"nets": 2}
    )
    place = finished(tmp_path, model_bytes(card, {k: v.to(dtype) for k, v in nets.state_dict().items()}))
    if readable:
        assert len(sfumato.load(place).predict(np.zeros((3, 28, 28), np.float32))) == 3
    else:
        with pytest.raises(DataCorrupted, match="architecture 'joined priors'"):
            sfumato.load(place)


def test_a_student_has_classes(tmp_path):
    tensors = JoinedPriors([PriorNet(classes=1)], classes=1).state_dict()
    tensors = {**tensors, "linear.weight": tensors["linear.weight"][:0], "linear.bias": torch.zeros(0)}
    card = ModelCard(
        architecture=JoinedPriors.architecture, classes=(), shape=features.SHAPE, settings={"nets": 1}
    )
    with pytest.raises(DataCorrupted, match="architecture 'joined priors'"):
        sfumato.load(finished(tmp_path, model_bytes(card, tensors)))


# Models of tables


def table_policy():
    return Policy(
        table="people", source="memory", columns=COLUMNS, budget=Budget(epsilon=9, delta=1e-6), public_size=10
    )


@pytest.fixture(scope="module")
def table_models():
    """The bytes of a model of each kind."""
    ready = {
        model: TableTraining.prepare(table_policy(), target="ill", epsilon=9, model=model)
        for model in ("linear", "boosted")
    }
    made = {model: one.train(data=ROWS).model for model, one in ready.items()}
    network = mlp.build(ready["linear"].encoding.encoders, classes=2)
    made["mlp"] = replace(made["linear"], scorer=network)
    return {model: one.to_bytes() for model, one in made.items()}


def taken_apart(content, path):
    path.write_bytes(content)
    metadata, arrays = read_tensors(path, "numpy")
    return json.loads(metadata["table"]), arrays


def put_together(card, arrays):
    whole = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    return save(whole, metadata={"format": "sfumato table model 1", "table": json.dumps(card)})


def answered_or_refused(path):
    try:
        model = read_table_model(path)
    except DataCorrupted as error:
        return "\n" not in str(error)
    names = dict(zip(ROWS, model.encoding.names, strict=False))
    return model.predict(ROWS.rename(columns=names)).shape == (10,)


@pytest.mark.keeps_out("A model file of a few kilobytes that makes its reader allocate gigabytes")
def test_categories_do_not_decide_how_much_a_network_allocates(tmp_path, table_models):
    """A list of 100,000 categories, half a megabyte, once asked for a matrix of 40 GB."""
    card, arrays = taken_apart(table_models["mlp"], tmp_path / "m")
    card["columns"][1]["categories"] = [f"{number}" for number in range(100_000)]
    refused(tmp_path / "run", put_together(card, arrays))
    card, arrays = taken_apart(table_models["mlp"], tmp_path / "m")
    card["target"] = {**card["target"], "type": "text", "categories": [f"{n}" for n in range(200_000)]}
    refused(tmp_path / "classes", put_together(card, arrays))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
BRIEF = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def changed_somewhere(data, value):
    """The JSON value with one part of it, anywhere, put in place of another."""
    value = copy.deepcopy(value)
    place = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            place[key] = data.draw(json_values)
            return value
        place = inner


@BRIEF
@given(data=st.data())
def test_whatever_a_table_model_says_it_answers_or_is_refused(tmp_path, table_models, data):
    kind = data.draw(st.sampled_from(sorted(table_models)))
    card, arrays = taken_apart(table_models[kind], tmp_path / "m")
    (tmp_path / "m").write_bytes(put_together(changed_somewhere(data, card), arrays))
    assert answered_or_refused(tmp_path / "m")


@pytest.mark.keeps_out("A model of a table that looks rows up in bins that are not there")
@BRIEF
@given(data=st.data())
def test_whatever_the_arrays_of_a_table_model_hold_it_answers_or_is_refused(tmp_path, table_models, data):
    """A bin beyond the bins, a group that is not there: once an IndexError, or another row's answer."""
    kind = data.draw(st.sampled_from(sorted(table_models)))
    card, arrays = taken_apart(table_models[kind], tmp_path / "m")
    name = data.draw(st.sampled_from(sorted(arrays)))
    found = arrays[name].copy().reshape(-1)
    hostile = [-1, 7, 10**9, -(2**62)] if found.dtype.kind == "i" else [np.nan, np.inf, -3e38]
    found[data.draw(st.integers(0, found.size - 1))] = data.draw(st.sampled_from(hostile))
    kinds = [found.dtype, np.float32, np.int64, np.uint8]
    shapes = [arrays[name].shape, (-1,), (1, -1)]
    with np.errstate(all="ignore"):
        changed = found.astype(data.draw(st.sampled_from(kinds)))
    arrays[name] = changed.reshape(data.draw(st.sampled_from(shapes)))
    (tmp_path / "m").write_bytes(put_together(card, arrays))
    assert answered_or_refused(tmp_path / "m")


@pytest.mark.keeps_out("A model of a table that looks rows up in bins that are not there")
@pytest.mark.parametrize("value", [-1, 12, 2**62])
def test_a_bin_that_is_not_there_is_refused(tmp_path, table_models, value):
    card, arrays = taken_apart(table_models["linear"], tmp_path / "m")
    arrays["bins.0"][0] = value
    refused(tmp_path / "run", put_together(card, arrays))


# Models of synthetic tables


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    columns = (
        CellColumn(name="age", type="integer", lower=0, upper=99, width=50),
        CellColumn(name="town", type="text", values=("Delft", "Ghent")),
    )
    shares = {"age": np.eye(3), "town": np.eye(3)}
    tables = {("age", "town"): np.full((3, 3), 1 / 9)}
    place = tmp_path_factory.mktemp("synthetic") / "m.npz"
    SyntheticModel.of(columns, shares, tables, 100.0).write(place)
    return read_archive(place)


def drawn_or_refused(place):
    try:
        model = SyntheticModel.read(place)
    except DataCorrupted as error:
        return "\n" not in str(error)
    sampler = SecretStream(test_seed=1)
    return to_table(model.columns, model.draw(20, sampler=sampler), sampler).num_rows == 20


@BRIEF
@given(data=st.data())
def test_whatever_a_synthetic_model_says_rows_are_drawn_or_it_is_refused(tmp_path, synthetic, data):
    described = changed_somewhere(data, json.loads(synthetic["description"].tobytes()))
    text = np.frombuffer(json.dumps(described).encode(), dtype=np.uint8)
    np.savez(tmp_path / "m.npz", **{**synthetic, "description": text})
    assert drawn_or_refused(tmp_path / "m.npz")


@BRIEF
@given(data=st.data())
def test_whatever_chances_a_synthetic_model_has_rows_are_drawn_or_it_is_refused(tmp_path, synthetic, data):
    name = data.draw(st.sampled_from(sorted(set(synthetic) - {"description"})))
    found = synthetic[name].copy()
    found.reshape(-1)[data.draw(st.integers(0, found.size - 1))] = data.draw(
        st.sampled_from([np.nan, np.inf, -1.0, 0.0, 1e308, 1.0])
    )
    found = found.astype(data.draw(st.sampled_from([np.float64, np.float32, complex])))
    np.savez(tmp_path / "m.npz", **{**synthetic, name: found})
    assert drawn_or_refused(tmp_path / "m.npz")


def test_a_synthetic_model_of_endless_cells_is_refused(tmp_path, synthetic):
    described = json.loads(synthetic["description"].tobytes())
    described["columns"][0]["width"] = 1e-300
    text = np.frombuffer(json.dumps(described).encode(), dtype=np.uint8)
    np.savez(tmp_path / "m.npz", **{**synthetic, "description": text})
    with pytest.raises(DataCorrupted, match="synthetic table"):
        SyntheticModel.read(tmp_path / "m.npz")
