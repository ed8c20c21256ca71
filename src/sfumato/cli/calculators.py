"""`sfumato epsilon` and `sfumato sigma`: the price of noise, and the noise for a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.options import Delta, fraction
from sfumato.errors import InvalidInput

if TYPE_CHECKING:
    from sfumato.accounting import DpEvent, Relation

NoiseMultiplier = Annotated[
    float,
    typer.Option(
        help="Standard deviation of the noise, divided by the clip norm: the most that one record adds."
    ),
]
SampleRate = Annotated[
    float,
    typer.Option(
        parser=fraction,
        metavar="FLOAT",
        help="Probability that a record is in a step: expected batch / number of records, as in 256/60000.",
    ),
]
Steps = Annotated[int, typer.Option(help="Number of times noise is added.")]
Group = Annotated[int, typer.Option(help="Also compute ε for a group of this many people.")]
RelationName = Annotated[
    str,
    typer.Option(
        help="add-remove, replace-one or zero-out. To replace a record moves a sum by two clip norms."
    ),
]

_PRICED = (0.05, 1e4)  # noise multipliers


def register(app: typer.Typer) -> None:
    app.command()(epsilon)
    app.command()(sigma)


def epsilon(
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    sample_rate: SampleRate = 1.0,
    steps: Steps = 1,
    group: Group = 2,
    relation: RelationName = "add-remove",
    json: show.Json = False,
) -> None:
    """Compute the ε of Gaussian noise, with sampling and repetition.

    Example: sfumato epsilon --noise-multiplier 1.1 --sample-rate 0.0042667 --steps 14062 --delta 1e-5
    """
    from sfumato import _validate, accounting

    kind = accounting.Relation(_validate.one_of("relation", relation, [str(r) for r in accounting.Relation]))
    noise = _priced(_validate.non_negative("noise_multiplier", noise_multiplier))
    plan = _plan(noise, sample_rate, steps, kind)
    rate = accounting.attacker_true_positive_rate(plan, relation=kind)
    together = _group_epsilon(plan, group, delta, kind)
    answer: dict[str, Any] = {
        "pld": accounting.epsilon(plan, delta, relation=kind),
        "rdp": accounting.rdp_epsilon(plan, delta, relation=kind),
        "delta": delta,
        "relation": str(kind),
        "group_size": group,
        "group": together,
        "attacker_true_positive_rate": rate,
    }
    answer["warning"] = accounting.protection_warning(answer["pld"], delta)
    if json:
        show.emit_json(answer)
        return
    show.facts(
        [
            ("ε, exact (PLD)", f"{answer['pld']:.4f}"),
            ("ε, Rényi bound (RDP)", f"{answer['rdp']:.4f}"),
            ("at δ", f"{delta:g}, neighbours by {kind}"),
            *_explained(noise, kind),
            (f"ε for {group} people together", _number(together)),
            *_warned(answer["warning"]),
        ]
    )
    show.console.print(accounting.in_words(rate, kind))


def _plan(noise: float, sample_rate: float, steps: int, relation: Relation) -> DpEvent:
    """Noise of so many clip norms, in each step."""
    from sfumato import accounting

    step = accounting.poisson_sampled(sample_rate, accounting.ClippedGaussianEvent(noise / _moved(relation)))
    return accounting.repeat(step, steps)


def _moved(relation: Relation) -> int:
    """By how many clip norms one record moves a sum: one goes out and another comes in, or only one does."""
    return 2 if relation == "replace-one" else 1


def _explained(noise: float, relation: Relation) -> list[tuple[str, str]]:
    if relation != "replace-one":
        return []
    return [("noise", f"{noise:g} clip norms; to replace a record moves the sum by up to two")]


def _priced(noise_multiplier: float) -> float:
    """Refuse noise that accountants cannot price, or not within minutes."""
    least, most = _PRICED
    if noise_multiplier and not least <= noise_multiplier <= most:
        raise InvalidInput(
            f"expected a noise multiplier from {least:g} to {most:g}, got {noise_multiplier:g}; with less "
            "nobody is protected, and with more hardly anything is left of an answer"
        )
    return noise_multiplier


def sigma(
    epsilon: Annotated[float, typer.Option(help="ε to spend.")],
    delta: Delta,
    sample_rate: SampleRate = 1.0,
    steps: Steps = 1,
    relation: RelationName = "add-remove",
    json: show.Json = False,
) -> None:
    """Compute the smallest noise multiplier for (ε, δ): the noise divided by the clip norm.

    Example: sfumato sigma --epsilon 1 --delta 1e-5 --sample-rate 0.01 --steps 1000
    """
    from sfumato import _validate, accounting

    kind = accounting.Relation(_validate.one_of("relation", relation, [str(r) for r in accounting.Relation]))
    budget = accounting.Budget(epsilon=epsilon, delta=delta, relation=kind)

    def plan(noise: float) -> DpEvent:
        return _plan(noise, sample_rate, steps, kind)

    if sample_rate == 1 and steps == 1:
        noise = _moved(kind) * accounting.gaussian_noise_multiplier(epsilon, delta)
    else:
        noise = accounting.calibrate(plan, budget)
    answer: dict[str, Any] = {
        "noise_multiplier": noise,
        "pld": accounting.epsilon(plan(noise), delta, relation=kind),
        "rdp": accounting.rdp_epsilon(plan(noise), delta, relation=kind),
        "warning": accounting.protection_warning(epsilon, delta),
    }
    if json:
        show.emit_json(answer)
        return
    show.facts(
        [
            ("noise multiplier", f"{noise:.6f}"),
            ("ε, exact (PLD)", f"{answer['pld']:.4f}"),
            ("ε, Rényi bound (RDP)", f"{answer['rdp']:.4f}"),
            *_explained(noise, kind),
            *_warned(answer["warning"]),
        ]
    )
    rate = accounting.attacker_true_positive_rate(plan(noise), relation=kind)
    show.console.print(accounting.in_words(rate, kind))


def _warned(warning: str | None) -> list[tuple[str, str]]:
    return [] if warning is None else [("warning", f"this {warning}")]


def _group_epsilon(plan: object, size: int, delta: float, relation: object) -> float | None:
    from sfumato import accounting
    from sfumato.errors import NotPrivate

    try:
        return accounting.epsilon(accounting.for_group(plan, size), delta, relation=relation)  # type: ignore[arg-type]
    except NotPrivate:
        return None


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"
