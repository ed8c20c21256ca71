"""An epidemic, day by day, held down by testing the people with the highest released scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.randomness import Sampler, public_generator
from sfumato.runs import EpidemicCurve
from sfumato_lab.tracing.disease import Disease, Floats, TestKit
from sfumato_lab.tracing.population import Population
from sfumato_lab.tracing.release import Release
from sfumato_lab.tracing.scoring import release_risks
from sfumato_lab.tracing.simulators import Bools, Simulator

_SET_ASIDE = 20  # one in so many of the day's tests is kept for confirming: a public number
UNIT = "one contact-day message"  # whom an ε protects
_NAMES = {
    "none": "no tests",
    "random": "tests for people chosen by lot",
    "traditional": "tests for contacts of the sick",
    "dpfn": "tests by risk score",
    "dpfn-daily": "tests by a fresh risk score each day",
    "dpfn-s": "tests by smoothed risk score",
    "per-message": "tests by noised messages",
}


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """The plan of a campaign, fixed before the first day.

    Args:
        release: The method of the scores, and its noise.
        disease: How the score takes the disease to spread.
        kit: Error rates of tests.
        days: How long it lasts.
        test_fraction: The share of people tested each day, confirming tests included.
        isolation_days: How long a positive person is isolated.

    >>> Campaign(release=Release(method="traditional"), days=10).tests_a_day(1000)
    100
    """

    release: Release
    disease: Disease = field(default_factory=Disease)
    kit: TestKit = field(default_factory=TestKit)
    days: int = 100
    test_fraction: float = 0.1
    isolation_days: int = 10

    def __post_init__(self) -> None:
        _validate.integer("days", self.days, least=1)
        _validate.integer("isolation_days", self.isolation_days, least=1)
        _validate.probability("test_fraction", self.test_fraction, remedy="the share of people tested each day")

    def tests_a_day(self, people: int) -> int:
        return 0 if self.release.method == "none" else round(self.test_fraction * people)

    def turns_a_day(self, people: int) -> int:
        """How many people are offered a test each day; with confirming tests, some are set aside for these."""
        tests = self.tests_a_day(people)
        return tests - tests // _SET_ASIDE if self.kit.confirm else tests


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a campaign in a simulated town, day by day.

    Attributes:
        prevalence: The share of people infected, day by day.
        tests: How many were tested.
        positives: How many tests were positive.
        isolated: How many people were isolated.
        contacts_per_day: The mean number of a person's meetings.
        private: False if noise was seeded.
    """

    prevalence: tuple[float, ...]  # share of people exposed or infectious
    tests: tuple[int, ...]
    positives: tuple[int, ...]
    isolated: tuple[int, ...]
    contacts_per_day: float
    private: bool

    @property
    def peak_infection_rate(self) -> float:
        return max(self.prevalence)

    def curve(
        self, release: Release, disease: Disease, *, epsilon: float | None, delta: float
    ) -> EpidemicCurve:
        """Return the epidemic and its price; `epsilon` is the requested ε, None without noise."""
        price = release.price(disease, contacts_per_day=self.contacts_per_day).epsilons(delta)
        spent = {f"epsilon_{span}": None if epsilon is None else value for span, value in price.items()}
        return EpidemicCurve(
            method=release.method,
            name=_NAMES[release.method],
            epsilon=epsilon,
            peak=self.peak_infection_rate,
            prevalence=self.prevalence,
            **spent,
        )


