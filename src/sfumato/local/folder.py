"""The run folder of a classifier learned from reports; what it cost was paid when they were noised."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from sfumato.datasets import public_name
from sfumato.datasets.drawings import NETS
from sfumato.errors import DataUnavailable
from sfumato.ledger import Certificate
from sfumato.local.artefact import NoisedData
from sfumato.local.learning import LearntClassifier
from sfumato.local.release import certificate_place
from sfumato.models import prior_note
from sfumato.released import ModelCard, model_bytes
from sfumato.runs import Reports, write_run
from sfumato.storage import RunFolder

_SHAPE = (1, 28, 28)


def certificate_beside(reports: Path) -> Certificate:
    """Of a noised data set; refused where there is none, as nobody could say what the model cost."""
    place = certificate_place(reports)
    if not place.is_file():
        raise DataUnavailable(
            f"expected the certificate of {reports} at {place}, got none; keep the two files together"
        )
    return Certificate.read(place)


def card(found: LearntClassifier, classes: int) -> ModelCard:
    kind = found.view.kind
    return ModelCard(
        architecture=found.architecture,
        classes=tuple(str(number) for number in range(classes)),
        shape=_SHAPE,
        settings=found.settings,
        priors={name: prior_note(name)["sha256"] for name in NETS.get(kind, ())},
    )


def write_learnt(
    found: LearntClassifier,
    reports: NoisedData,
    certificate: Certificate,
    *,
    out: str | os.PathLike[str],
    test_accuracy: float | None,
) -> None:
    """Learning from reports is post-processing: the folder's certificate is that of the reports."""
    result = Reports(
        epsilon=reports.plan.price,
        delta=reports.plan.delta,
        people=len(reports),
        test_accuracy=test_accuracy,
        data=public_name(reports.name),
    )
    tensors = {name: torch.from_numpy(value.copy()) for name, value in found.tensors().items()}
    model = model_bytes(card(found, reports.plan.classes), tensors)
    write_run(RunFolder.begin(out), result, certificate=certificate, plan=reports.plan.to_json(), model=model)
