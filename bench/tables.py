"""Tables for bench/synthesis.py: a folder with train.csv, test.csv and policy.toml.

    python bench/tables.py randhie|fair|wide FOLDER [--seed 0] [--rows 1000000]

`randhie` (health insurance, 20,190 rows; target physlm) and `fair` (marriages, 6,366 rows; target affairs) come
with statsmodels. Their columns become integers by cuts that the code books suggest, 80/20. `wide` is simulated:
30 columns of 2 to 12 values that depend on four hidden ones (target c0).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

CUTS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "randhie": {
        "mdvis": (1, 2, 3, 4, 5, 6, 8, 10, 15, 20),
        "lncoins": (1, 3.5, 4.2, 4.59),
        "idp": (0.5,),
        "lpi": (1, 2, 3, 4, 5, 6, 6.5),
        "fmde": (1, 2, 3, 4, 5, 6, 7),
        "disea": (3, 6, 9, 12, 15, 20, 25, 30),
        "hlthg": (0.5,),
        "hlthf": (0.5,),
        "hlthp": (0.5,),
        "physlm": (0.5,),
    },
    "fair": {
        "rate_marriage": (2, 3, 4, 5),
        "age": (20, 25, 30, 35, 40),
        "yrs_married": (1, 4, 8, 12, 15, 20),
        "children": (1, 2, 3, 4, 5),
        "religious": (2, 3, 4),
        "educ": (10, 13, 15, 16.5, 18),
        "occupation": (2, 3, 4, 5, 6),
        "occupation_husb": (2, 3, 4, 5, 6),
        "affairs": (1e-9,),
    },
}
_COLUMNS, _HIDDEN = 30, 4


def main() -> None:
    words = _words()
    table, sizes = simulated(words.rows, words.seed) if words.name == "wide" else real(words.name)
    order = np.random.default_rng(words.seed).permutation(len(table))
    cut = int(0.8 * len(table))
    words.folder.mkdir(parents=True)
    table.iloc[order[:cut]].to_csv(words.folder / "train.csv", index=False)
    table.iloc[order[cut:]].to_csv(words.folder / "test.csv", index=False)
    lines = ["[table]", f'name = "{words.name}"', 'source = "train.csv"', f"public_size = {cut}", ""]
    lines += ["[budget]", "epsilon = 20.0", "delta = 1e-6", f'ledger = "{words.name}.db"']
    for name, size in sizes.items():
        lines += ["", f"[columns.{name}]", 'type = "integer"', f"categories = {list(range(size))}"]
    (words.folder / "policy.toml").write_text("\n".join(lines) + "\n")


def real(name: str) -> tuple[pd.DataFrame, dict[str, int]]:
    import statsmodels.api as sm

    raw, cuts = getattr(sm.datasets, name).load_pandas().data, CUTS[name]
    table = pd.DataFrame({column: np.digitize(raw[column], at) for column, at in cuts.items()})
    return table, {column: len(at) + 1 for column, at in cuts.items()}


def simulated(rows: int, seed: int) -> tuple[pd.DataFrame, dict[str, int]]:
    """`rows` of them are for training; a quarter more are for the test."""
    generator = np.random.default_rng(seed)
    hidden = generator.standard_normal((rows * 5 // 4, _HIDDEN))
    sizes = {f"c{at}": 2 if at == 0 else int(generator.integers(2, 13)) for at in range(_COLUMNS)}
    columns = {}
    for name, size in sizes.items():
        value = hidden @ generator.standard_normal(_HIDDEN) + generator.standard_normal(len(hidden))
        columns[name] = np.digitize(value, np.linspace(-3, 3, size + 1)[1:-1])
    return pd.DataFrame(columns), sizes


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*CUTS, "wide"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=1_000_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
