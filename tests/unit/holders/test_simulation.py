"""A whole study at a desk: nodes, ledgers, drop-outs."""

import math

import numpy as np
import pytest
import torch

from sfumato import TrainingPlan, datasets
from sfumato.accounting import Budget
from sfumato.errors import InvalidInput, NotVerified, Refused
from sfumato.holders import Node, Opened, Parties, simulate, simulation, tasks
from sfumato.holders.node import _as_of_all
from sfumato.holders.rounds import Lost
from sfumato.learn import Recipe
from sfumato.ledger import Ledger
from sfumato.mechanisms import GridGaussian
from sfumato.randomness import SecretStream
from sfumato.training import NoiseShares

SMALL = Recipe(extractors=("strokes",), drawn=100, directions=8, steps=2)
PARTIES = Parties(holders=4, dropped=1)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(tasks, "recipe_for", lambda name: SMALL)


@pytest.fixture(scope="module")
def rows():
    return datasets.load("digits", "train").excerpt(400)


@pytest.fixture
def heads(monkeypatch):
    """The models of the nodes, by their places."""
    kept, train = {}, Node.train

    def noted(self, head, *arguments, **options):
        kept[self.place] = head
        return train(self, head, *arguments, **options)

    monkeypatch.setattr(Node, "train", noted)
    return kept


def test_all_pay_before_they_learn_and_end_with_one_model(rows, tmp_path, heads):
    """Holder 4 cannot pay and stays out; the others charge their own ledgers, and round 2 is abandoned."""
    ledgers = {
        place: Ledger.open(tmp_path / f"{place}.db", Budget(epsilon=1 if place < 4 else 0.5, delta=1e-5))
        for place in range(1, 5)
    }
    seen = []
    done = simulate(
        rows,
        rows,
        parties=PARTIES,
        epsilon=1.0,
        spare=1,
        ledgers=ledgers,
        losses=lambda number: {1: Lost.INPUT} if number == 2 else {},
        on_step=lambda: seen.append(ledgers[1].epsilon_spent),
    )
    assert done.abandoned == 1  # with holder 4 away only three are left, and one more was lost
    assert len(seen) == 3
    assert min(seen) > 0.9  # charged as a whole when the first step was done
    assert [ledgers[place].epsilon_spent > 0.9 for place in range(1, 5)] == [True, True, True, False]
    assert set(done.certificates) == {1, 2, 3}
    certificate = done.certificates[2]
    assert certificate.verify() == certificate.prices
    assert any("shares that are left" in caveat for caveat in certificate.caveats)
    assert 0 <= done.test_accuracy <= 1
    assert len(heads) == 3
    for head in heads.values():
        assert torch.equal(head.weight, done.model.weight)
        assert head.weight.abs().sum() > 0


def test_too_few_who_can_pay(rows, tmp_path):
    ledgers = {
        place: Ledger.open(tmp_path / f"{place}.db", Budget(epsilon=0.5, delta=1e-5)) for place in (1, 2)
    }
    with pytest.raises(InvalidInput, match="nothing was charged"):
        simulate(rows, None, parties=PARTIES, epsilon=1.0, ledgers=ledgers)
    assert all(ledger.epsilon_spent == 0 for ledger in ledgers.values())


# --- One node ------------------------------------------------------------------------------------------------


class Alone:
    """A channel that keeps what a node contributes."""

    def __init__(self, opened=True):
        self.numbers, self.inputs, self.opened = [], [], opened

    def exchange(self, terms, place, contribution):
        self.numbers.append(terms.number)
        self.inputs.append(contribution())
        return Opened(self.inputs[-1], 4) if self.opened else None


@pytest.fixture
def agreed(rows, signing_key):
    keys = {place: signing_key(place) for place in range(1, 5)}
    found = simulation._study(rows, PARTIES, keys, epsilon=1.0, delta=1e-5, spare=10)
    return found, [found.signed(key) for key in keys.values()]


def node(agreed, signing_key, channel):
    return Node(agreed[0], signing_key(1), agreed[1], channel)


def mechanism(noise, **changes):
    terms = {
        "clip_norm": noise.clip_norm,
        "dimension": noise.dimension,
        "noise_multiplier": noise.noise_multiplier,
        **changes,
    }
    return GridGaussian(**terms)


