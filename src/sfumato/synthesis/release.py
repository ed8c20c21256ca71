"""A synthetic table on disk: the table, the model that can draw more, the certificate and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sfumato import _validate
from sfumato.accounting import warn_of_little_protection
from sfumato.caveats import Code
from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate, Ledger
from sfumato.policy import Policy, left_out_on_purpose
from sfumato.randomness import Sampler, SecretStream, caveats_of_sampler
from sfumato.storage import json_bytes, make_folder, write_whole
from sfumato.synthesis import fidelity
from sfumato.synthesis.cells import (
    FORMATS,
    CellColumn,
    cell_columns,
    declared_cells,
    to_table,
    write_table,
)
from sfumato.synthesis.counting import Clique, Marginals
from sfumato.synthesis.fidelity import page
from sfumato.synthesis.inference import load_mbi
from sfumato.synthesis.model import MOST_ROWS
from sfumato.synthesis.plan import RELATION, PaidTable, SynthesisPlan, default_picks
from sfumato.synthesis.rules import Rules
from sfumato.synthesis.synthesizer import (
    TOO_LITTLE,
    Progress,
    Synthesizer,
    most_cells,
    stages_of,
    wanted,
    with_target,
    workload,
)

PURPOSE = "synthetic table"
_FEWEST_CELLS = 4  # of two columns that can depend on each other
CAVEATS = (Code.DRAWN_FROM_MARGINALS(), Code.POLICY_BOUNDS(), Code.IDEAL_SAMPLER())


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request, checked against the policy before anything is spent. `Request.of` makes one."""

    policy: Policy
    columns: tuple[CellColumn, ...]
    rules: Rules
    left_out: tuple[str, ...]
    candidates: tuple[Clique, ...]
    fixed: tuple[Clique, ...]
    asked: tuple[Clique, ...]
    plan: SynthesisPlan
    rows: int
    delta: float

    @classmethod
    def of(
        cls,
        policy: Policy,
        *,
        rows: int,
        epsilon: float,
        delta: float | None = None,
        target: str | None = None,
        columns: Sequence[str] | None = None,
        marginals: Sequence[Sequence[str]] | None = None,
        leave_out: Sequence[str] = (),
    ) -> Request:
        """The plan for a policy's table; δ is the budget's unless given.

        Raises:
            InvalidInput: a column has neither categories nor bounds and is not left out, δ is 0, or a name is
                not the policy's.
        """
        _validate.integer("rows", rows, least=1)
        if rows > MOST_ROWS:
            raise InvalidInput(f"expected rows <= {MOST_ROWS}, got rows={rows}; draw in parts from the model")
        delta = policy.budget.delta if delta is None else delta
        warn_of_little_protection("this table", epsilon, delta, people=policy.least_people)
        every, left_out = cell_columns(policy, columns, leave_out=leave_out)
        rules = Rules.of(policy.synthesis, declared_cells(policy)).only([column.name for column in every])
        found = tuple(column for column in every if column not in rules.looked_up)
        target = None if target is None else _target(found, target)
        candidates = workload(found, target=target, named=marginals)
        fixed = () if target is None else with_target(found, target)
        picks = default_picks(len(found), len(candidates), len(fixed))
        plan = SynthesisPlan.calibrated(
            epsilon=epsilon,
            delta=delta,
            columns=len(found),
            picks=picks,
            rows=policy.unit.rows,
            fixed=len(fixed),
            target=target,
        )
        return cls(
            policy=policy,
            columns=found,
            rules=rules,
            left_out=left_out,
            candidates=candidates,
            fixed=fixed,
            asked=tuple(dict.fromkeys((*fixed, *wanted(found, named=marginals)))),
            plan=plan,
            rows=rows,
            delta=delta,
        )

    @property
    def stages(self) -> int:
        """How many stages a release tells of, at most."""
        return stages_of(self.plan) + 1

    @property
    def forecast(self) -> str | None:
        """A sentence, before anything is spent, where ε is too small for the declared number of people."""
        size = self.policy.public_size
        if size is None or not self.plan.measured:
            return None
        if most_cells(self.plan, size * self.plan.rows) >= _FEWEST_CELLS:
            return None
        return f"{TOO_LITTLE}; expected more epsilon or fewer --columns for public_size={size}"

    @property
    def drawn(self) -> tuple[CellColumn, ...]:
        """The columns of the synthetic table, in the policy's order."""
        order = list(self.policy.columns)
        return tuple(
            sorted((*self.columns, *self.rules.looked_up), key=lambda column: order.index(column.name))
        )


