"""The whole pipeline on scikit-learn's small images: what it leaves, and what a neighbour changes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import datasets, pate
from sfumato.accounting import Budget
from sfumato.audit import ReplayOutcome
from sfumato.datasets import Chosen
from sfumato.datasets.dataset import SEEDED_CHOICE
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import Certificate, Ledger
from sfumato.pate import Adaptation, EnsembleFit, PateSettings, PublicSide, TeacherConfig, VotePlan
from sfumato.randomness import OWN_NOISE, SecretStream

ONE_NET = Adaptation(prior="strokes", steps=0)


@pytest.fixture(scope="module")
def data():
    private = datasets.load("digits", "train", side=28).excerpt(400)
    public = replace(datasets.load("digits", "test", side=28).take(80), visibility="public")
    return private, public


@pytest.fixture(scope="module")
def side(data):
    return PublicSide.of(data[1].inputs, ONE_NET, classes=10, progress=lambda what, share: None)


def settings_for(queries=30, sigma=2.0, teachers=20, **changes):
    plan = VotePlan(
        **{"mechanism": "gnmax", "teachers": teachers, "queries": queries, "sigma": sigma, **changes}
    )
    fit = EnsembleFit(epochs=5, batch=1 << 16, learning_rate=8.0, weight_decay=1e-4)
    return PateSettings(plan=plan, teacher=TeacherConfig(fit=fit), adaptation=ONE_NET, folds=4)


def test_a_run_folder_holds_what_was_paid_for_and_keeps_votes_apart(data, side, tmp_path):
    settings = settings_for()
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=60, delta=1e-5)) as ledger:
        result = pate.run(*data, settings, ledger=ledger, out=tmp_path / "run", side=side)
        assert ledger.epsilon_spent == pytest.approx(result.epsilon, rel=1e-3)
    release = tmp_path / "run" / "release"
    names = {path.name for path in release.iterdir()}
    assert names == {
        "plan.json",
        "result.json",
        "labels.jsonl",
        "model.safetensors",
        "certificate.json",
        "figures",
    }
    assert {path.name for path in (tmp_path / "run" / "private").iterdir()} == {"votes.npy", "timings.json"}
    certificate = Certificate.read(release / "certificate.json")
    assert certificate.verify().pld == pytest.approx(result.epsilon, rel=1e-3)
    assert any("public prior" in caveat for caveat in certificate.caveats)
    labels = [json.loads(line) for line in (release / "labels.jsonl").read_text().splitlines()]
    assert [row["label"] for row in labels] == result.answers.labels.tolist()
    assert len(result.fold_accuracies) == 4
    assert result.student_accuracy > 0.7
    assert np.load(tmp_path / "run" / "private" / "votes.npy").shape == (20, 30)


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("kind", ["head", "mlp"])
def test_queries_may_all_lie_in_one_half(data, side, queries, kind):
    asked = side.queries(queries)
    assert queries == 2 or len(set(side.half[asked])) == 1
    settings = settings_for(queries=queries, sigma=0.5)
    fit = replace(settings.teacher.fit, epochs=2, learning_rate=0.05)
    settings = replace(settings, teacher=TeacherConfig(kind=kind, fit=fit))
    result = pate.run(*data, settings, side=side)
    assert result.queries.tolist() == asked.tolist()
    assert result.votes.shape == (20, queries)
    assert set(np.unique(result.votes)) <= set(range(10))  # every teacher voted
    assert result.answers.answered == queries


def test_public_labels_teach_nothing(data, side):
    private, public = data
    scrambled = replace(public, targets=(public.targets + 3) % 10)
    seed = {"sampler": SecretStream(test_seed=4)}
    one = pate.run(private, public, settings_for(), side=side, sampler=SecretStream(test_seed=4))
    other = pate.run(private, scrambled, settings_for(), side=side, **seed)
    assert one.answers.labels.tolist() == other.answers.labels.tolist()
    assert torch.equal(one.model.linear.weight, other.model.linear.weight)


def test_refusals_come_before_anything_is_spent(data, side, tmp_path):
    private, public = data
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=0.1, delta=1e-5)) as ledger:
        with pytest.raises(BudgetExceeded):
            pate.run(private, public, settings_for(), ledger=ledger, side=side)
        with pytest.raises(InvalidInput, match="public"):
            pate.run(private, replace(public, visibility="private"), settings_for(), ledger=ledger, side=side)
        with pytest.raises(InvalidInput, match="queries"):
            pate.run(private, public, settings_for(queries=81), ledger=ledger, side=side)
        with pytest.raises(InvalidInput, match="folds <= 80"):
            pate.run(private, public, replace(settings_for(), folds=82), ledger=ledger, side=side)
        with pytest.raises(InvalidInput, match="declare"):
            pate.run(replace(private, public_size=None), public, settings_for(), ledger=ledger, side=side)
        assert ledger.epsilon_spent == 0
    with pytest.raises(InvalidInput, match="even"):
        replace(settings_for(), folds=3)


def test_adaptation_moves_the_prior_without_labels():
    public = datasets.load("digits", "test", side=28).take(64)
    kept = pate.adapt(public.inputs, Adaptation(steps=0), classes=10)
    moved = pate.adapt(
        public.inputs, Adaptation(steps=2, drawings=100, drawn_batch=8, public_batch=16), classes=10
    )
    assert moved.basis.shape == (3 * 576, 64)
    for before, after in zip(kept.nets.nets, moved.nets.nets, strict=True):
        assert not torch.equal(before.body[0].weight, after.body[0].weight)
    # In all directions of the features the head is the mean of the nets' own.
    whole = pate.Representation.of(kept.nets, torch.from_numpy(public.inputs), directions=3 * 576)
    images = torch.from_numpy(public.inputs[:5])
    expected = torch.stack([net.linear(net.features(images)) for net in kept.nets.nets]).mean(0)
    torch.testing.assert_close(whole.head(whole.features(images)), expected, rtol=1e-3, atol=1e-3)


def test_a_neighbour_moves_one_teacher_and_nothing_that_is_public(data, side, replay):
    """Record and replay: the last person leaves; counts move by what the plan says, all else is equal."""
    private, public = data
    settings = settings_for(queries=12, teachers=8)
    seen = {}

    def pipeline(rows, sampler):
        result = pate.run(rows, public, settings, side=side, sampler=sampler, unit_ids=np.arange(len(rows)))
        seen[len(rows)] = result.votes
        public_facts = {
            "asked": result.answers.asked,
            "queries": result.queries.tolist(),
            "plan": result.answers.plan.to_json(),
            "epsilon": result.epsilon,
            "caveats": result.certificate.caveats,
        }
        return ReplayOutcome(public=public_facts)

    gone = private.select(np.arange(len(private) - 1), public_size=private.public_size)
    report = replay(pipeline, private, gone)
    assert report.holds
    changed = (seen[400] != seen[399]).any(axis=1)
    assert changed.sum() <= 1  # one teacher
    moves = pate.count_votes(seen[400], classes=10) - pate.count_votes(seen[399], classes=10)
    assert np.abs(moves).sum(axis=1).max(initial=0) <= 2  # per query, one vote from one class to another
    assert np.linalg.norm(moves, axis=1).max(initial=0) <= 2**0.5 + 1e-9


def test_a_positional_split_would_be_caught():
    """Sabotage: when the first record leaves, shards cut by position all change, hashed ones but one do not."""
    ids, left = np.arange(400), np.arange(1, 400)

    def changed(split):
        shards = [[set(part[split(part) == teacher].tolist()) for teacher in range(8)] for part in (ids, left)]
        return sum(one != other for one, other in zip(*shards, strict=True))

    assert changed(lambda part: pate.assign(part, teachers=8, key=bytes(32))) == 1
    assert changed(lambda part: np.arange(len(part)) * 8 // len(part)) > 1


class Own(SecretStream):
    """A stream with code of somebody else's."""

    def integers(self, *arguments):
        return super().integers(*arguments)


@pytest.mark.parametrize(("sampler", "expected"), [(None, False), (Own(), True)])
def test_a_sampler_of_ones_own_and_seeded_coins_are_named(data, side, tmp_path, sampler, expected):
    private, public = data
    rows = replace(private, chosen=Chosen(private=not expected))
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1000, delta=1e-5)) as ledger:
        for book in (None, ledger):
            found = pate.run(rows, public, settings_for(), side=side, sampler=sampler, ledger=book)
            assert (OWN_NOISE in found.certificate.caveats) == expected
            assert (SEEDED_CHOICE in found.certificate.caveats) == expected
            assert found.certificate.private == found.answers.private == (not expected)
        assert [charge.private for charge in ledger.charges()] == [not expected]
