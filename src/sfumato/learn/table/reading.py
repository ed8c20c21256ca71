"""The policy's rows on whatever engine holds them: planned before the charge, read after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sfumato import interruption
from sfumato.errors import DataError, InvalidInput
from sfumato.policy import Policy, Unit
from sfumato.query.engines import Engine, open_engine
from sfumato.query.expressions.base import column_name
from sfumato.query.measures import UNIT
from sfumato.randomness import Sampler

if TYPE_CHECKING:
    import pyarrow as pa

_private_log = logging.getLogger("sfumato.private.query")


@dataclass(frozen=True)
class Source:
    """A table that an engine has planned to read: declared columns, sanitized, each row by itself."""

    engine: Engine
    expression: Any
    columns: tuple[str, ...]

    @classmethod
    def open(cls, policy: Policy, columns: Sequence[str], *, data: Any = None) -> Source:
        """Check the file or the database, and the columns in it; no row is looked at yet."""
        engine = open_engine(policy, data=data)
        declared = engine.declared(policy)
        wanted = {name: declared[name] for name in (column_name(column, policy) for column in columns)}
        if policy.unit.column is not None:
            wanted[UNIT] = declared[UNIT]
        expression = declared.select(**wanted)
        engine.prepare(expression)
        return cls(engine, expression, tuple(columns))

    def read(self) -> tuple[pa.Table, pa.ChunkedArray | None]:
        """All rows, and whose they are; an engine's error text may quote a row and is not shown."""
        try:
            found = self.engine.connection.to_pyarrow(self.expression)
        except Exception as error:
            interruption.check()
            _private_log.error("the rows could not be read", exc_info=error)
        else:
            units = found[UNIT] if UNIT in found.column_names else None
            return found.select(range(len(self.columns))).rename_columns(list(self.columns)), units
        raise DataError(
            f"the {self.engine.name} engine could not read the table; its message may quote private rows and "
            "goes to the log 'sfumato.private.query' only"
        )


def public_rows(policy: Policy, place: str | Path, columns: Sequence[str]) -> pa.Table:
    """Rows of a public file that is written as the policy says, such as those to measure on.

    Raises:
        InvalidInput: The file is a source of the policy: what is measured on private rows is not public.
    """
    private = (policy.source, *(one.source for one in policy.tables.values()))
    if Path(place).resolve() in [Path(source).resolve() for source in private]:
        raise InvalidInput(
            "expected public rows to measure on, got the policy's own table; a figure from private rows is a "
            "release of its own: leave --test-data out"
        )
    kept = {name: column for name, column in policy.columns.items() if name in columns}
    beside = replace(policy, source=str(place), columns=kept, unit=Unit(), tables={}, public={})
    return Source.open(beside, columns).read()[0]


def within_bound(units: pa.ChunkedArray, rows: int, sampler: Sampler) -> npt.NDArray[np.bool_]:
    """Which rows count: at most `rows` of each unit, by a secret draw of each row; none of nobody's."""
    codes = units.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
    order = np.lexsort((sampler.uniform(codes.size), codes))
    ordered = codes[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if codes.size else np.zeros(0, int)
    lengths = np.diff(np.append(first, codes.size))
    rank = np.arange(codes.size) - np.repeat(first, lengths)
    kept = np.zeros(codes.size, dtype=np.bool_)
    kept[order] = (rank < rows) & (ordered >= 0)
    return kept
