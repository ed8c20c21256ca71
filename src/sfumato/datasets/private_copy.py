"""Copies of a holder's files that no other user may read, made once.

A copy is in a folder `.sfumato` beside its source, or in the user's cache folder where that cannot be
written. It is found again by the source's place, time and size and by how it is read: by nothing of its
content, and by no digest of it. When one of these changes, the copy is made anew; the old one is removed when
the copy is looked for a day later.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.datasets import archive as cache
from sfumato.errors import DataError, DataUnavailable
from sfumato.storage import replacing

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = ".sfumato"
_VERSION = 3  # of the contents of a copy
_DAY = 86_400.0
_TICK = 50_000_000  # nanoseconds; clocks of file systems tick every 10 ms and faster


@dataclass(frozen=True)
class Stamp:
    """A file's place, time and size, to detect that it changed."""

    path: Path
    modified: int
    changed: int
    size: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        try:
            found = path.stat()
        except OSError as error:
            raise DataUnavailable(f"{path} cannot be read ({error.strerror or error})") from error
        return cls(path.resolve(), found.st_mtime_ns, found.st_ctime_ns, found.st_size)

    def holds(self) -> bool:
        try:
            return Stamp.of(self.path) == self
        except DataUnavailable:
            return False


@dataclass(frozen=True)
class PrivateCopy:
    """Where the copy of one file, read in one way, is or will be."""

    source: Stamp
    folder: Path
    family: str

    @classmethod
    def of(cls, path: Path, way: str) -> PrivateCopy:
        source = Stamp.of(path)
        return cls(source, _private_folder(source.path.parent), _short(str(source.path), way))

    @property
    def path(self) -> Path:
        source = self.source
        change = _short(_VERSION, source.modified, source.changed, source.size)
        return self.folder / f"{self.family}-{change}.parquet"

    def is_made(self) -> bool:
        """Made well after the source's last change: a second change in the same tick would look the same."""
        try:
            return self.path.stat().st_mtime_ns - max(self.source.modified, self.source.changed) > _TICK
        except FileNotFoundError:
            return False

    def write(self, parts: Iterable[pa.Table]) -> None:
        """Make the copy; it is there whole or not at all, and only if the source stayed as it was."""
        with replacing(self.path) as temporary:
            _write_parquet(temporary, parts)
            if not self.source.holds():
                raise DataError(f"{self.source.path} changed while it was read; ask again when it is at rest")

    def remove_stale(self) -> None:
        """Remove the leftovers of a process that died, and copies that had a newer one for a day.

        Another process may have been charged for a question to one that was made anew a moment ago.
        """
        with contextlib.suppress(FileNotFoundError):  # another process removes them too
            copies = sorted(self.folder.glob(f"{self.family}-*"), key=_made)
            for old, newer in pairwise(copies):
                if old != self.path and time.time() - _made(newer) > _DAY:
                    old.unlink()
            for part in self.folder.glob(f".{self.family}-*.part"):
                if time.time() - _made(part) > _DAY:
                    part.unlink()


def _made(path: Path) -> float:
    return path.stat().st_mtime


def _write_parquet(path: Path, parts: Iterable[pa.Table]) -> None:
    """Write a file that tells the least and the largest of whole numbers alone.

    Those of real numbers leave NaN out, and DuckDB then takes a comparison that NaN fails for always true.
    """
    import pyarrow as pa
    from pyarrow import parquet

    writer = None
    try:
        for part in parts:
            whole = [one.name for one in part.schema if pa.types.is_integer(one.type)]
            writer = writer or parquet.ParquetWriter(path, part.schema, write_statistics=whole)
            writer.write_table(part)
    finally:
        if writer is not None:
            writer.close()


def _short(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _private_folder(beside: Path) -> Path:
    """A folder that belongs to this user alone."""
    for folder in (beside / FOLDER, cache.folder() / "private"):
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=folder.parent != beside, exist_ok=True)
            if _ours(folder):
                folder.chmod(0o700)
                return folder
    raise DataUnavailable(
        f"neither {beside / FOLDER} nor {cache.folder()} can be written; name one that can in SFUMATO_CACHE"
    )


def _ours(folder: Path) -> bool:
    """Return whether only this user can put files there: not in a link or another user's folder."""
    found = folder.lstat()
    owned = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and owned and os.access(folder, os.W_OK | os.X_OK)
