"""Whether the plan in a certificate is the one that its events come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato.errors import InvalidInput, NotVerified

if TYPE_CHECKING:
    from sfumato.accounting import DpEvent
    from sfumato.ledger import Certificate

_ROUNDING = 1e-3


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What a plan would release in full, and under which terms; None where it names none."""

    event: DpEvent | None = None
    whole: bool = False  # whether a part of them must say that it is one
    epsilon: float | None = None  # where the events were found by a search, and only their price is planned
    relation: str | None = None
    unit: str | None = None
    delta: float | None = None


def check_plan(certificate: Certificate) -> bool:
    """Whether there was a plan to compare; NotVerified if it contradicts the events or the terms.

    A run that was stopped has a part of its plan's events, and states the whole of them.
    """
    try:
        planned = _planned(certificate.plan)
    except (InvalidInput, TypeError, ValueError, ArithmeticError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise NotVerified(f"expected a plan that makes sense, got one that does not: {reason}") from error
    if planned is None:
        return False
    for name in ("relation", "unit", "delta"):
        said, stated = getattr(planned, name), getattr(certificate, name)
        if said is not None and said != stated:
            raise NotVerified(
                f"expected the plan to be for {name}={stated!s}, as the certificate states, got {name}={said!s}"
            )
    if not _made_by(planned, certificate):
        raise NotVerified(
            "expected events that the certificate's plan makes, got others; plan and ε are not of one run"
        )
    return True


def _made_by(planned: Planned, certificate: Certificate) -> bool:
    from sfumato.ledger.rule import part_of, same_releases

    if planned.event is not None:
        stated = certificate.planned or certificate.event
        complete = same_releases(stated, planned.event) or not planned.whole
        return complete and part_of(certificate.event, planned.event)
    price = certificate.prices.pld
    return planned.epsilon is not None and price is not None and price <= planned.epsilon * (1 + _ROUNDING)


def _planned(plan: Mapping[str, Any]) -> Planned | None:
    """By the fields that only one kind of plan has."""
    if "noise_multiplier" in plan or "sample_rate" in plan:
        return _training(plan)
    if "adapted" in plan:
        return _adapted(plan["adapted"])
    if "images" in plan:
        return _images(plan)
    if "single_sigma" in plan:
        return _table(plan)
    if "votes" in plan:
        return _votes(plan["votes"])
    if "trial" in plan:
        return _trials(plan)
    if "randomiser" in plan:
        return _reports(plan)
    return None


def _training(plan: Mapping[str, Any]) -> Planned:
    from sfumato.training import TrainingPlan

    trained = TrainingPlan.from_json(plan)
    return Planned(event=trained.event(), whole=True, relation=str(trained.relation), unit=trained.unit)


def _adapted(plan: Mapping[str, Any]) -> Planned:
    from sfumato.accounting import compose
    from sfumato.learn.statistic import StatisticPlan
    from sfumato.training import TrainingPlan

    first, head = StatisticPlan(**plan["statistic"]), TrainingPlan.from_json(plan["head"])
    event = compose(first.event(), head.event())
    return Planned(event=event, whole=True, relation=str(head.relation), unit=head.unit)


def _images(plan: Mapping[str, Any]) -> Planned:
    from sfumato.plugins import part

    own = part("images").ImagePlan.from_json(plan)
    unit = None if own.head is None else own.head.unit
    return Planned(event=own.event(), whole=True, relation="add-remove", unit=unit)


def _table(plan: Mapping[str, Any]) -> Planned:
    from sfumato.synthesis import SynthesisPlan

    return Planned(event=SynthesisPlan.from_json(plan).event(), whole=True, relation="add-remove")


def _votes(votes: Mapping[str, Any]) -> Planned:
    from sfumato.pate import VotePlan

    return Planned(event=VotePlan(**votes).event(), relation="add-remove")


def _trials(plan: Mapping[str, Any]) -> Planned:
    from sfumato.learn.tuning import selection_event
    from sfumato.training import TrainingPlan

    trial = TrainingPlan.from_json(plan["trial"])
    event = selection_event(trial, plan["tuning"]["mean_trials"])
    return Planned(event=event, relation=str(trial.relation), unit=trial.unit)


def _reports(plan: Mapping[str, Any]) -> Planned:
    from sfumato.local import ReportPlan

    own = ReportPlan.from_json({name: plan[name] for name in ReportPlan.__dataclass_fields__ if name in plan})
    return Planned(epsilon=own.epsilon, relation="replace-one", unit="person", delta=own.delta)
