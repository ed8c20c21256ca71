"""Price shuffled batches: their own price holds, and the price of Poisson sampling would not.

Most code deals batches from a shuffled pass and prices them as if every record came by its own coin. In a pass
each record takes part exactly once, where a coin may leave it out: an attacker who hears no trace of a record
in any step of a pass knows more than Poisson sampling lets anyone know (Annamalai et al. 2024, "To shuffle or
not to shuffle"; Chua et al. 2024, "How private are DP-SGD implementations?").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np
import typer

from sfumato import datasets, models
from sfumato.accounting import Relation
from sfumato.audit import Errors, Verdict, one_run, trade_off
from sfumato.audit.runs.canaries import plan_bound
from sfumato.audit.runs.one_run import in_doubles, with_weights
from sfumato.cli import show, show_verdicts
from sfumato.randomness import SecretStream
from sfumato.training import TrainingPlan


class Prices(NamedTuple):
    """One shuffled run against two prices: its own, without amplification, and that of Poisson sampling."""

    shuffled: Verdict
    poisson: Verdict


def run(
    *,
    data: str = "digits",
    canaries: int = 20_000,
    passes: int = 4,
    batches: int = 4,
    noise_multiplier: float = 0.7,
    delta: float = 1e-5,
) -> Prices:
    """Train on shuffled batches with canaries, each zeroed out by a coin; both prices at the same noise.

    A canary is in exactly one batch of each pass and is scored alike whichever it is, so that scores of
    different canaries are independent, as those of so many runs.
    """
    size = datasets.DATASETS[data].public_size["train"] + canaries
    plan = TrainingPlan(
        sample_rate=1 / batches,
        expected_batch=size / batches,
        steps=passes * batches,
        noise_multiplier=noise_multiplier,
        sampling="shuffle",
        relation=Relation.ZERO_OUT,
    )
    errors = _errors(data, plan, canaries, delta)
    poisson = replace(plan, sampling="poisson", relation=Relation.ADD_REMOVE)
    return Prices(_verdict(errors, plan, delta), _verdict(errors, poisson, delta))


def _errors(data: str, plan: TrainingPlan, canaries: int, delta: float) -> Errors:
    rows = datasets.load(data, "train")
    network = models.build("mlp", classes=rows.classes or 2, in_channels=rows.shape[0], side=rows.shape[-1])
    included = one_run.toss(canaries, SecretStream())
    _, evidence = with_weights(network, rows, in_doubles(plan, delta=delta), plan, included)
    return Errors.at(float(np.nextafter(0, 1)), evidence[included], evidence[~included])


def _verdict(errors: Errors, plan: TrainingPlan, delta: float) -> Verdict:
    return Verdict.of(
        lambda alpha: plan_bound(
            lambda inverse: trade_off.refutes(errors, inverse, alpha=alpha), plan, delta=delta
        ),
        claimed_epsilon=plan.epsilon(delta),
        delta=delta,
        details={
            "sampling": plan.sampling,
            "false_positive_rate": errors.false_positives / errors.negatives,
            "false_negative_rate": errors.false_negatives / errors.positives,
        },
    )


def shuffle(
    canaries: Annotated[int, typer.Option(help="Number of canaries. More give a tighter bound.")] = 20_000,
    json: show.Json = False,
) -> None:
    """Audit a run on shuffled batches against its own price, and against the price of Poisson sampling.

    The second price is too low and must be refuted. Exit with 1 if it is not, or if the first one is.

    Example: sfumato reproduce shuffle
    """
    prices = run(canaries=canaries)
    show_verdicts({"its own price": prices.shuffled, "priced as Poisson": prices.poisson}, json)
    if prices.shuffled.refuted or not prices.poisson.refuted:
        raise typer.Exit(1)
