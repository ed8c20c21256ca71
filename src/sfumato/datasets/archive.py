"""A data set's files, found and verified: a folder handed over, the cache, then the sources in order.

Every file is known by the SHA-256 of its uncompressed contents and is checked each time it is read, whichever
the source and whether it came gzipped or not.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sfumato.datasets import cache
from sfumato.datasets.sources import Source, SourceUnavailable
from sfumato.errors import DataCorrupted, DataUnavailable


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
        files: What must be there, with sizes and digests.
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
        file: What it must be.
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
            cache.write(_cache_path(archive, file), contents)
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
    return cache.folder() / archive.name / file.name


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
        f"the cache: nothing in {cache.folder() / archive.name}",
        *looked,
    ]
    names = ", ".join(file.name for file in archive.files)
    return DataUnavailable(
        f"the files of {archive.name} are nowhere to be had. Looked in:\n"
        + "".join(f"  - {place}\n" for place in places)
        + f"To hand them over, put {names} (raw or .gz) in a folder and set SFUMATO_DATA to that folder."
    )
