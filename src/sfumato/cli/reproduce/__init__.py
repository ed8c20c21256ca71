"""`sfumato reproduce`: published systems and tables, side by side with ours; one file each."""

from __future__ import annotations

import typer

from sfumato.cli.reproduce.accuracy import accuracy
from sfumato.cli.reproduce.differencing import differencing
from sfumato.cli.reproduce.epsilon_sweep import epsilon_sweep
from sfumato.cli.reproduce.local_noise import local_noise
from sfumato.cli.reproduce.membership import membership
from sfumato.cli.reproduce.pate import pate
from sfumato.cli.reproduce.private_cnn import private_cnn
from sfumato.cli.reproduce.published_mnist import published_mnist
from sfumato.cli.reproduce.synthesis import synthesis
from sfumato.cli.reproduce.tracing import tracing

RECIPES = (
    accuracy,
    differencing,
    local_noise,
    membership,
    pate,
    epsilon_sweep,
    private_cnn,
    published_mnist,
    synthesis,
    tracing,
)


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Run published systems and tables, and compare with ours.", no_args_is_help=True)
    for recipe in RECIPES:
        group.command()(recipe)
    app.add_typer(group, name="reproduce")
