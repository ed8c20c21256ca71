"""Attacks on correlated noise: a wrong price, a wrong order, noise that is known, used twice or left behind."""

import json
import stat
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

import small_runs
from sfumato.accounting import Budget, Relation
from sfumato.cli.verify import check_plan
from sfumato.errors import DataCorrupted, InvalidInput, NotVerified, Refused, RelationMismatch
from sfumato.ledger import Certificate, Ledger
from sfumato.mechanisms import Banded, LambdaCGD
from sfumato.training import AdaptiveClipping, TrainingPlan, resume, save_checkpoint
from sfumato.training.checkpoint import read_past_noise
from small_runs import rows, take

PLAN = TrainingPlan(
    sample_rate=0.25,
    expected_batch=5,
    steps=12,
    noise_multiplier=2.0,
    sampling="cyclic",
    relation=Relation.ZERO_OUT,
    noise=Banded(bands=3),
)
PLANS = [PLAN, replace(PLAN, noise=LambdaCGD(cancelled=0.8))]


def noise_files(folder):
    return [path for path in folder.iterdir() if "noise" in path.name]


# A plan that does not fit


def make_trainer(plan=PLAN, ledger=None):
    return small_runs.make_trainer(plan, ledger=ledger)


@pytest.mark.keeps_out(
    "Correlated noise with sampled or shuffled batches, or under add/remove, where its price does not hold"
)
@pytest.mark.parametrize(
    "change",
    [
        {"relation": Relation.ADD_REMOVE},
        {"sampling": "poisson"},
        {"sampling": "shuffle"},
        {"sampling": "poisson", "relation": Relation.ADD_REMOVE},
        {"adaptive": AdaptiveClipping()},
        {"noise_phases": ((0.5, 1.0), (0.5, 2.0))},
        {"noise": "loud"},
        {"noise": 3},
        {"noise": None},
        {"steps": 10**9},
    ],
)
def test_a_plan_that_its_price_does_not_fit_is_refused(change):
    for plan in PLANS:
        with pytest.raises(InvalidInput, match="expected"):
            replace(plan, **change)


def test_a_ledger_of_another_relation_refuses_before_a_row_is_read(tmp_path):
    class Unread:
        def __len__(self):
            return 20

        def __getitem__(self, row):
            raise AssertionError("a row was read")

    budget = Budget(epsilon=50, delta=1e-5, relation=Relation.ADD_REMOVE)
    example = rows()[0][0], rows()[1][0]
    with Ledger.open(tmp_path / "l.db", budget=budget) as ledger:
        trainer = make_trainer(ledger=ledger)
        with pytest.raises(RelationMismatch):
            next(trainer.batches(Unread(), example=example))
        assert ledger.epsilon_spent == 0


# A certificate that lies


def certificate(plan, **changes):
    stated = {**plan.to_json(), **changes}
    return Certificate.of(
        plan.event(), purpose="a run", delta=1e-5, relation=plan.relation, plan=json.loads(json.dumps(stated))
    )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(PLANS),
    st.sampled_from(
        [
            {"noise": {"kind": "banded", "bands": 2, "momentum": 0.0, "decay": 1.0}},
            {"noise": {"kind": "banded", "bands": 3, "momentum": 0.5, "decay": 1.0}},
            {"noise": {"kind": "lambda-cgd", "cancelled": 0.81}},
            {"noise": {"kind": "independent"}},
            {"noise": {"kind": "banded", "bands": 3, "momentum": 0.0, "decay": 1.0, "sensitivity": 1.0}},
            {"steps": 8},
            {"steps": 16},
            {"sample_rate": 0.5},
            {"noise_multiplier": 2.1},
            {"sampling": "poisson"},
            {"relation": "replace-one"},
        ]
    ),
)
def test_a_plan_that_contradicts_its_events_is_refused(plan, change):
    assert check_plan(certificate(plan))
    with pytest.raises(NotVerified):
        check_plan(certificate(plan, **change))


@pytest.mark.keeps_out(
    "Correlated noise priced for one participation where a unit has several, or without its own echoes"
)
def test_the_price_of_one_participation_is_refused():
    """The events of a single pass in the certificate of three, with prices that fit them."""
    for plan in PLANS:
        lie = Certificate.of(
            plan.event(4), purpose="a run", delta=1e-5, relation=plan.relation, plan=plan.to_json()
        )
        lie.verify()  # the figures fit the events
        with pytest.raises(NotVerified, match="not of one run"):
            check_plan(lie)


@pytest.mark.parametrize("change", [{"steps": 10**15}, {"sample_rate": 1e-300}, {"sample_rate": 5e-324}])
def test_a_hostile_number_of_steps_is_refused_at_once(change):
    with pytest.raises(NotVerified):
        check_plan(certificate(PLAN, **change))


# Noise that is known


@pytest.mark.keeps_out("Past noise kept in a checkpoint, readable by others, or left behind")
@pytest.mark.parametrize("plan", PLANS)
def test_past_noise_is_its_owners_alone_and_not_in_the_checkpoint(plan, tmp_path):
    trainer = make_trainer(plan)
    take(trainer, 3)
    path = tmp_path / "c.safetensors"
    save_checkpoint(trainer, path)
    (kept,) = noise_files(tmp_path)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    secret = load(kept.read_bytes())
    value = secret["key"] if "key" in secret else secret["last"]
    assert value.tobytes() not in path.read_bytes()
    assert b"sha256" not in path.read_bytes()  # nor a digest, with which a guess could be checked


