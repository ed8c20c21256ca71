"""The user's own images: each judged by itself, nothing counted."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from sfumato.datasets import read_images
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput


@pytest.fixture
def folder(tmp_path):
    for name, level, size in (("cat", 51, (40, 30)), ("dog", 255, (28, 28))):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", size, (level,) * 3).save(tmp_path / name / f"{number}.png")
    (tmp_path / "dog" / "broken.png").write_bytes(b"no picture")
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / "bird").mkdir()
    return tmp_path


def test_a_folder_has_a_subfolder_for_each_class_and_broken_files_are_left_out(folder):
    data = read_images(folder, classes=["cat", "dog"], public_size=9)
    assert data.shape == (1, 28, 28)
    assert data.targets.tolist() == [0, 0, 1, 1]
    assert (data.public_size, data.classes, data.visibility) == (9, 2, "private")
    assert np.allclose(data.inputs[0], 0.2, atol=1e-6)
    assert np.allclose(data.inputs[2], 1.0, atol=1e-6)


@pytest.mark.parametrize("shape", [(10, 12), (10, 12, 3), (3, 10, 12)])
def test_an_npz_file_in_any_layout(tmp_path, shape):
    images = np.full((3, *shape), 102, dtype=np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=np.array([1, 7, 0]))  # 7 is no class
    data = read_images(tmp_path / "own.npz", classes=["0", "1"], public_size=3)
    assert data.targets.tolist() == [1, 0]
    assert np.allclose(data.inputs, 0.4, atol=1e-6)
    assert data.name == "own"


def test_numbers_that_are_none_become_black(tmp_path):
    images = np.full((1, 28, 28), np.nan, dtype=np.float32)
    np.savez(tmp_path / "own.npz", x=images, y=np.array(["cat"]))
    assert not read_images(tmp_path / "own.npz", classes=["cat", "dog"], public_size=1).inputs.any()


def test_what_does_not_fit_is_said_in_a_sentence(folder, tmp_path):
    with pytest.raises(InvalidInput, match="--classes a,b,c"):
        read_images(folder, classes=["fish", "fly"], public_size=3)
    with pytest.raises(InvalidInput, match="names of their own"):
        read_images(folder, classes=["cat", "cat"], public_size=3)
    with pytest.raises(DataUnavailable, match="one subfolder a class"):
        read_images(tmp_path / "none", classes=["cat", "dog"], public_size=3)
    np.savez(tmp_path / "odd.npz", pictures=np.zeros(3))
    with pytest.raises(InvalidInput, match="rename it"):
        read_images(tmp_path / "odd.npz", classes=["cat", "dog"], public_size=3)
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(DataCorrupted, match=r"numpy\.savez"):
        read_images(tmp_path / "bad.npz", classes=["cat", "dog"], public_size=3)
