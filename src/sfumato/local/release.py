"""A data set released as one report a person, charged before anything is drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sfumato.accounting import Budget, DpEvent, Relation, warn_of_little_protection
from sfumato.caveats import Caveat, Code
from sfumato.datasets.clean import read_rows
from sfumato.display import visible
from sfumato.errors import InvalidInput
from sfumato.ledger import Certificate, Ledger
from sfumato.local.artefact import NoisedData
from sfumato.local.columns import TablePlan
from sfumato.local.plan import ReportPlan
from sfumato.local.shuffle import shuffled_in_words
from sfumato.local.views import PRIORS, View
from sfumato.policy import Policy, ledger_place, left_out_on_purpose
from sfumato.randomness import Sampler, caveats_of_sampler
from sfumato.storage import write_whole

if TYPE_CHECKING:
    import pandas as pd

ONE_REPORT = Code.ONE_REPORT_EVER()
NO_CURATOR = Code.NO_CURATOR()
SHUFFLE_DELTA = 1e-5


def noise_images(
    images: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    *,
    plan: ReportPlan,
    view: View,
    name: str,
    sampler: Sampler,
) -> NoisedData:
    """Make one report for each image and its label; nothing else is read off them.

    Args:
        images: (people, 1, height, width), values from 0 to 1.
        labels: (people,).
        plan: How reports are made.
        view: How images become vectors.
        name: The name of the data set.
        sampler: The secret stream.

    Returns:
        The reports.

    ```python
    noised = noise_images(images, labels, plan=plan, view=view, name="mnist", sampler=SecretStream())
    ```
    """
    vectors = view.directions(images)
    said, noised = plan.randomise(labels, vectors, sampler)
    return NoisedData(labels=said, vectors=noised, plan=plan, view=view, name=name)


def open_ledger(place: str | Path, *, epsilon: float, delta: float, dataset: str | None = None) -> Ledger:
    """Open the people's ledger; a new one has room for this release and for no second one.

    Args:
        place: The ledger's file.
        epsilon: The ε of a person's report.
        delta: Its δ.
        dataset: The declared id of the data set. A new ledger gets it, and a ledger of another one is refused.

    Returns:
        The ledger.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = open_ledger(f"{folder}/people.db", epsilon=8.0, delta=0.0)
    ...     ledger.budget.epsilon
    ...     ledger.close()
    8.0
    """
    if "://" in str(place) or Path(place).exists():
        return Ledger.open(place, dataset=dataset)
    budget = Budget(epsilon=epsilon, delta=delta, unit="person", relation=Relation.REPLACE_ONE)
    return Ledger.open(place, budget=budget, dataset=dataset)


def open_policy_ledger(policy: Policy, place: Path, given: Path | None = None) -> Ledger:
    """The ledger of a policy and no other: another would have a budget of its own.

    A new one has the policy's budget. `given`, which the caller names, counts where the policy names none.
    """
    named, budget = policy.ledger, policy.budget
    warn_of_little_protection("this budget", budget.epsilon, budget.delta, people=policy.least_people)
    if given is not None and named is not None and given.resolve() != Path(named).resolve():
        raise InvalidInput(
            f"expected the ledger that the policy names, {named}, got --ledger {given}; leave --ledger out"
        )
    where = ledger_place(policy, place) if given is None else str(given)
    return open_ledger(where, epsilon=budget.epsilon, delta=budget.delta, dataset=policy.dataset)


def refuse_beyond_budget(ledger: Ledger, event: DpEvent) -> None:
    """Raise BudgetExceeded if the ledger would refuse the event now: asked before anything that takes long."""
    ledger.check(event, relation=Relation.REPLACE_ONE, unit="person")


def release_images(
    images: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    *,
    plan: ReportPlan,
    view: View,
    name: str,
    sampler: Sampler,
    ledger: Ledger,
    out: Path,
) -> tuple[NoisedData, Certificate]:
    """Check, charge, noise, write: the noised data set and its certificate beside it.

    Args:
        images: (people, 1, height, width), values from 0 to 1.
        labels: (people,).
        plan: How reports are made.
        view: How images become vectors.
        name: The name of the data set.
        sampler: The secret stream.
        ledger: Where the reports are charged.
        out: The file to write.

    Returns:
        The reports and their certificate.

    Raises:
        BudgetExceeded: If these people have reported before.

    ```python
    release_images(
        images, labels, plan=plan, view=view, name="mnist", sampler=SecretStream(), ledger=ledger, out=out
    )
    ```
    """
    refuse_to_overwrite(out)
    people = len(labels)  # public: each of them sends a report
    warn_of_little_protection("this release", plan.epsilon, plan.delta, people=people)
    refuse_beyond_budget(ledger, plan.event())
    vectors = view.directions(images)
    plan.check(labels, vectors)
    certificate = ledger.pay_for(
        plan.event(),
        purpose=visible(f"local release of {name}"),
        relation=Relation.REPLACE_ONE,
        unit="person",
        private=sampler.private,
        plan={
            **plan.to_json(),
            "view": view.kind,
            "data": name,
            "shuffled": _shuffled(plan.event(), people),
        },
        eta=plan.eta,
        caveats=[*caveats(view.kind), *caveats_of_sampler(sampler)],
    )
    said, noised = plan.randomise(labels, vectors, sampler)
    data = NoisedData(labels=said, vectors=noised, plan=plan, view=view, name=name)
    write_whole(out, data.to_bytes(), readable=True)
    certificate.write(certificate_place(out))
    return data, certificate


def certificate_place(out: Path) -> Path:
    """Name the certificate that belongs to a noised data set.

    Args:
        out: The noised data set's file.

    Returns:
        The certificate's file.

    >>> certificate_place(Path("noised.npz")).name
    'noised.certificate.json'
    """
    return out.with_suffix(".certificate.json")


def refuse_to_overwrite(out: Path) -> None:
    for place in (out, certificate_place(out)):
        if place.exists():
            raise InvalidInput(
                f"expected no file at {place}, got one; a release is made once, choose another --out"
            )


def caveats(view: str) -> Sequence[str]:
    """What a reader of the certificate should know."""
    said = [ONE_REPORT, NO_CURATOR, Code.IDEAL_SAMPLER()]
    if view in PRIORS:
        said.append(Code.PRIOR_CHOSE_REPORTS(name=repr(view)))
    return said


def _shuffled(event: DpEvent, people: int) -> dict[str, Any]:
    words = shuffled_in_words(event, people=people, delta=SHUFFLE_DELTA)
    return {"people": people, "epsilon": words}


def read_people(path: str | Path, plan: TablePlan) -> pd.DataFrame:
    """The plan's columns of a text or Parquet file.

    Each line of a text file is a row of its own, also one that cannot be read: its report is that of somebody
    without values, so that nobody is seen to be missing. Nothing but what the policy says stands for no value.
    """
    return read_rows(Path(path).expanduser(), plan.form, plan.stored).to_pandas()


def _who(plan: TablePlan) -> Caveat:
    if plan.unit_column is None:
        return Code.ROW_IS_PERSON()
    return Code.ONE_ROW_BY_COIN(unit=plan.unit_column)


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
    certificate = ledger.pay_for(
        plan.event(),
        purpose=visible(f"local release of {name}"),
        relation=Relation.REPLACE_ONE,
        unit="person",
        private=sampler.private,
        plan={"columns": [asdict(column) for column in plan.columns]},
        caveats=[
            ONE_REPORT,
            NO_CURATOR,
            Code.IDEAL_SAMPLER(),
            _who(plan),
            *left_out_on_purpose(plan.left_out),
            *caveats_of_sampler(sampler),
        ],
    )
    reports = plan.randomise(frame, sampler)
    buffer = io.BytesIO()
    np.savez(buffer, **reports)  # type: ignore[arg-type]  # stubs take the names for options
    write_whole(out, buffer.getvalue(), readable=True)
    certificate.write(certificate_place(out))
    return certificate
