"""Rounds of sums: parts with noise of their own, a node that pays first, and rounds at a desk."""

from dataclasses import replace

import numpy as np
import pytest

from sfumato import accounting
from sfumato.accounting import Budget
from sfumato.errors import BudgetExceeded, InvalidInput, NotVerified, Refused
from sfumato.holders import Part, Parties, SumRound, SumStudy, Verified
from sfumato.holders.rounds import Lost
from sfumato.holders.sums import DeskSums, SumNode, calibrated_rounds, new_keys, public_keys
from sfumato.ledger import Ledger
from sfumato.randomness import SecretStream

FIVE = Parties(holders=5, dropped=1, colluding=1)
KEYS = new_keys(7)


def part(**changes):
    terms = {"sensitivity": 1.0, "dimension": 3, "noise_multiplier": 4.0, "shares": 3, "largest": 1000}
    return Part(**{**terms, **changes})


def study(*rounds, **changes):
    found = {
        "name": "sums",
        "kind": "test",
        "plan": {},
        "unit": "record",
        "delta": 1e-5,
        "parties": FIVE,
        "rounds": rounds or (SumRound((part(),)),),
        "keys": public_keys({place: KEYS[place] for place in range(1, 6)}),
    }
    return SumStudy(**{**found, **changes})


def agreed(found, keys=None):
    return Verified(found, [found.signed(key) for key in (keys or KEYS).values()])


def five():
    return {place: KEYS[place] for place in range(1, 6)}


def test_parts_keep_their_units_and_their_noise():
    """A part in millions beside one of single counts: each has its own grid and its own noise."""
    wide, narrow = part(sensitivity=2.0**30, largest=2.0**50), part(dimension=400, noise_multiplier=2.0)
    agreed_on = SumRound((wide, narrow))
    values = [np.array([5e12, -1e12, 7.0]), np.arange(400)]
    total = sum(agreed_on.contribution(values, SecretStream()) for _ in range(4))
    first, second = agreed_on.read(total)
    assert np.abs(first - 4 * values[0]).max() < 7 * wide.deviation(4)
    rest = second - 4 * values[1]
    # The mean square of 400 draws is within seven of its own deviations, √(2/400).
    assert abs(np.mean((rest / narrow.deviation(4)) ** 2) - 1) < 7 * (2 / 400) ** 0.5
    assert narrow.deviation(3) == pytest.approx(2.0, rel=0.01)  # three shares count: multiplier times Δ


def test_numbers_of_another_shape_are_not_sent():
    with pytest.raises(InvalidInput, match="as agreed"):
        SumRound((part(),)).contribution([np.zeros(4)], SecretStream())
    with pytest.raises(InvalidInput, match="at least one part"):
        SumRound(())


def test_the_price_is_that_of_all_parts_against_every_adversary():
    found = study(SumRound((part(), part(noise_multiplier=8.0))), SumRound((part(),)))
    # Rényi divergences of Gaussians add up: 1/16 + 1/64 + 1/16, as one of multiplier 8/3.
    alike = accounting.epsilon(part(noise_multiplier=8 / 3).mechanism().event(), 1e-5)
    against = found.epsilons()
    assert against["coalition"] == pytest.approx(alike, rel=1e-3)
    assert against["recipient"] == against["coordinator"] < against["holder"] == against["coalition"]


def test_calibrated_rounds_cost_what_they_may():
    rounds = calibrated_rounds(
        lambda noise: (SumRound((part(noise_multiplier=noise),)),) * 3, epsilon=1.0, delta=1e-5
    )
    spent = accounting.epsilon(accounting.compose(*(one.event() for one in rounds)), 1e-5)
    assert 0.99 <= spent <= 1.0


@pytest.mark.parametrize(
    "changes",
    [{"delta": 0.0}, {"keys": {}}, {"rounds": ()}, {"rounds": (SumRound((part(shares=4),)),)}, {"taken": 2}],
)
def test_studies_that_cannot_be(changes):
    with pytest.raises(InvalidInput, match="expected"):
        study(**changes)


def test_another_study_has_another_digest():
    found = study()
    others = [
        replace(found, name="x"),
        replace(found, plan={"sql": "x"}),
        replace(found, rounds=(SumRound((part(noise_multiplier=4.1),)),)),
        replace(found, parties=replace(FIVE, dropped=0), rounds=(SumRound((part(shares=4),)),)),
    ]
    assert len({found.digest, *(one.digest for one in others)}) == 5
    with pytest.raises(NotVerified):
        Verified(others[0], agreed(found, five()).signatures)


