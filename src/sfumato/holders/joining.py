"""What the commands do: a holder joins a study, a coordinator runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from sfumato.holders.conduct import Conductor, Post
from sfumato.holders.correspondence import Correspondence, Line
from sfumato.holders.log import Log
from sfumato.holders.messages import Signed
from sfumato.holders.node import Node
from sfumato.holders.study import Study
from sfumato.holders.tasks import Material
from sfumato.ledger import Certificate, Ledger
from sfumato.ledger.signing import PrivateKey
from sfumato.results import Training, write_run
from sfumato.storage import RunFolder, make_folder
from sfumato.training import PrivateTrainer

ROUNDS = "rounds.db"
WITNESS = "ledger.json"  # the newest entry of the holder's ledger


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What a holder has at the end of a study.

    Attributes:
        certificate: What it cost, with this holder's charge.
        abandoned: How many rounds were abandoned.
        measured: Figures on public rows; none without any.
        seconds: How long it took.
    """

    certificate: Certificate
    abandoned: int
    measured: dict[str, float | None]
    seconds: float


def join(
    study: Study,
    *,
    key: PrivateKey,
    signatures: Collection[Signed],
    line: Line,
    material: Material,
    ledger: Ledger,
    out: Path,
    on_step: Callable[[PrivateTrainer], None] | None = None,
) -> Joined:
    """Take part in a study as one holder, to its end; the run folder then has the model that all have.

    Raises:
        NotVerified: If a holder has not signed, or the coordinator tells different stories.
        BudgetExceeded: If the ledger has no room; nothing was read.
        LedgerTampered: If the ledger is older than what the run folder remembers of it.
    """
    started = time.perf_counter()
    RunFolder(out).refuse_finished()
    letters = Correspondence(study, key, line)
    folder = RunFolder.begin(out, resumes=True)
    node = Node(study, key, signatures, letters, ledger=ledger, witness=folder.private / WITNESS)
    certificate = node.train(material.network, material.read, caveats=material.caveats, on_step=on_step)
    letters.finish()
    measured = material.measure()
    result = Training(
        epsilon=study.plan.epsilon(study.delta),
        delta=study.delta,
        **{"test_accuracy": None, **measured},  # type: ignore[arg-type]  # each is a figure of its own
    )
    write_run(
        folder,
        result,
        certificate=certificate,
        plan=study.plan.to_json(),
        model=material.release(),
        seconds=time.perf_counter() - started,
    )
    return Joined(
        certificate=certificate,
        abandoned=node.abandoned,
        measured=measured,
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, kw_only=True)
class Coordinated:
    """What a coordinator has at the end: nothing but the sums of the rounds, in its folder.

    Attributes:
        rounds: How many there were.
        abandoned: How many of them were abandoned.
        seconds: How long it took.
    """

    rounds: int
    abandoned: int
    seconds: float


def coordinate(
    study: Study,
    post: Post,
    *,
    out: Path,
    patience: float,
    waiting: float,
    on_round: Callable[[int], None] | None = None,
) -> Coordinated:
    """Go through the rounds of a study that are left, and end it.

    Raises:
        Refused: If too few holders came, or more rounds were abandoned than declared.
    """
    started = time.perf_counter()
    make_folder(out, readable=False)
    log = Log(out / ROUNDS, study=study.digest, dimension=study.noise.dimension)
    try:
        Conductor(study, post, log, patience=patience, waiting=waiting, on_round=on_round).run()
        return Coordinated(
            rounds=study.plan.steps, abandoned=log.abandoned, seconds=time.perf_counter() - started
        )
    finally:
        log.close()
