"""What commands read: a data set by its name, or the user's own images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.datasets import Dataset

_TABLES = (".csv", ".csv.gz", ".tsv", ".parquet", ".duckdb")


def read_data(
    data: str,
    *,
    side: int | None,
    public_size: int | None,
    classes: str | None,
    test_data: str | None,
) -> tuple[Dataset, Dataset | None]:
    """Private rows, and public images to measure on, if there are any; `side` is for data sets by name."""
    from sfumato import datasets

    if data in datasets.DATASETS or not Path(data).expanduser().exists():
        rows = datasets.load(data, "train", side=side)
        if (public_size, classes, test_data) != (None, None, None):
            raise InvalidInput(
                f"expected --public-size, --classes and --test-data with your own images only, got one of them "
                f"with {data}, which declares its own; leave them out"
            )
        return rows, datasets.load(data, "test", side=side)
    if data.lower().endswith(_TABLES):
        raise InvalidInput(
            f"expected images with --data, got the table {data}; declare it in a policy (sfumato query init), "
            "then: sfumato train people.toml --target COLUMN"
        )
    if public_size is None or classes is None:
        raise InvalidInput(
            "expected --public-size and --classes with your own images; they are declared, not counted"
        )
    names = [str(number) for number in range(int(classes))] if classes.isdigit() else classes.split(",")
    rows = datasets.read_images(data, classes=names, public_size=public_size)
    if test_data is None:
        return rows, None
    return rows, datasets.read_images(test_data, classes=names, public_size=None, visibility="public")


def take_some(rows: Dataset, count: int | None, out: Path | None) -> Dataset:
    """As many records as were asked for, each by its own coin; the folder keeps the coins."""
    from sfumato.storage import RunFolder
    from sfumato.training import keep_some

    if count is None:
        return rows
    return keep_some(rows, count, folder=None if out is None else RunFolder.make(out))
