"""`sfumato reproduce`: published systems and tables, side by side with ours.

Each has two small files: NAME.py runs it, and NAME_command.py beside it is the command.
"""

from __future__ import annotations

import typer

from sfumato_lab.reproduce.accuracy_command import accuracy
from sfumato_lab.reproduce.audits_command import black_box, shuffle
from sfumato_lab.reproduce.clustering_command import clustering
from sfumato_lab.reproduce.differencing_command import differencing
from sfumato_lab.reproduce.epsilon_sweep_command import epsilon_sweep
from sfumato_lab.reproduce.local_noise_command import local_noise
from sfumato_lab.reproduce.membership_command import membership
from sfumato_lab.reproduce.pate_command import pate
from sfumato_lab.reproduce.private_cnn_command import private_cnn
from sfumato_lab.reproduce.published_mnist_command import published_mnist
from sfumato_lab.reproduce.synthesis_command import synthesis
from sfumato_lab.reproduce.synthetic_tables_command import synthetic_tables
from sfumato_lab.reproduce.tracing_command import tracing

RECIPES = (
    accuracy,
    black_box,
    clustering,
    differencing,
    local_noise,
    membership,
    pate,
    epsilon_sweep,
    private_cnn,
    published_mnist,
    shuffle,
    synthesis,
    synthetic_tables,
    tracing,
)


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Run published systems and tables, and compare with ours.", no_args_is_help=True)
    for recipe in RECIPES:
        group.command()(recipe)
    app.add_typer(group, name="reproduce")
