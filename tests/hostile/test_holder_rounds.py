"""A coordinator, or another holder, that cheats in a round of a masked sum."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.errors import InvalidInput, NotVerified, Refused, SfumatoError
from sfumato.holders import Parties, masks
from sfumato.holders.masks import Modulus
from sfumato.holders.rounds import CoordinatorRound, HolderRound, Opening, Terms, run_round
from sfumato.ledger.signing import PrivateKey

KEYS = {place: PrivateKey(Ed25519PrivateKey.generate()) for place in range(1, 6)}


def terms(number=1, *, dropped=1, colluding=0, bits=64):
    return Terms(
        study="s" * 64,
        number=number,
        parties=Parties(holders=5, dropped=dropped, colluding=colluding),
        places={place: key.public for place, key in KEYS.items()},
        dimension=3,
        bits=bits,
    )


def parts_of(agreed):
    return CoordinatorRound(agreed), {place: HolderRound(agreed, place, key) for place, key in KEYS.items()}


def ones():
    return np.ones(3, dtype=np.int64)


def shared(agreed):
    """Up to the envelopes."""
    coordinator, parts = parts_of(agreed)
    for part in parts.values():
        coordinator.take_advert(part.advertise())
    for place, part in parts.items():
        coordinator.take_envelopes(place, part.share(coordinator.adverts))
    return coordinator, parts


def masked(agreed):
    coordinator, parts = shared(agreed)
    for place, part in parts.items():
        coordinator.take_masked(part.mask(ones, coordinator.envelopes_for(place)))
    return coordinator, parts


def never():
    raise AssertionError("the data was touched")


# --- Order ---------------------------------------------------------------------------------------------------

CALLS = {
    "advertise": lambda part: part.advertise(),
    "share": lambda part: part.share([]),
    "mask": lambda part: part.mask(never, []),
    "agree": lambda part: part.agree([1, 2, 3, 4, 5]),
    "open": lambda part: part.open({}),
}


@pytest.mark.parametrize("call", [name for name in CALLS if name != "advertise"])
def test_nothing_is_said_out_of_order(call):
    _, parts = parts_of(terms())
    with pytest.raises(Refused, match="in its turn"):
        CALLS[call](parts[1])
    with pytest.raises(Refused):  # and the round is over for this holder
        parts[1].advertise()


@pytest.mark.parametrize("call", CALLS)
def test_a_finished_round_says_nothing_more(call):
    coordinator, parts = parts_of(terms())
    assert run_round(coordinator, parts, dict.fromkeys(parts, ones)).tolist() == [5, 5, 5]
    with pytest.raises(Refused):
        CALLS[call](parts[1])


@pytest.mark.keeps_out("Masks used in a second round, or two inputs under one mask")
def test_an_input_is_sent_once():
    """Two different inputs under one mask would show their difference."""
    coordinator, parts = shared(terms())
    envelopes = coordinator.envelopes_for(1)
    parts[1].mask(ones, envelopes)
    with pytest.raises(Refused, match="in its turn"):
        parts[1].mask(never, envelopes)


# --- The coordinator in the middle ---------------------------------------------------------------------------


def test_keys_that_the_coordinator_made_are_refused():
    _, parts = parts_of(terms())
    adverts = [part.advertise() for part in parts.values()]
    stranger = PrivateKey(Ed25519PrivateKey.generate())
    bare = {name: value for name, value in adverts[1].items() if name != "signature"}
    for forged in (stranger.sign("holders keys", bare), {**adverts[1], "mask": "00" * 32}, bare):
        with pytest.raises(NotVerified):
            HolderRound(terms(), 1, KEYS[1])._checked([adverts[0], forged, *adverts[2:]])


@pytest.mark.parametrize("wrong", ["twice", "not mine", "few"])
def test_lists_of_keys_that_do_not_fit_are_refused(wrong):
    _, parts = parts_of(terms())
    adverts = [part.advertise() for part in parts.values()]
    told = {
        "twice": [*adverts, adverts[2]],
        "not mine": [HolderRound(terms(), 1, KEYS[1]).advertise(), *adverts[1:]],
        "few": adverts[:3],
    }[wrong]
    with pytest.raises((NotVerified, Refused)):
        parts[1].share(told)


def test_adverts_of_another_round_are_refused():
    _, parts = parts_of(terms(2))
    old = [part.advertise() for part in parts_of(terms(1))[1].values()]
    mine = parts[1].advertise()
    with pytest.raises(NotVerified, match="this round"):
        parts[1].share([mine, *old[1:]])


def test_shares_of_another_round_are_refused():
    """Sabotage: shares from the wrong round do not open, as every key is derived with the round's id."""
    old, _ = shared(terms(1))
    new, parts = shared(terms(2))
    with pytest.raises(NotVerified, match="this round"):
        parts[1].mask(never, [*old.envelopes_for(1)])
    assert len(new.envelopes_for(1)) == 4


def test_changed_or_misdirected_envelopes_are_refused():
    coordinator, parts = shared(terms())
    first, *rest = coordinator.envelopes_for(1)
    flipped = replace(first, sealed=bytes([first.sealed[0] ^ 1]) + first.sealed[1:])
    with pytest.raises(NotVerified):
        parts[1].mask(never, [flipped, *rest])
    with pytest.raises(Refused):
        parts[2].mask(never, [first])


def test_too_few_partners_and_nothing_is_touched():
    coordinator, parts = shared(terms(dropped=1))
    with pytest.raises(Refused, match="less noise"):
        parts[1].mask(never, coordinator.envelopes_for(1)[:2])


