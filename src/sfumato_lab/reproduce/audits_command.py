"""`sfumato reproduce black-box` and `shuffle`: published audits of private training."""

from __future__ import annotations

from typing import Annotated

import typer

from sfumato.cli import show
from sfumato.cli.audit import conclude, show_verdicts


def black_box(
    networks: Annotated[
        int, typer.Option(help="Number of networks to train. More give a tighter bound.")
    ] = 3000,
    data: Annotated[str, typer.Option(help="Data set of the networks: mnist or digits.")] = "mnist",
    json: show.Json = False,
) -> None:
    """Train many small networks with and without one canary, and tell them apart by its loss. ε is 10.

    Exit with 1 if the claim is refuted.

    Example: sfumato reproduce black-box
    """
    from sfumato_lab.reproduce import black_box as black_box_audit

    conclude(black_box_audit.run(data=data, networks=networks), json)


def shuffle(
    canaries: Annotated[int, typer.Option(help="Number of canaries. More give a tighter bound.")] = 20_000,
    json: show.Json = False,
) -> None:
    """Audit a run on shuffled batches against its own price, and against the price of Poisson sampling.

    The second price is too low and must be refuted. Exit with 1 if it is not, or if the first one is.

    Example: sfumato reproduce shuffle
    """
    from sfumato_lab.reproduce import shuffle as shuffle_audit

    prices = shuffle_audit.run(canaries=canaries)
    show_verdicts({"its own price": prices.shuffled, "priced as Poisson": prices.poisson}, json)
    if prices.shuffled.refuted or not prices.poisson.refuted:
        raise typer.Exit(1)
