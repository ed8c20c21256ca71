"""Run folders, as the report reads them: the released half only."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidInput

RESULT = "result.json"
_TYPES = {".png": "image/png"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run folder: what it released."""

    folder: Path
    result: Mapping[str, Any]
    certificate: Mapping[str, Any] | None = None
    history: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def kind(self) -> str:
        """The stage of the demo, or the algorithm of a run made by hand."""
        return str(self.result.get("stage") or self.result.get("algorithm") or "unknown")

    @property
    def failed(self) -> bool:
        return self.result.get("status") == "failed"

    def picture(self, name: str) -> str | None:
        """A figure of the run as a data: address, so that the page needs no other file."""
        path = self.folder / "release" / "figures" / Path(name).name
        if not path.is_file() or path.suffix not in _TYPES:
            return None
        return f"data:{_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def find_runs(places: Iterable[Path]) -> tuple[Run, ...]:
    """Every run at or under the given folders, by name; one that cannot be read is refused by its name."""
    found: dict[Path, Run] = {}
    for place in places:
        results = sorted(place.rglob(f"release/{RESULT}")) if place.is_dir() else []
        if not results:
            raise InvalidInput(
                f"expected {place} to be a run folder, or to hold some, got no release/{RESULT} in it; "
                "runs are made with --out, by `sfumato train` for one"
            )
        for path in results:
            found.setdefault(path.parents[1].resolve(), read_run(path.parents[1]))
    return tuple(found.values())


def read_run(folder: Path) -> Run:
    release = folder / "release"
    certificate = release / "certificate.json"
    history = release / "history.jsonl"
    lines = history.read_text(encoding="utf-8").splitlines() if history.is_file() else []
    return Run(
        folder=folder,
        result=_object(release / RESULT),
        certificate=_object(certificate) if certificate.is_file() else None,
        history=tuple(_parsed(line, history) for line in lines if line.strip()),
    )


def _object(path: Path) -> Mapping[str, Any]:
    return _parsed(path.read_text(encoding="utf-8"), path)


def _parsed(text: str, path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"expected {path} to be JSON, got something else; run it again: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"expected {path} to hold JSON objects, got {type(value).__name__}; run it again")
    return value
