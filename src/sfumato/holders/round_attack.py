"""The coalition's attack on one round: it decides which records of one honest holder are in the sum.

Each canary owns one number of the sum. The coalition knows everything but which canaries are present: it
subtracts its own inputs, shares of noise included, and those of the other holders. No unit is sampled: this is
the worst case of a round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfumato import accounting
from sfumato.accounting import GaussianEvent
from sfumato.audit import dirac_scores
from sfumato.audit.replay import RecordingSampler, ReplayingSampler
from sfumato.holders.parties import Parties
from sfumato.holders.rounds import Lost
from sfumato.holders.sums import DeskSums, Part, SumRound, SumStudy, new_keys, public_keys
from sfumato.mechanisms.grid import Floats
from sfumato.randomness import Sampler, SecretStream

Shares = Callable[[int], Sampler]
"""The source of the noise of the holder at a place."""


@dataclass(frozen=True, kw_only=True)
class RoundAttack:
    """A lower bound that the coalition proved with confidence 1 − α, and the exact ε of one unsampled round."""

    claimed_epsilon: float
    lower_bound: float
    delta: float
    alpha: float


class _Colluder:
    """Adds nothing but its share of the noise, and tells the coordinator its values."""

    def __init__(self, study: SumStudy, stream: Sampler) -> None:
        self.sampler = RecordingSampler(stream)
        self._agreed = study.rounds[0]

    def told(self) -> Floats:
        """Return the noise of the last round, made again from its recorded draws."""
        tape, self.sampler.tape = self.sampler.tape, []
        nothing = [np.zeros(part.dimension) for part in self._agreed.parts]
        again = self._agreed.contribution(nothing, ReplayingSampler(SecretStream(), recorded=tape))
        return self._agreed.read(again)[0]


def attack_round(
    parties: Parties,
    *,
    noise_multiplier: float,
    canaries: int = 40_000,
    pairs: int = 8,
    delta: float = 1e-5,
    alpha: float = 1e-6,
    shares: Shares | None = None,
) -> RoundAttack:
    """Attack real rounds, masks and drop-outs included, as the coordinator with the declared colluders would.

    Holder 1 is honest and has the canaries. The last `dropped` holders are lost before their input is sent; the
    colluders are those before them.

    `noise_multiplier` is that of the counted shares together. `shares` replaces the sources of the holders'
    noise, for sabotage.
    """
    part = Part(
        sensitivity=1.0,
        dimension=canaries,
        noise_multiplier=noise_multiplier,
        shares=parties.counted,
        largest=parties.holders,
    )
    keys, made = new_keys(parties.holders), shares or (lambda place: SecretStream())
    study = SumStudy(
        name="an attack",
        kind="attack",
        plan={},
        unit="record",
        delta=delta,
        parties=parties,
        rounds=(SumRound((part,)),) * (2 * pairs),
        keys=public_keys(keys),
    )
    last = parties.least
    lost = dict.fromkeys(range(last + 1, parties.holders + 1), Lost.INPUT)
    colluders = {
        place: _Colluder(study, made(place)) for place in range(last - parties.colluding + 1, last + 1)
    }
    streams = {place: colluders[place].sampler if place in colluders else made(place) for place in keys}
    desk = DeskSums(study, keys, losses=lambda number: lost, samplers=streams)
    numbers, nothing = iter(range(1, 2 * pairs + 1)), np.zeros(canaries)

    def step(present: npt.NDArray[np.bool_]) -> Floats:
        inputs = {place: lambda: [nothing] for place in keys}
        inputs[1] = lambda: [present.astype(np.float64)]
        total = desk.add_up(next(numbers), inputs)
        assert total is not None  # as many as declared are lost, and no more
        return total.parts[0] - sum((one.told() for one in colluders.values()), start=nothing)

    mu = dirac_scores(step, canaries=canaries, pairs=pairs, coins=SecretStream()).mu_bound(alpha=alpha)
    return RoundAttack(
        claimed_epsilon=accounting.epsilon(GaussianEvent(noise_multiplier), delta),
        lower_bound=accounting.epsilon(GaussianEvent(1 / mu), delta) if mu > 0 else 0.0,
        delta=delta,
        alpha=alpha,
    )