@pytest.mark.keeps_out("A coordinator that tells holders different stories and opens one input")
def test_two_stories_about_survivors_open_nothing():
    _, parts = masked(terms(dropped=1))
    stories = {1: [1, 2, 3, 4], 2: [1, 2, 3, 4], 3: [1, 2, 3, 4], 4: [1, 2, 3, 4, 5], 5: [1, 2, 3, 4, 5]}
    said = {place: parts[place].agree(stories[place]) for place in parts}
    with pytest.raises(NotVerified, match="different stories"):
        parts[1].open(said)
    with pytest.raises(Refused, match="threshold"):
        parts[4].open({place: said[place] for place in (4, 5)})


@pytest.mark.keeps_out("Noise counted that a colluding or lost holder would have had to add")
def test_a_list_with_too_few_survivors_is_not_signed():
    """With fewer there is less noise in the sum than was priced."""
    _, parts = masked(terms(dropped=1))
    with pytest.raises(Refused, match="less noise"):
        parts[1].agree([1, 2, 3])


@pytest.mark.parametrize("survivors", [[2, 3, 4, 5], [1, 2, 3, 4, 9], [1, 1, 2, 3, 4]])
def test_survivors_who_cannot_be_are_not_signed(survivors):
    _, parts = masked(terms(dropped=1))
    with pytest.raises(Refused):
        parts[1].agree(survivors)


def test_a_signature_of_keys_is_none_of_survivors():
    _, parts = masked(terms())
    said = {place: parts[place].agree([1, 2, 3, 4, 5]) for place in parts}
    moved = {**said, 2: {**said[3], "place": 2}}
    with pytest.raises(NotVerified):
        parts[1].open(moved)


@pytest.mark.keeps_out("A coordinator that tells holders different stories and opens one input")
def test_nobody_gives_both_secrets_of_a_holder():
    _, parts = masked(terms(dropped=1))
    said = {place: parts[place].agree([1, 2, 3, 4]) for place in (1, 2, 3, 4)}
    opening = parts[1].open(said)
    assert not set(opening.own_masks) & set(opening.keys)
    assert set(opening.keys) == {5}


# --- Holders that cheat or are slow --------------------------------------------------------------------------


def test_wrong_shares_abandon_the_round():
    coordinator, parts = masked(terms())
    for place in parts:
        coordinator.take_agreement(place, parts[place].agree(coordinator.survivors))
    for place in parts:
        opening = parts[place].open(coordinator.agreements)
        if place == 1:
            other = masks.split(bytes(32), threshold=3, points=parts)
            opening = Opening(1, {**opening.own_masks, 2: other[1]}, opening.keys)
        coordinator.take_opening(opening)
    with pytest.raises(NotVerified, match="holder 2"):
        coordinator.total()


def test_a_second_and_a_late_message_change_nothing():
    coordinator, parts = shared(terms())
    sent = {place: parts[place].mask(ones, coordinator.envelopes_for(place)) for place in parts}
    for place in (1, 2, 3, 4):
        coordinator.take_masked(sent[place])
    with pytest.raises(Refused):
        coordinator.take_masked(sent[4])
    with pytest.raises(Refused):
        coordinator.take_advert({"place": 1})
    for place in (1, 2, 3, 4):
        coordinator.take_agreement(place, parts[place].agree(coordinator.survivors))
    with pytest.raises(Refused):  # who was lost has nothing to agree to
        coordinator.take_agreement(5, {})
    for place in (1, 2, 3, 4):
        coordinator.take_opening(parts[place].open(coordinator.agreements))
    assert coordinator.total().tolist() == [4, 4, 4]


def test_too_few_openings_open_nothing():
    coordinator, parts = masked(terms())
    for place in parts:
        coordinator.take_agreement(place, parts[place].agree(coordinator.survivors))
    for place in (1, 2):
        coordinator.take_opening(parts[place].open(coordinator.agreements))
    with pytest.raises(Refused, match="abandoned"):
        coordinator.total()


# --- Sabotage ------------------------------------------------------------------------------------------------


def test_fresh_masks_in_every_round():
    """Sabotage: a mask used twice shows the difference of two inputs."""
    sent = []
    for number in (1, 2):
        coordinator, parts = shared(terms(number))
        sent.append(parts[1].mask(ones, coordinator.envelopes_for(1)).words)
    assert (sent[0] != sent[1]).all()


@pytest.mark.keeps_out("Masks used in a second round, or two inputs under one mask")
def test_a_retry_of_the_same_round_has_fresh_masks():
    sent = []
    for _ in range(2):
        coordinator, parts = shared(terms(1))
        sent.append(parts[1].mask(ones, coordinator.envelopes_for(1)).words)
    assert (sent[0] != sent[1]).all()


@pytest.mark.parametrize(("dropped", "colluding"), [(3, 0), (2, 1), (1, 3), (0, 5)])
def test_a_threshold_that_is_too_low_cannot_be_declared(dropped, colluding):
    with pytest.raises(InvalidInput):
        Parties(holders=5, dropped=dropped, colluding=colluding)


def test_a_modulus_too_small_is_noticed():
    chance = {bits: Modulus(bits).chance_of_wrap(largest=2e9, sigma=1e8, dimension=5130) for bits in (32, 64)}
    assert chance[32] == 1.0
    assert chance[64] < 1e-9
    assert Modulus.fitting(largest=2e9, sigma=1e8, dimension=5130) == Modulus(64)
    assert Modulus.fitting(largest=1e6, sigma=1e5, dimension=5130) == Modulus(32)
    with pytest.raises(InvalidInput, match="64 bits"):
        Modulus.fitting(largest=2.0**63, sigma=1.0, dimension=1)
    with pytest.raises(SfumatoError):
        Modulus(16)