@dataclass(frozen=True)
class Places:
    """Where the files of one synthetic table go; none of them may be there yet.

    >>> Places(Path("synthetic-people.csv")).table.name
    'synthetic-people.csv'
    """

    table: Path

    def __post_init__(self) -> None:
        _validate.one_of("the file's ending", self.table.suffix.lower(), FORMATS)
        if not self.table.parent.is_dir():
            raise InvalidInput(
                f"expected --out in a folder that exists, got {self.table}; make the folder first"
            )
        for place in (
            self.table,
            self.certificate,
            self.model,
            self.report,
            self.text,
            self.page,
            self.distances,
            self.attack,
        ):
            if place.exists():
                raise InvalidInput(
                    f"expected no file at {place}, got one; a release is made once, choose another --out"
                )

    @property
    def certificate(self) -> Path:
        return self.table.with_suffix(".certificate.json")

    @property
    def model(self) -> Path:
        return self.table.with_suffix(".model.npz")

    @property
    def report(self) -> Path:
        return self.table.with_suffix(".fidelity.json")

    @property
    def text(self) -> Path:
        return self.table.with_suffix(".fidelity.txt")

    @property
    def page(self) -> Path:
        return self.table.with_suffix(".fidelity.html")

    @property
    def distances(self) -> Path:
        return self.table.parent / "private" / f"{self.table.stem}.distances.json"

    @property
    def attack(self) -> Path:
        return self.distances.with_suffix("").with_suffix(".attack.json")

    def write_private(self, place: Path, value: Any) -> None:
        """Into a folder that only its owner can read."""
        make_folder(place.parent)
        write_whole(place, json_bytes(value))


@dataclass(frozen=True)
class Released:
    """A synthetic table that is on disk."""

    certificate: Certificate
    report: dict[str, Any]
    epsilon: float
    notes: tuple[str, ...]


def release(
    request: Request,
    marginals: Marginals,
    *,
    ledger: Ledger,
    out: Path,
    sampler: Sampler,
    progress: Progress = lambda words: None,
) -> Released:
    """Check, charge, measure, fit, draw, write.

    Args:
        request: The request.
        marginals: The table's counts.
        ledger: Where the plan is charged.
        out: The synthetic table's file, .csv or .parquet.
        sampler: The secret stream.
        progress: Called as measurements are made.

    Returns:
        The places of the files, and the cost.

    Raises:
        BudgetExceeded: If the ledger has no room. Nothing is read.

    ```python
    released = release(request, marginals, ledger=ledger, out=Path("synthetic.csv"), sampler=SecretStream())
    ```
    """
    places, plan, policy = Places(out), request.plan, request.policy
    ledger.check_unit(policy.budget.unit)
    ledger.check_dataset(policy.dataset)
    load_mbi()
    _rehearse(request)
    marginals.prepare()  # the engine plans the counts; no row is read yet
    charge = ledger.charge(
        plan.event(), purpose=PURPOSE, relation=RELATION, unit=policy.budget.unit, private=sampler.private
    )
    paid = PaidTable(plan, marginals, sampler)
    run = Synthesizer(paid, request.columns, request.candidates, fixed=request.fixed, progress=progress)
    found = run.run()
    progress("drawing")
    order = tuple(column.name for column in request.drawn)
    model = replace(found.model, rules=request.rules, order=order)
    model.write(places.model)  # first: more rows can be drawn from it for nothing after any failure
    cells = model.draw(request.rows, sampler=sampler)
    drawn = len(next(iter(cells.values())))
    missed = [clique for clique in request.asked if clique not in found.measured]
    notes = (
        *left_out_on_purpose(request.left_out),
        *found.notes,
        *_missed(missed, plan.target),
        *_fewer(request.rows, drawn),
    )
    report = fidelity.report(found, request.asked, notes, target=plan.target)
    stated = {**plan.to_json(), "table": policy.table, "version": policy.version, "drawn": drawn}
    certificate = ledger.certificate(
        charge, plan=stated, caveats=(*CAVEATS, *notes, *caveats_of_sampler(sampler))
    )
    certificate.write(places.certificate)
    write_table(to_table(request.drawn, cells, sampler), places.table)
    write_whole(places.report, json_bytes(report), readable=True)
    write_whole(places.text, fidelity.in_words(report).encode(), readable=True)
    write_whole(places.page, page(report).encode(), readable=True)
    places.write_private(places.distances, fidelity.distances(found, paid.exact_shares()))
    return Released(certificate, report, plan.epsilon(request.delta), notes)


def _rehearse(request: Request) -> None:
    """Write one made-up row of the first cells, to find values that the columns cannot hold now."""
    cells = {column.name: np.zeros(1, dtype=np.int64) for column in request.drawn}
    try:
        to_table(request.drawn, cells, SecretStream())
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidInput(
            "expected whole numbers below 2**63 in the policy's categories and bounds, got larger ones"
        ) from error


def _target(columns: Sequence[CellColumn], name: str) -> str:
    for column in columns:
        if column.name.lower() == name.lower():
            return column.name
    raise InvalidInput(
        f"expected a target among the columns that are synthesized, got {name!r}; they are "
        + ", ".join(column.name for column in columns)
    )


def _missed(missed: Sequence[Clique], target: str | None) -> tuple[str, ...]:
    others = [name for clique in missed if target in clique for name in clique if name != target]
    if target is None or not others:
        return ()
    return (Code.NOT_WITH_TARGET(target=target, columns=", ".join(others)),)


def _fewer(wanted: int, drawn: int) -> tuple[str, ...]:
    if drawn == wanted:
        return ()
    return (Code.ROWS_MISSING(rows=wanted - drawn),)
