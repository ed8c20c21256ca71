"""Why averages and minimum group sizes do not protect, and what a budget does against it.

Published (a talk on making differential privacy practical): AVG over {Jan Kees or Peter} = 49.5 with n = 96 and
AVG over {Peter} = 49 with n = 95 reveal 96·49.5 − 95·49 = 97.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sfumato.ledger import Budget, Ledger
from sfumato.storage import json_bytes, write_whole
from sfumato_lab.reproduce.averages import (
    Differencing,
    Reconstruction,
    differencing,
    draw_differencing,
    reconstruction,
)

PUBLISHED_AGE = 97


@dataclass(frozen=True, kw_only=True)
class Result:
    attack: Differencing
    unlimited: Reconstruction
    budgeted: Reconstruction
    figure: Path

    def to_json(self) -> dict[str, Any]:
        return {
            "published_age": PUBLISHED_AGE,
            "differencing": self.attack.to_json(),
            "reconstruction_without_a_limit": asdict(self.unlimited),
            "reconstruction_under_a_budget": asdict(self.budgeted),
            "figure": str(self.figure),
        }


def run(out: Path, *, epsilon: float = 1.0, tries: int = 1000) -> Result:
    """Both attacks with and without protection; writes `differencing.json` and a figure."""
    out.mkdir(parents=True, exist_ok=True)
    result = Result(
        attack=differencing(epsilon=epsilon, tries=tries),
        unlimited=_reconstruct(Budget(epsilon=10_000)),
        budgeted=_reconstruct(Budget(epsilon=5)),
        figure=out / "differencing.png",
    )
    draw_differencing(result.attack, result.figure)
    write_whole(out / "differencing.json", json_bytes(result.to_json()), readable=True)
    return result


def _reconstruct(budget: Budget) -> Reconstruction:
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(Path(folder) / "ward.db", budget=budget) as ledger,
    ):
        return reconstruction(ledger, epsilon=1.0)
