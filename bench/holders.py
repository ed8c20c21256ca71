"""One holder's work in a round of a masked sum: CPU time, one thread, least and median of several rounds.

    python bench/holders.py [--holders 10] [--rounds 5] [--large] [--many]

All holders and the coordinator run in this process; only the calls of holder 1 are timed. `--large` adds eleven
million numbers, `--many` a thousand holders with the sparse graph beside the complete one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.holders import Parties
from sfumato.holders.coordinator_round import CoordinatorRound
from sfumato.holders.holder_round import HolderRound
from sfumato.holders.messages import Terms
from sfumato.ledger.signing import PrivateKey


def timed(spent: list[float], call: Callable[[], Any]) -> Any:
    started = time.process_time()
    answer = call()
    spent[-1] += time.process_time() - started
    return answer


def rounds(parties: Parties, dimension: int, count: int) -> list[float]:
    """Seconds of CPU that holder 1 takes in each of `count` rounds, its sum and noise not counted."""
    keys = {place: PrivateKey(Ed25519PrivateKey.generate()) for place in range(1, parties.holders + 1)}
    places = {place: key.public for place, key in keys.items()}
    values = np.arange(dimension, dtype=np.int64)
    spent: list[float] = []
    for number in range(1, count + 1):
        spent.append(0.0)
        terms = Terms(
            study="s" * 64, number=number, parties=parties, places=places, dimension=dimension, bits=32
        )
        parts = {place: HolderRound(terms, place, key) for place, key in keys.items()}
        whole = CoordinatorRound(terms)
        for place, part in parts.items():
            whole.take_advert(timed(spent, part.advertise) if place == 1 else part.advertise())
        whole.take_envelopes(1, timed(spent, partial(parts[1].share, whole.adverts)))
        for place in terms.partners(1):
            whole.take_envelopes(place, parts[place].share(whole.adverts))
        timed(spent, partial(parts[1].mask, lambda: values, whole.envelopes_for(1)))
    return spent


def show(what: str, spent: list[float]) -> None:
    print(f"{what}: least {1000 * min(spent):.0f} ms, median {1000 * statistics.median(spent):.0f} ms of CPU")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--holders", type=int, default=10)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--large", action="store_true")
    options.add_argument("--many", action="store_true")
    chosen = options.parse_args()
    few = Parties(holders=chosen.holders)
    show(f"{chosen.holders} holders, 26,000 numbers", rounds(few, 26_000, chosen.rounds))
    if chosen.large:
        show(
            f"{chosen.holders} holders, 11 million numbers", rounds(few, 11_000_000, max(2, chosen.rounds // 2))
        )
    if chosen.many:
        many = Parties(holders=1000, dropped=100, colluding=100)
        show(f"1,000 holders, {many.degree.partners} partners, 5,130 numbers", rounds(many, 5130, 1))


if __name__ == "__main__":
    main()
