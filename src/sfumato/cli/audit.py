"""`sfumato audit`: attack our own releases, and put a number under every ε."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.options import fraction

if TYPE_CHECKING:
    from sfumato.audit import Verdict

Pairs = Annotated[
    int, typer.Option(help="Number of pairs of steps to observe. More pairs give a tighter bound.")
]
Delta = Annotated[float, typer.Option(help="The δ at which ε is stated.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Attack releases and compare the proven lower bound of ε with the claim.", no_args_is_help=True
    )
    for command in (mechanism, run, randomisers, releases):
        group.command()(command)
    app.add_typer(group, name="audit")


def mechanism(
    noise_multiplier: Annotated[float, typer.Option(help="Noise multiplier of the plan.")] = 1.1,
    sample_rate: Annotated[
        float, typer.Option(parser=fraction, metavar="FLOAT", help="Sample rate of the plan, as in 256/60000.")
    ] = 256 / 60000,
    steps: Annotated[int, typer.Option(help="Number of steps of the plan.")] = 14062,
    delta: Delta = 1e-5,
    pairs: Pairs = 400,
    figure: Annotated[
        Path | None, typer.Option(help="Write a plot of the canaries' scores to this file.")
    ] = None,
    json: show.Json = False,
) -> None:
    """Send canaries through the installed clip, sum and noise. Exit with 1 if they refute the claimed ε.

    Example: sfumato audit mechanism --noise-multiplier 1.1 --sample-rate 0.0042667 --steps 14062 --delta 1e-5
    """
    from sfumato.audit.runs import mechanism as mechanism_audit
    from sfumato.training import TrainingPlan

    plan = TrainingPlan(
        sample_rate=sample_rate, expected_batch=256, steps=steps, noise_multiplier=noise_multiplier
    )
    with show.progress() as bar:
        task = bar.add_task("canaries", total=pairs, note="")
        verdict = mechanism_audit.run(
            plan, delta=delta, pairs=pairs, figure=figure, on_pair=lambda: bar.advance(task)
        )
    conclude(verdict, json)


def run(
    folder: Annotated[Path, typer.Argument(help="A run folder of `sfumato train`.")],
    pairs: Pairs = 400,
    json: show.Json = False,
) -> None:
    """Audit a run: send canaries through its plan, and test the canaries it was trained with, if any.

    Findings on a run's own canaries go to its private folder. Exit with 1 if a claim is refuted.

    Example: sfumato audit run out/cnn
    """
    from sfumato.audit.runs import canaries as run_audit

    with show.progress() as bar:
        task = bar.add_task("canaries", total=pairs, note="")
        verdict = run_audit.run(folder, pairs=pairs, on_pair=lambda: bar.advance(task))
    conclude(verdict, json)


def randomisers(json: show.Json = False) -> None:
    """Attack votes, randomized response and noised vectors at their worst inputs. Exit with 1 if a claim fails.

    Example: sfumato audit randomisers
    """
    from sfumato.audit.runs.randomiser import RANDOMISERS

    _attack_each(RANDOMISERS, json)


def releases(json: show.Json = False) -> None:
    """Attack queries, local reports, PATE labels, tracing scores and tuned models. Exit with 1 if one fails.

    Example: sfumato audit releases
    """
    from sfumato.audit.runs.releases import RELEASES
    from sfumato.learn.tuning import searches
    from sfumato.plugins import part

    _attack_each({**RELEASES, **part("tracing").RELEASES, "tuning: the best model": searches}, json)


def _attack_each(attacks: Mapping[str, Callable[[], Verdict]], json: bool) -> None:
    verdicts = {}
    with show.progress() as bar:
        task = bar.add_task("attacks", total=len(attacks), note="")
        for name, attack in attacks.items():
            verdicts[name] = attack()
            bar.advance(task)
    show_verdicts(verdicts, json)
    if any(verdict.refuted for verdict in verdicts.values()):
        raise typer.Exit(1)


def show_verdicts(verdicts: Mapping[str, Verdict], json: bool) -> None:
    if json:
        show.emit_json({name: verdict.to_json() for name, verdict in verdicts.items()})
    else:
        show.facts(
            [
                (name, f"claimed ε {verdict.claimed_epsilon:.4g}; {verdict.in_words}")
                for name, verdict in verdicts.items()
            ]
        )


def conclude(verdict: Verdict, json: bool) -> None:
    if json:
        show.emit_json(verdict.to_json())
    else:
        show.facts(_rows(verdict))
    if verdict.refuted:
        raise typer.Exit(1)


def _rows(verdict: Verdict) -> list[tuple[str, str]]:
    rows: list[tuple[str, Any]] = [
        ("claimed ε", f"{verdict.claimed_epsilon:.4g} at δ = {verdict.delta:g}"),
        (
            "lower bound",
            f"{verdict.lower_bound:.4g} (95%), {verdict.sure_bound:.4g} (all but one in a million)",
        ),
        ("verdict", verdict.in_words),
        *((name.replace("_", " "), show_value(value)) for name, value in verdict.details.items()),
        *(("not tested", text) for text in verdict.untested),
    ]
    return rows


def show_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
