"""A run folder, audited: its plan through Dirac canaries, and the canaries it was trained with, if any.

A run trained with canaries leaves private/canaries.json: for each canary its coin (`included`) and its score
(`scores`), and the number of `guesses` that was registered before training.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sfumato.audit import Guesses, Verdict, one_run
from sfumato.errors import InvalidInput
from sfumato.experiments import mechanism_audit
from sfumato.run_folder import RunFolder
from sfumato.training import TrainingPlan

UNTESTED_BY_ONE_RUN = ("whatever moves the model along no canary's direction",)


def run(path: str | Path, *, pairs: int = 40, on_pair: Callable[[], object] = bool) -> Verdict:
    """The verdict with the larger bound; also written, with both, to the run's private half."""
    folder = RunFolder(Path(path))
    plan, claim = _read(folder.release / "plan.json"), _read(folder.release / "result.json")
    figure = folder.private / "audit.png"
    verdicts = {
        "mechanism": _claimed(
            mechanism_audit.run(
                TrainingPlan.from_json(plan), delta=claim["delta"], pairs=pairs, figure=figure, on_pair=on_pair
            ),
            claim["epsilon"],
        )
    }
    canaries = folder.private / "canaries.json"
    if canaries.exists() and "scores" in (record := _read(canaries)):
        verdicts["one run"] = one_run_verdict(record, epsilon=claim["epsilon"], delta=claim["delta"])
    folder.write_json("audit.json", {name: v.to_json() for name, v in verdicts.items()}, private=True)
    return max(verdicts.values(), key=lambda verdict: (verdict.refuted, verdict.lower_bound))


def one_run_verdict(canaries: dict[str, Any], *, epsilon: float, delta: float) -> Verdict:
    """What the guesses about a run's own canaries prove, for any mechanism and if it were a Gaussian's."""
    guesses = Guesses.of_scores(canaries["scores"], canaries["included"], guesses=canaries["guesses"])
    return Verdict.of(
        partial(_best_bound, guesses, delta),
        claimed_epsilon=epsilon,
        delta=delta,
        untested=UNTESTED_BY_ONE_RUN,
        details={
            "canaries": guesses.canaries,
            "guesses": guesses.made,
            "right": guesses.right,
            "lower_bound_of_any_mechanism": one_run.epsilon_bound(guesses, delta=delta, alpha=0.05),
        },
    )


def _best_bound(guesses: Guesses, delta: float, alpha: float) -> float:
    """The better of two bounds, each at half of α."""
    return max(
        one_run.epsilon_bound(guesses, delta=delta, alpha=alpha / 2),
        one_run.gdp_epsilon_bound(guesses, delta=delta, alpha=alpha / 2),
    )


def _claimed(verdict: Verdict, epsilon: float) -> Verdict:
    """The verdict on what the run says it cost, which may be other than what its plan costs."""
    return replace(verdict, claimed_epsilon=epsilon)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InvalidInput(
            f"expected a run folder with {path.name}, got none at {path}; train with --out first"
        )
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values
