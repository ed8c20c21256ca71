"""Tables of people: CSV and Parquet files, and the numbers a model learns from."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.datasets import lines
from sfumato.datasets.dataset import Dataset, Inputs, Visibility
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput

if TYPE_CHECKING:
    import pandas as pd

_MOSTLY = 0.5  # of a column's cells
_TRUTHS = ("true", "false")


def read_table(path: str | Path, *, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Read the rows of a CSV or Parquet file.

    No line of a CSV file changes how another one is read, and none can stop it from being read.

    Args:
        path: The file.
        columns: The columns wanted, in this order; None for all.

    Returns:
        One row for each line or record.

    ```python
    people = read_table("people.csv", columns=["age", "ill"])
    ```
    """
    path = Path(path).expanduser()
    reader = _READERS[_validate.one_of("the file's ending", path.suffix.lower(), _READERS)]
    frame: pd.DataFrame = open_or_refuse(reader, path)
    if columns is None:
        return frame
    _require_columns(frame, columns, str(path))
    return frame[list(columns)]


def table_dataset(
    frame: pd.DataFrame,
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
) -> Dataset:
    """Make a data set of a table's number columns, and of a column of declared categories to learn.

    *Guarantees*: each row is judged by itself. A cell that is not a finite number becomes `missing`; a row
    whose target is none of the categories is left out. `categories`, `missing` and `public_size` are public:
    say them without looking at the rows. Two mistakes are refused, before anything is charged and for the
    holder's eyes: an input without categories that holds no number, and texts in most of its cells, which would
    be `missing` in every row; and categories that no cell of their column is, by its type or in a column that
    is mostly filled, which would leave out every row. The refusal names the column and its type, and no cell.

    Args:
        frame: The rows.
        inputs: The columns to learn from.
        target: The column to learn.
        categories: The values of `target`; they become the classes 0, 1, ….
        public_size: The declared number of units.
        name: The name of the data set in errors and reports.
        missing: The value for a cell that is no finite number.
        input_categories: The categories of inputs that are no numbers. Each becomes one input: 1 in the
            rows that have it, 0 elsewhere.
        visibility: "private" or "public".
        unit: Whose one row is.

    Returns:
        The data set.

    Raises:
        InvalidInput: If a column is missing, holds texts where numbers were declared, or none of the
            categories that were.

    >>> import pandas as pd
    >>> people = pd.DataFrame({"age": [40, 50], "ill": ["no", "yes"]})
    >>> rows = table_dataset(people, inputs=["age"], target="ill", categories=["no", "yes"], public_size=2)
    >>> rows.targets.tolist()
    [0, 1]
    """
    _require_columns(frame, [*inputs, target], name)
    declared = input_categories or {}
    for values in (categories, *declared.values()):
        require_different(values)
    _refuse_texts(frame, [column for column in inputs if column not in declared])
    for column, values in [(target, categories), *declared.items()]:
        if column == target or column in inputs:
            _refuse_strange(frame[column], values)
    found, classes = encoded(frame, inputs, target, categories, declared, _validate.real("missing", missing))
    return Dataset(
        inputs=found,
        targets=classes,
        name=name,
        visibility=visibility,
        unit=unit,
        classes=len(categories),
        public_size=public_size,
    )


def encoded(
    frame: pd.DataFrame,
    inputs: Sequence[str],
    target: str,
    categories: Sequence[Any],
    declared: Mapping[str, Sequence[Any]],
    missing: float,
) -> tuple[Inputs, npt.NDArray[np.int64]]:
    """Inputs and classes of the rows whose target is one of the categories, each judged by itself."""
    columns = [_inputs(frame[column], declared.get(column), missing) for column in inputs]
    classes = _classes(frame[target], categories)
    known = classes >= 0
    whole = np.concatenate([np.empty((len(frame), 0), dtype=np.float32), *columns], axis=1)
    return whole[known], classes[known]


def _read_csv(path: Path) -> pd.DataFrame:
    """Every line by itself: one that is no row is left out, and only an empty value is missing."""
    import pandas as pd

    with path.open("rb") as file:
        parts = lines.blocks(file)
        first, _, rest = next(parts, b"").partition(b"\n")
        names = lines.split(first, ",")
        if names is None or not first:
            raise ValueError("it does not begin with a line of column names")
        judged = (lines.judge(part, fields=len(names), delimiter=",") for part in chain([rest], parts))
        text = b"".join([first, b"\n", *(part.good() for part in judged)])
    return pd.read_csv(io.BytesIO(text), keep_default_na=False, na_values=[""], encoding_errors="replace")


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(path, engine="pyarrow")


_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".pq": _read_parquet,
}


