"""Where a run leaves what it made: what may be published apart from what may not.

release/   plan.json, result.json, history.jsonl, model.safetensors, certificate.json, figures/
private/   timings, training losses, counts, checkpoints
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput

CERTIFICATE = "certificate.json"  # written last: a folder that has one holds a finished run


@dataclass(frozen=True)
class RunFolder:
    """One run's two halves; files appear whole or not at all."""

    path: Path

    @classmethod
    def make(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder with its halves; a place that cannot be written is refused before anything is spent."""
        folder = cls(Path(path))
        try:
            folder.figures.mkdir(parents=True, exist_ok=True)
            folder.private.mkdir(parents=True, exist_ok=True)
            folder.private.chmod(0o700)
            with tempfile.TemporaryFile(dir=folder.release):
                pass
        except OSError as error:
            raise InvalidInput(
                f"expected a folder that can be written at {folder.path}, got {error.strerror}; "
                "choose another --out"
            ) from error
        return folder

    @classmethod
    def begin(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a run to be charged: a new one, or an interrupted one; a finished one is refused."""
        cls(Path(path)).refuse_finished()
        return cls.make(path)

    def refuse_finished(self) -> None:
        if self.finished:
            raise InvalidInput(
                f"expected a folder without a finished run at {self.path}, got one that was paid for; "
                f"choose another --out, or look at this one with sfumato report {self.path}"
            )

    @property
    def finished(self) -> bool:
        return (self.release / CERTIFICATE).exists()

    def discard(self) -> RunFolder:
        """Give up the finished run, so that its place may be used again; what it cost stays spent."""
        (self.release / CERTIFICATE).unlink(missing_ok=True)
        return self

    @property
    def release(self) -> Path:
        return self.path / "release"

    @property
    def private(self) -> Path:
        return self.path / "private"

    @property
    def figures(self) -> Path:
        return self.release / "figures"

    def write_json(self, name: str, value: Mapping[str, Any], *, private: bool = False) -> Path:
        text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False, default=str)
        return write_whole((self.private if private else self.release) / name, f"{text}\n".encode())

    def write_lines(self, name: str, values: Iterable[Mapping[str, Any]], *, private: bool = False) -> Path:
        text = "".join(json.dumps(value, ensure_ascii=False, default=str) + "\n" for value in values)
        return write_whole((self.private if private else self.release) / name, text.encode())


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file that is there whole or not at all, whatever stops us."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: a new or renamed file has its name only then."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
