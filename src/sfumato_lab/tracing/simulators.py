"""The interface of a simulated epidemic, and the embedded one: S → E → I → R on households, work and chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.randomness import public_generator
from sfumato_lab.tracing.contacts import Meetings, Pairs
from sfumato_lab.tracing.disease import Floats

Bools = npt.NDArray[np.bool_]

FEWEST_PEOPLE = 2

_SUSCEPTIBLE, _EXPOSED, _INFECTIOUS, _RECOVERED = range(4)


class Simulator(Protocol):
    """An epidemic that lives one day at a time."""

    @property
    def people(self) -> int: ...

    def ages(self) -> Floats | None:
        """Everybody's age in years, which is their own to know; None where people have no age."""
        ...

    def step(self, isolated: Bools) -> Meetings:
        """Live a day, on which isolated people stay apart; return who met whom, and in which way."""
        ...

    def infectious(self) -> Bools:
        """Who would truly test positive now."""
        ...

    def infected(self) -> Bools:
        """Who is exposed or infectious now."""
        ...


@dataclass(frozen=True, kw_only=True)
class Town:
    """Parameters of the embedded epidemic, taken from no person's data.

    Args:
        people: How many people live there.
        first_infected: The share of people infected at first.
        transmission: The chance of infection from one contact.
        onset: The daily chance of E → I.
        recovery: The daily chance of I → R.
        work_contacts: The mean number of colleagues.
        work_presence: The share of days at work.
        chance_contacts: The mean number of chance meetings a day.

    >>> Town(people=500).people
    500
    """

    people: int = 100_000
    first_infected: float = 0.001
    transmission: float = 0.05
    onset: float = 0.5
    recovery: float = 0.1
    work_contacts: float = 5.0
    work_presence: float = 0.7
    chance_contacts: float = 4.0

    def __post_init__(self) -> None:
        _validate.integer("people", self.people, least=FEWEST_PEOPLE)
        for name in ("first_infected", "transmission", "onset", "recovery", "work_presence"):
            _validate.probability(name, getattr(self, name))
        for name in ("work_contacts", "chance_contacts"):
            _validate.non_negative(name, getattr(self, name))


class SeirSimulator:
    """Households of one to six who meet daily, colleagues who meet on most days, and chance meetings.

    Args:
        town: The town's numbers.
        seed: Fixes the epidemic.

    >>> SeirSimulator(Town(people=100), seed=0).infected().shape
    (100,)
    """

    def __init__(self, town: Town, *, seed: int) -> None:
        self._town = town
        self._random = public_generator(seed)
        self._state = np.full(town.people, _SUSCEPTIBLE, dtype=np.int8)
        first = max(1, round(town.first_infected * town.people))
        self._state[self._random.permutation(town.people)[:first]] = _EXPOSED
        self._home = _household_pairs(town.people, self._random)
        self._work = _random_pairs(town.people, town.work_contacts, self._random)

    @property
    def people(self) -> int:
        return self._town.people

    def ages(self) -> None:
        return None

    def infectious(self) -> Bools:
        return self._state == _INFECTIOUS

    def infected(self) -> Bools:
        return (self._state == _EXPOSED) | (self._state == _INFECTIOUS)

    def step(self, isolated: Bools) -> Meetings:
        meetings = self._meetings(isolated)
        one, other = meetings.one, meetings.other
        struck = self._struck(one, other) | self._struck(other, one)
        draws = self._random.random(self.people)
        ill, incubating = self._state == _INFECTIOUS, self._state == _EXPOSED
        self._state[ill & (draws < self._town.recovery)] = _RECOVERED
        self._state[incubating & (draws < self._town.onset)] = _INFECTIOUS
        self._state[struck & (self._state == _SUSCEPTIBLE)] = _EXPOSED
        return meetings

    def _meetings(self, isolated: Bools) -> Meetings:
        at_work = self._random.random(self._work[0].size) < self._town.work_presence
        work = (self._work[0][at_work], self._work[1][at_work])
        chance = _random_pairs(self.people, self._town.chance_contacts, self._random)
        one = np.concatenate([self._home[0], work[0], chance[0]])
        other = np.concatenate([self._home[1], work[1], chance[1]])
        kind = np.repeat(np.arange(3), [self._home[0].size, work[0].size, chance[0].size])
        return Meetings(one, other, kind).without(isolated)

    def _struck(self, source: npt.NDArray[np.integer], target: npt.NDArray[np.integer]) -> Bools:
        """Targets to whom an infectious source passed the disease."""
        reached = target[self._state[source] == _INFECTIOUS]
        caught = reached[self._random.random(reached.size) < self._town.transmission]
        struck = np.zeros(self.people, dtype=np.bool_)
        struck[caught] = True
        return struck


def _household_pairs(people: int, random: np.random.Generator) -> Pairs:
    """All pairs inside households, whose sizes are those of a European town."""
    sizes = random.choice(6, size=people, p=[0.32, 0.33, 0.15, 0.13, 0.05, 0.02]) + 1
    household = np.repeat(np.arange(people), sizes)[:people]
    pairs = []
    for distance in range(1, 6):
        one = np.arange(people - distance)
        together = household[one] == household[one + distance]
        pairs.append((one[together], one[together] + distance))
    return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])


def _random_pairs(people: int, contacts: float, random: np.random.Generator) -> Pairs:
    """Meetings of people drawn at random, `contacts` each on average."""
    count = round(people * contacts / 2)
    return random.integers(people, size=count), random.integers(people, size=count)
