"""Compare what commands print and write with a record made earlier.

A chapter is a list of commands that run one after another in a folder of their own. Its record holds, for each
command, the exit code, the JSON object on standard output or the sentence on standard error; and the files that
are there in the end: JSON whole, of other files their names, tables and headings.

The noise comes from a fixed stream, so that answers are the same each time. Of a command marked `~`, which
trains, accuracies are compared within `TOLERANCE` and other measured numbers by type. Prices, budgets and sizes
are always compared exactly. A command marked `=` has no option `--json`, and `http` is a request to the desk.
Hashes, times, versions and places are replaced by a word.

    python tests/golden/test_golden.py            write all records anew, and show what changed
    python tests/golden/test_golden.py query      only one chapter
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from sfumato import randomness
from sfumato.cli import main
from sfumato.randomness import SecretStream, public_generator

HERE = Path(__file__).parent
CHAPTERS = sorted(path.stem for path in (HERE / "chapters").glob("*.txt"))
TOLERANCE = 0.15
"""Of accuracies of models that are trained, whose arithmetic may differ from machine to machine."""

MEASURED = re.compile(r"accurac|auc|loss|share|error|brier|agree|bound|rate$|log_|r2|f1")
"""Names of figures that are compared within the tolerance, where a model was trained."""
FIXED = re.compile(r"epsilon|delta|noise_multiplier|sample_rate|steps|rows|people|size|clip_norm|eta$")
"""Names of figures that are exact even there: prices, budgets, plans."""
IGNORED = re.compile(
    r"^(token|password)$|seconds|versions?$|^time|_time$|duration|torch$|python$|machine|memory|threads"
)
_WORDS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d| UTC)?"), "<time>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"(?<![0-9A-Za-z_])[0-9a-f]{16,}(?![0-9A-Za-z_])"), "<hash>"),
    (re.compile(r"(?<![0-9A-Za-z+/])[0-9A-Za-z+/]{43,}={0,2}(?![0-9A-Za-z+/])"), "<bytes>"),
    (re.compile(r"\b20\d\d-\d\d-\d\d\b"), "<day>"),
    (re.compile(r"\d+(\.\d+)? (seconds|minutes|s|min|MiB|GiB|MB)\b"), "<measured>"),
)


def inputs(folder: Path) -> None:
    """Write small tables of made-up people, their policies, and settings for other commands."""
    draw = public_generator(5)
    count = 2000
    age = draw.integers(18, 90, count)
    people = pd.DataFrame(
        {
            "age": age,
            "city": draw.choice(["Delft", "Utrecht", "Leiden"], count),
            "income": np.round(draw.gamma(3, 900, count), 2),
            "seen": pd.to_datetime("2021-01-01") + pd.to_timedelta(draw.integers(0, 900, count), unit="D"),
            "ill": draw.random(count) < 1 / (1 + np.exp(-(age - 60) / 6)),
        }
    )
    people.to_csv(folder / "people.csv", index=False)
    people[:400].to_csv(folder / "test.csv", index=False)
    patients = pd.DataFrame(
        {
            "person": np.arange(400),
            "sex": draw.choice(["f", "m"], 400),
            "word": draw.choice(["apple", "pear", "plum"], 400),
        }
    )
    visits = pd.DataFrame(
        {
            "person": draw.integers(0, 400, 1500),
            "ward": draw.choice(["A", "B"], 1500),
            "cost": np.round(draw.gamma(2, 100, 1500), 2),
        }
    )
    patients.to_csv(folder / "patients.csv", index=False)
    visits.to_csv(folder / "visits.csv", index=False)
    sure = draw.random((100, 250)) < draw.uniform(0.5, 1, (100, 1))
    votes = np.where(sure, draw.integers(0, 10, (100, 1)), draw.integers(0, 10, (100, 250)))
    np.save(folder / "votes.npy", votes)
    for name in ("people.toml", "clinic.toml", "reports.toml", "year.toml", "run.toml", "desk.toml"):
        (folder / name).write_text((HERE / "inputs" / name).read_text())


@contextlib.contextmanager
def fixed_noise() -> Iterator[None]:
    """Draw secret streams, salts and names from fixed sequences; runs are still recorded as private ones."""

    def key(self: SecretStream, label: str) -> bytes:
        return hashlib.sha256(f"golden/{label}".encode()).digest()

    def fixed(name: str) -> Any:
        seeded = getattr(randomness, f"_seeded_discrete_{name}")
        return lambda self, scale, size: seeded(self._generator, scale, size)

    def hexadecimal(size: int = 32) -> str:
        return hashlib.sha256(b"golden salt").hexdigest()[: 2 * size]

    with contextlib.ExitStack() as within:
        within.enter_context(mock.patch.object(SecretStream, "_key", key))
        for name in ("laplace", "gaussian"):
            within.enter_context(mock.patch.object(SecretStream, f"discrete_{name}", fixed(name)))
        within.enter_context(mock.patch("secrets.token_hex", hexadecimal))
        yield


def called(words: list[str]) -> dict[str, Any]:
    """Run one command in this process: its exit code, and its answer or its sentence."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["sfumato", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        try:
            main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code or 0
    found: dict[str, Any] = {"exit": code}
    if out.getvalue().strip():
        try:
            found["out"] = json.loads(out.getvalue())
        except json.JSONDecodeError:
            found["out"] = out.getvalue().splitlines()
    if code:
        found["said"] = " ".join(err.getvalue().split())
    return found


