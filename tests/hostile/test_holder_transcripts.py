"""What a coordinator sees must not depend on one record, but for the noisy sum: record and replay."""

from dataclasses import replace

import numpy as np
import pytest

from sfumato import datasets
from sfumato.audit import ReplayedRelease, ReplayOutcome, replay
from sfumato.holders import NetworkTerms, Node, Opened, Part, Parties, SumRound, SumStudy, simulation
from sfumato.holders import rounds as desks
from sfumato.holders.rounds import CoordinatorRound
from sfumato.holders.sums import MARGIN, DeskSums, new_keys, public_keys

PARTIES = Parties(holders=4, dropped=1, colluding=0)
KEYS = new_keys(4)
PART = Part(sensitivity=1.0, dimension=20, noise_multiplier=2.0, shares=2, largest=1000)


class Watched(CoordinatorRound):
    """Notes who sends what, and how long it is; what is sealed or masked is noise to it."""

    seen: list

    def take_advert(self, advert):
        self.seen.append(("advert", advert["place"], sorted(advert), len(str(advert["mask"]))))
        super().take_advert(advert)

    def take_envelopes(self, place, envelopes):
        self.seen.append(("envelopes", place, [(one.receiver, len(one.sealed)) for one in envelopes]))
        super().take_envelopes(place, envelopes)

    def take_masked(self, masked):
        self.seen.append(("masked", masked.sender, masked.words.shape, str(masked.words.dtype)))
        super().take_masked(masked)

    def take_agreement(self, place, agreement):
        self.seen.append(("agreement", place, agreement["survivors"]))
        super().take_agreement(place, agreement)

    def take_opening(self, opening):
        self.seen.append(("opening", opening.sender, sorted(opening.own_masks), sorted(opening.keys)))
        super().take_opening(opening)


def study():
    return SumStudy(
        name="counts",
        kind="test",
        plan={},
        unit="record",
        delta=1e-5,
        parties=PARTIES,
        rounds=(SumRound((PART,)),),
        keys=public_keys(KEYS),
    )


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(desks, "CoordinatorRound", Watched)
    return Watched


def transcript(rows, sampler, *, leak=False):
    """Holder 1 counts its rows by their value; others have none."""
    Watched.seen = []
    found = study()
    desk = DeskSums(found, KEYS, samplers=dict.fromkeys(KEYS, sampler))
    counts = np.bincount(rows, minlength=20).astype(float)
    inputs = {place: (lambda: [counts]) if place == 1 else (lambda: [np.zeros(20)]) for place in KEYS}
    total = desk.add_up(1, inputs)
    return ReplayOutcome(
        public={"messages": Watched.seen, "holders": total.holders, **({"rows": len(rows)} if leak else {})},
        released={"sum": ReplayedRelease(total.parts[0], sensitivity=1 + MARGIN)},
    )


ROWS = np.arange(50) % 20


@pytest.mark.usefixtures("watched")
def test_the_transcript_of_sums_does_not_depend_on_a_record():
    found = replay(transcript, ROWS, ROWS[:-1])
    found.require()
    assert found.movements["sum"] > 0.9  # the record is there, within what was priced
    assert len(Watched.seen) == 4 * 5  # every message of every holder was compared


@pytest.mark.keeps_out("A coordinator's transcript that tells more than the noisy sum")
@pytest.mark.usefixtures("watched")
def test_a_transcript_that_tells_is_caught():
    """Sabotage: a size that is sent along, and a record that counts twice."""
    assert not replay(lambda rows, sampler: transcript(rows, sampler, leak=True), ROWS, ROWS[:-1]).holds
    assert not replay(lambda rows, sampler: transcript(np.repeat(rows, 2), sampler), ROWS, ROWS[:-1]).holds


# --- Training ------------------------------------------------------------------------------------------------


class Still:
    """A coordinator that keeps what comes and hands back zeros, so that all steps are at the same weights."""

    def __init__(self):
        self.inputs = []

    def exchange(self, terms, place, contribution):
        self.inputs.append((terms.number, terms.dimension, contribution()))
        return Opened(np.zeros(terms.dimension, dtype=np.int64), terms.parties.holders)


def test_a_node_in_training_does_not_depend_on_a_record():
    """Every input moves by no more than the clipping norm with its margin, whatever the weights."""
    rows = datasets.load("digits", "train").excerpt(120)
    net = NetworkTerms(
        model="mlp", shape=(1, 8, 8), steps=3, expected_batch=480, clip_norm=1.0, learning_rate=0.1
    )
    base = simulation._study(rows, PARTIES, KEYS, epsilon=5.0, delta=1e-5, spare=0)
    found = replace(base, network=net, public_size=480)
    signatures = [found.signed(key) for key in KEYS.values()]

    def pipeline(own, sampler):
        channel = Still()
        node = Node(found, KEYS[1], signatures, channel, sampler=sampler)
        node.train(found.task.learner(), own)
        noise = found.noise
        limit = noise.clip_norm * (1 + noise.margin)
        return ReplayOutcome(
            public=[(number, size) for number, size, _ in channel.inputs],
            released={
                f"round {number}": ReplayedRelease(value * noise.grid, sensitivity=limit)
                for number, _, value in channel.inputs
            },
        )

    report = replay(pipeline, rows, replace(rows, inputs=rows.inputs[:-1], targets=rows.targets[:-1]))
    report.require()
    assert min(report.movements.values()) > 0.5  # every row is in every step, and this one is clipped
