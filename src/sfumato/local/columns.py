"""Tables: each person's row noised column by column, as the table's policy declares (`sfumato.policy`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate, accounting
from sfumato.accounting import Relation
from sfumato.caveats import Code
from sfumato.datasets.clean import read_rows
from sfumato.datasets.text_table import TextForm
from sfumato.display import visible
from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate, Ledger
from sfumato.local.estimates import Estimate, frequencies, mean
from sfumato.local.randomisers import LaplaceVector
from sfumato.local.release import (
    IDEAL,
    NO_CURATOR,
    ONE_REPORT,
    archived,
    certificate_place,
    refuse_to_overwrite,
)
from sfumato.mechanisms import KaryResponse
from sfumato.policy import FALSE_WORDS, TRUE_WORDS, Column, Policy, left_out_on_purpose, load_policy
from sfumato.randomness import Sampler, caveats_of_sampler
from sfumato.storage import write_whole

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class ReportedColumn:
    """One column: either a number within bounds, or one of some categories; and its share of ε.

    >>> ReportedColumn(name="age", epsilon=1.0, lower=0, upper=100).encode([40, "?"]).tolist()
    [[40.0], [50.0]]
    """

    name: str
    epsilon: float
    lower: float | None = None
    upper: float | None = None
    categories: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        _validate.positive("epsilon", self.epsilon)
        if self.categories is None and (self.lower is None or self.upper is None):
            raise InvalidInput(
                f"expected columns.{self.name} to declare lower and upper, or categories; what is not declared"
                " cannot be reported without reading it off people's data"
            )
        if self.categories is not None and len(self.categories) < 2:
            raise InvalidInput(f"expected at least 2 categories in columns.{self.name}")

    @property
    def randomiser(self) -> KaryResponse | LaplaceVector:
        if self.categories is not None:
            return KaryResponse(classes=len(self.categories), epsilon=self.epsilon)
        assert self.lower is not None
        assert self.upper is not None
        return LaplaceVector(dimension=1, epsilon=self.epsilon, lower=self.lower, upper=self.upper)

    def encode(self, cells: Sequence[Any]) -> npt.NDArray[Any]:
        """Return cells as the randomiser takes them: clipped numbers (n, 1), or positions in the categories.

        No cell can cause an error: text that is no number becomes the middle of the bounds, an unknown
        category the first one; both before any noise, so that the report looks like any other.
        """
        if self.categories is not None:
            places = {_spelling(category): place for place, category in enumerate(self.categories)}
            if self.categories == (False, True):
                places |= {**dict.fromkeys(FALSE_WORDS, 0), **dict.fromkeys(TRUE_WORDS, 1)}
                cells = [cell.lower() if isinstance(cell, str) else cell for cell in cells]
            said = (0 if _is_missing(cell) else places.get(_spelling(cell), 0) for cell in cells)
            return np.fromiter(said, dtype=np.int64, count=len(cells))
        assert self.lower is not None
        assert self.upper is not None
        numbers = np.array([_number(cell, (self.lower + self.upper) / 2.0) for cell in cells])
        return np.clip(numbers, self.lower, self.upper)[:, None]

    def estimate(self, reports: npt.NDArray[Any]) -> Estimate:
        """The mean of a number, or the shares of the categories."""
        if isinstance(self.randomiser, KaryResponse):
            return frequencies(self.randomiser, reports)
        return mean(reports.reshape(-1, 1))


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """Which columns are reported, and how; the person's ε is the sum over their columns.

    Args:
        columns: The columns that are reported.
        unit_column: The column that tells people apart where they have several rows: one of each person's
            rows is reported, chosen by a secret coin. Without it every row is one person.
        form: How a text file is written: delimiter, header, missing values.
        left_out: Columns that are not reported, on purpose.

    >>> plan = TablePlan(columns=(ReportedColumn(name="age", epsilon=1.0, lower=0, upper=100),))
    >>> plan.epsilon
    1.0
    """

    columns: tuple[ReportedColumn, ...]
    unit_column: str | None = None
    form: TextForm = field(default_factory=TextForm)
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise InvalidInput("expected at least one column in the policy, got none; add [columns.NAME]")
        if self.unit_column in [column.name for column in self.columns]:
            raise InvalidInput(
                f"expected unit.column={self.unit_column!r} not to be among the columns; who somebody is "
                "cannot be reported, so drop its [columns] section"
            )

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        names = tuple(column.name for column in self.columns)
        return names if self.unit_column is None else (*names, self.unit_column)

    def event(self) -> accounting.DpEvent:
        return accounting.compose(*(column.randomiser.event() for column in self.columns))

    @property
    def epsilon(self) -> float:
        return accounting.epsilon(self.event(), 0.0, relation=Relation.REPLACE_ONE)

    def check(self, frame: pd.DataFrame) -> None:
        absent = [name for name in self.stored if name not in frame.columns]
        if absent:
            raise InvalidInput(
                f"expected the table to have the columns {', '.join(absent)}; check the spelling"
            )

    def randomise(self, frame: pd.DataFrame, sampler: Sampler) -> dict[str, npt.NDArray[Any]]:
        """Reports of each column, one for each person."""
        self.check(frame)
        if self.unit_column is not None:
            frame = frame.iloc[_one_row_each(frame[self.unit_column], sampler)]
        reports = {}
        for column in self.columns:
            cells = column.encode(list(frame[column.name]))
            reports[column.name] = column.randomiser.release(cells, sampler).reshape(-1)
        return reports

    def estimates(self, reports: Mapping[str, npt.NDArray[Any]]) -> dict[str, Estimate]:
        return {column.name: column.estimate(reports[column.name]) for column in self.columns}


def _one_row_each(people: pd.Series[Any], sampler: Sampler) -> npt.NDArray[np.int64]:
    """A place of each person, by secret coins; rows without a person count as one person's."""
    order = np.argsort(sampler.uniform(len(people)), kind="stable")
    names = [_spelling("" if _is_missing(person) else person) for person in people]
    first: dict[str, int] = {}
    for place in order.tolist():
        first.setdefault(names[place], place)
    return np.fromiter(first.values(), dtype=np.int64, count=len(first))


