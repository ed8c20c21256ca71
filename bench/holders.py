"""One holder's work in a round of a masked sum: CPU time, one thread, least and median of several rounds.

    python bench/holders.py [--holders 10] [--rounds 5] [--large] [--many] [--flower]

All holders and the coordinator run in this process; only the calls of holder 1 are timed. `--large` adds eleven
million numbers, `--many` a thousand holders with the sparse graph beside the complete one.

`--flower` is another measurement: whole rounds of all parties, by the clock, in Flower's simulation with its
own SecAgg+ and at our desk, in turns on the same numbers; it needs flwr[simulation]. A deployed round is
measured by `python bench/holders_here.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.holders import Parties
from sfumato.holders.rounds import CoordinatorRound, HolderRound, Terms, run_round
from sfumato.ledger.signing import PrivateKey

Numbers = npt.NDArray[np.int64]


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


def whole_rounds(holders: int, values: Numbers, count: int) -> list[float]:
    """Seconds of each whole round of ours: keys, shares, masks, agreement, opening, all parties one by one."""
    parties = Parties(holders=holders)
    keys = {place: PrivateKey(Ed25519PrivateKey.generate()) for place in range(1, holders + 1)}
    places = {place: key.public for place, key in keys.items()}
    spent = []
    for number in range(1, count + 1):
        started = time.perf_counter()
        terms = Terms(
            study="s" * 64, number=number, parties=parties, places=places, dimension=values.size, bits=32
        )
        parts = {place: HolderRound(terms, place, key) for place, key in keys.items()}
        total = run_round(CoordinatorRound(terms), parts, dict.fromkeys(parts, lambda: values))
        spent.append(time.perf_counter() - started)
        assert (total == holders * values).all()
    return spent


def secagg_plus(holders: int, values: Numbers, count: int) -> list[float]:
    """Seconds of each round of Flower's SecAgg+ in its simulation, without the start of the simulation."""
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_DEDUP_LOGS="0")
    from flwr.client import ClientApp, NumPyClient
    from flwr.client.mod import secaggplus_mod
    from flwr.common import ndarrays_to_parameters
    from flwr.server import LegacyContext, ServerApp, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
    from flwr.simulation import run_simulation

    class Client(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [values.astype(np.float32)], 1, {}

    class Timed(SecAggPlusWorkflow):
        def __call__(self, grid: Any, context: Any) -> None:
            started = time.perf_counter()
            super().__call__(grid, context)
            spent.append(time.perf_counter() - started)

    spent: list[float] = []
    client, server = (
        ClientApp(client_fn=lambda context: Client().to_client(), mods=[secaggplus_mod]),
        ServerApp(),
    )

    @server.main()
    def main(grid: Any, context: Any) -> None:
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=holders,
            min_available_clients=holders,
            initial_parameters=ndarrays_to_parameters([np.zeros(values.size, dtype=np.float32)]),
        )
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=count), strategy=strategy)
        threshold = min(holders - 1, 2 * holders // 3 + 1)
        DefaultWorkflow(fit_workflow=Timed(holders, threshold, clipping_range=4.0 * values.size))(grid, legacy)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=holders, backend_config=resources)
    return spent


def beside_flower(holders: int, dimension: int, count: int) -> None:
    values = np.arange(dimension, dtype=np.int64)
    ours = whole_rounds(holders, values, count)
    theirs = secagg_plus(holders, values, count)
    ours += whole_rounds(holders, values, count)
    ratio = statistics.median(theirs) / statistics.median(ours)
    for what, spent in (("ours", ours), ("Flower's SecAgg+, simulated", theirs)):
        print(f"{what}: least {min(spent):.3f} s, median {statistics.median(spent):.3f} s a round")
    print(f"{holders} holders, {dimension:,} numbers, flwr {version('flwr')}: ours is {ratio:.0f} times faster")


def show(what: str, spent: list[float]) -> None:
    print(f"{what}: least {1000 * min(spent):.0f} ms, median {1000 * statistics.median(spent):.0f} ms of CPU")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--holders", type=int, default=10)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--large", action="store_true")
    options.add_argument("--many", action="store_true")
    options.add_argument("--flower", action="store_true")
    chosen = options.parse_args()
    if chosen.flower:
        beside_flower(chosen.holders, 26_000, chosen.rounds)
        return
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
