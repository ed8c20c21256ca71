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
    for command in (mechanism, run, black_box, randomisers, releases, shuffle, sabotage):
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
    _conclude(verdict, json)


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
    _conclude(verdict, json)


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

    _attack_each({**RELEASES, "tuning: the best model": searches}, json)


def black_box(
    networks: Annotated[
        int, typer.Option(help="Number of networks to train. More give a tighter bound.")
    ] = 3000,
    data: Annotated[str, typer.Option(help="Data set of the networks: mnist or digits.")] = "mnist",
    json: show.Json = False,
) -> None:
    """Train many small networks with and without one canary, and tell them apart by its loss. ε is 10.

    Exit with 1 if the claim is refuted.

    Example: sfumato audit black-box
    """
    from sfumato.audit.runs import black_box as black_box_audit

    _conclude(black_box_audit.run(data=data, networks=networks), json)


def shuffle(
    canaries: Annotated[int, typer.Option(help="Number of canaries. More give a tighter bound.")] = 20_000,
    json: show.Json = False,
) -> None:
    """Audit a run on shuffled batches against its own price, and against the price of Poisson sampling.

    The second price is too low and must be refuted. Exit with 1 if it is not, or if the first one is.

    Example: sfumato audit shuffle
    """
    from sfumato.audit.runs import shuffle as shuffle_audit

    prices = shuffle_audit.run(canaries=canaries)
    _show({"its own price": prices.shuffled, "priced as Poisson": prices.poisson}, json)
    if prices.shuffled.refuted or not prices.poisson.refuted:
        raise typer.Exit(1)


def sabotage(
    out: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    json: show.Json = False,
) -> None:
    """Break the code in ten ways and show which audit catches each. Exit with 1 if one is missed.

    Example: sfumato audit sabotage --out docs/audit-sabotage.md
    """
    from sfumato.audit.runs import sabotage as suite
    from sfumato.storage import write_whole

    rows = []
    with show.progress() as bar:
        task = bar.add_task("sabotage", total=len(suite.SABOTAGES) + 1, note="")
        for one in (None, *suite.SABOTAGES):
            rows.append(suite.examine(one))
            bar.advance(task)
    if out is not None:
        write_whole(out, suite.table(tuple(rows)).encode(), readable=True)
    answer = {(row.sabotage.name if row.sabotage else "intact"): dict(row.findings) for row in rows}
    if json:
        show.emit_json(answer)
    else:
        show.facts(
            [(name, "; ".join(f"{a}: {t}" for a, t in found.items()) or "–") for name, found in answer.items()]
        )
    if rows[0].findings or not all(row.findings for row in rows[1:]):
        raise typer.Exit(1)


def _attack_each(attacks: Mapping[str, Callable[[], Verdict]], json: bool) -> None:
    verdicts = {}
    with show.progress() as bar:
        task = bar.add_task("attacks", total=len(attacks), note="")
        for name, attack in attacks.items():
            verdicts[name] = attack()
            bar.advance(task)
    _show(verdicts, json)
    if any(verdict.refuted for verdict in verdicts.values()):
        raise typer.Exit(1)


def _show(verdicts: Mapping[str, Verdict], json: bool) -> None:
    if json:
        show.emit_json({name: verdict.to_json() for name, verdict in verdicts.items()})
    else:
        show.facts(
            [
                (name, f"claimed ε {verdict.claimed_epsilon:.4g}; {verdict.in_words}")
                for name, verdict in verdicts.items()
            ]
        )


def _conclude(verdict: Verdict, json: bool) -> None:
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
