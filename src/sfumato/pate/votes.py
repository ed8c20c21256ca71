"""Votes: one class id for each teacher and each query, from anyone's teachers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.errors import InvalidInput

Integers = npt.NDArray[np.int64]

MISSING = -1
"""The vote of a teacher who has none; no answer to a query is written the same way."""


def read_votes(path: str | os.PathLike[str]) -> Integers:
    """Read votes from a file.

    Args:
        path: A .npy file (teachers, queries), or a .csv file with a line for each teacher.

    Returns:
        (teachers, queries) of class numbers, −1 for a missing vote.

    Raises:
        InvalidInput: If it holds something else.

    ```python
    answers = aggregate(read_votes("votes.npy"), plan, ledger=ledger, unit="person")
    ```
    """
    place = Path(path)
    if not place.is_file():
        raise InvalidInput(f"expected a file of votes at {place}, got none")
    try:
        if place.suffix == ".csv":
            return as_votes(np.genfromtxt(place, delimiter=",", ndmin=2))
        return as_votes(np.load(place, allow_pickle=False))
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"expected {place} to hold teachers × queries class ids, as numpy.save or a CSV writes them"
        ) from error


def as_votes(votes: npt.ArrayLike) -> Integers:
    """The votes as whole numbers; a missing one is −1, or NaN.

    >>> as_votes([[1, 2], [float("nan"), 2]]).tolist()
    [[1, 2], [-1, 2]]
    """
    array = np.asarray(votes)
    if array.ndim != 2 or 0 in array.shape:
        raise InvalidInput(
            f"expected votes of shape (teachers, queries), at least one of each, got shape {array.shape}"
        )
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), MISSING, array)
        if not np.array_equal(array, np.floor(array)) or np.abs(array).max() > 2**31:
            raise InvalidInput(
                "expected votes to be class ids, whole numbers, got others; a NaN is a missing vote"
            )
    elif array.dtype.kind not in "iu":
        raise InvalidInput(f"expected votes to be class ids, whole numbers, got an array of {array.dtype}")
    return array.astype(np.int64)


def count_votes(votes: npt.ArrayLike, *, classes: int) -> Integers:
    """How many teachers voted for each class: (queries, classes).

    A missing vote counts for no class. A class id outside [0, classes) is refused; the message shows no vote.

    Args:
        votes: (teachers, queries) of class numbers, −1 or NaN for a missing teacher.
        classes: How many classes there are.

    Returns:
        (queries, classes).

    Raises:
        InvalidInput: If a vote is for no class.

    >>> count_votes([[0, 1], [0, 2], [-1, 2]], classes=3).tolist()
    [[2, 0, 0], [0, 1, 2]]
    """
    classes = _validate.integer("classes", classes, least=1)
    array = as_votes(votes)
    if array.min() < MISSING or array.max() >= classes:
        raise InvalidInput(
            f"expected class ids from 0 to {classes - 1}, or -1 for a missing vote, got one outside; "
            f"declare the right number of classes (got classes={classes})"
        )
    queries = array.shape[1]
    present = array != MISSING
    cells = (np.arange(queries) * classes + array)[present]
    return np.bincount(cells, minlength=queries * classes).reshape(queries, classes).astype(np.int64)


def check_counts(counts: npt.NDArray[Any], *, teachers: int, classes: int) -> Integers:
    """Counts that so many teachers can have given."""
    array = np.asarray(counts)
    if array.ndim != 2 or array.shape[1] != classes or array.dtype.kind not in "iu":
        raise InvalidInput(
            f"expected whole counts of shape (queries, {classes}), got {array.dtype} of shape {array.shape}; "
            "make them with count_votes"
        )
    if array.size and (array.min() < 0 or array.sum(axis=1).max() > teachers):
        raise InvalidInput(f"expected counts of at most teachers={teachers} votes a query, got others")
    return array.astype(np.int64)