def run(
    campaign: Campaign,
    simulator: Simulator,
    sampler: Sampler,
    *,
    seed: int,
    progress: Callable[[int, float], None] | None = None,
) -> Outcome:
    """Run a campaign: release scores, test, isolate, day after day.

    *Guarantees*: who is offered a test follows from released values and from who was offered one before
    (`Population.turns`), so that no result decides whether another person is tested, nor whether they
    have a turn later. Isolated people take their turn at home. A person who is to leave isolation is tested
    for that, and stays if positive; this test is not reported and changes no message.

    Args:
        campaign: The plan.
        simulator: The epidemic.
        sampler: The secret stream of the privacy noise.
        seed: Fixes the simulated test errors and the order among equals.
        progress: `progress(day, prevalence)` is called after each day.

    Returns:
        The outcome.

    >>> from sfumato.randomness import SecretStream
    >>> from sfumato_lab.tracing import SeirSimulator, Town
    >>> campaign = Campaign(release=Release(method="traditional", noise_multiplier=1.0), days=2)
    >>> len(run(campaign, SeirSimulator(Town(people=100), seed=0), SecretStream(), seed=0).prevalence)
    2
    """
    population = Population(simulator.people, campaign.disease, campaign.kit, ages=simulator.ages())
    turns, random = campaign.turns_a_day(simulator.people), public_generator(seed)
    free_from = np.zeros(simulator.people, dtype=np.int64)  # the day on which each person's isolation is over
    days: list[tuple[float, int, int, int]] = []
    contacts = 0.0
    for day in range(campaign.days):
        isolated = free_from > day
        population.begin_day(simulator.step(isolated))
        risks = release_risks(population, campaign.release, sampler)
        chosen = choose(risks(population.turns), turns, random)
        population.offer_tests(chosen)
        infectious = simulator.infectious()
        results = examine(infectious[chosen], campaign.kit, random)
        results.record(population, chosen)
        leaving = free_from == day + 1
        kept = leaving & _test(infectious, campaign.kit, random)
        kept[chosen[results.positive]] = True
        free_from[kept] = day + 1 + campaign.isolation_days
        prevalence = float(simulator.infected().mean())
        days.append(
            (prevalence, results.tests + int(leaving.sum()), int(results.positive.sum()), int(isolated.sum()))
        )
        contacts = max(contacts, population.contacts.contacts_per_day())
        if progress is not None:
            progress(day, prevalence)
    return _outcome(days, contacts, sampler.private)


def _outcome(days: list[tuple[float, int, int, int]], contacts: float, private: bool) -> Outcome:
    prevalence, tests, positives, isolated = zip(*days, strict=True)
    return Outcome(
        prevalence=prevalence,
        tests=tests,
        positives=positives,
        isolated=isolated,
        contacts_per_day=contacts,
        private=private,
    )


def choose(scores: Floats, count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """The `count` people of highest score, in random order among equals."""
    if np.isnan(scores).any():
        raise InvalidInput("expected scores without NaN; check the disease's parameters")
    candidates = random.permutation(scores.size)
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order[:count]]


@dataclass(frozen=True, kw_only=True)
class Results:
    """Who of those who had a turn was tested on a day, and how each test came out.

    Attributes:
        first: Whose first test was positive.
        retested: Who was tested a second time.
        second: Whose second test was positive.
        positive: Who counts as positive: isolated, and told to their contacts.
    """

    first: Bools
    retested: Bools
    second: Bools
    positive: Bools

    @property
    def tests(self) -> int:
        return int(self.first.size + self.retested.sum())

    def record(self, population: Population, people: npt.NDArray[np.int64]) -> None:
        """Every test is evidence on its owner's phone; contacts hear of those who count as positive."""
        confirm = population.kit.confirm
        population.record_tests(people, self.first, counts=not confirm)
        population.record_tests(people[self.retested], self.second[self.retested], counts=confirm)


def examine(infectious: Bools, kit: TestKit, random: np.random.Generator) -> Results:
    """Test the people who have a turn; with `kit.confirm`, test each positive person again at once.

    *Guarantees*: whether a person is tested again follows from that person's own first result: every positive
    test is followed by a second, even on a day with more of them than tests were set aside for.
    """
    first = _test(infectious, kit, random)
    retested = first & kit.confirm
    second = retested & _test(infectious, kit, random)
    return Results(
        first=first,
        retested=retested,
        second=second,
        positive=second if kit.confirm else first,
    )


def _test(infectious: Bools, kit: TestKit, random: np.random.Generator) -> Bools:
    errs = random.random(infectious.size)
    return np.where(infectious, errs >= kit.false_negative_rate, errs < kit.false_positive_rate)
