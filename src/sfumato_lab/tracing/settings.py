"""The two available epidemics, with the score's assumptions about each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sfumato_lab.tracing import covasim, simulators
from sfumato_lab.tracing.covasim import CovasimSimulator
from sfumato_lab.tracing.disease import Disease, Kind
from sfumato_lab.tracing.simulators import SeirSimulator, Simulator, Town


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A simulator, the disease as the score assumes it, the share of people tested each day, its least town."""

    make: Callable[[int, int, int], Simulator]  # people, days, seed
    disease: Disease
    test_fraction: float
    fewest_people: int


def _seir(people: int, days: int, seed: int) -> Simulator:
    return SeirSimulator(Town(people=people), seed=seed)


def _covasim(people: int, days: int, seed: int) -> Simulator:
    return CovasimSimulator(people=people, days=days, seed=seed)


_SEIR_KINDS = (
    Kind(name="home", recurrence=1.0),
    Kind(name="work", recurrence=0.7),
    Kind(name="chance", recurrence=0.05),
)
_COVASIM_KINDS = (  # Covasim's relative transmission in its layers; all its contacts recur daily
    Kind(name="home", closeness=3.0, recurrence=1.0),
    Kind(name="school", closeness=0.6, recurrence=1.0),
    Kind(name="work", closeness=0.6, recurrence=1.0),
    Kind(name="community", closeness=0.3, recurrence=1.0),
)
_COVASIM_AGES = (0.34, 0.67, 1.0, 1.0, 1.0, 1.0, 1.24, 1.47)  # Covasim's, after Zhang et al. 2020 (Science)

SETTINGS: dict[str, Setting] = {
    "seir": Setting(
        make=_seir,
        disease=Disease(onset=0.5, message_bound=0.3, kinds=_SEIR_KINDS, prevalence=0.0005),
        test_fraction=0.1,
        fewest_people=simulators.FEWEST_PEOPLE,
    ),
    "covasim": Setting(
        make=_covasim,
        disease=Disease(
            transmission=0.009,
            onset=0.25,
            recovery=0.12,
            background=1e-5,
            message_bound=0.15,
            kinds=_COVASIM_KINDS,
            prevalence=0.0005,
            susceptibility=_COVASIM_AGES,
        ),
        test_fraction=0.02,
        fewest_people=covasim.FEWEST_PEOPLE,
    ),
}
