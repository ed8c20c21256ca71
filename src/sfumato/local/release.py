"""A data set of images released as one report a person: charged, noised, and kept in one file."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.accounting import Budget, DpEvent, Relation, epsilon, warn_of_little_protection
from sfumato.caveats import Code
from sfumato.datasets import public_name
from sfumato.datasets.drawings import NETS
from sfumato.display import visible
from sfumato.errors import DataUnavailable, InvalidInput
from sfumato.ledger import Certificate, Ledger
from sfumato.local.estimates import MOMENTS, ClassMoments
from sfumato.local.randomisers import ReportPlan
from sfumato.local.views import PRIORS, View
from sfumato.policy import Policy, ledger_place
from sfumato.randomness import Sampler, caveats_of_sampler
from sfumato.storage import RunFolder, write_whole

if TYPE_CHECKING:
    from sfumato.local.learning import LearntClassifier

FORMAT = 1
ONE_REPORT = Code.ONE_REPORT_EVER()
NO_CURATOR = Code.NO_CURATOR()
IDEAL = Code.IDEAL_SAMPLER()
NO_AMPLIFICATION = "no amplification"
_SHUFFLE_DELTA = 1e-5
_ARRAYS = ("labels", "vectors", "centre", "matrix")


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisedData:
    """Reports (labels and vectors), and how they were made.

    No hash of the private data is in the file, and no size but the number of reports, which is public: each
    person sends one.
    """

    labels: npt.NDArray[np.int64]  # the reported labels
    vectors: npt.NDArray[np.float32]  # (people, dimension), the reported vectors
    plan: ReportPlan  # how reports were made
    view: View  # how images became vectors
    name: str  # the name of the data set
    facts: Mapping[str, Any] = field(default_factory=dict)  # further public statements of the file

    def __len__(self) -> int:
        return len(self.labels)

    def to_bytes(self) -> bytes:
        """Return a NumPy archive, without anything that could run code."""
        about = {
            "format": FORMAT,
            "name": self.name,
            "view": self.view.kind,
            "plan": self.plan.to_json(),
            "facts": dict(self.facts),
        }
        content: dict[str, npt.NDArray[Any]] = {
            "labels": self.labels,
            "vectors": self.vectors,
            "centre": self.view.centre,
            "matrix": self.view.matrix,
            "about": np.array(json.dumps(about, ensure_ascii=False)),
        }
        if self.view.public is not None:
            content |= {f"public_{part}": getattr(self.view.public, part) for part in MOMENTS}
        return archived(content)


def archived(content: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return arrays as one NumPy archive."""
    buffer = io.BytesIO()
    np.savez(buffer, **content)  # type: ignore[arg-type]  # stubs take the names for options
    return buffer.getvalue()


def read_noised(path: str | Path) -> NoisedData:
    """Read a noised data set, and check it.

    Raises:
        DataUnavailable: If there is no such file.
        InvalidInput: If it is something else.
    """
    place = Path(path)
    if not place.is_file():
        raise DataUnavailable(f"there is no file {place}; make one with: sfumato local release")
    try:
        with np.load(place, allow_pickle=False) as archive:
            content = {name: archive[name] for name in archive.files}
        about = json.loads(str(content["about"]))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInput(
            f"expected {place} to be a noised data set, got something else; sfumato local release makes one"
        ) from error
    if about.get("format") != FORMAT or any(name not in content for name in _ARRAYS):
        raise InvalidInput(f"expected a noised data set of format {FORMAT}, got {about.get('format')!r}")
    public = None
    if all(f"public_{part}" in content for part in MOMENTS):
        public = ClassMoments(**{part: content[f"public_{part}"] for part in MOMENTS})
    return NoisedData(
        labels=content["labels"],
        vectors=content["vectors"],
        plan=ReportPlan.from_json(about["plan"]),
        view=View(kind=about["view"], centre=content["centre"], matrix=content["matrix"], public=public),
        name=about["name"],
        facts=about["facts"],
    )


def noise_images(
    images: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    *,
    plan: ReportPlan,
    view: View,
    name: str,
    sampler: Sampler,
) -> NoisedData:
    """Make one report for each image (1, height, width) and its label; nothing else is read off them."""
    said, noised = plan.randomise(labels, view.directions(images), sampler)
    return NoisedData(labels=said, vectors=noised, plan=plan, view=view, name=name)


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
    """
    refuse_to_overwrite(out)
    people = len(labels)  # public: each of them sends a report
    warn_of_little_protection("this release", plan.epsilon, plan.delta, people=people)
    refuse_beyond_budget(ledger, plan.event())
    plan.check(labels, view.directions(images))
    words = shuffled_in_words(plan.event(), people=people, delta=_SHUFFLE_DELTA)
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
            "shuffled": {"people": people, "epsilon": words},
        },
        eta=plan.eta,
        caveats=[ONE_REPORT, NO_CURATOR, IDEAL, *_of_prior(view.kind), *caveats_of_sampler(sampler)],
    )
    data = noise_images(images, labels, plan=plan, view=view, name=name, sampler=sampler)
    write_whole(out, data.to_bytes(), readable=True)
    certificate.write(certificate_place(out))
    return data, certificate


def _of_prior(view: str) -> Sequence[str]:
    if view not in PRIORS:
        return ()
    return (Code.PRIOR_CHOSE_REPORTS(name=repr(view)),)


def certificate_place(out: Path) -> Path:
    """Return the place of the certificate that belongs to a noised data set.

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


