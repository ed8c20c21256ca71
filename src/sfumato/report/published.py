"""List published figures, for scale: accuracy on MNIST, and the ε of systems in use.

Accuracies are quoted from the papers and repositories named; ε is recomputed by the current conversion where
they used an older one (TF-Privacy, Opacus, scattering).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Published:
    """A method's points (ε, accuracy) on MNIST at δ = 1e-5."""

    name: str
    points: tuple[tuple[float, float], ...]
    data_dependent: bool = False  # an ε that holds for this data set only
    label_at: int = -1  # the point that carries the name
    label_move: tuple[float, float] = (8, 4)
    anchor: str = "start"


_MNIST: tuple[Published, ...] = (
    Published(name="Abadi 2016", points=((2, 0.95), (8, 0.97)), label_at=0, label_move=(8, 14)),
    Published(
        name="TF-Privacy tutorial",
        points=((0.954, 0.950), (2.597, 0.966), (6.318, 0.970)),
        label_at=0,
        label_move=(-8, -4),
        anchor="end",
    ),
    Published(
        name="Opacus example",
        points=((0.922, 0.946), (2.503, 0.968), (6.093, 0.971)),
        label_at=0,
        label_move=(-8, 12),
        anchor="end",
    ),
    Published(name="Best without public data", points=((1.0, 0.979),), label_move=(-8, 4), anchor="end"),
    Published(name="Tanh CNN", points=((2.93, 0.981),), label_move=(4, -8)),
    Published(name="Scattering 2021", points=((2.59, 0.987),), label_move=(8, -5)),
    Published(name="PATE 2017", points=((2.04, 0.980), (8.03, 0.981)), label_at=1, data_dependent=True),
    Published(
        name="PATE 2018",
        points=((1.97, 0.985),),
        data_dependent=True,
        label_move=(-8, -4),
        anchor="end",
    ),
    Published(name="Private-kNN 2020", points=((0.47, 0.988),), data_dependent=True, label_move=(-4, -10)),
)

PUBLISHED: Mapping[str, tuple[Published, ...]] = {"mnist": _MNIST}
"""By data set."""

IN_USE: tuple[tuple[str, float], ...] = (
    ("LinkedIn", 1.0),
    ("Windows telemetry, every six hours", 1.0),
    ("Facebook, mobility data", 2.0),
    ("Apple, the stricter of two", 4.0),
    ("Apple, the looser of two", 8.0),
    ("GBoard", 8.9),
    ("Birth data", 9.98),
    ("US Census", 12.2),
)
"""ε of systems in use, as a talk on making differential privacy practical lists them."""