def test_a_node_pays_before_it_is_asked_for_numbers(tmp_path):
    found = study()
    ledger = Ledger.open(tmp_path / "mine.db", Budget(epsilon=5, delta=1e-5))
    node = SumNode(agreed(found, five()), KEYS[2], ledger=ledger)
    assert ledger.epsilon_spent == pytest.approx(found.epsilons()["coalition"], rel=1e-2)
    certificate = node.certificate()
    assert certificate.verify() == certificate.prices
    assert any("coalition" in caveat and "recipient" in caveat for caveat in certificate.caveats)
    node.part_in(1, lambda: pytest.fail("numbers were asked for"))  # only when the round has come
    poor = Ledger.open(tmp_path / "poor.db", Budget(epsilon=0.1, delta=1e-5))
    with pytest.raises(BudgetExceeded):
        SumNode(agreed(found, five()), KEYS[2], ledger=poor)


def test_a_round_has_one_input():
    node = SumNode(agreed(study(SumRound((part(),)), SumRound((part(),))), five()), KEYS[1])
    node.part_in(1, lambda: [np.zeros(3)])
    with pytest.raises(Refused, match="one input"):
        node.part_in(1, lambda: pytest.fail("numbers were asked for"))


def test_a_holder_is_in_no_more_rounds_than_it_paid_for():
    """Seven clients, five in a round: whoever picks them knows them, and two rounds cost two."""
    rounds = (SumRound((part(),)),) * 4
    found = study(*rounds, keys=public_keys(KEYS), taken=2)
    assert found.event() == accounting.compose(*(one.event() for one in rounds[:2]))
    node = SumNode(agreed(found), KEYS[1])
    with pytest.raises(InvalidInput, match="5 holders in a round"):
        node.part_in(1, lambda: [np.zeros(3)], picked=[1, 2])
    with pytest.raises(Refused, match="picked for"):
        node.part_in(1, lambda: [np.zeros(3)], picked=[2, 3, 4, 5, 6])
    for number in (1, 2):
        node.part_in(number, lambda: [np.zeros(3)], picked=[1, 2, 3, 4, 5])
    with pytest.raises(Refused, match="at most 2 rounds"):
        node.part_in(3, lambda: [np.zeros(3)], picked=[1, 2, 3, 4, 5])


@pytest.mark.parametrize("lost", [{}, {5: Lost.INPUT}, {2: Lost.AGREEMENT}])
def test_masks_cancel_bit_for_bit(lost):
    """The same noise with masks and without them gives the same numbers."""
    found, totals = study(), []
    for masked in (True, False):
        streams = {place: SecretStream(test_seed=place) for place in five()}
        desk = DeskSums(found, five(), losses=lambda number: lost, masked=masked, samplers=streams)
        totals.append(desk.add_up(1, {place: _constant(place) for place in desk.keys}))
    assert totals[0].parts[0].tolist() == totals[1].parts[0].tolist()
    assert totals[0].holders == totals[1].holders == 5 - (5 in lost)


def _constant(place):
    return lambda: [np.full(3, float(place))]


@pytest.mark.parametrize("masked", [True, False])
def test_too_many_lost_abandon_the_round(masked):
    desk = DeskSums(study(), five(), losses=lambda number: {1: Lost.INPUT, 2: Lost.INPUT}, masked=masked)
    assert desk.add_up(1, {place: _constant(place) for place in desk.keys}) is None


def test_who_cannot_pay_stays_out(tmp_path):
    def ledgers(poor):
        return {
            place: Ledger.open(
                tmp_path / f"{poor}{place}.db", Budget(epsilon=0.1 if place in poor else 5, delta=1e-5)
            )
            for place in (1, 2)
        }

    books = ledgers((2,))
    desk = DeskSums(study(), five(), ledgers=books)
    assert set(desk.keys) == {1, 3, 4, 5}
    assert books[1].epsilon_spent > 0
    assert books[2].epsilon_spent == 0
    both = ledgers((1, 2))
    with pytest.raises(InvalidInput, match="nothing was charged"):
        DeskSums(study(), five(), ledgers=both)
    assert both[1].epsilon_spent == 0