# The people's ledger


def open_ledger(place: str | Path, *, epsilon: float, delta: float, dataset: str | None = None) -> Ledger:
    """Open the people's ledger; a new one has room for this release and for no second one.

    Args:
        place: The ledger's file.
        epsilon: The ε of a person's report.
        delta: Its δ.
        dataset: The declared id of the data set. A new ledger gets it, and a ledger of another one is refused.

    Returns:
        The ledger.
    """
    if "://" in str(place) or Path(place).exists():
        return Ledger.open(place, dataset=dataset)
    budget = Budget(epsilon=epsilon, delta=delta, unit="person", relation=Relation.REPLACE_ONE)
    return Ledger.open(place, budget=budget, dataset=dataset)


def open_policy_ledger(policy: Policy, place: Path, given: Path | None = None) -> Ledger:
    """Open the ledger of a policy and no other: another would have a budget of its own.

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


# A trusted shuffler: reports without senders hide each other


def shuffled_epsilon(event: DpEvent, *, people: int, delta: float) -> float | None:
    """Return ε at δ of shuffled reports that each cost `event`; None where no amplification may be claimed.

    ε = ln(1 + (e^ε₀ − 1)/(e^ε₀ + 1) · (8√(e^ε₀ ln(4/δ)/n) + 8e^ε₀/n)), for a person's record replaced, where
    every one of n different people's reports comes from the same purely ε₀-DP randomiser and
    ε₀ ≤ ln(n/(16 ln(2/δ))). Gaussian reports are not pure.

    Feldman, McMillan & Talwar 2021, "Hiding among the clones", theorem 3.1.

    >>> from sfumato.accounting import GaussianEvent, pure
    >>> round(shuffled_epsilon(pure(1.0), people=60_000, delta=1e-5), 4)
    0.0858
    >>> shuffled_epsilon(pure(8.0), people=60_000, delta=1e-5) is None
    True
    """
    _validate.integer("people", people, least=1)
    largest = math.log(people / (16.0 * math.log(2.0 / _validate.probability("delta", delta))))
    local = epsilon(event, 0.0, relation=Relation.REPLACE_ONE)
    if not local <= largest:
        return None
    grown = math.exp(local)
    hidden = 8.0 * math.sqrt(grown * math.log(4.0 / delta) / people) + 8.0 * grown / people
    return min(local, math.log1p((grown - 1.0) / (grown + 1.0) * hidden))


def shuffled_in_words(event: DpEvent, *, people: int, delta: float) -> str:
    """Return the amplified ε in words, or that there is none, for tables and certificates."""
    found = shuffled_epsilon(event, people=people, delta=delta)
    return NO_AMPLIFICATION if found is None else f"ε = {found:.3g} at δ = {delta:g} if the shuffler is trusted"


# The run folder of a classifier learned from reports


def certificate_beside(reports: Path) -> Certificate:
    """Read the certificate of a noised data set; refused where there is none, as the cost would be unknown."""
    place = certificate_place(reports)
    if not place.is_file():
        raise DataUnavailable(
            f"expected the certificate of {reports} at {place}, got none; keep the two files together"
        )
    return Certificate.read(place)


def write_learnt(
    found: LearntClassifier,
    reports: NoisedData,
    certificate: Certificate,
    *,
    out: str | os.PathLike[str],
    test_accuracy: float | None,
) -> None:
    """Write a classifier's run folder under the reports' certificate: learning from them is post-processing."""
    import torch

    from sfumato.models import prior_note
    from sfumato.released import ModelCard, model_bytes
    from sfumato.runs import Reports, write_run

    result = Reports(
        epsilon=reports.plan.price,
        delta=reports.plan.delta,
        people=len(reports),
        test_accuracy=test_accuracy,
        data=public_name(reports.name),
    )
    card = ModelCard(
        architecture=found.architecture,
        classes=tuple(str(number) for number in range(reports.plan.classes)),
        shape=(1, 28, 28),
        settings=found.settings,
        priors={name: prior_note(name)["sha256"] for name in NETS.get(found.view.kind, ())},
    )
    tensors = {name: torch.from_numpy(value.copy()) for name, value in found.tensors().items()}
    model = model_bytes(card, tensors)
    write_run(RunFolder.begin(out), result, certificate=certificate, plan=reports.plan.to_json(), model=model)