def _is_missing(cell: Any) -> bool:
    return cell is None or cell != cell  # NaN, which pandas has for no value


def table_plan(policy: Policy, *, epsilon: float | None = None, leave_out: Sequence[str] = ()) -> TablePlan:
    """Plan reports on the columns that a policy declares, each with an even share of ε.

    Args:
        policy: The table's declarations.
        epsilon: The ε of a person's report; the policy's budget by default.
        leave_out: Columns that are not reported.

    Returns:
        The plan.

    Raises:
        InvalidInput: If a column has neither categories nor bounds, or a date no categories.

    ```python
    plan = table_plan(load_policy("people.toml"), epsilon=2.0)
    ```
    """
    total = policy.budget.epsilon if epsilon is None else _validate.positive("epsilon", epsilon)
    columns, left_out = policy.used_columns(leave_out=leave_out)
    return TablePlan(
        columns=tuple(_reported(column, total / len(columns)) for column in columns),
        unit_column=policy.unit.column,
        form=policy.form,
        left_out=left_out,
    )


def read_table_plan(
    path: str | Path,
    *,
    epsilon: float | None = None,
    source: str | None = None,
    leave_out: Sequence[str] = (),
) -> TablePlan:
    """Read the plan of a policy file."""
    return table_plan(load_policy(path, source=source or ""), epsilon=epsilon, leave_out=leave_out)


def _reported(column: Column, share: float) -> ReportedColumn:
    if column.type == "date" and column.categories is None:
        raise InvalidInput(
            f"expected columns.{column.name} to be a number or to declare categories, got a date; declare the "
            f"days as categories, or leave it out with --leave-out {column.name}"
        )
    categories = (False, True) if column.type == "boolean" else column.categories
    low, high = column.bounds or (None, None)
    return ReportedColumn(name=column.name, epsilon=share, lower=low, upper=high, categories=categories)


def _number(cell: Any, missing: float) -> float:
    try:
        number = float(cell)
    except (TypeError, ValueError):
        return missing
    return number if np.isfinite(number) else missing


def _spelling(value: Any) -> str:
    """One text for 1, 1.0 and "1": how a column is read can hang on one person's cell."""
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else repr(number)


def read_people(path: str | Path, plan: TablePlan) -> pd.DataFrame:
    """Read the plan's columns of a text or Parquet file.

    Each line of a text file is a row of its own, also one that cannot be read: its report is that of a person
    without values, so that no person is seen to be missing. Only the policy says which text
    stands for no value.
    """
    return read_rows(Path(path).expanduser(), plan.form, plan.stored).to_pandas()


def release_table(
    frame: pd.DataFrame,
    *,
    plan: TablePlan,
    name: str,
    sampler: Sampler,
    ledger: Ledger,
    out: Path,
) -> Certificate:
    """Check, charge, noise, write: one report a person, an array a column."""
    refuse_to_overwrite(out)
    plan.check(frame)
    whose = Code.ROW_IS_PERSON() if plan.unit_column is None else Code.ONE_ROW_BY_COIN(unit=plan.unit_column)
    certificate = ledger.pay_for(
        plan.event(),
        purpose=visible(f"local release of {name}"),
        relation=Relation.REPLACE_ONE,
        unit="person",
        private=sampler.private,
        plan={"columns": [asdict(column) for column in plan.columns]},
        caveats=[
            *(ONE_REPORT, NO_CURATOR, IDEAL, whose),
            *left_out_on_purpose(plan.left_out),
            *caveats_of_sampler(sampler),
        ],
    )
    write_whole(out, archived(plan.randomise(frame, sampler)), readable=True)
    certificate.write(certificate_place(out))
    return certificate
