"""How exposed the people of a table are: uniqueness, k-anonymity, l-diversity, and a linkage attack on them.

k-anonymity (Sweeney 2002): every combination of quasi-identifiers occurs at least k times. l-diversity
(Machanavajjhala et al. 2007): every such group has at least l different sensitive values. Both are properties
of one table, not of its uses: a group may agree on the sensitive value, and two k-anonymous
releases of the same people may together single out one of them (Ganta, Kasiviswanathan & Smith 2008). The
figures here are exact; they are for the holder, and are not private themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sfumato import _validate
from sfumato.errors import DataUnavailable, InvalidInput
from sfumato.mechanisms import DiscreteLaplace
from sfumato.query.draft import tells_people_apart
from sfumato.randomness import Sampler, SecretStream

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class LinkageAttack:
    """Results of an attacker who knows all quasi-identifiers, as shares of the people."""

    k: int
    certain_one: float
    certain_two: float
    guess_before: float
    guess_after: float
    guess_private: float
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Risk:
    """A table's exposure; not private itself."""

    quasi_identifiers: tuple[str, ...]
    sensitive: str | None
    rows: int
    unique: int
    k: int
    l: int | None  # noqa: E741 - its name in the literature
    attack: LinkageAttack | None

    @property
    def unique_share(self) -> float:
        return self.unique / self.rows if self.rows else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "unique_share": self.unique_share, "private": False}


def measure_risk(
    data: str | Path | pd.DataFrame,
    *,
    quasi_identifiers: tuple[str, ...] = (),
    sensitive: str | None = None,
    k: int = 5,
    epsilon: float = 1.0,
    sampler: Sampler | None = None,
) -> Risk:
    """Measure a table, and attack a k-anonymous release of it beside a DP one.

    >>> people = pd.DataFrame({"age": [20, 20, 30], "zip": ["A", "A", "B"], "ill": [True, True, False]})
    >>> found = measure_risk(people, quasi_identifiers=("age", "zip"), sensitive="ill", k=2)
    >>> found.unique, found.k, found.l
    (1, 1, 1)
    """
    table = data if isinstance(data, pd.DataFrame) else _read(Path(data))
    quasi = _quasi_identifiers(table, quasi_identifiers, sensitive)
    _validate.integer("k", k, least=2)
    classes = table.groupby(list(quasi), dropna=False, sort=False)
    sizes = classes.size()
    diversity = None if sensitive is None else int(classes[sensitive].nunique(dropna=False).min())
    attack = None
    if sensitive is not None and len(table) >= 2 * k:
        attack = _attack(table, quasi, sensitive, k, epsilon, sampler or SecretStream())
    return Risk(
        quasi_identifiers=quasi,
        sensitive=sensitive,
        rows=len(table),
        unique=int((sizes == 1).sum()),
        k=int(sizes.min()),
        l=diversity,
        attack=attack,
    )


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise DataUnavailable(f"no file at {path}; give a CSV or Parquet file")
    return pd.read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)


def _quasi_identifiers(table: pd.DataFrame, named: tuple[str, ...], sensitive: str | None) -> tuple[str, ...]:
    if table.empty:
        raise InvalidInput("expected a table with rows, got none")
    wanted = (*named, *([sensitive] if sensitive is not None else []))
    unknown = [name for name in wanted if name not in table.columns]
    if unknown:
        raise InvalidInput(f"expected columns among {', '.join(table.columns)}, got {', '.join(unknown)}")
    others = [name for name in table.columns if not tells_people_apart(name) and name != sensitive]
    chosen = named or tuple(others)
    if not chosen or sensitive in chosen:
        raise InvalidInput("expected at least one quasi-identifier, and the sensitive column not among them")
    return chosen


def k_anonymous_classes(table: pd.DataFrame, quasi: tuple[str, ...], k: int, *, first: int = 0) -> Integers:
    """A class for each row, of k rows or more, that a release would show as one range (Mondrian).

    Rows are halved at the median of one quasi-identifier after another, `first` telling where to begin, as long
    as both halves keep k rows. LeFevre, DeWitt & Ramakrishnan 2006, "Mondrian multidimensional k-anonymity".
    """
    ranks = np.stack([pd.factorize(table[name], sort=True)[0] for name in quasi], axis=1)  # (rows, quasi)
    classes = np.zeros(len(table), dtype=np.int64)
    waiting, done = [(np.arange(len(table)), first)], 0
    while waiting:
        rows, turn = waiting.pop()
        halves = _halves(ranks[rows], k, turn)
        if halves is None:
            classes[rows], done = done, done + 1
        else:
            below, used = halves
            waiting += [(rows[below], used + 1), (rows[~below], used + 1)]
    return classes


def _halves(ranks: Integers, k: int, turn: int) -> tuple[npt.NDArray[np.bool_], int] | None:
    columns = ranks.shape[1]
    for column in range(turn, turn + columns):
        values = ranks[:, column % columns]
        below = values <= np.median(values)
        if not k <= below.sum() <= len(values) - k:
            below = values < np.median(values)
        if k <= below.sum() <= len(values) - k:
            return below, column
    return None


def _attack(
    table: pd.DataFrame, quasi: tuple[str, ...], sensitive: str, k: int, epsilon: float, sampler: Sampler
) -> LinkageAttack:
    """Look everybody up in one release, then in two; guess the commonest value that is left."""
    secret = pd.factorize(table[sensitive])[0] + 1  # NULL becomes a value of its own
    one = k_anonymous_classes(table, quasi, k)
    two = k_anonymous_classes(table, quasi, k, first=1)
    first, second = _candidates(one, secret), _candidates(two, secret)  # (rows, values): how often in the class
    both = np.minimum(first, second)
    noisy = DiscreteLaplace.calibrated(sensitivity=1, epsilon=epsilon).release(np.bincount(secret), sampler)
    return LinkageAttack(
        k=int(min(np.bincount(one).min(), np.bincount(two).min())),
        certain_one=_certain(first),
        certain_two=_certain(both),
        guess_before=float(np.bincount(secret).max() / len(secret)),
        guess_after=float(np.mean(both.argmax(axis=1) == secret)),
        guess_private=float(np.mean(secret == noisy.argmax())),
        epsilon=epsilon,
    )


def _candidates(classes: Integers, secret: Integers) -> Integers:
    counts = np.zeros((classes.max() + 1, secret.max() + 1), dtype=np.int64)
    np.add.at(counts, (classes, secret), 1)
    found: Integers = counts[classes]
    return found


def _certain(candidates: Integers) -> float:
    return float(np.mean((candidates > 0).sum(axis=1) == 1))
