"""The user's own images: each judged by itself, nothing counted."""

from __future__ import annotations

import struct
import zipfile
import zlib

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


def oversized_png(side: int) -> bytes:
    """A picture whose header says more than its few bytes hold."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        whole = kind + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("error")
def test_a_picture_too_large_to_unpack_is_left_out_without_a_word(folder):
    (folder / "dog" / "bomb.png").write_bytes(oversized_png(60_000))
    (folder / "dog" / "large.png").write_bytes(oversized_png(10_000))  # of which Pillow would warn
    assert read_images(folder, classes=["cat", "dog"], public_size=9).targets.tolist() == [0, 0, 1, 1]


@pytest.mark.filterwarnings("error")
def test_pixels_beyond_all_bounds_cause_no_warning(tmp_path):
    images = np.array([np.full((4, 4), 1e300), np.zeros((4, 4))])
    np.savez(tmp_path / "own.npz", images=images, labels=np.array([0, 1]))
    data = read_images(tmp_path / "own.npz", classes=["0", "1"], public_size=2)
    assert data.inputs.max(axis=(1, 2, 3)).tolist() == [1.0, 0.0]


def test_no_images_at_all_are_read_as_any_others(tmp_path):
    np.savez(tmp_path / "own.npz", images=np.zeros((0, 224, 224, 3), np.uint8), labels=np.zeros(0, np.int64))
    assert len(read_images(tmp_path / "own.npz", classes=["0", "1"], public_size=2)) == 0


def lying(path, shape):
    """An archive whose image header asks for more than follows it."""
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("images.npy", "w") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        archive.writestr("labels.npy", b"")


def test_files_that_lie_are_refused_in_a_sentence(tmp_path):
    path = tmp_path / "own.npz"
    lying(path, (10**9, 28, 28))
    with pytest.raises(DataCorrupted, match="plain arrays"):
        read_images(path, classes=["0", "1"], public_size=2)
    path.write_bytes(b"")
    with pytest.raises(DataCorrupted, match="plain arrays"):
        read_images(path, classes=["0", "1"], public_size=2)
    for images in (np.zeros((2, 0, 4)), np.zeros((2, 4, 4), complex)):
        np.savez(path, images=images, labels=np.array([0, 1]))
        with pytest.raises(InvalidInput, match="whole or real numbers"):
            read_images(path, classes=["0", "1"], public_size=2)