def asked(line: str, tokens: dict[str, str]) -> dict[str, Any]:
    """Send one request to the desk of this folder, `http PERSON METHOD PATH [BODY]`: status and JSON."""
    from fastapi.testclient import TestClient

    from sfumato.desk.desk import Desk
    from sfumato.desk.server import create_app

    _, person, method, path, *body = line.split(" ", 4)
    desk = Desk.open(Path("desk.toml"))
    try:
        desk.dataset("people").warm()
        headers = {"authorization": f"Bearer {tokens[person]}"}
        sent = json.loads(body[0]) if body else None
        answer = TestClient(create_app(desk)).request(method, path, json=sent, headers=headers)
        return {"status": answer.status_code, "out": answer.json()}
    finally:
        desk.close()


def left_in(folder: Path) -> dict[str, Any]:
    """The files of a folder: JSON whole, tables by columns and length, arrays by shape, pages by headings."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".sfumato" not in path.parts:
            found[path.relative_to(folder).as_posix()] = _content(path)
    return found


def _content(path: Path) -> Any:
    ending = path.suffix
    if ending == ".json":
        return json.loads(path.read_text())
    if ending == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if ending == ".csv":
        table = pd.read_csv(path)
        return {"columns": list(table.columns), "rows": len(table)}
    if ending == ".npz":
        with np.load(path) as arrays:
            return {name: [list(arrays[name].shape), arrays[name].dtype.kind] for name in sorted(arrays)}
    if ending == ".html":
        return re.findall(r"<h[1-3][^>]*>\s*(?:<[^>]+>)*([^<]*)", path.read_text())
    if ending in (".toml", ".yaml"):
        return path.read_text().splitlines()
    if ending == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "numpy") as tensors:
            return {name: list(tensors.get_slice(name).get_shape()) for name in sorted(tensors.keys())}
    return "a file"


def plain(value: Any, folder: Path) -> Any:
    """A value without hashes, times, versions and places."""
    if isinstance(value, dict):
        return {
            _words(str(name), folder): "<ignored>" if IGNORED.search(str(name)) else plain(one, folder)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(_sentence(one), folder) for one in value]
    return _words(value, folder) if isinstance(value, str) else value


def _sentence(value: Any) -> Any:
    """A caveat of a certificate by its sentence alone."""
    return value["text"] if isinstance(value, dict) and {"code", "text"} <= set(value) else value


def _words(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "<folder>").replace(str(HERE.parents[1]), "<source>")
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return text


def told(chapter: str) -> dict[str, Any]:
    """Run a chapter in a new folder; what its commands said, and the files that they left."""
    lines = (HERE / "chapters" / f"{chapter}.txt").read_text().splitlines()
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as place, fixed_noise(), mock.patch.dict(os.environ, COLUMNS="200"):
        folder = Path(place).resolve()
        inputs(folder)
        before = set(left_in(folder))
        os.chdir(folder)
        try:
            commands, tokens = {}, {"nobody": ""}
            for line in lines:
                number = f"{len(commands):02} {line}"
                if line.startswith("http "):
                    commands[number] = asked(line, tokens)
                    continue
                words = shlex.split(line.lstrip("~= "))
                found = called(words if line.startswith("=") else [*words, "--json"])
                commands[number] = found
                if words[:3] == ["desk", "user", "add"] and not found["exit"]:
                    tokens[words[3]] = found["out"]["token"]
        finally:
            os.chdir(here)
        files = {name: content for name, content in left_in(folder).items() if name not in before}
        return dict(plain({"commands": commands, "files": files}, folder))


def differences(was: Any, now: Any, *, loose: bool, place: str = "") -> list[str]:
    """Where two records differ, each place in a line."""
    name = place.rsplit("/", 1)[-1]
    if isinstance(was, dict) and isinstance(now, dict):
        found = [f"{place}/{key}: gone" for key in was if key not in now]
        found += [f"{place}/{key}: new" for key in now if key not in was]
        for key in was:
            if key in now:
                found += differences(
                    was[key], now[key], loose=loose or " ~ " in key[:5], place=f"{place}/{key}"
                )
        return found
    if isinstance(was, list) and isinstance(now, list):
        if len(was) != len(now):
            return [f"{place}: {len(was)} entries were, {len(now)} are"]
        pairs = enumerate(zip(was, now, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, loose=loose, place=f"{place}/{i}")]
    if _is_number(was) and _is_number(now):
        return [] if _same(was, now, name, loose) else [f"{place}: {was!r} was, {now!r} is"]
    if loose and isinstance(was, bool) and isinstance(now, bool):  # a prediction, or which of two was better
        return []
    return [] if was == now else [f"{place}: {was!r} was, {now!r} is"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(was: float, now: float, name: str, loose: bool) -> bool:
    if loose and not FIXED.search(name):
        return abs(was - now) <= TOLERANCE if MEASURED.search(name) else True
    return now == pytest.approx(was, rel=1e-6, abs=1e-12)


def recorded(chapter: str) -> Path:
    return HERE / "record" / f"{chapter}.json"


def in_text(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_commands_say_and_write_what_they_did(chapter: str) -> None:
    loose = {"tables", "images", "together"} & {chapter}
    was, now = json.loads(recorded(chapter).read_text()), told(chapter)
    found = differences(was["commands"], now["commands"], loose=False)
    found += differences(was["files"], now["files"], loose=bool(loose), place="files")
    assert not found, "\n".join([*found, "if all of it is meant: python tests/golden/test_golden.py"])


def test_a_difference_is_seen() -> None:
    was = {"00 ~ train": {"out": {"epsilon": 1.0, "test_accuracy": 0.8, "columns": ["a"]}}}
    for change in ({"epsilon": 1.01}, {"test_accuracy": 0.5}, {"columns": ["b"]}, {"more": 1}):
        now = {"00 ~ train": {"out": {**was["00 ~ train"]["out"], **change}}}
        assert differences(was, now, loose=False)
    now = {"00 ~ train": {"out": {**was["00 ~ train"]["out"], "test_accuracy": 0.75}}}
    assert not differences(was, now, loose=False)


def write(chapters: list[str]) -> None:
    """Write records anew, and print what changed."""
    for chapter in chapters:
        place = recorded(chapter)
        before = place.read_text() if place.exists() else ""
        now = in_text(told(chapter))
        changed = difflib.unified_diff(before.splitlines(), now.splitlines(), "was", chapter, n=1, lineterm="")
        print("\n".join(changed) if before else f"{chapter}: a first record")
        place.parent.mkdir(exist_ok=True)
        place.write_text(now)


if __name__ == "__main__":
    write(sys.argv[1:] or CHAPTERS)
