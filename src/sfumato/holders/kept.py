"""A rehearsal as a run folder: the result, the certificates of all holders, and one round as pictures."""

from __future__ import annotations

import os
from pathlib import Path

from sfumato.datasets import public_name
from sfumato.holders.picture import round_pictures
from sfumato.holders.simulation import Simulated
from sfumato.results import SeveralHolders, write_run
from sfumato.storage import RunFolder


def keep(done: Simulated, out: str | os.PathLike[str]) -> None:
    """Write what came of a study at a desk, for `sfumato report`.

    Args:
        done: What `simulate` gave.
        out: A new run folder.
    """
    study, parties = done.study, done.study.parties
    folder = RunFolder.begin(Path(out))
    pictures = round_pictures(parties)
    result = SeveralHolders(
        holders=parties.holders,
        dropped=parties.dropped,
        colluding=parties.colluding,
        threshold=parties.threshold,
        rounds=study.plan.steps,
        numbers=study.noise.dimension,
        unit=study.unit,
        **study.epsilons(),
        delta=study.delta,
        test_accuracy=done.test_accuracy,
        data=public_name(study.data),
        pictures=tuple(pictures),
    )
    write_run(
        folder,
        result,
        certificate=done.certificates[min(done.certificates)],
        plan=study.to_dict(),
        release={f"figures/{name}": content for name, content in pictures.items()},
        seconds=done.seconds,
    )
