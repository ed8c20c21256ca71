"""`sfumato holders vote`, `average` and `attack`: rehearsals that add numbers up under masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import show
from sfumato.cli.holders import app, price_rows

if TYPE_CHECKING:
    from sfumato.holders import SumStudy

Data = Annotated[str, typer.Option(help="mnist, fashion-mnist, digits or strokes; its test images are public.")]
Delta = Annotated[
    float, typer.Option(help="The δ of the guarantee; choose it well below 1 / number of people.")
]
Masks = Annotated[
    bool,
    typer.Option(
        "--masks/--no-masks",
        help="Leave the masks out, to rehearse hundreds of holders faster. The sums are the same.",
    ),
]


def register(parent: typer.Typer) -> None:
    """The commands are those of `sfumato holders`."""


@app.command()
def vote(
    data: Data,
    epsilon: Annotated[float, typer.Option(help="ε of all labels, against the best informed adversary.")],
    holders: Annotated[int, typer.Option(help="Number of holders among whom the rows are dealt out.")] = 100,
    teachers: Annotated[int, typer.Option(help="Number of teachers that each holder hosts.")] = 2,
    colluding: Annotated[
        int, typer.Option(help="Number of holders that may collude with the coordinator.")
    ] = 0,
    dropped: Annotated[
        int, typer.Option(help="Number of holders that may be lost in a round; as many are, others each time.")
    ] = 0,
    holders_per_unit: Annotated[
        int, typer.Option(help="Number of holders that may have rows of the same person, at most.")
    ] = 1,
    mechanism: Annotated[str, typer.Option(help="gnmax or confident.")] = "gnmax",
    queries: Annotated[
        int | None, typer.Option(help="Number of public images to label. Default: as many as the noise allows.")
    ] = None,
    delta: Delta = 1e-5,
    masks: Masks = True,
    json: show.Json = False,
) -> None:
    """Rehearse PATE across holders: their teachers label public images, and nobody sees a vote.

    Example: sfumato holders vote --holders 100 --data mnist --epsilon 1 --colluding 10 --dropped 5
    """
    from dataclasses import replace

    from sfumato import datasets
    from sfumato.datasets.drawings import prior_for
    from sfumato.holders import Parties, VoteTerms, simulate_votes
    from sfumato.holders.vote_study import affordable_queries
    from sfumato.pate import Adaptation, PateSettings, VotePlan

    parties = Parties(holders=holders, colluding=colluding, dropped=dropped)
    side = 28 if data == "digits" else None
    private, test = datasets.load(data, "train", side=side), datasets.load(data, "test", side=side)
    classes = test.classes or 2
    asked = queries or affordable_queries(
        parties, teachers=teachers, classes=classes, epsilon=epsilon, delta=delta, most=len(test)
    )
    confident = mechanism == "confident"
    terms = VoteTerms(
        mechanism=mechanism,
        teachers=teachers,
        queries=asked,
        classes=classes,
        holders_per_unit=holders_per_unit,
        answers=max(1, asked // 2) if confident else None,
        threshold=0.6 * parties.least * teachers if confident else None,
    )
    unused = VotePlan(mechanism="gnmax", teachers=1, queries=asked, classes=classes, sigma=1.0)
    done = simulate_votes(
        private,
        replace(test, visibility="public"),
        parties=parties,
        terms=terms,
        settings=PateSettings(plan=unused, adaptation=Adaptation(prior=prior_for(data))),
        epsilon=epsilon,
        delta=delta,
        masked=masks,
    )
    _show(
        {
            "student_accuracy": done.student_accuracy,
            "start_accuracy": done.start_accuracy,
            "label_accuracy": done.label_accuracy,
            "asked": asked,
            "answered": int((done.labels >= 0).sum()),
            "teachers": holders * teachers,
            **_priced(done.study, masks=masks),
            "seconds": done.seconds,
        },
        json=json,
    )


@app.command()
def average(
    data: Data,
    epsilon: Annotated[float, typer.Option(help="ε of a client with all its rows, all its rounds together.")],
    clients: Annotated[int, typer.Option(help="Number of clients among whom the rows are dealt out.")] = 1000,
    cohort: Annotated[
        int | None, typer.Option(help="Number of clients that are picked for a round. Default: all of them.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 12,
    colluding: Annotated[
        int, typer.Option(help="Number of clients that may collude with the coordinator.")
    ] = 0,
    dropped: Annotated[
        int, typer.Option(help="Number of clients that may be lost in a round; as many are, others each time.")
    ] = 0,
    delta: Delta = 1e-5,
    masks: Masks = True,
    json: show.Json = False,
) -> None:
    """Rehearse federated averaging with the privacy of whole clients.

    Sampling of clients saves nothing here: whoever picks them knows whom. Each pays for the rounds it is in.

    Example: sfumato holders average --clients 1000 --data mnist --epsilon 8 --no-masks
    """
    from sfumato import datasets
    from sfumato.holders import AveragingTerms, Parties, simulate_averaging

    parties = Parties(holders=cohort or clients, colluding=colluding, dropped=dropped)
    terms = AveragingTerms(clients=clients, rounds=rounds)
    rows, test = datasets.load(data, "train"), datasets.load(data, "test")
    with show.progress() as progress:
        bar = progress.add_task("averaging", total=rounds, note="")
        done = simulate_averaging(
            rows,
            test,
            parties=parties,
            terms=terms,
            epsilon=epsilon,
            delta=delta,
            masked=masks,
            on_round=lambda: progress.advance(bar),
        )
    _show(
        {
            "test_accuracy": done.test_accuracy,
            **_priced(done.study, masks=masks),
            "clients": clients,
            "rounds_of_a_client": done.study.taken or rounds,
            "abandoned": done.abandoned,
            "seconds": done.seconds,
        },
        json=json,
    )


@app.command()
def attack(
    holders: Annotated[int, typer.Option(help="Number of holders.")] = 10,
    colluding: Annotated[int, typer.Option(help="Number of holders that collude with the coordinator.")] = 3,
    dropped: Annotated[int, typer.Option(help="Number of holders that are lost in each round.")] = 2,
    noise_multiplier: Annotated[float, typer.Option(help="σ of the shares that count, over C.")] = 1.0,
    canaries: Annotated[int, typer.Option(help="Number of canaries.")] = 40_000,
    pairs: Annotated[int, typer.Option(help="Number of pairs of rounds.")] = 8,
    delta: Delta = 1e-5,
    json: show.Json = False,
) -> None:
    """Attack unsampled rounds as the coordinator with colluding holders, and compare with the exact price.

    Example: sfumato holders attack --holders 10 --colluding 3 --dropped 2
    """
    from sfumato.holders import Parties
    from sfumato.holders.round_attack import attack_round

    found = attack_round(
        Parties(holders=holders, colluding=colluding, dropped=dropped),
        noise_multiplier=noise_multiplier,
        canaries=canaries,
        pairs=pairs,
        delta=delta,
    )
    answer = {
        "claimed_epsilon": found.claimed_epsilon,
        "lower_bound": found.lower_bound,
        "delta": found.delta,
        "alpha": found.alpha,
    }
    if json:
        show.emit_json(answer)
    else:
        show.facts([(name.replace("_", " "), f"{value:.4g}") for name, value in answer.items()])


def _priced(study: SumStudy, *, masks: bool) -> dict[str, Any]:
    return {
        "study": study.digest,
        "epsilon": study.epsilons(),
        "delta": study.delta,
        "unit": study.unit,
        "holders": study.parties.holders,
        "threshold": study.parties.threshold,
        "rounds": len(study.rounds),
        "masks": masks,
    }


def _show(answer: dict[str, Any], *, json: bool) -> None:
    if json:
        show.emit_json(answer)
    else:
        show.facts(price_rows(answer))
