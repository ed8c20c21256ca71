"""Adult at (ε, 1e-6), side by side on one split: table models, Opacus, diffprivlib.

    python bench/adult.py [--runs 5] [--epsilon 0.3 1] [--only 'sfumato mlp']   pip install 'sfumato[bench]'

Each figure is the mean over runs that differ in their noise only, with the standard deviation. The others get
the same one-hot columns of declared categories. diffprivlib's logistic regression is ε-DP (δ = 0), the rest are
(ε, δ)-DP. It does not import with scikit-learn 1.6 and later: name the Python of an environment of its own in
DIFFPRIVLIB_PYTHON, or it is left out. Opacus and diffprivlib run with one setting each, not tuned; ours were
chosen on training rows of this table, so that the comparison flatters us.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from sfumato.datasets.adult import CATEGORIES, TARGET, write_adult
from sfumato.learn.table import TableTraining
from sfumato.policy import load_policy

DELTA = 1e-6
Measured = tuple[float, float]


def ours(model: str):
    def run(folder: Path, epsilon: float) -> Measured:
        policy = load_policy(folder / "policy.toml")
        ready = TableTraining.prepare(policy, target=TARGET, epsilon=epsilon, delta=DELTA, model=model)
        found = ready.train(test=folder / "test.csv").measured
        return found["test_accuracy"], found["test_auc"]

    return run


def one_hot(path: Path) -> tuple[np.ndarray, np.ndarray]:
    table = pd.read_csv(path)
    names = [name for name in CATEGORIES if name != TARGET]
    columns = [np.eye(CATEGORIES[name], dtype=np.float32)[table[name]] for name in names]
    return np.concatenate(columns, axis=1), table[TARGET].to_numpy()


def measured(truth: np.ndarray, scores: np.ndarray) -> Measured:
    return float(((scores > 0) == truth).mean()), float(roc_auc_score(truth, scores))


def with_diffprivlib(folder: Path, epsilon: float) -> Measured:
    features, target = one_hot(folder / "train.csv")
    tested, truth = one_hot(folder / "test.csv")
    np.savez(folder / "hot.npz", features=features, target=target, tested=tested)
    words = [os.environ["DIFFPRIVLIB_PYTHON"], "-c", _DIFFPRIVLIB, str(folder), str(epsilon)]
    subprocess.run(words, check=True, capture_output=True)
    return measured(truth, np.load(folder / "scores.npy"))


_DIFFPRIVLIB = """
import sys
import numpy as np
from diffprivlib.models import LogisticRegression
folder, epsilon = sys.argv[1], float(sys.argv[2])
data = np.load(folder + "/hot.npz")
model = LogisticRegression(epsilon=epsilon, data_norm=float(np.sqrt(12)), max_iter=1000)
model.fit(data["features"], data["target"])
np.save(folder + "/scores.npy", model.decision_function(data["tested"]))
"""


def with_opacus(folder: Path, epsilon: float) -> Measured:
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    features, target = one_hot(folder / "train.csv")
    tested, truth = one_hot(folder / "test.csv")
    model = torch.nn.Linear(features.shape[1], 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    rows = TensorDataset(torch.from_numpy(features), torch.from_numpy(target))
    private, optimizer, loader = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(rows, batch_size=1024),
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=10,
        max_grad_norm=1.0,
    )
    for _ in range(10):
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(private(inputs), labels).backward()
            optimizer.step()
    with torch.no_grad():
        scores = model(torch.from_numpy(tested)).numpy()
    return measured(truth, scores[:, 1] - scores[:, 0])


WAYS = {
    "sfumato linear": ours("linear"),
    "sfumato boosted": ours("boosted"),
    "sfumato mlp": ours("mlp"),
    "Opacus linear": with_opacus,
}
if "DIFFPRIVLIB_PYTHON" in os.environ:
    WAYS["diffprivlib"] = with_diffprivlib


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--runs", type=int, default=5)
    words.add_argument("--epsilon", type=float, nargs="+", default=[0.3, 1.0])
    words.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    asked = words.parse_args()
    warnings.simplefilter("ignore")
    packages = ", ".join(f"{name} {version(name)}" for name in ("sfumato", "opacus", "torch"))
    print(f"{packages}; {platform.machine()}, {asked.runs} runs, delta {DELTA}\n")
    print("| | ε | accuracy | AUC | seconds a run |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        write_adult(scratch)
        for epsilon in asked.epsilon:
            for name in asked.only:
                run, started = WAYS[name], time.perf_counter()
                found = np.array([run(Path(scratch), epsilon) for _ in range(asked.runs)])
                seconds = (time.perf_counter() - started) / asked.runs
                (accuracy, area), (spread, wide) = found.mean(axis=0), found.std(axis=0)
                row = f"| {name} | {epsilon:g} | {accuracy:.4f} ± {spread:.4f} | {area:.4f} ± {wide:.4f} |"
                print(f"{row} {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
