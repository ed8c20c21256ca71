"""A run folder, audited: its plan through Dirac canaries, and the canaries it was trained with, if any.

A run trained with canaries leaves private/canaries.json: for each canary its coin (`included`) and its score
(`scores`), and the `kind` of canaries and the number of `guesses` that were registered before training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.audit import DISPLAY_ALPHA, Guesses, Verdict, one_run, trade_off
from sfumato.audit.runs import mechanism as mechanism_audit
from sfumato.errors import InvalidInput
from sfumato.runs import Training, read_run
from sfumato.storage import RunFolder, read_json, write_figure
from sfumato.training import TrainingPlan

UNTESTED_BY_ONE_RUN = {
    "dirac": ("whatever moves the model along no canary's direction",),
    "labels": ("whoever sees more than the finished model's answers: each step, or the weights",),
}


def run(
    path: str | Path, *, pairs: int = mechanism_audit.PAIRS, on_pair: Callable[[], object] = bool
) -> Verdict:
    """The verdict with the larger bound; also written, with both, to the run's private half."""
    folder = RunFolder(Path(path))
    plan, claim = _trained(folder)
    figure = folder.private / "audit.png"
    verdicts = {
        "mechanism": _claimed(
            mechanism_audit.run(plan, delta=claim.delta, pairs=pairs, figure=figure, on_pair=on_pair),
            claim.epsilon,
        )
    }
    canaries = folder.private / "canaries.json"
    if canaries.exists() and "scores" in (record := read_json(canaries)):
        verdicts["one run"] = one_run_verdict(record, plan, epsilon=claim.epsilon, delta=claim.delta)
        draw_canaries(record, verdicts["one run"], folder.private / "canaries.png")
    folder.write_json("audit.json", {name: v.result.to_json() for name, v in verdicts.items()}, private=True)
    return max(verdicts.values(), key=lambda verdict: (verdict.refuted, verdict.lower_bound))


def _trained(folder: RunFolder) -> tuple[TrainingPlan, Training]:
    """The plan and the claim of a private training run."""
    plan, result = folder.release / "plan.json", read_run(folder.path).result
    if not isinstance(result, Training) or not plan.exists():
        raise InvalidInput(
            f"expected a run of private training at {folder.path}, got kind={result.kind!r}; "
            "train with --out first"
        )
    return _plan_of_steps(read_json(plan), folder.path), result


def _plan_of_steps(written: dict[str, Any], path: Path) -> TrainingPlan:
    """The plan, if it is one of the steps that canaries go through; other recipes write other plans."""
    known = {field.name: field.default is MISSING for field in fields(TrainingPlan)}
    if not written.keys() <= known.keys() or any(
        needed and name not in written for name, needed in known.items()
    ):
        raise InvalidInput(
            f"expected a run of clipped and noised steps (DP-SGD) at {path}, got the plan of "
            f"model={written.get('model', 'another recipe')!r}, which releases other sums; audit a run of "
            "--model mlp or of a network, and other mechanisms with sfumato audit releases"
        )
    return TrainingPlan.from_json(written)


def one_run_verdict(canaries: dict[str, Any], plan: TrainingPlan, *, epsilon: float, delta: float) -> Verdict:
    """Return the verdict of the guesses about a run's own canaries, on its plan and on any mechanism."""
    guesses = Guesses.of_scores(canaries["scores"], canaries["included"], guesses=canaries["guesses"])
    few = partial(_few_guesses_bound, guesses, plan, delta)
    details = {
        "kind_of_canaries": canaries["kind"],
        "canaries": guesses.canaries,
        "guesses": guesses.made,
        "right": guesses.right,
        "lower_bound_of_any_mechanism": one_run.epsilon_bound(guesses, delta=delta, alpha=DISPLAY_ALPHA),
    }
    bound = few
    if canaries["kind"] == "dirac" and plan.sampling == "poisson":
        # Sampled, noised and scored each by itself: every canary counts.
        every = Guesses.of_scores(canaries["scores"], canaries["included"], guesses=guesses.canaries)
        details |= {"right_of_all": every.right, "lower_bound_by_few_guesses": few(DISPLAY_ALPHA)}
        bound = partial(_every_guess_bound, every, plan, delta)
    return Verdict.of(
        bound,
        claimed_epsilon=epsilon,
        delta=delta,
        untested=UNTESTED_BY_ONE_RUN[canaries["kind"]],
        details=details,
    )


def draw_canaries(canaries: dict[str, Any], verdict: Verdict, path: Path) -> Path:
    """Histograms of the scores of both sides of the coin; grey is where no guess was made."""
    from matplotlib.figure import Figure

    scores, included = np.array(canaries["scores"]), np.array(canaries["included"], dtype=np.bool_)
    edge = float(np.sort(np.abs(scores))[-canaries["guesses"]])
    image = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = image.subplots()
    bins = np.histogram_bin_edges(scores, 80).tolist()
    for name, coin, colour in (("in", included, "C0"), ("out", ~included, "C1")):
        axes.hist(scores[coin], bins, alpha=0.5, color=colour, label=f"canaries that were {name}")
    axes.axvspan(-edge, edge, color="0.5", alpha=0.15, lw=0, label="not guessed")
    axes.set(yscale="log", xlabel="the attacker's score: in to the right, out to the left", ylabel="canaries")
    axes.set_title(
        f"{verdict.details['right']} of {verdict.details['guesses']} guesses right: "
        f"claimed ε {verdict.claimed_epsilon:.3g}, proved ε ≥ {verdict.lower_bound:.3g}"
    )
    axes.margins(x=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return write_figure(path, image)


def _few_guesses_bound(guesses: Guesses, plan: TrainingPlan, delta: float, alpha: float) -> float:
    """Return the bound from the surest guesses alone, valid for any dependence of canaries."""
    return plan_bound(lambda inverse: one_run.refutes(guesses, inverse, alpha=alpha), plan, delta=delta)


def _every_guess_bound(guesses: Guesses, plan: TrainingPlan, delta: float, alpha: float) -> float:
    """For canaries that are independent of each other under the plan: by all guesses."""

    def refuted(stronger: TrainingPlan) -> bool:
        variation = trade_off.total_variation(stronger.event(), relation=plan.relation)
        return one_run.refutes_apart(guesses, total_variation=variation, alpha=alpha)

    return _largest_refuted(refuted, plan, delta=delta)


def plan_bound(
    refuted: Callable[[trade_off.InverseBlowUp], bool], plan: TrainingPlan, *, delta: float
) -> float:
    """The plan's ε if its noise were as little as an attack allows: all that hides more is refuted."""

    def too_strong(stronger: TrainingPlan) -> bool:
        return refuted(trade_off.event_inverse(stronger.event(), relation=plan.relation))

    return _largest_refuted(too_strong, plan, delta=delta)


def _largest_refuted(refuted: Callable[[TrainingPlan], bool], plan: TrainingPlan, *, delta: float) -> float:
    def with_noise(strength: float) -> TrainingPlan:
        return replace(plan, noise_multiplier=1 / strength)

    strength = trade_off.strength_bound(lambda s: refuted(with_noise(s)), start=1 / plan.noise_multiplier)
    return with_noise(strength).epsilon(delta) if strength else 0.0


def _claimed(verdict: Verdict, epsilon: float) -> Verdict:
    """Return the verdict on the ε that the run claims, which may differ from that of its plan."""
    return replace(verdict, claimed_epsilon=epsilon)
