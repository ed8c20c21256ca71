"""One round as pictures: what a holder adds, what leaves it, and the sum. Of drawings, which are nobody's."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sfumato.datasets import strokes
from sfumato.holders.coordinator_round import CoordinatorRound
from sfumato.holders.desk_round import run_round
from sfumato.holders.desk_sums import new_keys, public_keys
from sfumato.holders.holder_round import HolderRound
from sfumato.holders.masks import Words
from sfumato.holders.messages import Masked, Terms
from sfumato.holders.parties import Parties
from sfumato.holders.sum_study import SumStudy, calibrated_rounds
from sfumato.holders.sums import Part, SumRound
from sfumato.mechanisms.grid import Floats, Integers
from sfumato.randomness import SecretStream

NAMES = ("added.png", "sent.png", "sum.png")
_DRAWN, _DIGIT, _SIDE, _MOST = 6000, 3, 28, 20


class _Watched(CoordinatorRound):
    """Keeps what the first holder sent."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.sent: Words | None = None

    def take_masked(self, masked: Masked) -> None:
        if masked.sender == 1:
            self.sent = masked.words.copy()
        super().take_masked(masked)


def round_pictures(parties: Parties) -> dict[str, bytes]:
    """PNG files by name: what one holder adds, what leaves it, and what opens, at ε = 1 and δ = 1e-5."""
    parties = parties if parties.holders <= _MOST else Parties(holders=10)
    keys = new_keys(parties.holders)
    sums = _sums_of_drawings(parties.holders)

    def rounds(noise: float) -> tuple[SumRound, ...]:
        part = Part(
            sensitivity=1.0,
            dimension=_SIDE**2,
            noise_multiplier=noise,
            shares=parties.counted,
            largest=_DRAWN,
        )
        return (SumRound((part,)),)

    study = SumStudy(
        name="a picture",
        kind="picture",
        plan={},
        unit="drawing",
        delta=1e-5,
        parties=parties,
        rounds=calibrated_rounds(rounds, epsilon=1.0, delta=1e-5),
        keys=public_keys(keys),
    )
    agreed, terms = study.rounds[0], study.terms(1)
    added = {place: agreed.contribution([sums[place - 1]], SecretStream()) for place in keys}
    coordinator = _Watched(terms)
    holders = {place: HolderRound(terms, place, key) for place, key in keys.items()}
    total = run_round(coordinator, holders, {place: _given(value) for place, value in added.items()})
    assert coordinator.sent is not None
    shown = (agreed.read(added[1])[0], coordinator.sent.astype(np.float64), agreed.read(total)[0])
    return {name: _grey(values) for name, values in zip(NAMES, shown, strict=True)}


def _given(values: Integers) -> Callable[[], Integers]:
    return lambda: values


def _sums_of_drawings(holders: int) -> Floats:
    """(holders, pixels): drawings of one digit, each of length 1, dealt out and added up."""
    drawn, labels = strokes.draw(_DRAWN, seed=5)
    rows = drawn[labels == _DIGIT].reshape(-1, _SIDE**2).astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) * (1 + 1e-12)
    return np.stack([rows[place::holders].sum(axis=0) for place in range(holders)])


def _grey(values: npt.NDArray[np.float64]) -> bytes:
    from PIL import Image

    low, high = values.min(), values.max()
    grey = np.round((values - low) / (high - low) * 255).astype(np.uint8).reshape(_SIDE, _SIDE)
    buffer = io.BytesIO()
    Image.fromarray(grey).save(buffer, format="png", optimize=True)
    return buffer.getvalue()
