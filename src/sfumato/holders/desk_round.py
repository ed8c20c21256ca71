"""A whole round in one process: the coordinator and all holders, and which of them are lost on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum

from sfumato.errors import Refused
from sfumato.holders.coordinator_round import CoordinatorRound
from sfumato.holders.holder_round import HolderRound
from sfumato.mechanisms.grid import Integers


class Lost(IntEnum):
    """The first message of a holder that does not arrive."""

    KEYS = 0
    SHARES = 1
    INPUT = 2
    AGREEMENT = 3
    OPENING = 4
    NEVER = 5


def run_round(
    coordinator: CoordinatorRound,
    holders: Mapping[int, HolderRound],
    contributions: Mapping[int, Callable[[], Integers]],
    *,
    lost: Mapping[int, Lost] | None = None,
) -> Integers:
    """The sum over those whose input arrived.

    Raises:
        Refused: If too many are lost for the round to be opened; nothing was learned of it then.
    """

    def present(message: Lost) -> list[int]:
        return [place for place in holders if (lost or {}).get(place, Lost.NEVER) > message]

    for place in present(Lost.KEYS):
        coordinator.take_advert(holders[place].advertise())
    for place in present(Lost.SHARES):
        coordinator.take_envelopes(place, holders[place].share(coordinator.adverts))
    for place in present(Lost.INPUT):
        envelopes = coordinator.envelopes_for(place)
        coordinator.take_masked(holders[place].mask(contributions[place], envelopes))
    if not coordinator.survivors:
        raise Refused("expected holders who sent their input, got none; the round is abandoned")
    for place in present(Lost.AGREEMENT):
        coordinator.take_agreement(place, holders[place].agree(coordinator.survivors))
    for place in present(Lost.OPENING):
        coordinator.take_opening(holders[place].open(coordinator.agreements))
    return coordinator.total()
