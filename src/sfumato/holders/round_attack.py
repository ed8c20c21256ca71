"""The coalition's attack on one round: what it learns of one honest holder after the declared drop-outs.

Canaries each own one number of the sum. The coalition knows everything but who of them is there: it takes off
its own inputs, shares of noise included, and what the other holders add, and looks at the rest. No unit is
sampled: this is the worst round for whoever is in it.
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
from sfumato.holders.desk_round import Lost
from sfumato.holders.desk_sums import DeskSums, new_keys, public_keys
from sfumato.holders.parties import Parties
from sfumato.holders.sum_study import SumStudy
from sfumato.holders.sums import Part, SumRound
from sfumato.mechanisms.grid import Floats
from sfumato.randomness import Sampler, SecretStream

Shares = Callable[[int], Sampler]
"""Where the holder at a place takes its noise from."""


@dataclass(frozen=True, kw_only=True)
class RoundAttack:
    """What the coalition proved, and what the round costs against it.

    Attributes:
        claimed_epsilon: The exact ε of one round, unsampled, against the coalition.
        lower_bound: What the attack proves with confidence 1 − α.
        delta: The δ of both.
        alpha: 1 − the confidence.
    """

    claimed_epsilon: float
    lower_bound: float
    delta: float
    alpha: float


class _Colluder:
    """Adds nothing but its share of the noise, and tells the coordinator what that was."""

    def __init__(self, study: SumStudy, stream: Sampler) -> None:
        self.sampler = RecordingSampler(stream)
        self._agreed = study.rounds[0]

    def told(self) -> Floats:
        """The noise of the last round: what its draws give once more."""
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

    Args:
        parties: How many holders there are, lost and colluding.
        noise_multiplier: Of the shares that count together.
        canaries: How many canaries there are.
        pairs: How many pairs of rounds are attacked.
        delta: The δ at which ε is stated.
        alpha: 1 − the confidence of the bound.
        shares: Where holders take their noise from; for sabotage.

    Returns:
        The bound beside the exact price.
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
    numbers, nobody = iter(range(1, 2 * pairs + 1)), np.zeros(canaries)

    def step(present: npt.NDArray[np.bool_]) -> Floats:
        inputs = {place: lambda: [nobody] for place in keys}
        inputs[1] = lambda: [present.astype(np.float64)]
        total = desk.add_up(next(numbers), inputs)
        assert total is not None  # as many as declared are lost, and no more
        return total.parts[0] - sum((one.told() for one in colluders.values()), start=nobody)

    mu = dirac_scores(step, canaries=canaries, pairs=pairs, coins=SecretStream()).mu_bound(alpha=alpha)
    return RoundAttack(
        claimed_epsilon=accounting.epsilon(GaussianEvent(noise_multiplier), delta),
        lower_bound=accounting.epsilon(GaussianEvent(1 / mu), delta) if mu > 0 else 0.0,
        delta=delta,
        alpha=alpha,
    )
