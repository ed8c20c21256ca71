"""Covasim 4 as a simulator: its disease and its networks, our tests and our isolation."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sfumato import _validate
from sfumato.errors import MissingExtra
from sfumato_lab.tracing.contacts import Meetings
from sfumato_lab.tracing.disease import Floats
from sfumato_lab.tracing.simulators import Bools

FEWEST_PEOPLE = 100
LAYERS = ("h", "s", "w", "c")  # Covasim's names of home, school, work and community, nearest first


def _covasim() -> Any:
    os.environ.setdefault("COVASIM_VERBOSE", "0")
    os.environ.setdefault("STARSIM_INSTALL_FONTS", "0")
    try:
        import covasim
    except ImportError as error:
        raise MissingExtra(package="covasim", extra="lab") from error
    return covasim


class CovasimSimulator:
    """Covasim's hybrid population (households, schools, work, community), one day at a time.

    Covasim's own tests have no false positives and its diagnoses isolate by its own rules, so neither is used:
    an intervention sets who is isolated from outside, with Covasim's isolation factors per layer. The default
    `transmission` (Covasim's β, 0.016 in an unwarned population) is that of people who keep some distance.

    Args:
        people: How many people live there.
        days: How many days are simulated at most.
        seed: Fixes the epidemic.
        first_infected: The share of people infected at first.
        transmission: Covasim's β.

    ```python
    simulator = CovasimSimulator(people=10_000, days=100, seed=0)
    ```
    """

    def __init__(
        self, *, people: int, days: int, seed: int, first_infected: float = 0.002, transmission: float = 0.009
    ) -> None:
        covasim = _covasim()
        self._people = _validate.integer("people", people, least=FEWEST_PEOPLE)
        _validate.integer("days", days, least=1)
        _validate.probability("first_infected", first_infected)
        self._sim = covasim.Sim(
            pop_size=people,
            pop_type="hybrid",
            beta=transmission,
            pop_infected=max(1, round(first_infected * people)),
            n_days=days,
            rand_seed=_validate.integer("seed", seed),
            interventions=[_isolation(covasim, people)],
            verbose=0,
        )
        self._sim.init()
        self._isolation = self._sim.interventions[0]  # a copy of the one handed over

    @property
    def people(self) -> int:
        return self._people

    def ages(self) -> Floats:
        return np.asarray(self._sim.people.age, dtype=np.float64)[: self._people]

    def step(self, isolated: Bools) -> Meetings:
        self._isolation.people_apart = isolated
        self._sim.run_one_step()
        return self._edges().without(isolated)

    def infectious(self) -> Bools:
        return self._mask(self._sim.diseases.covid.infectious.uids)

    def infected(self) -> Bools:
        return self._mask(self._sim.diseases.covid.infected.uids)

    def _edges(self) -> Meetings:
        layers = [self._sim.networks[name].edges for name in LAYERS]
        one = np.concatenate([np.asarray(layer.p1, dtype=np.int64) for layer in layers])
        other = np.concatenate([np.asarray(layer.p2, dtype=np.int64) for layer in layers])
        return Meetings(one, other, np.repeat(np.arange(len(layers)), [len(layer.p1) for layer in layers]))

    def _mask(self, who: Any) -> Bools:
        mask = np.zeros(self._people, dtype=np.bool_)
        mask[np.asarray(who, dtype=np.int64)] = True
        return mask


def _isolation(covasim: Any, people: int) -> Any:
    """Return an intervention that isolates the people of `people_apart`, each day."""

    class Isolation(covasim.Intervention):
        def __init__(self) -> None:
            super().__init__()
            self.people_apart: Bools = np.zeros(people, dtype=np.bool_)

        def step(self) -> None:
            covid = self.sim.diseases.covid
            alive = np.asarray(self.sim.people.auids, dtype=np.int64)
            covid.isolated[self.sim.people.auids] = self.people_apart[alive]

    return Isolation()
