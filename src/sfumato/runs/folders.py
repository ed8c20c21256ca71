"""Run folders of typed results: one function writes them, one reads them."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate
from sfumato.runs.results import EpochReport, Result, from_json
from sfumato.schema import read
from sfumato.storage import CERTIFICATE, RunFolder, read_json, read_lines

RESULT, PLAN, HISTORY, MODEL, TIMINGS = (
    "result.json",
    "plan.json",
    "history.jsonl",
    "model.safetensors",
    "timings.json",
)


def write_run(
    folder: RunFolder,
    result: Result,
    *,
    certificate: Certificate | None,
    plan: Mapping[str, Any] | None = None,
    history: Sequence[EpochReport] | None = None,
    model: bytes | None = None,
    release: Mapping[str, bytes] | None = None,
    private: Mapping[str, bytes] | None = None,
    seconds: float | None = None,
) -> None:
    """The run folder: the result and its files; the certificate comes last, and makes the run a finished one.

    `release` and `private` are further files of the two halves by name. The time that a run took tells of
    private rows, and goes to the private half.
    """
    if plan is not None:
        folder.write_json(PLAN, plan)
    if history is not None:
        write_history(folder, history)
    files = dict(release or {}) if model is None else {MODEL: model, **(release or {})}
    for name, content in files.items():
        folder.write(name, content)
    for name, content in (private or {}).items():
        folder.write(name, content, private=True)
    if seconds is not None:
        folder.write_json(TIMINGS, {"seconds": seconds}, private=True)
    folder.write_json(RESULT, result.to_json())
    if certificate is not None:
        certificate.write(folder.release / CERTIFICATE)


def write_history(folder: RunFolder, history: Iterable[EpochReport]) -> None:
    folder.write_lines(HISTORY, [report.to_json() for report in history])


def read_history(folder: RunFolder) -> list[EpochReport]:
    """One report for each epoch; a folder without a history has none."""
    return [read(EpochReport, line) for line in read_lines(folder.release / HISTORY)]


@dataclass(frozen=True, kw_only=True)
class Run:
    """The released half of a run folder."""

    folder: Path
    result: Result
    certificate: Certificate | None = None
    history: tuple[EpochReport, ...] = ()
    part_of: Path | None = None  # the folder of the run that this one was made for

    def picture(self, name: str) -> str | None:
        """A figure of the run as a data: address, so that a page needs no other file."""
        path = self.folder / "release" / "figures" / Path(name).name
        if path.suffix != ".png" or not path.is_file():
            return None
        return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def read_run(path: str | os.PathLike[str]) -> Run:
    """Return the run at `path`, of any kind; only its released half is read."""
    folder = RunFolder(Path(path))
    if not (folder.release / RESULT).is_file():
        raise InvalidInput(
            folder.in_words_if_interrupted()
            or f"expected {folder.path} to be a run folder, got no release/{RESULT} in it; "
            "runs are made with --out, by `sfumato train` for one"
        )
    return Run(
        folder=folder.path,
        result=_result(folder.release / RESULT),
        certificate=Certificate.read(folder.release / CERTIFICATE) if folder.finished else None,
        history=tuple(read_history(folder)),
    )


def find_runs(places: Iterable[str | os.PathLike[str]]) -> tuple[Run, ...]:
    """Every run at or under the given folders, once; one inside another run's folder is a part of that one."""
    folders: dict[Path, Path] = {}
    for place in map(Path, places):
        found = sorted(place.rglob(f"release/{RESULT}")) if place.is_dir() else []
        if not found:
            raise InvalidInput(
                RunFolder(place).in_words_if_interrupted()
                or f"expected {place} to be a run folder, or to hold some, got no release/{RESULT} in it; "
                "runs are made with --out, by `sfumato train` for one"
            )
        for path in found:
            folders.setdefault(path.parents[1].resolve(), path.parents[1])
    wholes = {place: next((above for above in place.parents if above in folders), None) for place in folders}
    return tuple(replace(read_run(path), part_of=wholes[place]) for place, path in folders.items())


def _result(path: Path) -> Result:
    try:
        return from_json(read_json(path))
    except InvalidInput as error:
        raise InvalidInput(f"{path} is not a result that this version reads: {error}; run it again") from error
