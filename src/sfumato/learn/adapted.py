"""A run that first measures something of the private features, then trains a head on them: one charge.

The whole is paid for before a row is looked at, so that a run that is interrupted stays paid and begins anew.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from sfumato import runs as results
from sfumato.accounting import epsilon as priced
from sfumato.datasets import Dataset, public_name
from sfumato.fitting import evaluate
from sfumato.learn import features
from sfumato.learn.classifier import Classifier, Place, Trained, Watch
from sfumato.ledger import Ledger, Unrecorded
from sfumato.models import FeatureClassifier
from sfumato.randomness import Sampler, SecretStream
from sfumato.released import Predictor, Released
from sfumato.storage import RunFolder
from sfumato.training import EpochReport, HeldOut, TrainingResult, train


def train_adapted(
    ready: Classifier,
    *,
    ledger: Ledger | None,
    out: Place | None,
    purpose: str,
    caveats: tuple[str, ...],
    sampler: Sampler | None,
    on_step: Watch,
    on_epoch: Callable[[EpochReport], None] | None,
) -> Trained:
    """Charge, measure, adapt the features, train the head, release; as `Classifier.train`."""
    started = time.perf_counter()
    stream = SecretStream() if sampler is None else sampler
    folder = None if out is None else RunFolder.begin(out)
    rows, held = ready.split(out, stream)
    plan = {"adapted": {"statistic": vars(ready.statistic), "head": ready.plan.to_json()}}
    certificate = (Unrecorded(delta=ready.delta) if ledger is None else ledger).pay_for(
        ready.training_event(),
        purpose=purpose,
        relation=ready.plan.relation,
        unit=ready.plan.unit,
        private=rows.chosen.private_with(stream),
        plan=plan,
        eta=None if ready.statistic is None else ready.statistic.mechanism.eta,
        caveats=(
            *caveats,
            "rounding errors are stated for what is measured first; the head has its own bound",
            *rows.chosen.caveats_with(stream),
        ),
    )
    network = _adapt(ready, rows, stream)
    test = None if ready.test is None else features.adapted(network, ready.test)
    head = train(
        network.head,
        features.adapted(network, rows),
        plan=ready.plan,
        delta=ready.delta,
        optimization=ready.optimization,
        test=test,
        sampler=stream,
        on_step=on_step,
        on_epoch=None if on_epoch is None else lambda report: on_epoch(_whole(report, ready)),
    )
    released = Released(module=network, card=ready.card)
    certificate = certificate.with_part(head.certificate)
    result = replace(
        head,
        model=network,
        epsilon=ready.epsilon,
        certificate=certificate,
        history=tuple(_whole(report, ready) for report in head.history[-1:]),
    )
    if folder is not None:
        _write(folder, result, released, plan, ready.rows)
    kept = None if held is None else HeldOut(rows=features.adapted(network, held.rows))
    return Trained(
        result=result,
        predictor=Predictor.of(released, certificate),
        test=None if test is None else evaluate(network.head, test),
        held_out=ready.measure(network, kept, ledger, out, sampler),
        epsilon_with_hold_out=ready.epsilon_with_hold_out,
        seconds=time.perf_counter() - started,
    )


def _adapt(ready: Classifier, rows: Dataset, sampler: Sampler) -> FeatureClassifier:
    """A copy of the network that has taken in what was measured of the rows."""
    network = copy.deepcopy(ready.network).cpu()
    assert isinstance(network, FeatureClassifier)
    assert ready.statistic is not None
    measured = ready.statistic.measure(
        rows.tensors()[0],
        public_size=round(ready.plan.expected_batch / ready.plan.sample_rate),
        sampler=sampler,
    )
    network.adapt(measured)
    return network


def _whole(report: EpochReport, ready: Classifier) -> EpochReport:
    """The same report with the ε of what was measured first as well."""
    spent = priced(ready.training_event(report.step), ready.delta, relation=ready.plan.relation)
    return structs.replace(report, epsilon_if_fixed_in_advance=spent)


def _write(
    folder: RunFolder, result: TrainingResult, released: Released, plan: Mapping[str, Any], rows: Dataset
) -> None:
    results.write_run(
        folder,
        results.Training(
            epsilon=result.epsilon,
            delta=result.delta,
            test_accuracy=result.test_accuracy,
            test_loss=result.history[-1].test_loss if result.history else None,
            data=public_name(rows.name),
        ),
        certificate=result.certificate,
        plan=plan,
        history=result.history,
        model=released.to_bytes(),
        seconds=result.seconds,
    )