def open_or_refuse(reader: Callable[[Path], Any], path: Path) -> Any:
    """Return the result of `reader`; a missing or damaged file is refused in one sentence with its name."""
    if not path.is_file():
        raise DataUnavailable(f"there is no file {path}; give the path of a CSV or Parquet file")
    try:
        return reader(path)
    except OSError as error:
        # pyarrow reports damage as OSError too, without an error number
        if error.errno is not None:
            raise DataUnavailable(f"{path} cannot be read ({error.strerror}); check its permissions") from error
        raise _damaged(path, error) from error
    except ValueError as error:  # pandas and pyarrow raise kinds of ValueError for parse errors
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataCorrupted:
    kind = path.suffix.lstrip(".").upper()
    reason = str(error).strip().splitlines()
    return DataCorrupted(
        f"{path} is not a sound {kind} file ({reason[0] if reason else type(error).__name__}); "
        "check that it is whole and that its ending says what it is"
    )


def _require_columns(frame: pd.DataFrame, columns: Sequence[str], name: str) -> None:
    absent = [column for column in columns if column not in frame.columns]
    if absent:
        raise InvalidInput(
            f"expected {name} to have the columns {', '.join(map(str, absent))}, got the columns "
            f"{', '.join(map(str, frame.columns))}; check the spelling"
        )


def require_different(categories: Sequence[Any]) -> None:
    if len({_spelling(category) for category in categories}) != len(categories):
        raise InvalidInput(
            f"expected categories to differ from each other, got categories={list(categories)!r}"
        )


def _inputs(column: pd.Series[Any], categories: Sequence[Any] | None, missing: float) -> Inputs:
    """(rows, 1) numbers, or (rows, categories) ones and zeros."""
    if categories is not None:
        return (_classes(column, categories)[:, None] == np.arange(len(categories))).astype(np.float32)
    numbers = _numbers(column)
    numbers[~np.isfinite(numbers)] = missing
    return numbers[:, None]


def _refuse_texts(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """A column without a single number, most of whose cells are texts, would be `missing` in every row."""
    for column in columns:
        filled = frame[column].notna()
        if filled.mean() > _MOSTLY and np.isnan(_numbers(frame[column])).all():
            raise InvalidInput(
                f"expected numbers in column {column}, got texts; declare its values as "
                f"input_categories={{{column!r}: [...]}}, or leave it out of inputs"
            )


def refuse_categories_of_another_type(
    column: str, categories: Sequence[Any], *, truths: bool, numbers: bool, kind: str
) -> None:
    """Refuse categories that no cell can be, by the column's type alone.

    Args:
        column: The column's name.
        categories: The declared categories.
        truths: Whether its type holds True and False only.
        numbers: Whether its type holds numbers only.
        kind: The name of the type.

    >>> refuse_categories_of_another_type("ill", ["0", "1"], truths=False, numbers=True, kind="int64")
    """
    spelled = [_spelling(category) for category in categories]
    if (truths and not set(spelled) & set(_TRUTHS)) or (numbers and not any(map(_is_number, spelled))):
        raise _strange(column, categories, kind)


def _refuse_strange(column: pd.Series[Any], categories: Sequence[Any]) -> None:
    """Categories of another type than the column's, or that are in no cell of one that is mostly filled."""
    from pandas.api import types

    name, kind = str(column.name), str(column.dtype)
    truths = bool(types.is_bool_dtype(column.dtype))
    numbers = not truths and bool(types.is_numeric_dtype(column.dtype))
    refuse_categories_of_another_type(name, categories, truths=truths, numbers=numbers, kind=kind)
    if column.notna().mean() > _MOSTLY and (_classes(column, categories) < 0).all():
        raise _strange(name, categories, kind)


def _strange(column: str, categories: Sequence[Any], kind: str) -> InvalidInput:
    return InvalidInput(
        f"expected categories that column {column} (of type {kind}) can hold, got categories="
        f"{list(categories)!r}, which none of its cells is; write them as the file does, such as [False, True] "
        "or ['no', 'yes']. Nothing was charged"
    )


def _numbers(column: pd.Series[Any]) -> Inputs:
    """NaN where there is none."""
    import pandas as pd

    with np.errstate(over="ignore"):  # values too large for float32 become infinite, and then missing
        found = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
        return found.astype(np.float32)


def _classes(column: pd.Series[Any], categories: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Positions in `categories`, −1 for anything else."""
    positions = {_spelling(category): position for position, category in enumerate(categories)}
    return np.array([positions.get(_spelling(value), -1) for value in column], dtype=np.int64)


def _spelling(value: object) -> str:
    """One text for 1, 1.0, "1" and " 1.0": the type a column is read as can hang on one person's cell."""
    text = str(value).strip()
    if text.lower() in _TRUTHS:
        return text.lower()
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else repr(number)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