@pytest.mark.keeps_out("Past noise kept in a checkpoint, readable by others, or left behind")
@pytest.mark.parametrize("plan", PLANS)
def test_older_noise_is_overwritten_and_removed(plan, tmp_path):
    trainer, path = make_trainer(plan), tmp_path / "c.safetensors"
    take(trainer, 3)
    save_checkpoint(trainer, path)
    (old,) = noise_files(tmp_path)
    keeper = tmp_path.parent / f"{tmp_path.name}.link"
    keeper.hardlink_to(old)  # sees what is written into the file before its name is gone
    take(trainer, 5)
    save_checkpoint(trainer, path)
    assert not any(keeper.read_bytes())
    (new,) = noise_files(tmp_path)
    assert new != old


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("steps", [5, 12])
def test_no_past_noise_is_left_beside_a_checkpoint_when_the_run_is_finished(plan, steps, tmp_path):
    """Written before the run was resumed, and after; at the last step, and where it was stopped."""
    first, path = make_trainer(plan), tmp_path / "c.safetensors"
    take(first, 3)
    save_checkpoint(first, path)
    second = make_trainer(plan)
    resume(second, path)
    take(second, 4)
    save_checkpoint(second, tmp_path / "other.safetensors")
    assert len(noise_files(tmp_path)) == 2
    take(second, steps)
    second.finish()
    assert not noise_files(tmp_path)


def test_past_noise_is_wiped_from_memory_at_the_end():
    trainer = make_trainer()
    take(trainer, 5)
    last = trainer._correlated._last
    assert np.abs(last).max() > 0
    trainer.finish()
    assert not last.any()


# Going on without it, or with another's


@pytest.mark.parametrize("plan", PLANS)
def test_without_its_past_noise_a_run_cannot_go_on(plan, tmp_path):
    trainer, path = make_trainer(plan), tmp_path / "c.safetensors"
    take(trainer, 3)
    save_checkpoint(trainer, path)
    noise_files(tmp_path)[0].unlink()
    with pytest.raises(Refused, match="past noise"):
        resume(make_trainer(plan), path)


@pytest.mark.parametrize("plan", PLANS)
def test_a_state_without_past_noise_is_refused(plan):
    trainer = make_trainer(plan)
    take(trainer, 3)
    with pytest.raises(Refused, match="noise of past steps"):
        make_trainer(plan).take_up(replace(trainer.state, past_noise=None))


@pytest.mark.keeps_out(
    "A run that goes on with other past noise than its own, or with that of a step that failed"
)
def test_the_noise_of_an_older_checkpoint_is_not_taken(tmp_path):
    trainer, path = make_trainer(), tmp_path / "c.safetensors"
    take(trainer, 3)
    save_checkpoint(trainer, path)
    (old,) = noise_files(tmp_path)
    name, content = old.name, old.read_bytes()
    take(trainer, 4)
    save_checkpoint(trainer, path)
    noise_files(tmp_path)[0].unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Refused, match="past noise"):
        resume(make_trainer(), path)


@pytest.mark.keeps_out(
    "A run that goes on with other past noise than its own, or with that of a step that failed"
)
@pytest.mark.parametrize("plan", PLANS)
def test_a_step_that_failed_after_its_noise_was_drawn_leaves_no_checkpoint(plan, tmp_path, monkeypatch):
    """The noise of the failed step would be taken for that of the last one, and priced as if it were."""
    trainer = make_trainer(plan)
    take(trainer, 3)
    monkeypatch.setattr(trainer, "_noisy_count", lambda below: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        take(trainer, 4)
    with pytest.raises(Refused, match="step failed"):
        save_checkpoint(trainer, tmp_path / "c.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../../elsewhere", 7, "", ["a"], "x" * 32])
def test_a_checkpoint_cannot_point_to_other_files(name, tmp_path):
    with pytest.raises(DataCorrupted, match="name its past noise"):
        read_past_noise(tmp_path / "c.safetensors", name)


@pytest.mark.parametrize("plan", PLANS)
def test_a_file_that_is_no_past_noise_is_refused(plan, tmp_path):
    trainer, path = make_trainer(plan), tmp_path / "c.safetensors"
    take(trainer, 3)
    save_checkpoint(trainer, path)
    (kept,) = noise_files(tmp_path)
    for content in (b"", b"0" * 80, save({"other": np.zeros(3)}), save({"scale": np.zeros(0)})):
        kept.write_bytes(content)
        with pytest.raises(DataCorrupted, match="past noise"):
            resume(make_trainer(plan), path)


@pytest.mark.parametrize("plan", PLANS)
def test_noise_that_could_not_be_drawn_exactly_is_refused_before_the_charge(plan, tmp_path):
    budget = Budget(epsilon=50, delta=1e-5, relation=Relation.ZERO_OUT)
    with Ledger.open(tmp_path / "l.db", budget=budget) as ledger:
        trainer = make_trainer(replace(plan, noise_multiplier=2.0**38), ledger)
        with pytest.raises(InvalidInput, match="noise_multiplier"):
            take(trainer, 1)
        assert not ledger.charges()
