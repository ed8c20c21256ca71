"""Masked sums equal plain sums bit for bit, whoever is lost; and what a coalition sees is uniform."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sfumato.errors import Refused
from sfumato.holders import masks, parties
from sfumato.holders.parties import Degree
from sfumato.holders.rounds import Lost, run_round
from sfumato.randomness import public_generator

ROUNDS = int(os.environ.get("SFUMATO_TEST_ROUNDS", "60"))


def can_be_opened(terms, lost):
    """Enough inputs for the declared noise, and enough holders who help to open them."""
    sent = sum(lost.get(place, Lost.NEVER) > Lost.INPUT for place in terms.places)
    helped = sum(lost.get(place, Lost.NEVER) > Lost.OPENING for place in terms.places)
    return sent >= terms.parties.least and helped >= terms.parties.threshold


def partners_are_enough(terms, lost):
    """Every secret that is needed has enough partners who help."""
    helped = {place for place in terms.places if lost.get(place, Lost.NEVER) > Lost.OPENING}
    shared = [place for place in terms.places if lost.get(place, Lost.NEVER) > Lost.SHARES]
    return all(len(helped & {place, *terms.partners(place)}) >= terms.share_threshold for place in shared)


@pytest.fixture(params=["complete", "sparse"])
def graph(request, monkeypatch):
    """Partners all, or two on either side; both secrets then come from any two of them."""
    if request.param == "sparse":
        monkeypatch.setattr(parties, "degree", lambda holders, **others: Degree(min(4, holders - 1), 2))


@pytest.mark.usefixtures("graph")
def test_masked_sums_are_plain_sums(make_terms, make_round):
    generator = public_generator(20)
    abandoned = 0
    for number in range(ROUNDS):
        holders = int(generator.integers(3, 9))
        dropped = int(generator.integers(0, (holders - 1) // 2 + 1))
        terms = make_terms(
            holders, dropped=min(dropped, holders - holders // 2 - 1), number=number, bits=(32, 64)[number % 2]
        )
        lost = {
            place: Lost(int(generator.integers(0, 6)))
            for place in terms.places
            if generator.random() < dropped / holders
        }
        values = {place: generator.integers(-(2**30), 2**30, terms.dimension) for place in terms.places}
        coordinator, parts = make_round(terms)
        try:
            total = run_round(coordinator, parts, {p: lambda v=v: v for p, v in values.items()}, lost=lost)
        except Refused:
            assert not can_be_opened(terms, lost) or not partners_are_enough(terms, lost)
            abandoned += 1
            continue
        assert can_be_opened(terms, lost)
        there = [place for place in terms.places if lost.get(place, Lost.NEVER) > Lost.INPUT]
        expected = sum(values[place] for place in there)
        if terms.bits == 32:
            expected = expected.astype(np.int32).astype(np.int64)
        assert (total == expected).all()
        assert len(there) >= terms.parties.least
    assert abandoned < ROUNDS / 2


@pytest.mark.parametrize("message", [Lost.KEYS, Lost.SHARES, Lost.INPUT, Lost.AGREEMENT, Lost.OPENING])
def test_as_many_as_declared_may_be_lost_at_any_message(make_terms, make_round, message):
    terms = make_terms(5, dropped=2)
    coordinator, parts = make_round(terms)
    values = {place: np.full(4, 10**place) for place in terms.places}
    total = run_round(
        coordinator, parts, {p: lambda v=v: v for p, v in values.items()}, lost={2: message, 4: message}
    )
    there = [1, 3, 5] if message <= Lost.INPUT else [1, 2, 3, 4, 5]
    assert total.tolist() == [sum(10**place for place in there)] * 4


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 4), st.randoms())
def test_shares_give_the_secret_back(secret, threshold, more, random):
    shares = masks.split(secret, threshold=threshold, points=range(1, threshold + more + 1))
    chosen = random.sample(sorted(shares), threshold)
    assert masks.join({place: shares[place] for place in chosen}, threshold=threshold) == secret


# --- What a coalition below the threshold sees ---------------------------------------------------------------

NUMBERS = 65_536
CELLS = 256
ALARM = stats.chi2.isf(1e-8, CELLS - 1)  # a false alarm has chance 1e-8


def uniformity(words):
    """χ² of the highest byte: of uniform words it exceeds ALARM with chance 1e-8."""
    highest = (words.view(np.uint64) >> np.uint64(56)).astype(np.int64)
    counts = np.bincount(highest, minlength=CELLS)
    expected = words.size / CELLS
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_masked_input_is_uniform_to_all_but_the_threshold(make_terms, make_round):
    """Four of five colluders take off every mask that they can compute; the victim's own mask is left."""
    terms = make_terms(5, dimension=NUMBERS)
    coordinator, parts = make_round(terms)
    for part in parts.values():
        coordinator.take_advert(part.advertise())
    for place, part in parts.items():
        coordinator.take_envelopes(place, part.share(coordinator.adverts))
    masked = parts[1].mask(lambda: np.zeros(NUMBERS, dtype=np.int64), coordinator.envelopes_for(1)).words
    assert uniformity(masked) < ALARM
    _take_pair_masks_off(parts, masked, [2, 3, 4, 5])
    assert uniformity(masked) < ALARM  # still the own mask
    _take_own_mask_off(parts[1], masked)
    assert uniformity(masked) > ALARM  # the input, zero: the statistic would notice a mask left out
    assert not masked.any()


@pytest.mark.parametrize("share", [0.02, 0.05])
def test_the_statistic_has_power(share):
    """A mask with a few per cent of its words left out is noticed."""
    words = public_generator(3).integers(0, 2**63, NUMBERS, dtype=np.uint64) << np.uint64(1)
    assert uniformity(words) < ALARM
    words[: int(share * NUMBERS)] = 0
    assert uniformity(words) > ALARM


def _take_pair_masks_off(parts, words, colluders):
    from sfumato.holders.masks import Modulus

    for place in colluders:
        key = parts[place]._pair_key(1)
        Modulus(64).add_stream(words, key, sign=-1)


def _take_own_mask_off(part, words):
    from sfumato.holders.masks import Modulus

    Modulus(64).add_stream(words, part._own_key(), sign=-1)


def test_shares_below_the_threshold_are_uniform():
    """The lowest byte of one of two needed shares of a fixed secret."""
    shares = [masks.split(bytes(32), threshold=2, points=[1, 2])[1][-1] for _ in range(25_600)]
    counts = np.bincount(shares, minlength=CELLS)
    assert ((counts - 100) ** 2 / 100).sum() < ALARM
    known = [masks.split(bytes(32), threshold=1, points=[1])[1][-1] for _ in range(10)]
    assert set(known) == {0}  # threshold 1: the share is the secret
