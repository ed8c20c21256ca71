"""PATE across holders: what a histogram costs, and labels from noisy sums."""

import math
from dataclasses import replace

import numpy as np
import pytest

from sfumato import accounting, datasets
from sfumato.errors import InvalidInput, Refused
from sfumato.holders import Parties, VoteTerms, simulate_votes
from sfumato.holders.rehearsals import affordable_queries, labels_by_vote, vote_study
from sfumato.holders.rounds import Lost
from sfumato.holders.sums import DeskSums, new_keys, public_keys
from sfumato.pate import MISSING, Adaptation, PateSettings, TeacherConfig, VotePlan

SIX = Parties(holders=6, dropped=1, colluding=1)
KEYS = new_keys(6)
GNMAX = VoteTerms(mechanism="gnmax", teachers=40, queries=4, classes=3)
CONFIDENT = replace(GNMAX, mechanism="confident", answers=2, threshold=150.0)


def study(terms, parties=SIX, epsilon=2.0):
    return vote_study(
        terms, parties, public_keys(KEYS), name="votes", unit="record", epsilon=epsilon, delta=1e-5
    )


def test_a_histogram_costs_root_two_for_each_query():
    """The same σ as one holder's GNMax under the same Rényi price: two counts move in each of 4 queries."""
    found = study(GNMAX)
    noise = found.rounds[0].parts[0]
    sigma = noise.deviation(SIX.counted)
    whole = accounting.GaussianEvent(sigma / math.sqrt(2 * 4))
    assert found.epsilons()["coalition"] == pytest.approx(accounting.rdp_epsilon(whole, 1e-5), rel=0.01)
    twice = study(replace(GNMAX, holders_per_unit=2)).rounds[0].parts[0]
    assert twice.deviation(5) == pytest.approx(2 * noise.deviation(5), rel=0.01)  # a person's votes at two


@pytest.mark.keeps_out("A test of the largest vote priced for the maximum, where all noisy counts are seen")
def test_a_test_is_priced_as_a_histogram():
    """σ₁ = 3σ on 4 histograms and σ on 2: 1/σ² · 2 · (4/9 + 2), by Rényi divergences."""
    found = study(CONFIDENT)
    tests, answers = (one.parts[0] for one in found.rounds)
    assert tests.deviation(4) == pytest.approx(3 * answers.deviation(4), rel=0.01)
    alike = accounting.GaussianEvent(answers.deviation(SIX.counted) / math.sqrt(2 * (4 / 9 + 2)))
    assert found.epsilons()["coalition"] == pytest.approx(accounting.rdp_epsilon(alike, 1e-5), rel=0.01)


def votes(queries=4):
    """All teachers agree on query q: class q mod 3; on the last one they are split."""
    one = np.tile(np.arange(queries) % 3, (40, 1))
    one[:, -1] = np.arange(40) % 3
    return dict.fromkeys(KEYS, one)


def test_labels_come_from_noisy_sums():
    desk = DeskSums(study(GNMAX, epsilon=20.0), KEYS, losses=lambda number: {3: Lost.INPUT})
    assert labels_by_vote(GNMAX, desk, votes()).tolist()[:3] == [0, 1, 2]


def test_who_is_not_sure_gives_no_label():
    desk = DeskSums(study(CONFIDENT, epsilon=60.0), KEYS)
    assert labels_by_vote(CONFIDENT, desk, votes()).tolist() == [0, 1, MISSING, MISSING]


def test_an_abandoned_vote_gives_nothing():
    desk = DeskSums(study(GNMAX), KEYS, losses=lambda number: {1: Lost.INPUT, 2: Lost.INPUT})
    with pytest.raises(Refused, match="stays charged"):
        labels_by_vote(GNMAX, desk, votes())


def test_more_holders_can_afford_more():
    few, many = (
        affordable_queries(Parties(holders=n), teachers=1, classes=10, epsilon=1, delta=1e-5, most=10**6)
        for n in (50, 100)
    )
    assert few < many


@pytest.mark.parametrize(
    "changes",
    [{"mechanism": "laplace"}, {"answers": 2}, {"mechanism": "confident"}, {"queries": 0}, {"teachers": 0}],
)
def test_terms_that_cannot_be(changes):
    with pytest.raises(InvalidInput, match="expected"):
        replace(GNMAX, **changes)


def test_a_whole_vote_at_a_desk():
    private = datasets.load("digits", "train", side=28).excerpt(300)
    public = replace(datasets.load("digits", "test", side=28).excerpt(60), visibility="public")
    plan = VotePlan(mechanism="gnmax", teachers=1, queries=5, sigma=1.0)
    config = TeacherConfig.of("head")
    settings = PateSettings(
        plan=plan,
        teacher=replace(config, fit=replace(config.fit, epochs=1)),
        adaptation=Adaptation(prior="strokes", steps=0),
        folds=2,
    )
    terms = VoteTerms(mechanism="gnmax", teachers=1, queries=5, classes=10)
    done = simulate_votes(private, public, parties=SIX, terms=terms, settings=settings, epsilon=5.0)
    assert done.labels.shape == (5,)
    assert 0 <= done.student_accuracy <= 1
    assert max(done.study.epsilons().values()) <= 5.0
    assert all(one.verify() == one.prices for one in list(done.certificates.values())[:1])
