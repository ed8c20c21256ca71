from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from sfumato.datasets import archive as archives
from sfumato.datasets import archive as cache
from sfumato.datasets.archive import ArchiveFile, fetch, read
from sfumato.errors import DataCorrupted, DataUnavailable

IMAGES = "train-images-idx3-ubyte"


def digest_of(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def flipped(contents: bytes) -> bytes:
    return contents[:7] + bytes([contents[7] ^ 1]) + contents[8:]


def cached_files() -> list[str]:
    return sorted(path.name for path in cache.folder().rglob("*") if path.is_file())


def hand_over(folder: Path, contents: dict[str, bytes], *, zipped: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)


@pytest.mark.parametrize("zipped", [False, True])
def test_what_a_source_brings_is_cached_and_asked_for_once(make_archive, source_of, contents, zipped):
    calls: list = []
    archive = make_archive(source_of(contents, zipped=zipped, calls=calls))
    assert read(archive, IMAGES) == contents[IMAGES]
    assert read(archive, IMAGES) == contents[IMAGES]
    assert len(calls) == 1
    assert cached_files() == sorted(contents)  # raw, and nothing half-written beside them
    assert {local.path.read_bytes() for local in fetch(archive)} == set(contents.values())


@pytest.mark.parametrize("inside", ["", "toy", "Toy/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_folder_handed_over_is_used_where_it_lies(
    make_archive, closed_source, contents, tmp_path, monkeypatch, inside, zipped
):
    hand_over(tmp_path / "mine" / inside, contents, zipped=zipped)
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "mine"))
    assert read(make_archive(closed_source), IMAGES) == contents[IMAGES]
    assert cached_files() == []


def test_a_file_named_with_a_dot_is_found_too(make_archive, contents, tmp_path, monkeypatch):
    (tmp_path / "train-images.idx3-ubyte").write_bytes(contents[IMAGES])
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    assert read(make_archive(), IMAGES) == contents[IMAGES]


@pytest.mark.parametrize(
    "damage", [flipped, lambda content: content[:-1], lambda content: content + b"\0", lambda _: b""]
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_damaged_file_handed_over_is_named_with_the_expected_digest(
    make_archive, source_of, contents, tmp_path, monkeypatch, damage, zipped
):
    calls: list = []
    hand_over(tmp_path / "mine", contents | {IMAGES: damage(contents[IMAGES])}, zipped=zipped)
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "mine"))
    with pytest.raises(DataCorrupted) as caught:
        read(make_archive(source_of(contents, calls=calls)), IMAGES)
    assert str(tmp_path / "mine" / IMAGES) in str(caught.value)
    assert digest_of(contents[IMAGES]) in str(caught.value)
    assert calls == []
    assert cached_files() == []


def test_a_gzip_cut_short_is_corrupt(make_archive, contents, tmp_path, monkeypatch):
    (tmp_path / f"{IMAGES}.gz").write_bytes(gzip.compress(contents[IMAGES])[:-20])
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    with pytest.raises(DataCorrupted, match=digest_of(contents[IMAGES])):
        read(make_archive(), IMAGES)


def test_a_gzip_bomb_is_read_no_further_than_the_expected_size(make_archive, contents, tmp_path, monkeypatch):
    (tmp_path / f"{IMAGES}.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    most = []
    real = archives._contents
    monkeypatch.setattr(
        archives, "_contents", lambda path, limit: (most.append(limit), real(path, limit=limit))[1]
    )
    with pytest.raises(DataCorrupted, match=f"more than {len(contents[IMAGES])} instead of"):
        read(make_archive(), IMAGES)
    assert most == [len(contents[IMAGES]) + 1]


@pytest.mark.parametrize("damage", [flipped, lambda content: content[: len(content) // 2]])
def test_a_damaged_cache_is_reported_not_used(make_archive, source_of, contents, damage):
    archive = make_archive(source_of(contents))
    path = fetch(archive)[0].path
    path.write_bytes(damage(contents[IMAGES]))
    with pytest.raises(DataCorrupted) as caught:
        read(archive, IMAGES)
    assert str(path) in str(caught.value)
    assert digest_of(contents[IMAGES]) in str(caught.value)
    assert "delete it" in str(caught.value)


def test_a_source_with_damaged_files_is_passed_over_for_the_next(make_archive, source_of, contents):
    bad = source_of(contents | {IMAGES: flipped(contents[IMAGES])})
    calls: list = []
    archive = make_archive(bad, source_of(contents, calls=calls))
    assert read(archive, IMAGES) == contents[IMAGES]
    assert calls == [(IMAGES,)]  # the sound file of the first source was kept


@pytest.mark.parametrize("damage", [flipped, lambda content: content[:100]])
def test_only_damaged_files_to_be_had_is_an_error_and_nothing_is_cached(
    make_archive, source_of, contents, closed_source, damage
):
    bad = source_of({name: damage(content) for name, content in contents.items() if name == IMAGES})
    with pytest.raises(DataCorrupted) as caught:
        read(make_archive(bad, closed_source), IMAGES)
    assert IMAGES in str(caught.value)
    assert "a friend" in str(caught.value)
    assert digest_of(contents[IMAGES]) in str(caught.value)
    assert cached_files() == []


def test_a_sound_file_of_another_data_set_is_no_damage(
    make_archive, source_of, contents, tmp_path, monkeypatch
):
    other = bytes(len(contents[IMAGES]))
    lookalike = ArchiveFile(name=IMAGES, size=len(other), sha256=digest_of(other))
    hand_over(tmp_path / "mine", {IMAGES: other})
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "mine"))
    assert read(make_archive(source_of(contents), lookalikes=(lookalike,)), IMAGES) == contents[IMAGES]


def test_nothing_to_be_had_says_where_we_looked_and_how_to_hand_a_folder_over(
    make_archive, closed_source, contents, tmp_path, monkeypatch
):
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "mine"))
    with pytest.raises(DataUnavailable) as caught:
        read(make_archive(closed_source), IMAGES)
    text = str(caught.value)
    for expected in (
        str(tmp_path / "mine"),
        str(cache.folder()),
        "a shop: on holiday",
        "set SFUMATO_DATA",
        *contents,
    ):
        assert expected in text


def test_a_source_that_lacks_a_file_is_not_enough(make_archive, source_of, contents):
    with pytest.raises(DataUnavailable, match="a friend: does not have all the files"):
        fetch(make_archive(source_of({IMAGES: contents[IMAGES]})))


def test_a_cache_that_cannot_be_written_names_the_remedy(
    make_archive, source_of, contents, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataUnavailable, match="SFUMATO_CACHE"):
        read(make_archive(source_of(contents)), IMAGES)


@pytest.mark.parametrize("interrupted", ["fsync", "replace"])
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, interrupted):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, interrupted, interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.write(tmp_path / "folder" / "file", b"contents")
    assert list((tmp_path / "folder").iterdir()) == []


def test_the_cache_folder_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("SFUMATO_CACHE")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "sfumato"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache" / "sfumato"
