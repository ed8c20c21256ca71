"""Hostile neighbours of a person: one test comes out otherwise, and everything noised moves within the price.

What is released is replaced by values that are the same in both worlds, so that the two differ in nothing but
what is handed to the noise: that is kept, and its distance is held against the price of a person.
"""

import numpy as np
import pytest

from sfumato.randomness import SecretStream, public_generator
from sfumato_lab.tracing import Campaign, Disease, Kind, Population, Release, TestKit, release_scores, run
from sfumato_lab.tracing import campaign as rules
from sfumato_lab.tracing import scoring as channel
from sfumato_lab.tracing.contacts import Meetings
from sfumato_lab.tracing.settings import SETTINGS

DAYS = 60
MET = np.ones((DAYS, 2))  # person 0 meets the same two people every day
SLACK = 1 + 2.0**-8  # both ends are rounded to a grid of 2⁻¹⁰
RELEASES = {
    "dpfn": Release(method="dpfn", noise_multiplier=2.0, overlap=0.5),
    "dpfn, told at once": Release(method="dpfn", noise_multiplier=2.0),
    "dpfn, told daily": Release(method="dpfn", noise_multiplier=2.0, repeat=True),
    "dpfn-daily": Release(method="dpfn-daily", noise_multiplier=2.0, rounds=2),
    "dpfn-s": Release(method="dpfn-s", noise_multiplier=2.0),
    "per-message": Release(method="per-message", noise_multiplier=2.0),
    "traditional": Release(method="traditional", noise_multiplier=2.0),
}


class Noised:
    """Keeps what is handed to the noise, and releases the same in all worlds."""

    def __init__(self, monkeypatch, *, loud=0.0, seed=0):
        self.sent, self._draws = [], {}
        random = public_generator(seed)

        def send(line, whole, sampler):
            self.sent.append(np.asarray(whole, dtype=float).reshape(-1) * line.grid)
            key = (len(self.sent), whole.shape)
            if key not in self._draws:
                self._draws[key] = loud * random.random(whole.shape)
            return self._draws[key].copy()

        monkeypatch.setattr(channel.Channel, "send", send)

    def world(self, happens, *given, **options):
        self.sent = []
        happens(*given, **options)
        return np.concatenate(self.sent)


def share_of_the_price(release, disease, contacts, worlds):
    """How far two worlds are apart, as a share of what a person is priced at."""
    rounds = release.rounds if release.method == "dpfn-daily" else 1  # each noised with √rounds · σ
    moved = float(np.linalg.norm(worlds[0] - worlds[1])) / rounds**0.5
    price = release.price(disease, contacts_per_day=contacts).person
    return moved / (release.sensitivity(disease) * release.noise_multiplier / price.noise_multiplier)


def live(disease, release, tests, *, met, confirm=False):
    """Person 0 meets others for `DAYS` days; `tests` are (day, result), and positive ones are confirmed."""
    people = Population(met.shape[1] + 1, disease, TestKit(confirm=confirm))
    for day in range(DAYS):
        others = np.flatnonzero(met[day]) + 1
        people.begin_day(Meetings(np.zeros_like(others), others))
        release_scores(people, release, None)
        for when, result in tests:
            if when == day:
                people.record_tests(np.array([0]), np.array([result]), counts=not confirm)
                if confirm and result:
                    people.record_tests(np.array([0]), np.array([True]))


def hostile(seed):
    """A person with other tests around, whose test on one day is positive, negative or not taken."""
    random = public_generator(seed)
    window = int(random.integers(2, 15))
    disease = Disease(
        window=window,
        onset=float(random.choice([0.25, 0.5, 0.99])),
        recovery=float(random.choice([0.02, 0.1, 0.5])),
        background=float(random.choice([1e-5, 1e-3])),
        message_bound=float(random.choice([0.15, 0.3, 1.0])),
        kinds=(Kind(recurrence=1.0),),
    )
    number = int(random.integers(0, 6))
    others = [(int(day), bool(random.random() < 0.6)) for day in random.integers(8, 40, number)]
    met = np.ones((DAYS, 3)) if seed % 2 else random.random((DAYS, 3)) < 0.8
    ends = ([(20, True)], [(20, False)]) if random.random() < 0.7 else ([(20, True)], [])
    return disease, [[*others, *end] for end in ends], met, float(random.choice([0.0, 0.003, 0.03, 1.0]))


@pytest.mark.parametrize("name", RELEASES)
def test_one_test_moves_all_releases_within_the_price_whatever_other_tests_there_are(name, monkeypatch):
    shares, release = [], RELEASES[name]
    for seed in range(8):
        disease, tests, met, loud = hostile(seed)
        noised, confirm = Noised(monkeypatch, loud=loud, seed=seed), seed % 3 == 0
        worlds = [noised.world(live, disease, release, each, met=met, confirm=confirm) for each in tests]
        shares.append(share_of_the_price(release, disease, 3, worlds))
    assert max(shares) <= SLACK
    assert max(shares) > 0.1  # the comparison is not of nothing with nothing


