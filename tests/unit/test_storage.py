"""Files: whole or not at all, for whom they are, and without numbers that JSON has no word for."""

import math
import os
import stat
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import storage
from sfumato.errors import InvalidInput
from sfumato.storage import RunFolder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.keeps_out("Released files that only their writer can read, or private ones that everybody can")
@pytest.mark.usefixtures("umask")
def test_a_release_is_for_all_to_read_and_the_private_half_for_its_owner(tmp_path):
    folder = RunFolder.make(tmp_path / "run")
    released = [folder.write("model.safetensors", b"w"), folder.write_json("result.json", {"a": 1})]
    kept = [folder.write("votes.npy", b"v", private=True), folder.write_lines("s.jsonl", [{}], private=True)]
    assert {mode(path) for path in (folder.path, folder.release, folder.figures)} == {0o755}
    assert {mode(path) for path in released} == {0o644}
    assert mode(folder.private) == 0o700
    assert {mode(path) for path in kept} == {0o600}


@pytest.mark.usefixtures("umask")
def test_what_is_written_without_a_word_is_private(tmp_path):
    assert mode(storage.write_whole(tmp_path / "a", b"a")) == 0o600
    assert mode(storage.write_new(tmp_path / "b", b"b")) == 0o600
    assert mode(storage.write_new(tmp_path / "c", b"c", readable=True)) == 0o644


def test_a_private_half_that_was_open_is_closed(tmp_path):
    (tmp_path / "private").mkdir(mode=0o755)
    assert mode(RunFolder.make(tmp_path).private) == 0o700


def test_a_folder_that_the_user_closed_stays_closed(tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    assert mode(RunFolder.make(tmp_path / "run").path) == 0o700


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    place = storage.write_whole(tmp_path / "file", b"old")

    def write_half():
        with storage.replacing(place) as temporary:
            temporary.write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert place.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_new_file_never_takes_the_place_of_another(tmp_path):
    storage.write_new(tmp_path / "key", b"first")
    with pytest.raises(FileExistsError):
        storage.write_new(tmp_path / "key", b"second")
    assert (tmp_path / "key").read_bytes() == b"first"


def test_readers_see_one_whole_file_while_writers_race(tmp_path):
    place, contents = tmp_path / "file", {bytes([letter]) * 50_000 for letter in b"ab"}
    storage.write_whole(place, next(iter(contents)))

    def write(content):
        for _ in range(20):
            storage.write_whole(place, content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert place.read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.keeps_out("`NaN` in a JSON file, which strict readers refuse")
@given(st.dictionaries(st.text(max_size=4), st.floats() | st.lists(st.floats(), max_size=3), max_size=4))
def test_a_number_that_is_not_finite_is_null_in_the_file(value):
    def expected(one):
        if isinstance(one, list):
            return [expected(item) for item in one]
        return one if math.isfinite(one) else None

    text = storage.json_bytes(value).decode()
    read = storage._object(text, "file")
    assert read == {name: expected(one) for name, one in value.items()}


def test_a_file_of_an_older_version_may_hold_nan(tmp_path):
    (tmp_path / "old.json").write_text('{"test_loss": NaN, "epsilon": Infinity, "huge": 1e999, "ok": 1}')
    read = storage.read_json(tmp_path / "old.json")
    assert read == {"test_loss": None, "epsilon": None, "huge": None, "ok": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_refused_by_its_name(tmp_path, content):
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"file\.json"):
        storage.read_json(tmp_path / "file.json")
