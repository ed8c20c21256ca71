"""The state of a population's phones between two days."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sfumato.errors import InvalidInput
from sfumato_lab.tracing.contacts import ContactWindow, Integers, Meetings, Pairs
from sfumato_lab.tracing.disease import Disease, Floats, TestKit
from sfumato_lab.tracing.neighbours import Evidence

_LONG_AGO = -(10**6)
_LEAST_NEWS = 2e-5  # positive tests a day and person: 2% tested, one in a thousand of them positive
_DAYS_HEARD = 7  # over which contacts average the noise of news that is told daily
_MEMORY = 0.6  # weight of yesterday's average of released scores in today's


class OwnTests:
    """Likelihoods of people's own tests, morning by morning; columns are people.

    Args:
        people: How many there are.
        disease: How the score takes the disease to spread.

    >>> OwnTests(2, Disease()).evidence(np.zeros((14, 2))).if_other.shape
    (15, 2)
    """

    def __init__(self, people: int, disease: Disease) -> None:
        self.if_infectious: Floats = np.ones((disease.window + 1, people))
        self.if_other: Floats = np.ones((disease.window + 1, people))
        self.start: Floats = np.repeat(disease.start()[:, None], people, axis=1)
        self.next_start: Floats = self.start

    def begin_day(self) -> None:
        """Move the window one day on."""
        _shift(self.if_infectious, fill=1)
        _shift(self.if_other, fill=1)
        self.start = self.next_start

    def weigh(self, people: npt.NDArray[np.integer], likelihood: tuple[Floats, Floats]) -> None:
        """Tests taken after today's contacts: evidence on tomorrow's morning."""
        self.if_infectious[-1, people] *= likelihood[0]
        self.if_other[-1, people] *= likelihood[1]

    def evidence(self, exposure: Floats) -> Evidence:
        """These tests with this exposure."""
        return Evidence(
            exposure=exposure,
            if_infectious=self.if_infectious,
            if_other=self.if_other,
            start=self.start,
        )


class Population:
    """The state of all people: contacts, own tests, and the values released so far.

    Rows are days, oldest first; columns are people. `exposure` and `positives` are only ever made of released
    values, for the methods whose releases they keep, so that later computations are
    post-processing. `results` are all people's tests as they came out; `turns` are the tests that people were
    offered, each as if it was negative: these reveal no result.

    Args:
        people: How many there are.
        disease: How the score takes the disease to spread.
        kit: Error rates of tests.
        ages: (people,), in years; None if they are not known.

    >>> Population(5, Disease(), TestKit()).recently_positive().tolist()
    [0, 0, 0, 0, 0]
    """

    def __init__(self, people: int, disease: Disease, kit: TestKit, *, ages: Floats | None = None) -> None:
        self.people, self.disease, self.kit = people, disease, kit
        self.susceptibility = np.ones(people) if ages is None else disease.susceptibility_at(ages)
        self.day = -1
        self.contacts = ContactWindow(people, disease.window, kinds=len(disease.kinds))
        self.exposure: Floats = np.zeros((disease.window, people))
        self.booked: Integers = np.zeros((disease.window, people), dtype=np.int64)
        heard = (disease.window, len(disease.kinds), people)
        self.positives: Floats = np.zeros(heard)  # contacts who tested positive, by the news; today first
        self.heard: Floats = np.zeros(
            (min(_DAYS_HEARD, disease.window), *heard[1:])
        )  # released news, if told daily; today first
        self._release: object = None  # by which the news is told
        self.results, self.turns = OwnTests(people, disease), OwnTests(people, disease)
        self._positives = 0.0  # moving average of how many contacts the released news spoke of
        self._average: Floats | None = None  # of released scores
        self._variance = 1.0  # of that average, in variances of one release
        self.last_positive: Integers = np.full(people, _LONG_AGO, dtype=np.int64)

    def keep_to(self, release: object) -> None:
        """Refuse a release that differs from that of earlier days; stored values are in its units."""
        if self._release not in (None, release):
            raise InvalidInput(
                f"expected the release of the days before, {self._release!r}, got {release!r}; "
                "a population is told in one way for as long as it lives"
            )
        self._release = release

    def begin_day(self, pairs: Pairs | Meetings) -> None:
        """Move the window one day on and take in today's contacts."""
        self.day += 1
        self.contacts.add_day(pairs)
        _shift(self.exposure, fill=0)
        _shift(self.booked, fill=0)
        _shift(self.positives[::-1], fill=0)
        _shift(self.heard[::-1], fill=0)
        self.results.begin_day()
        self.turns.begin_day()

    def offer_tests(self, people: npt.NDArray[np.integer]) -> None:
        """Record that these people were offered a test today, independent of the result."""
        self.turns.weigh(people, self.kit.likelihood(np.zeros(len(people), dtype=np.bool_)))

    def record_tests(
        self, people: npt.NDArray[np.integer], positive: npt.NDArray[np.bool_], *, counts: bool = True
    ) -> None:
        """Results of tests taken after today's contacts: evidence on tomorrow's morning.

        Contacts are told of each positive person, unless the result does not count by itself.
        """
        self.results.weigh(people, self.kit.likelihood(positive))
        if counts:
            self.last_positive[people[positive]] = self.day

    def steady(self, released: Floats) -> tuple[Floats, float]:
        """A moving average of released scores, and its variance as a share of one release's."""
        if self._average is None:
            self._average = released
        else:
            self._average = _MEMORY * self._average + (1 - _MEMORY) * released
            self._variance = _MEMORY**2 * self._variance + (1 - _MEMORY) ** 2
        return self._average, self._variance

    def news_rate(self, positives: float, contacts: float) -> float:
        """Positive tests a day and contact, as the released news of the last days has it."""
        self._positives += (1 - _MEMORY) * (positives - self._positives)
        return max(_LEAST_NEWS, self._positives / max(1.0, contacts))

    def recently_positive(self) -> Integers:
        """Return 1 for each person who tested positive in the window, 0 for others."""
        return (self.day - self.last_positive < self.disease.window).astype(np.int64)

    def evidence(self, exposure: Floats) -> Evidence:
        """Own tests with this exposure."""
        return self.results.evidence(exposure)


def _shift(rows: npt.NDArray[np.float64] | Integers, *, fill: int) -> None:
    rows[:-1] = rows[1:]
    rows[-1] = fill
