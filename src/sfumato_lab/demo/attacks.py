"""Attack averages, the private step itself, and finished networks."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from sfumato.accounting import Budget, GaussianEvent, gaussian_noise_multiplier
from sfumato.audit import Roc
from sfumato.audit.runs import mechanism as mechanism_audit
from sfumato.errors import BudgetExceeded
from sfumato.ledger import Ledger, statement
from sfumato.runs import (
    AttackedNetwork,
    Audit,
    AverageAttack,
    ChargeLine,
    Differencing,
    Histogram,
    LedgerStatement,
    Membership,
    PointEstimate,
    Reconstruction,
)
from sfumato_lab.demo.context import BUDGET, Size, StageContext
from sfumato_lab.reproduce import averages, membership

_MEMBERSHIP_EPSILON, _MEMBERSHIP_DELTA = 1.0, 1e-4
_ATTACKER = "LiRA"
_FALSE_POSITIVE_RATE = 0.001  # at which `membership.summary` counts
_ATTACK = ("truth", "averages_only", "private_95", "share_within_5_years", "tries", "epsilon")


def differencing(context: StageContext) -> Differencing:
    """Two averages give away one person's age; private ones do not. Many sums give away everybody."""
    size = context.size
    found = averages.differencing(epsilon=1.0, tries=size.differencing_tries)
    counts, edges = np.histogram(found.private, bins=48)
    context.progress(0.2)
    without_limit = _reconstruct(Budget(epsilon=10_000), size)
    context.progress(0.9)
    return Differencing(
        attack=_average_attack(found),
        histogram=Histogram(counts=tuple(counts.tolist()), edges=tuple(edges.tolist())),
        without_a_limit=without_limit,
        under_a_budget=_reconstruct(Budget(epsilon=5), size),
    )


def _average_attack(found: averages.Differencing) -> AverageAttack:
    """The attack with the averages that it was made from, which the simulated people give exactly."""
    everybody = averages.village()
    others = everybody[everybody.name == "Peter"]
    stated = found.to_json()
    return AverageAttack(
        large_group=len(everybody),
        large_average=float(everybody.age.mean()),
        small_group=len(others),
        small_average=float(others.age.mean()),
        minimum_group=averages.MINIMUM_GROUP,
        ages=averages.AGES,
        **{name: stated[name] for name in _ATTACK},
    )


def _reconstruct(budget: Budget, size: Size) -> Reconstruction:
    with tempfile.TemporaryDirectory() as place, Ledger.open(Path(place) / "ward.db", budget=budget) as ledger:
        found = averages.reconstruction(
            ledger, people=size.reconstruction_people, queries=size.reconstruction_queries, epsilon=1.0
        )
    return Reconstruction(**asdict(found))


def audit(context: StageContext) -> Audit:
    """Canaries through the clip, the sum and the noise of the installed trainer: claim and lower bound."""
    pairs = context.size.audit_pairs
    done = iter(range(1, pairs + 1))
    verdict = mechanism_audit.run(pairs=pairs, on_pair=lambda: context.progress(next(done) / pairs))
    return verdict.result


def membership_attack(context: StageContext) -> Membership:
    """The strongest of three attacks on finished networks, plain and private, as curves."""
    size = context.size
    networks = []
    for number, epsilon in enumerate((None, _MEMBERSHIP_EPSILON)):
        attacked = membership.attack(
            size.data,
            size.membership_rows,
            size.membership_networks,
            size.membership_targets,
            epsilon,
            _MEMBERSHIP_DELTA,
        )
        networks.append(_attacked_network(attacked, epsilon))
        context.progress((number + 1) / 2)
    return Membership(
        attack=_ATTACKER,
        members=size.membership_rows // 2,
        delta=_MEMBERSHIP_DELTA,
        false_positive_rate=_FALSE_POSITIVE_RATE,
        networks=tuple(networks),
    )


def _attacked_network(attacked: membership.Attacked, epsilon: float | None) -> AttackedNetwork:
    found = membership.summary(attacked, _MEMBERSHIP_DELTA)
    return AttackedNetwork(
        name="without privacy" if epsilon is None else f"ε = {epsilon:g}",
        epsilon=epsilon,
        test_accuracy=found["test_accuracy"],
        auc=PointEstimate(**found[_ATTACKER]["auc"]),
        true_positive_rate=PointEstimate(**found[_ATTACKER]["tpr_at_fpr_0.001"]),
        curve=_thinned(Roc.of(attacked.members[_ATTACKER], attacked.others[_ATTACKER])),
    )


def _thinned(roc: Roc, points: int = 60) -> tuple[tuple[float, float], ...]:
    """The curve at rates of false positives that are even on a log scale."""
    rates = np.geomspace(1e-3, 1, points)
    found = np.interp(rates, roc.false_positive_rates, roc.true_positive_rates)
    return tuple((float(x), float(y)) for x, y in zip(rates, found, strict=True))


_STATED = (
    *("epsilon", "delta", "unit", "relation"),
    *("epsilon_spent", "epsilon_left", "balance", "epsilon_if_fixed_in_advance"),
)


def balance(context: StageContext) -> LedgerStatement:
    """Return the ledger's statement, with the ε spent after each charge, and a refusal."""
    with context.ledger() as ledger:
        spent = {charge.head.sequence: charge.epsilon_spent for charge in ledger.charges()}
        found = statement.as_json(ledger)
        refusal = _ask_for_too_much(ledger) if found["charges"] else None
    charges = [
        ChargeLine(
            epsilon_spent=spent.get(line["entry"], found["epsilon_spent"]),
            **{name: line[name] for name in ("entry", "purpose", "epsilon", "private")},
        )
        for line in found["charges"]
    ]
    return LedgerStatement(**{name: found[name] for name in _STATED}, charges=tuple(charges), refusal=refusal)


def _ask_for_too_much(ledger: Ledger) -> str:
    """A release that costs the whole budget, where some of it is spent already."""
    everything = GaussianEvent(gaussian_noise_multiplier(BUDGET.epsilon, BUDGET.delta))
    try:
        ledger.charge(
            everything,
            purpose="one release more than the budget allows",
            relation=BUDGET.relation,
            unit=BUDGET.unit,
        )
    except BudgetExceeded as error:
        return str(error)
    raise AssertionError("the ledger let an overspending release through")
