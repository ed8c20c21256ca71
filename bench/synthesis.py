"""A synthetic copy of a table against the table: a classifier's accuracy, distances of marginals, seconds.

    python bench/synthesis.py FOLDER --target salary [--epsilon 0.3 1 3] [--runs 5] [--named]

FOLDER holds train.csv, test.csv and policy.toml, whose columns are integers with categories. bench/tables.py
makes such folders; one of Adult (13 columns, 80/20) gives the figures of docs/design/synthesis.md. A boosted
classifier is trained on the synthetic rows and tested on test.csv; distances are half the L1 distance to
train.csv, averaged over all pairs and triples of columns. Runs differ in their noise. With --named the
synthesizer is told the target.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from sfumato.policy import load_policy


def main() -> None:
    words = _words()
    sizes = {
        name: 1 + max(column.categories)
        for name, column in load_policy(words.folder / "policy.toml").columns.items()
    }
    train, test = (pd.read_csv(words.folder / f"{part}.csv")[list(sizes)] for part in ("train", "test"))
    print(f"{platform.machine()}, one core; " + ", ".join(f"{name} {version(name)}" for name in ("jax", "mbi")))
    tell("real rows", judged(train, test, train, sizes, words.target))
    for epsilon in words.epsilon:
        found = []
        for _ in range(words.runs):
            made, cost = synthetic(words, epsilon, len(train))
            found.append({**judged(train, test, made, sizes, words.target), **cost})
            tell(f"epsilon {epsilon:g}", found[-1])
        table = pd.DataFrame(found)
        print(pd.DataFrame({"mean": table.mean(), "deviation": table.std()}).round(4).to_string())


def tell(title: str, found: dict[str, float]) -> None:
    print(title, json.dumps({name: round(value, 4) for name, value in found.items()}), flush=True)


def synthetic(words: argparse.Namespace, epsilon: float, rows: int) -> tuple[pd.DataFrame, dict[str, float]]:
    """A table of the command line's, and what it took, start and end of Python included."""
    with tempfile.TemporaryDirectory() as folder:
        out, own = Path(folder) / "made.csv", Path(folder) / "own"
        shutil.copytree(words.folder, own)  # each run has a ledger of its own, beside its policy
        command = [sys.executable, "-m", "sfumato", "synthesize", str(own / "policy.toml")]
        command += ["--rows", str(rows), "--epsilon", str(epsilon), "--out", str(out), "--json"]
        command += ["--target", words.target] * words.named
        before, started = os.times(), time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            ["taskset", "-c", words.core, *command], check=True, stdout=subprocess.DEVNULL, env=environment
        )
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        seconds = time.perf_counter() - started
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # of all runs so far
        return pd.read_csv(out), {"cpu_seconds": used, "seconds": seconds, "gigabytes": largest}


def judged(
    train: pd.DataFrame, test: pd.DataFrame, made: pd.DataFrame, sizes: dict[str, int], target: str
) -> dict[str, float]:
    model = HistGradientBoostingClassifier(max_iter=150, random_state=0)
    model.fit(made.drop(columns=target), made[target])
    chances = model.predict_proba(test.drop(columns=target))[:, list(model.classes_).index(1)]
    right = model.predict(test.drop(columns=target)) == test[target]
    return {
        "accuracy": float(right.mean()),
        "auc": float(roc_auc_score(test[target] == 1, chances)),
        **{f"distance_{size}": distance(train, made, sizes, size) for size in (1, 2, 3)},
    }


def distance(train: pd.DataFrame, made: pd.DataFrame, sizes: dict[str, int], size: int) -> float:
    cliques = itertools.combinations(sizes, size)
    return float(
        np.mean([0.5 * np.abs(shares(train, one, sizes) - shares(made, one, sizes)).sum() for one in cliques])
    )


def shares(table: pd.DataFrame, clique: tuple[str, ...], sizes: dict[str, int]) -> np.ndarray:
    shape = [sizes[name] for name in clique]
    index = np.ravel_multi_index([table[name].to_numpy() for name in clique], shape)
    return np.bincount(index, minlength=int(np.prod(shape))) / len(table)


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--core", default="0", help="the core to run on")
    return parser.parse_args()


if __name__ == "__main__":
    main()
