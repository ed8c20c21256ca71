"""A tiny archive of two files, sources made of values, and an environment that knows no other data."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sfumato.datasets.archive import Archive, ArchiveFile, Source, SourceUnavailable

CONTENTS = {"train-images-idx3-ubyte": bytes(range(256)) * 8, "train-labels-idx1-ubyte": bytes(range(100))}
FILES = tuple(
    ArchiveFile(name=name, size=len(contents), sha256=hashlib.sha256(contents).hexdigest())
    for name, contents in CONTENTS.items()
)


@pytest.fixture(autouse=True)
def _empty_world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_data" in request.fixturenames:
        return
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SFUMATO_DATA", raising=False)


@pytest.fixture
def real_data() -> None:
    """Asked for by tests that use the data sets of this machine's user."""


@pytest.fixture
def contents() -> dict[str, bytes]:
    return dict(CONTENTS)


@pytest.fixture
def make_archive() -> Callable[..., Archive]:
    def make(*sources: Source, lookalikes: tuple[ArchiveFile, ...] = ()) -> Archive:
        return Archive(name="toy", files=FILES, sources=sources, folders=("Toy/raw",), lookalikes=lookalikes)

    return make


@pytest.fixture
def source_of() -> Callable[..., Source]:
    """A source that brings the given contents, and counts how often it is asked."""

    def make(
        given: dict[str, bytes], *, zipped: bool = False, calls: list[Sequence[str]] | None = None
    ) -> Source:
        def bring(names: Sequence[str], folder: Path) -> Path:
            if calls is not None:
                calls.append(tuple(names))
            for name in set(names) & set(given):
                path = folder / (f"{name}.gz" if zipped else name)
                path.write_bytes(gzip.compress(given[name]) if zipped else given[name])
            return folder

        return Source(title="a friend", bring=bring)

    return make


@pytest.fixture
def closed_source() -> Source:
    def bring(names: Sequence[str], folder: Path) -> Path:
        raise SourceUnavailable("on holiday")

    return Source(title="a shop", bring=bring)
