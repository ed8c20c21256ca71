"""Tables for bench/synthesis.py: a folder with train.csv, test.csv and policy.toml.

    python bench/tables.py randhie|fair|wide FOLDER [--seed 0] [--rows 1000000]

`randhie` (health insurance, 20,190 rows; target physlm) and `fair` (marriages, 6,366 rows; target affairs) come
with statsmodels. Their columns become integers by cuts that the code books suggest, 80/20. `wide` is simulated:
30 columns of 2 to 12 values that depend on four hidden ones (target c0).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from sfumato_lab.reproduce.synthetic_tables import CUTS, Split, load

_COLUMNS, _HIDDEN = 30, 4


def main() -> None:
    words = _words()
    split = simulated(words.rows, words.seed) if words.name == "wide" else load(words.name, seed=words.seed)
    words.folder.mkdir(parents=True)
    split.train.to_csv(words.folder / "train.csv", index=False)
    split.test.to_csv(words.folder / "test.csv", index=False)
    lines = [
        "[table]",
        f'name = "{words.name}"',
        'source = "train.csv"',
        f"public_size = {len(split.train)}",
        "",
    ]
    lines += ["[budget]", "epsilon = 20.0", "delta = 1e-6", f'ledger = "{words.name}.db"']
    for name, size in split.sizes.items():
        lines += ["", f"[columns.{name}]", 'type = "integer"', f"categories = {list(range(size))}"]
    (words.folder / "policy.toml").write_text("\n".join(lines) + "\n")


def simulated(rows: int, seed: int) -> Split:
    """`rows` of them are for training; a quarter more are for the test."""
    generator = np.random.default_rng(seed)
    hidden = generator.standard_normal((rows * 5 // 4, _HIDDEN))
    sizes = {f"c{at}": 2 if at == 0 else int(generator.integers(2, 13)) for at in range(_COLUMNS)}
    columns = {}
    for name, size in sizes.items():
        value = hidden @ generator.standard_normal(_HIDDEN) + generator.standard_normal(len(hidden))
        columns[name] = np.digitize(value, np.linspace(-3, 3, size + 1)[1:-1])
    table = pd.DataFrame(columns)
    return Split(table[:rows], table[rows:], sizes, "c0")


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*CUTS, "wide"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=1_000_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
