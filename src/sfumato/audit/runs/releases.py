"""Every kind of release, attacked from end to end through the calls that its users make.

sfumato audit releases

One person (or message) comes, goes or says something else; everything else is the attacker's choice. The attack
covers the whole way from the data to the answer: reading, clamping, counting, voting, noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato import accounting
from sfumato.audit import Bound, Draws, Errors, Score, Verdict, balanced_mu_bound, distinguish, gdp_epsilon
from sfumato.audit.bounds import epsilon_bound
from sfumato.ledger import Ledger
from sfumato.local import ReportPlan
from sfumato.pate import VotePlan, Voting
from sfumato.query import Table, policy_from_dict
from sfumato.randomness import SecretStream

DELTA = 1e-5
_GROUPS = 1_000  # of a table; each holds one pair of neighbours
_REPORTS = 20_000
_VOTINGS, _QUERIES = 400, 10
_FAR_OUT = 10**6  # the claim of the person whose value must be clamped

Floats = npt.NDArray[np.float64]


def counts() -> Verdict:
    """COUNT by SQL, with one person more in a group."""
    return _query("COUNT(*)", epsilon=1.0, threshold=1.5)


def sums() -> Verdict:
    """SUM by SQL, with one person more in a group, who claims far more than the column allows."""
    return _query("SUM(age)", epsilon=1.0, threshold=149.5)


def _query(aggregate: str, *, epsilon: float, threshold: float) -> Verdict:
    """The groups of one table are answered apart, so that each is a trial of its own.

    Laplace noise tells most just below the larger of the two true answers, where the threshold is: none has to
    be found on answers.
    """
    more, fewer = (np.concatenate([_asked(aggregate, people, epsilon) for _ in range(2)]) for people in (2, 1))
    errors = Errors.at(threshold, more, fewer)
    return Verdict.of(partial(_pure, errors), claimed_epsilon=epsilon, delta=0.0, details={"trials": len(more)})


def _asked(aggregate: str, people: int, epsilon: float) -> Floats:
    """The answers to one query on a table with so many people in each group."""
    import pandas as pd

    groups = [f"g{number:04d}" for number in range(_GROUPS)]
    policy = policy_from_dict(
        {
            "table": {"name": "people", "source": "people.csv"},
            "unit": {},
            "budget": {"epsilon": epsilon, "delta": DELTA},
            "columns": {
                "age": {"type": "integer", "lower": 0, "upper": 100},
                "place": {"type": "text", "categories": groups},
            },
        }
    )
    table = pd.DataFrame({"age": [50, _FAR_OUT][:people] * _GROUPS, "place": np.repeat(groups, people)})
    sql = f"SELECT place, {aggregate} FROM people GROUP BY place"
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(Path(folder) / "people.db", budget=policy.budget) as ledger,
    ):
        answer = Table(policy, ledger, data=table).ask(sql, epsilon=epsilon, noise="laplace")
    return np.array([row[1] for row in answer.rows], dtype=np.float64)


def reports(randomiser: str = "direction") -> Verdict:
    """A person's label and vector, noised before they leave, against the opposite vector and another label."""
    delta = 0.0 if randomiser == "direction" else DELTA
    plan = ReportPlan(classes=10, dimension=8, epsilon=4.0, delta=delta, randomiser=randomiser)
    axis = np.eye(plan.dimension)[0]

    def drawn(side: int, trials: int) -> npt.NDArray[Any]:
        labels, vectors = np.full(trials, side), np.tile(axis if side else -axis, (trials, 1))
        said, points = plan.randomise(labels, vectors, SecretStream())
        return np.column_stack([said, points])

    def score(seen: npt.NDArray[Any]) -> Floats:
        said, points = seen[:, 0].astype(np.int64), seen[:, 1:]
        if randomiser == "direction":
            known = plan.labelled_direction
            return known.log_density(said, points, 1, axis) - known.log_density(said, points, 0, -axis)
        split = plan.gaussian_split
        truth = np.log(split.label.keep_probability) - np.log(
            (1 - split.label.keep_probability) / (plan.classes - 1)
        )
        votes = truth * ((said == 1).astype(np.float64) - (said == 0))
        return votes + 2 * (points @ axis) / split.vector.sigma**2

    bound = partial(_any, delta=delta)
    return _verdict(
        partial(drawn, 1), partial(drawn, 0), bound, plan.price, trials=_REPORTS, score=score, delta=delta
    )


def teachers() -> Verdict:
    """All labels of one PATE run, of which one record moved one teacher's vote on every query."""
    plan = VotePlan(mechanism="gnmax", teachers=100, queries=2 * _VOTINGS * _QUERIES, classes=2, sigma=4.0)
    one_run = VotePlan(mechanism="gnmax", teachers=100, queries=_QUERIES, classes=2, sigma=4.0)

    def drawn(ahead: int, trials: int) -> Floats:
        votes = np.tile([50 + ahead, 50 - ahead], (trials * _QUERIES, 1))
        labels = Voting(plan).ask(votes)
        return (labels.reshape(trials, _QUERIES) == 0).sum(axis=1).astype(np.float64)

    claimed = accounting.epsilon(one_run.event(), DELTA)
    return _verdict(
        partial(drawn, 1), partial(drawn, 0), _gdp, claimed, trials=_VOTINGS, score=_as_seen, delta=DELTA
    )


RELEASES: Mapping[str, Callable[[], Verdict]] = {
    "queries: COUNT": counts,
    "queries: SUM": sums,
    "local reports: direction": reports,
    "local reports: Gaussian": partial(reports, "gaussian"),
    "PATE: a run's labels": teachers,
}


def _verdict(
    on_one: Draws,
    on_other: Draws,
    bound: Bound,
    claimed: float,
    *,
    trials: int,
    score: Score,
    delta: float = 0.0,
) -> Verdict:
    errors = distinguish(on_one, on_other, bound, trials=trials, score=score)
    return Verdict.of(partial(bound, errors), claimed_epsilon=claimed, delta=delta, details={"trials": trials})


def _as_seen(seen: npt.NDArray[Any]) -> Floats:
    return np.asarray(seen, dtype=np.float64)


def _pure(errors: Errors, alpha: float) -> float:
    return epsilon_bound(errors, delta=0.0, alpha=alpha)


def _any(errors: Errors, alpha: float, *, delta: float) -> float:
    return epsilon_bound(errors, delta=delta, alpha=alpha)


def _gdp(errors: Errors, alpha: float, *, delta: float = DELTA) -> float:
    return gdp_epsilon(balanced_mu_bound(errors, alpha=alpha), delta)