# A test that decides whether these are believed moves messages that it does not speak of.
DOUBTED = [
    [(34, True), (40, False), (19, True)],
    [(41, True), (40, False), (23, True)],
]


@pytest.mark.parametrize("simulator", SETTINGS)
@pytest.mark.parametrize("name", ["dpfn", "dpfn, told daily"])
def test_one_test_does_not_decide_whether_other_tests_are_believed(name, simulator, monkeypatch):
    disease, release = SETTINGS[simulator].disease, RELEASES[name]
    for others in DOUBTED:
        noised = Noised(monkeypatch)
        worlds = [noised.world(live, disease, release, [*others, (20, it)], met=MET) for it in (True, False)]
        assert share_of_the_price(release, disease, 2, worlds) <= SLACK


@pytest.mark.parametrize(("name", "sums_a_day"), [("dpfn-daily", 2), ("dpfn-s", 1), ("per-message", 14)])
def test_a_test_that_left_the_window_is_in_no_message(name, sums_a_day, monkeypatch):
    disease, release = SETTINGS["seir"].disease, RELEASES[name]
    noised = Noised(monkeypatch, loud=0.01)
    worlds = [noised.world(live, disease, release, [(20, it)], met=MET) for it in (True, False)]
    assert share_of_the_price(release, disease, 2, worlds) <= SLACK
    days_left = DAYS - 21 - disease.window
    last = sum(part.size for part in noised.sent[-days_left * sums_a_day :])
    moved = worlds[0] - worlds[1]
    assert moved[:-last].any()
    assert not moved[-last:].any()


@pytest.mark.parametrize("name", ["dpfn-daily", "dpfn-s", "per-message"])
def test_a_refuted_test_does_move_messages_that_are_beliefs(name, monkeypatch):
    disease, release = SETTINGS["seir"].disease, RELEASES[name]
    noised = Noised(monkeypatch)
    refuted, negative = [(20, True), (20, False)], [(20, False)]
    worlds = [noised.world(live, disease, release, tests, met=MET) for tests in (refuted, negative)]
    assert 0.001 < share_of_the_price(release, disease, 2, worlds) <= SLACK


class Fixed:
    """A town whose meetings and infectious people are written down beforehand."""

    people = 12

    def __init__(self, infectious):
        self._infectious, self._day = infectious, -1

    def ages(self):
        return None

    def step(self, isolated):
        self._day += 1
        one = np.repeat([0, 1, 2, 3], 2)
        return Meetings(one, np.arange(4, 12), np.zeros(8, dtype=np.int64))

    def infectious(self):
        return self._infectious[self._day]

    def infected(self):
        return self._infectious[self._day]


def campaign(monkeypatch, release, infectious, *, loud, seed, kit, fraction):
    """What is handed to the noise, and who had a turn on each day."""
    turns, choose = [], rules.choose

    def noted(*given):
        turns.append(choose(*given).tolist())
        return np.array(turns[-1], dtype=np.int64)

    monkeypatch.setattr(rules, "choose", noted)
    disease = SETTINGS["seir"].disease
    plan = Campaign(release=release, disease=disease, kit=kit, days=40, test_fraction=fraction)
    noised = Noised(monkeypatch, loud=loud, seed=seed)
    return noised.world(run, plan, Fixed(infectious), SecretStream(test_seed=seed), seed=seed), turns


@pytest.mark.parametrize("confirm", [True, False])
@pytest.mark.parametrize("name", RELEASES)
def test_in_a_whole_campaign_one_result_moves_one_persons_messages_alone(name, confirm, monkeypatch):
    kit = TestKit(false_positive_rate=1e-9, false_negative_rate=1e-9, confirm=confirm)
    shares = []
    for seed in range(4):
        random = public_generator(seed)
        infectious = random.random((40, 12)) < 0.5
        infectious[15] = True
        options = {"loud": 0.3, "seed": seed, "kit": kit, "fraction": (3 if seed else 12) / 12}
        with monkeypatch.context() as patch:
            here, turns = campaign(patch, RELEASES[name], infectious, **options)
        victim = [person for person in turns[15] if person < 4] or [turns[15][0]]
        other = infectious.copy()
        other[15, victim[0]] = False
        with monkeypatch.context() as patch:
            there, same = campaign(patch, RELEASES[name], other, **options)
        assert turns == same  # nobody else gains or loses a turn, then or later
        contacts = 2 if victim[0] < 4 else 1
        shares.append(share_of_the_price(RELEASES[name], SETTINGS["seir"].disease, contacts, [here, there]))
    assert max(shares) <= SLACK
    assert max(shares) > 0
