"""The one writer and reader of files: whole or not at all, on the disk when it returns, and for whom they are.

A run folder keeps the files that may be published apart from those that may not:

release/   plan.json, result.json, history.jsonl, model.safetensors, certificate.json, figures/
private/   timings, training losses, counts, checkpoints; set-aside-1/: the release of an earlier run

All users who can reach a release may read it (files 0644, folders 0755); private files belong to their owner
alone (0600, 0700). JSON has no word for NaN or infinity: a number that is not finite is written as null, and
read as None.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

from sfumato.display import visible_json
from sfumato.errors import InvalidInput

CHECKPOINT = "checkpoint.safetensors"  # of a run that takes steps; gone when it has released its model
CERTIFICATE = "certificate.json"  # written last: a folder that has one holds a finished run
_FILE, _PRIVATE_FILE = 0o644, 0o600
_FOLDER, _PRIVATE_FOLDER = 0o755, 0o700
_LARGEST = 64 * 2**20  # bytes of a JSON file of ours that is read at all


@dataclass(frozen=True)
class RunFolder:
    """One run's two halves; files appear whole or not at all."""

    path: Path

    @classmethod
    def make(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Return the folder with its halves; a place that cannot be written is refused before a charge."""
        folder = cls(Path(path))
        try:
            for place in (folder.path, folder.release, folder.figures, folder.private):
                make_folder(place, readable=place != folder.private)
            with tempfile.TemporaryFile(dir=folder.release):
                pass
        except OSError as error:
            raise InvalidInput(
                f"expected a folder that can be written at {folder.path}, got {error.strerror}; "
                "choose another --out"
            ) from error
        return folder

    @classmethod
    def begin(cls, path: str | os.PathLike[str], *, resumes: bool = False) -> RunFolder:
        """Return the folder of a run to be charged; a finished one is refused.

        The release begins empty: files of another run are moved to the private half, so that none lies beside
        this run's certificate. A run that resumes keeps its release.
        """
        cls(Path(path)).refuse_finished()
        folder = cls.make(path)
        return folder if resumes else folder.set_aside()

    def refuse_finished(self) -> None:
        if self.finished:
            raise InvalidInput(
                f"expected a folder without a finished run at {self.path}, got one that was paid for; "
                f"choose another --out, or look at this one with sfumato report {self.path}"
            )

    @property
    def finished(self) -> bool:
        return (self.release / CERTIFICATE).exists()

    @property
    def interrupted(self) -> bool:
        """Whether a run took steps here, or was about to, and has not released its model."""
        return not self.finished and any(self.private.glob(f"*{CHECKPOINT}*"))

    def in_words_if_interrupted(self) -> str | None:
        """Return one sentence with the remedy where the release of an interrupted run is wanted."""
        if not self.interrupted:
            return None
        return (
            f"expected a finished run at {self.path}, got one that was interrupted and has released nothing "
            "yet; give its command again to go on, or with --finish to end it at its last checkpoint"
        )

    def discard(self) -> RunFolder:
        """Give up the finished run, so that its place may be used again; its cost stays spent."""
        return self.set_aside() if self.finished else self

    def set_aside(self) -> RunFolder:
        """Move all that was released to the private half, by one rename, and begin an empty release."""
        if any(not path.is_dir() for path in self.release.rglob("*")):
            places = (self.private / f"set-aside-{number}" for number in count(1))
            rename(self.release, next(place for place in places if not place.exists()))
            sync_folder(self.path)
        return self.make(self.path)

    @property
    def release(self) -> Path:
        return self.path / "release"

    @property
    def private(self) -> Path:
        return self.path / "private"

    @property
    def figures(self) -> Path:
        return self.release / "figures"

    def write(self, name: str, content: bytes, *, private: bool = False) -> Path:
        """Return a file of one half, for those who may read that half."""
        return write_whole((self.private if private else self.release) / name, content, readable=not private)

    def write_json(self, name: str, value: Mapping[str, Any], *, private: bool = False) -> Path:
        return self.write(name, json_bytes(value), private=private)

    def write_lines(self, name: str, values: Iterable[Mapping[str, Any]], *, private: bool = False) -> Path:
        return self.write(name, b"".join(json_bytes(value, indent=None) for value in values), private=private)


# Writing


def write_whole(path: str | os.PathLike[str], content: bytes, *, readable: bool = False) -> Path:
    """Write a file whole or not at all, also in a crash; `readable`: others may read it."""
    with replacing(path, readable=readable) as temporary:
        temporary.write_bytes(content)
    return Path(path)


def cache_folder() -> Path:
    """$SFUMATO_CACHE, or `sfumato` in the platform's cache folder."""
    if chosen := os.environ.get("SFUMATO_CACHE"):
        return Path(chosen).expanduser()
    return _platform_caches() / "sfumato"


def _platform_caches() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if local := os.environ.get("LOCALAPPDATA"):
        return Path(local)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@contextmanager
def replacing(path: str | os.PathLike[str], *, readable: bool = False) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place when the block ends without an error.

    For writers that want a name. Its contents and its new name are on the disk afterwards.
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    os.close(handle)  # mkstemp lets its owner alone read and write
    temporary = Path(name)
    try:
        yield temporary
        if readable:
            temporary.chmod(_FILE)
        _sync(temporary)
        rename(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_new(path: str | os.PathLike[str], content: bytes, *, readable: bool = False) -> Path:
    """Return a new file; FileExistsError if there is one. It is removed if writing fails."""
    target = Path(path)
    mode = _FILE if readable else _PRIVATE_FILE
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            target.chmod(mode)  # also under another umask
            file.flush()
            os.fsync(file.fileno())
        sync_folder(target.parent)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


def destroy(path: str | os.PathLike[str]) -> None:
    """Overwrite a file with zeros, on the disk, and remove it; older copies that the disk keeps stay."""
    try:
        with open(path, "r+b") as file:
            file.write(bytes(os.fstat(file.fileno()).st_size))
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError:
        return
    Path(path).unlink(missing_ok=True)
    sync_folder(Path(path).parent)


@contextmanager
def unnamed_file(folder: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a file without a name on the folder's disk: no other process can open it; it goes with its user.

    A memory map of it can be used beyond the block.
    """
    place = Path(folder)
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise InvalidInput(f"expected a folder that can be written, got folder={place}; choose another")
    with tempfile.TemporaryFile(dir=place) as file:
        yield file


def write_figure(path: str | os.PathLike[str], figure: Any, *, readable: bool = False, dpi: int = 144) -> Path:
    """Return a matplotlib figure, in the format that the name's ending says."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, format=Path(path).suffix.removeprefix(".") or "png")
    return write_whole(path, buffer.getvalue(), readable=readable)


def rename(source: Path, target: Path) -> None:
    """Give a file, whose contents are on the disk, its name for good."""
    os.replace(source, target)
    sync_folder(target.parent)


def make_folder(path: Path, *, readable: bool = False) -> Path:
    """Return the folder, made if it is not there; a private one is closed to others also if it was open.

    A folder that the user made, for releases, keeps the mode that the user gave it.
    """
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(_FOLDER if readable else _PRIVATE_FOLDER)
        sync_folder(path.parent)
    elif not readable:
        path.chmod(_PRIVATE_FOLDER)
    return path


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: a new or renamed file has its name only then."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# JSON


def json_bytes(value: Mapping[str, Any], *, indent: int | None = 2) -> bytes:
    """Return one JSON object and a line's end; a number that is not finite becomes null.

    >>> json_bytes({"loss": float("nan")}, indent=None)
    b'{"loss": null}\\n'
    """
    text = json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return (visible_json(text) + "\n").encode()


def finite(value: Any) -> Any:
    """Return the same JSON value, with None for numbers that are not finite and text for other values."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the one JSON object of a file of ours; a number that is not finite is None."""
    return _object(_text(path), path)


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return one JSON object a line; a file that is not there has none."""
    if not Path(path).exists():
        return []
    return [_object(line, path) for line in _text(path).splitlines() if line.strip()]


def _text(path: str | os.PathLike[str]) -> str:
    with Path(path).open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise InvalidInput(f"expected {os.fspath(path)} to have at most {_LARGEST} bytes, got more")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _broken(path, "bytes that are not UTF-8") from error


def _object(text: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError) as error:
        raise _broken(path, "something else") from error
    if not isinstance(value, dict):
        raise _broken(path, f"a {type(value).__name__}")
    found: dict[str, Any] = finite(value)  # a number too large for a float reads as infinite
    return found


def _broken(path: str | os.PathLike[str], got: str) -> InvalidInput:
    return InvalidInput(f"expected {os.fspath(path)} to hold JSON objects, got {got}; run it again")