def test_every_input_has_its_share_of_noise(agreed, signing_key):
    """Sabotage: a node without noise, or with less, is noticed."""
    channel, noise = Alone(), agreed[0].noise
    member = node(agreed, signing_key, channel)
    for _ in range(12):
        member.add_up(np.zeros(noise.dimension, dtype=np.int64), mechanism(noise), SecretStream())
    assert channel.numbers == list(range(1, 13))
    draws = np.concatenate(channel.inputs)
    # (n·s²/σ²) is χ² with n degrees of freedom; seven deviations have a chance below 1e-10.
    spread = np.mean((draws / noise.share_sigma) ** 2)
    allowed = 7 * math.sqrt(2 / draws.size)
    assert abs(spread - 1) < allowed
    assert len({part.tobytes() for part in channel.inputs}) == 12
    assert abs(0.7**2 - 1) > allowed  # a share of 0.7 the width would be noticed


@pytest.mark.parametrize("changes", [{"noise_multiplier": 1.0}, {"clip_norm": 0.1}, {"dimension": 7}])
def test_sums_of_another_plan_are_not_sent(agreed, signing_key, changes):
    channel, noise = Alone(), agreed[0].noise
    with pytest.raises(Refused, match="nothing was sent"):
        node(agreed, signing_key, channel).add_up(
            np.zeros(noise.dimension, dtype=np.int64), mechanism(noise, **changes), SecretStream()
        )
    assert channel.inputs == []


def test_larger_errors_than_declared_are_not_sent(agreed, signing_key):
    channel, noise = Alone(), agreed[0].noise
    with pytest.raises(InvalidInput, match="margin"):
        node(agreed, signing_key, channel).add_up(
            np.zeros(noise.dimension, dtype=np.int64), mechanism(noise, float_error=0.05), SecretStream()
        )
    assert channel.inputs == []


def test_no_round_beyond_the_study(agreed, signing_key):
    channel, noise = Alone(), agreed[0].noise
    member = node(agreed, signing_key, channel)
    for _ in range(agreed[0].plan.steps):
        member.add_up(np.zeros(noise.dimension, dtype=np.int64), mechanism(noise), SecretStream())
    with pytest.raises(InvalidInput, match="round"):
        member.add_up(np.zeros(noise.dimension, dtype=np.int64), mechanism(noise), SecretStream())
    assert len(channel.inputs) == agreed[0].plan.steps


@pytest.mark.keeps_out("A round repeated with the same sample, and charged as a fresh one, or not at all")
def test_more_abandoned_rounds_than_declared_end_the_study(agreed, signing_key):
    """An input that left is never sent again: each of these rounds had fresh noise, and was paid for."""
    channel, noise = Alone(opened=False), agreed[0].noise
    member = node(agreed, signing_key, channel)
    for _ in range(agreed[0].spare):
        skipped = member.add_up(np.ones(noise.dimension, dtype=np.int64), mechanism(noise), SecretStream())
        assert not skipped.any()
    with pytest.raises(Refused, match="spare=10"):
        member.add_up(np.ones(noise.dimension, dtype=np.int64), mechanism(noise), SecretStream())
    assert len({part.tobytes() for part in channel.inputs}) == 11


def test_a_study_that_not_all_signed_is_not_joined(agreed, signing_key):
    with pytest.raises(NotVerified):
        Node(agreed[0], signing_key(1), agreed[1][:-1], Alone())
    with pytest.raises(InvalidInput, match="holder of the study"):
        Node(agreed[0], signing_key(30), agreed[1], Alone())


def test_who_is_lost_is_made_up_for():
    total = Opened(np.array([8, -8]), 8)
    assert _as_of_all(total, 10).tolist() == [10, -10]


def test_plans_with_shares_keep_what_is_proven():
    terms = {"sample_rate": 0.1, "expected_batch": 10, "steps": 3, "noise_multiplier": 2.0}
    plan = TrainingPlan(**terms, shares=NoiseShares(count=3, dimension=5))
    assert TrainingPlan.from_json(plan.to_json()) == plan
    for wrong in ({"relation": "replace-one"}, {"sampling": "shuffle", "relation": "zero-out"}):
        with pytest.raises(InvalidInput, match="proven price"):
            TrainingPlan(**terms, **wrong, shares=NoiseShares(count=3, dimension=5))
    with pytest.raises(InvalidInput, match="shares"):
        TrainingPlan(**terms).mechanism_of_shares()
