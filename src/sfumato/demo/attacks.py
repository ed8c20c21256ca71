"""What an attacker gets: from averages, from the private step itself, and from finished networks."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.accounting import Budget
from sfumato.audit import Roc
from sfumato.audit.runs import mechanism as mechanism_audit
from sfumato.demo.context import Scene
from sfumato.demo.size import Size
from sfumato.ledger import Ledger
from sfumato.query import attack
from sfumato.reproduce import membership
from sfumato.reproduce.differencing import PUBLISHED_AGE

_MEMBERSHIP_EPSILON, _MEMBERSHIP_DELTA = 1.0, 1e-4


def differencing(scene: Scene) -> dict[str, Any]:
    """Two averages give away one person's age; private ones do not. Many sums give away everybody."""
    size = scene.size
    found = attack.differencing(epsilon=1.0, tries=size.differencing_tries)
    counts, edges = np.histogram(found.private, bins=48)
    scene.progress(0.2)
    without_limit = _reconstruct(Budget(epsilon=10_000), size)
    scene.progress(0.9)
    return {
        "published_age": PUBLISHED_AGE,
        "differencing": found.to_json(),
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
        "reconstruction_without_a_limit": without_limit,
        "reconstruction_under_a_budget": _reconstruct(Budget(epsilon=5), size),
    }


def _reconstruct(budget: Budget, size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place, Ledger.open(Path(place) / "ward.db", budget=budget) as ledger:
        found = attack.reconstruction(
            ledger, people=size.reconstruction_people, queries=size.reconstruction_queries, epsilon=1.0
        )
    return asdict(found)


def audit(scene: Scene) -> dict[str, Any]:
    """Canaries through the clip, the sum and the noise of the installed trainer: claim and lower bound."""
    pairs = scene.size.audit_pairs
    done = iter(range(1, pairs + 1))
    verdict = mechanism_audit.run(pairs=pairs, on_pair=lambda: scene.progress(next(done) / pairs))
    return verdict.to_json()


def membership_attack(scene: Scene) -> dict[str, Any]:
    """The strongest of three attacks on finished networks, plain and private, as curves."""
    size = scene.size
    curves: dict[str, Any] = {}
    for number, epsilon in enumerate((None, _MEMBERSHIP_EPSILON)):
        attacked = membership.attack(
            size.data,
            size.membership_rows,
            size.membership_networks,
            size.membership_targets,
            epsilon,
            _MEMBERSHIP_DELTA,
        )
        name = "without privacy" if epsilon is None else f"ε = {epsilon:g}"
        roc = Roc.of(attacked.members["LiRA"], attacked.others["LiRA"])
        curves[name] = {
            "epsilon": epsilon,
            "curve": _thinned(roc),
            **membership.summary(attacked, _MEMBERSHIP_DELTA),
        }
        scene.progress((number + 1) / 2)
    return {"attack": "LiRA", "rows": size.membership_rows, "delta": _MEMBERSHIP_DELTA, "networks": curves}


def _thinned(roc: Roc, points: int = 60) -> list[list[float]]:
    """The curve at rates of false positives that are even on a log scale."""
    rates = np.geomspace(1e-3, 1, points)
    found = np.interp(rates, roc.false_positive_rates, roc.true_positive_rates)
    return [[float(x), float(y)] for x, y in zip(rates, found, strict=True)]
