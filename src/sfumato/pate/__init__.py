"""Private labels from teachers who never share their data.

Each record has one teacher; teachers vote on public images; a noisy count of the votes becomes a label. Votes
may come from anywhere, and need no torch:

    plan = VotePlan(mechanism="gnmax", teachers=100, queries=500, sigma=40)
    answers = aggregate(read_votes("votes.npy"), plan, ledger=ledger, unit="record")

>>> VotePlan(mechanism="laplace", teachers=250, queries=100, gamma=0.05).epsilon(1e-5) < 2 * 0.05 * 100
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sfumato.pate.analysis import Analysis, SmoothRelease, analyze, moments_epsilon, moments_epsilon_of
from sfumato.pate.plan import MECHANISMS, NOISE_SHARE, VotePlan, queries_for
from sfumato.pate.votes import (
    MISSING,
    Answers,
    Voting,
    aggregate,
    assign,
    capacity_for,
    count_votes,
    draw_key,
    read_votes,
    shard_table,
)

if TYPE_CHECKING:
    from sfumato.pate.pipeline import PateResult, PateSettings, PublicSide, run
    from sfumato.pate.public import Adaptation, Representation, StudentConfig, adapt, learn
    from sfumato.pate.teachers import Ensemble, EnsembleFit, Ranks, TeacherConfig, train_teachers, vote

__all__ = [
    "MECHANISMS",
    "MISSING",
    "NOISE_SHARE",
    "Adaptation",
    "Analysis",
    "Answers",
    "Ensemble",
    "EnsembleFit",
    "PateResult",
    "PateSettings",
    "PublicSide",
    "Ranks",
    "Representation",
    "SmoothRelease",
    "StudentConfig",
    "TeacherConfig",
    "VotePlan",
    "Voting",
    "adapt",
    "aggregate",
    "analyze",
    "assign",
    "capacity_for",
    "count_votes",
    "draw_key",
    "learn",
    "moments_epsilon",
    "moments_epsilon_of",
    "queries_for",
    "read_votes",
    "run",
    "shard_table",
    "train_teachers",
    "vote",
]

# Loaded when first asked for: votes from elsewhere should not need torch
_HOMES = {
    **dict.fromkeys(("PateResult", "PateSettings", "PublicSide", "run"), "pipeline"),
    **dict.fromkeys(("Adaptation", "Representation", "StudentConfig", "adapt", "learn"), "public"),
    **dict.fromkeys(
        ("Ensemble", "EnsembleFit", "Ranks", "TeacherConfig", "train_teachers", "vote"), "teachers"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sfumato.pate' has no attribute {name!r}")
    return getattr(import_module(f"sfumato.pate.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
