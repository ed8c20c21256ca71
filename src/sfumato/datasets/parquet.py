"""A Parquet file larger than memory as a data set: read once, in parts, then looked up by row from the disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from sfumato import _validate
from sfumato.datasets.dataset import Dataset, Visibility
from sfumato.datasets.tables import (
    encoded,
    open_or_refuse,
    refuse_categories_of_another_type,
    require_different,
)
from sfumato.errors import InvalidInput
from sfumato.storage import unnamed_file

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_NUMBERS = 2**19  # cells that are in memory at a time


def parquet_dataset(
    path: str | Path,
    *,
    inputs: Sequence[str],
    target: str,
    categories: Sequence[Any],
    public_size: int,
    name: str = "table",
    missing: float = 0.0,
    input_categories: Mapping[str, Sequence[Any]] | None = None,
    visibility: Visibility = "private",
    unit: str = "record",
    folder: str | Path | None = None,
) -> Dataset:
    """As `table_dataset` of the file's rows, with rows that stay on the disk until a step asks for them.

    The file is read once, in parts. The inputs of a model, numbers only, go to a file without a name
    in `folder` (beside `path` unless given): it cannot be opened by path, and is gone with the process.
    It is mapped into memory, so that a batch costs its own rows and the system keeps the pages that are
    asked for often.

    Args:
        path: The Parquet file.
        inputs: The columns to learn from.
        target: The column to learn.
        categories: The values of `target`; they become the classes 0, 1, …, and other rows are left out.
        public_size: The declared number of units.
        name: The name of the data set in errors and reports.
        missing: The value for a cell that is no finite number.
        input_categories: The categories of inputs that are no numbers. Each becomes one input: 1 in the
            rows that have it, 0 elsewhere.
        visibility: "private" or "public".
        unit: Whose one row is.
        folder: Where the file without a name lies; the folder of `path` by default.

    Returns:
        The data set.

    Raises:
        InvalidInput: a column is not there, or holds neither numbers nor declared categories, or can hold
            none of the categories, by its type in the file and not by its cells.

    ```python
    rows = parquet_dataset(
        "people.parquet", inputs=["age"], target="ill", categories=["no", "yes"], public_size=10_000_000
    )
    ```
    """
    path, declared = Path(path).expanduser(), dict(input_categories or {})
    for values in (categories, *declared.values()):
        require_different(values)
    missing = _validate.real("missing", missing)
    parts = _parts(path, inputs, target, categories, declared)
    place = path.parent if folder is None else Path(folder)
    with unnamed_file(place) as rows, unnamed_file(place) as classes:
        count, width = 0, 0
        for frame in parts:
            found, targets = encoded(frame, inputs, target, categories, declared, missing)
            rows.write(np.ascontiguousarray(found).tobytes())
            classes.write(targets.tobytes())
            count, width = count + len(targets), found.shape[1]
        return Dataset(
            inputs=_mapped(rows, np.float32, (count, width)),
            targets=_mapped(classes, np.int64, (count,)),
            name=name,
            visibility=visibility,
            unit=unit,
            classes=len(categories),
            public_size=public_size,
        )


def _parts(
    path: Path,
    inputs: Sequence[str],
    target: str,
    categories: Sequence[Any],
    declared: Mapping[str, Sequence[Any]],
) -> Iterator[pd.DataFrame]:
    """The columns of a few rows at a time; at least one part, which may have no rows."""
    from pyarrow import parquet

    file = open_or_refuse(lambda place: parquet.ParquetFile(place, memory_map=True, pre_buffer=False), path)
    columns = list(dict.fromkeys([*inputs, target]))
    _check_schema(file.schema_arrow, path, columns, [one for one in inputs if one not in declared])
    _check_categories(file.schema_arrow, [(target, categories), *declared.items()])
    rows = max(1, _NUMBERS // len(columns))
    yield file.schema_arrow.empty_table().select(columns).to_pandas()
    parts = file.iter_batches(batch_size=rows, columns=columns, use_threads=False)
    while (part := open_or_refuse(lambda _: next(parts, None), path)) is not None:
        yield part.to_pandas()


def _check_schema(schema: pa.Schema, path: Path, columns: Sequence[str], numbers: Sequence[str]) -> None:
    import pyarrow.types as kinds

    absent = [name for name in columns if name not in schema.names]
    if absent:
        raise InvalidInput(
            f"expected {path} to have the columns {', '.join(absent)}, got the columns "
            f"{', '.join(schema.names)}; check the spelling"
        )
    for name in numbers:
        kind = schema.field(name).type
        if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)):
            raise InvalidInput(
                f"expected numbers in column {name}, got the type {kind}; declare its values as "
                f"input_categories={{{name!r}: [...]}}, or leave it out of inputs"
            )


def _check_categories(schema: pa.Schema, declared: Sequence[tuple[str, Sequence[Any]]]) -> None:
    import pyarrow.types as kinds

    for name, categories in declared:
        if name in schema.names:
            kind = schema.field(name).type
            number = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)
            refuse_categories_of_another_type(
                name, categories, truths=kinds.is_boolean(kind), numbers=number, kind=str(kind)
            )


def _mapped(file: IO[bytes], kind: type[np.generic], shape: tuple[int, ...]) -> Any:
    """The file's numbers as an array; of an empty file there is nothing to map."""
    file.flush()
    if 0 in shape:
        return np.empty(shape, dtype=kind)
    return np.asarray(np.memmap(file, dtype=kind, mode="r+", shape=shape))
