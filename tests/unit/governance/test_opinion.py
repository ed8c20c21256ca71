"""Runs of other software, priced: published claims against what the field has recomputed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sfumato.accounting import Budget, GaussianEvent, LaplaceEvent, Relation, epsilon, repeat
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.governance import opinion_of
from sfumato.ledger import Ledger

EXAMPLES = Path(__file__).parents[3] / "examples" / "opinions"
TF_TUTORIAL = {"noise_multiplier": 1.1, "batch_size": 256, "train_size": 60000, "epochs": 60, "delta": 1e-5}


def run(**settings):
    return opinion_of(list(settings.items()))


def test_a_shuffled_run_does_not_cost_what_opacus_printed():
    found = opinion_of(EXAMPLES / "shuffled_cnn.toml")
    assert found.holds is False
    assert found.relation is Relation.ZERO_OUT
    assert found.epsilon == pytest.approx(14.1, abs=0.05)  # recomputed by others from the same settings
    assert found.others["replace-one"] == pytest.approx(35.6, abs=0.05)
    assert found.others["if batches were Poisson samples"] == pytest.approx(0.363, abs=0.001)
    assert found.claimed_epsilon == 0.79


def test_flower_composes_nothing():
    found = opinion_of(EXAMPLES / "flower_local.toml")
    assert found.epsilon == pytest.approx(300, rel=0.01)  # as measured elsewhere
    assert found.claimed_epsilon == 10
    assert any("one round" in problem for problem in found.problems)


def test_nvflare_pays_for_the_threshold_alone():
    found = opinion_of(EXAMPLES / "nvflare_svt.json")
    sent = 690_000
    assert found.epsilon == pytest.approx(0.1 + 0.1 * (2 * sent) ** (2 / 3) + 0.1 * sent)
    assert found.claimed_epsilon == 0.1


def test_votes_are_priced_for_any_votes():
    found = opinion_of(EXAMPLES / "pate_labels.json")
    moments = (
        9000 * 0.5 * (2 * 0.1) ** 2 * 1 * 2 + 11.512925
    )  # the sources' own data-independent bound, at l = 1
    assert 11.21 < found.epsilon < moments
    assert found.epsilon == pytest.approx(epsilon(repeat(LaplaceEvent(10), 18000), 1e-5))


def test_data_noised_in_every_epoch_was_released_in_every_epoch():
    found = opinion_of(EXAMPLES / "local_images.toml")
    assert found.epsilon > 1e6
    assert len(found.problems) >= 4


@pytest.mark.parametrize(
    ("epochs", "noise", "claimed", "true"), [(60, 1.1, 3.01, 2.382), (60, 1.1, 2.382, 2.382)]
)
def test_a_claim_by_an_old_conversion_is_safe_but_loose(epochs, noise, claimed, true):
    found = run(**{**TF_TUTORIAL, "noise_multiplier": noise, "steps": 14062, "epochs": epochs},
                library="tf-privacy", sampling="poisson", epsilon=claimed)  # fmt: skip
    assert found.epsilon == pytest.approx(true, abs=0.002)
    assert found.holds is True
    assert ("loose" in " ".join(found.problems)) == (claimed > 2.5)


@pytest.mark.keeps_out(
    "Clipped means of several records priced as clipped records, or as amplified by sampling"
)
def test_microbatches_halve_the_noise():
    whole = run(**TF_TUTORIAL, sampling="shuffle", num_microbatches=256)
    half = run(**{**TF_TUTORIAL, "noise_multiplier": 2.2}, sampling="shuffle", num_microbatches=32)
    assert half.epsilon == pytest.approx(whole.epsilon)
    assert half.others == {"replace-one": pytest.approx(half.epsilon)}  # a clipped mean moves by 2C under both
    assert len(half.problems) == len(whole.problems) + 1
    fixed = {"noise_multiplier": 8.0, "batch_size": 100, "size": 1000, "steps": 10, "delta": 1e-5}
    subsets = [run(**fixed, sampling="fixed-size", num_microbatches=count).epsilon for count in (10, 100)]
    assert subsets[0] == subsets[1]


@pytest.mark.keeps_out(
    "Clipped means of several records priced as clipped records, or as amplified by sampling"
)
def test_sampled_microbatches_have_no_add_remove_price():
    settings = {"noise_multiplier": 8.0, "sampling": "poisson", "steps": 10, "delta": 1e-5}
    found = run(**settings, batch_size=4, size=1000, num_microbatches=2)
    assert found.relation is Relation.ZERO_OUT
    assert found.epsilon == pytest.approx(epsilon(repeat(GaussianEvent(4.0), 10), 1e-5))
    silent = run(**settings, sample_rate=0.004, num_microbatches=2)  # of batches of some size
    assert silent.epsilon == found.epsilon
    assert silent.assumed


def test_a_record_that_leaves_moves_every_microbatch():
    """Why: means of two, clipped to 1. Without the first record the others pair up in another way."""
    rows = np.array([0.0, 9, -9, -9, 9, 9, -9, -9, 9])
    assert np.abs(_clipped_means(rows[:8]) - _clipped_means(rows[1:])).sum() > 2
    zeroed = np.where(np.arange(8) == 3, 0, rows[:8])
    assert np.abs(_clipped_means(rows[:8]) - _clipped_means(zeroed)).sum() <= 2


def _clipped_means(rows):
    return np.clip(rows.reshape(-1, 2).mean(axis=1), -1, 1)


@pytest.mark.keeps_out("A settings file in which a name stands twice, read by its last value")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", '{"run": {"sigma": 1.1, "delta": 1e-5, "sigma": 4.0}}'),
        ("run.yaml", "run:\n  sigma: 1.1\n  delta: 1e-5\n  sigma: 4.0\n"),
        ("run.yaml", "<<: {sigma: 4.0}\nsigma: 1.1\n"),
        ("run.toml", "sigma = 1.1\nsigma = 4.0\n"),
    ],
)
def test_a_name_that_stands_twice_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=r"'sigma' twice|in TOML"):
        opinion_of(tmp_path / name)


def test_a_seed_and_repeated_runs_are_problems():
    once = run(**TF_TUTORIAL, sampling="poisson")
    searched = run(**TF_TUTORIAL, sampling="poisson", trials=10, seed=3)
    assert searched.epsilon > 2 * once.epsilon
    assert any("seed" in problem for problem in searched.problems)


def test_fixed_subsets_are_not_amplified():
    found = run(noise_multiplier=8.0, batch_size=100, size=1000, steps=10, delta=1e-5, sampling="fixed-size")
    assert found.relation is Relation.REPLACE_ONE
    assert found.epsilon == pytest.approx(epsilon(repeat(GaussianEvent(4.0), 10), 1e-5))


IN_ORDER = {
    "noise_multiplier": 3.0,
    "batch_size": 60,
    "dataset_size": 100,
    "sampling": "sequential",
    "delta": 1e-6,
}


def test_a_short_last_batch_that_is_dropped_leaves_the_first_records_in_every_step():
    """Ten steps of 60 of 100 records in order: the same 60 each time, not six passes over all."""
    ten = epsilon(repeat(GaussianEvent(3.0), 10), 1e-6)
    found = run(**IN_ORDER, library="tf-privacy", steps=10, epsilon=3.9)
    assert found.epsilon == pytest.approx(ten)
    assert found.holds is False
    for steps, epochs in ((10, 10), (10, 2), (2, 10)):
        both = run(**IN_ORDER, steps=steps, epochs=epochs)
        assert both.epsilon == pytest.approx(ten)
    assert run(**IN_ORDER, steps=2, epochs=10).assumed  # that they disagree


@pytest.mark.parametrize(
    "word", ["replace-one", "replace_one", "NeighboringRelation.REPLACE_ONE", "substitution"]
)
def test_a_claim_is_priced_under_the_relation_that_it_names(word):
    removed = run(**TF_TUTORIAL, sampling="poisson")
    claim = {**TF_TUTORIAL, "sampling": "poisson", "epsilon": removed.epsilon * 1.01, "relation": word}
    found = run(**claim)
    assert found.relation is Relation.REPLACE_ONE
    assert found.epsilon > 1.3 * removed.epsilon
    assert found.holds is False
    assert found.others["add-remove"] == pytest.approx(removed.epsilon)
    assert run(**{**claim, "relation": "zero-out"}).holds is True


def test_a_claim_for_a_relation_without_a_price_does_not_hold():
    claim = {**TF_TUTORIAL, "sampling": "shuffle", "relation": "add-or-remove-one", "epsilon": 1000}
    found = run(**claim)
    assert found.holds is False
    assert "add-remove" in found.problems[0]
    assert found.others["zero-out"] == pytest.approx(run(**TF_TUTORIAL, sampling="shuffle").epsilon)
    assert run(**{**claim, "relation": "replace-one"}).epsilon == pytest.approx(found.others["replace-one"])
    with pytest.raises(InvalidInput, match="expected relation"):
        run(**{**claim, "relation": "the usual one"})


@pytest.mark.parametrize("example", sorted(EXAMPLES.iterdir()), ids=lambda path: path.stem)
@pytest.mark.parametrize("relation", list(Relation))
def test_no_claim_is_judged_under_another_relation(example, relation):
    from sfumato.governance import read_settings

    found = opinion_of([*read_settings(example), ("relation", str(relation))])
    assert found.relation is relation


def test_no_noise_has_no_epsilon():
    found = run(**{**TF_TUTORIAL, "noise_multiplier": 0}, sampling="poisson", epsilon=1)
    assert found.epsilon == float("inf")
    assert found.holds is False


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.1}, "noise_multiplier"),
        ({"noise_multiplier": 1, "batch": 64, "size": 100, "epochs": 1}, "delta"),
        ({"noise_multiplier": 1, "batch": 640, "size": 100, "epochs": 1, "delta": 1e-5}, "batch <= size"),
        (
            {"noise_multiplier": "much", "batch": 64, "size": 100, "epochs": 1, "delta": 1e-5},
            "noise_multiplier",
        ),
        ({"noise_multiplier": 1, "sigma": 2}, "one value of noise_multiplier"),
        ({**TF_TUTORIAL, "sampling": "by hand"}, "sampling"),
        ({**TF_TUTORIAL, "epochs": 1e300, "batch_size": 1}, "steps"),
    ],
)
def test_what_cannot_be_priced_is_one_sentence(settings, words):
    with pytest.raises(InvalidInput, match=words):
        run(**settings)


def test_a_release_outside_is_charged(tmp_path):
    found = run(**TF_TUTORIAL, sampling="poisson", steps=14062)
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=5, delta=1e-5)) as ledger:
        ledger.record(found.event, purpose="tutorial", relation=found.relation, unit=found.unit)
        assert ledger.epsilon_spent == pytest.approx(found.epsilon, rel=1e-3)
        assert ledger.exceeded is None
        ledger.verify()


def test_a_release_outside_that_does_not_fit_closes_the_ledger(tmp_path):
    found = opinion_of(EXAMPLES / "shuffled_cnn.toml")
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=5, delta=1e-5, relation="zero-out")) as ledger:
        assert ledger.record(found.event, purpose="report", relation=found.relation, unit="record") is None
        assert ledger.exceeded.owed == pytest.approx(found.epsilon)  # exact while it is the only release
        assert ledger.epsilon_left == 0
        assert ledger.epsilon_spent >= found.epsilon
        ledger.verify()
        with pytest.raises(BudgetExceeded, match="outside"):
            ledger.charge(LaplaceEvent(100.0), purpose="later", relation=Relation.ZERO_OUT, unit="record")
        with pytest.raises(BudgetExceeded, match="outside"):
            ledger.allocate("team", 0.1)
