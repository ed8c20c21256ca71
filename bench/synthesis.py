"""A synthetic copy of a table against the table: a classifier's accuracy, distances of marginals, seconds.

    python bench/synthesis.py FOLDER --target salary [--epsilon 0.3 1 3] [--runs 5] [--named] [--cost]
        [--peer dpmm=PYTHON] [--peer opendp=PYTHON] [--peer-runs 1]

FOLDER holds train.csv, test.csv and policy.toml, whose columns are integers with categories. bench/tables.py
makes such folders; one of Adult (13 columns, 80/20) gives the figures of docs/design/synthesis.md. A boosted
classifier is trained on the synthetic rows and tested on test.csv; distances are half the L1 distance to
train.csv, averaged over all pairs and triples of columns. Runs differ in their noise. With --named the
synthesizer is told the target. A peer is run on the same rows by a Python that has it: dpmm 0.1.9, or OpenDP
0.16 with its extra mbi, each in a virtual environment of its own. Seconds are from the start of a process to
its end, so that nothing was compiled before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd

from sfumato.policy import load_policy
from sfumato_lab.reproduce.synthetic_tables import MEASURES, Split, judged

COLUMNS = (*MEASURES, "cpu_seconds", "seconds", "gigabytes")


def main() -> None:
    words = _words()
    policy = load_policy(words.folder / "policy.toml")
    sizes = {name: 1 + max(column.categories) for name, column in policy.columns.items()}
    train, test = (pd.read_csv(words.folder / f"{part}.csv")[list(sizes)] for part in ("train", "test"))
    split = Split(train, test, sizes, words.target)
    print(f"{platform.machine()}, one core; " + ", ".join(f"{name} {version(name)}" for name in ("jax", "mbi")))
    print(f"| {words.folder.name}, {len(train):,} rows | epsilon | runs | {' | '.join(COLUMNS)} |")
    print("|---" * (3 + len(COLUMNS)) + "|", flush=True)
    if not words.cost:
        tell("real rows", "", [judged(split, train)])
    makers = {"sfumato": (ours(words), words.runs)}
    for name, python in words.peer:
        makers[name] = (peers(words, name, python, sizes, policy.budget.delta), words.peer_runs)
    for epsilon in words.epsilon:
        for name, (maker, runs) in makers.items():
            found = []
            for _ in range(runs):
                made, cost = synthetic(maker, epsilon, len(train), words)
                quality = {} if words.cost else judged(split, made[list(sizes)])
                found.append({**quality, **cost})
                if words.each:
                    tell(f"{name}, one run", f"{epsilon:g}", found[-1:])
            tell(name, f"{epsilon:g}", found)


def tell(title: str, epsilon: str, found: Sequence[Mapping[str, float]]) -> None:
    """A line of the table: means, and standard deviations where there are several runs."""
    cells = []
    for name in COLUMNS:
        if name not in found[0]:
            cells.append("")
            continue
        values, digits = [one[name] for one in found], 4 if name in MEASURES else 1
        spread = f" ({np.std(values, ddof=1):.{digits}f})" if len(values) > 1 else ""
        cells.append(f"{np.mean(values):.{digits}f}{spread}")
    print(f"| {title} | {epsilon} | {len(found)} | {' | '.join(cells)} |", flush=True)


Maker = Callable[[float, int, Path], list[str]]
"""Epsilon, rows and a folder for `made.csv` → a command."""


def ours(words: argparse.Namespace) -> Maker:
    def command(epsilon: float, rows: int, folder: Path) -> list[str]:
        own = folder / "own"
        own.mkdir()  # each run has a ledger of its own, beside its policy
        for name in ("policy.toml", "train.csv"):
            shutil.copy(words.folder / name, own / name)
        asked = ["--rows", str(rows), "--epsilon", str(epsilon), "--out", str(folder / "made.csv"), "--json"]
        named = ["--target", words.target] * words.named
        return [sys.executable, "-m", "sfumato", "synthesize", str(own / "policy.toml"), *asked, *named]

    return command


def peers(words: argparse.Namespace, name: str, python: str, sizes: dict[str, int], delta: float) -> Maker:
    script = Path(__file__).with_name("synthesis_peers.py")
    start = [python, str(script), name, str(words.folder / "train.csv"), json.dumps(sizes)]

    def command(epsilon: float, rows: int, folder: Path) -> list[str]:
        return [*start, str(epsilon), str(delta), str(rows), str(folder / "made.csv")]

    return command


def synthetic(
    maker: Maker, epsilon: float, rows: int, words: argparse.Namespace
) -> tuple[pd.DataFrame, dict[str, float]]:
    """A table, and what its process took from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["taskset", "-c", words.core, *maker(epsilon, rows, Path(folder))]
        started, environment = time.perf_counter(), {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        if status:
            raise SystemExit(f"expected the command to end well, got status={status}: {' '.join(command[3:])}")
        cpu = used.ru_utime + used.ru_stime
        cost = {"cpu_seconds": cpu, "seconds": seconds, "gigabytes": used.ru_maxrss / 2**20}
        return pd.read_csv(Path(folder) / "made.csv"), cost


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--peer", action="append", default=[], type=lambda text: text.split("=", 1))
    parser.add_argument("--peer-runs", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="print every run too")
    parser.add_argument("--cost", action="store_true", help="measure time and memory alone")
    parser.add_argument("--core", default="0", help="the core to run on")
    return parser.parse_args()


if __name__ == "__main__":
    main()
