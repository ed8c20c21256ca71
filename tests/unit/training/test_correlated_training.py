"""Training with noise that knows the past, in a fixed order of batches."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import small_runs
from sfumato.accounting import Budget, GaussianEvent, Relation, epsilon
from sfumato.cli.verify import check_plan
from sfumato.ledger import Ledger
from sfumato.ledger.rule import part_of
from sfumato.mechanisms import Banded, Independent, LambdaCGD
from sfumato.mechanisms.factorisation import sensitivity
from sfumato.randomness import SecretStream
from sfumato.training import PrivateTrainer, TrainingPlan, cross_entropy, resume, save_checkpoint, train
from sfumato.training.sampling import FixedOrder
from small_runs import rows, take

PLAN = TrainingPlan(
    sample_rate=0.25,
    expected_batch=5,
    steps=10,
    noise_multiplier=2.0,
    sampling="cyclic",
    relation=Relation.ZERO_OUT,
    noise=Banded(bands=3),
)
PLANS = [PLAN, replace(PLAN, noise=LambdaCGD(cancelled=0.8)), replace(PLAN, noise=Independent())]


def make_trainer(plan=PLAN, ledger=None):
    return small_runs.make_trainer(plan, ledger=ledger)


@pytest.fixture
def ledger(tmp_path):
    budget = Budget(epsilon=50, delta=1e-5, relation=Relation.ZERO_OUT)
    with Ledger.open(tmp_path / "ledger.db", budget=budget) as opened:
        yield opened


# The price


@pytest.mark.parametrize("plan", PLANS)
def test_the_price_is_one_gaussian_at_the_sensitivity_of_the_factorisation(plan):
    moved = sensitivity(plan.noise, steps=plan.steps, steps_a_pass=4)
    assert plan.epsilon(1e-5) == pytest.approx(epsilon(GaussianEvent(2.0 / moved), 1e-5))
    replaced = replace(plan, relation=Relation.REPLACE_ONE)
    assert replaced.epsilon(1e-5) == pytest.approx(epsilon(GaussianEvent(1.0 / moved), 1e-5))


@pytest.mark.parametrize("plan", PLANS)
def test_what_ran_is_a_part_of_the_plan(plan):
    """So that a run can be marked and settled to its first steps; a pass that was begun counts whole."""
    parts = [plan.event(steps) for steps in range(plan.steps + 1)]
    for less, more in itertools.pairwise(parts):
        assert part_of(less, more)
    assert parts[1] == parts[4] != parts[5]


def test_many_passes_are_priced_in_few_kinds_and_never_below_the_exact_price():
    plan = replace(PLAN, sample_rate=1.0, steps=400, noise=LambdaCGD(cancelled=0.99))
    exact = sensitivity(plan.noise, steps=400, steps_a_pass=1)
    assert plan.epsilon(1e-5) >= epsilon(GaussianEvent(2.0 / exact), 1e-5)
    plan_of_certificate(plan).verify()


def test_a_name_stands_for_the_best_of_its_kind():
    plan = TrainingPlan.calibrated(
        epsilon=3,
        delta=1e-5,
        public_size=1000,
        expected_batch=50,
        epochs=5,
        sampling="cyclic",
        relation="zero-out",
        noise="banded",
    )
    assert isinstance(plan.noise, Banded)
    assert plan.noise.bands > 1
    assert 0.99 * 3 <= plan.epsilon(1e-5) <= 3
    assert TrainingPlan.from_json(plan.to_json()) == plan


def test_plans_of_independent_noise_are_written_as_before():
    assert "noise" not in PLANS[2].to_json()
    assert TrainingPlan.from_json(PLANS[2].to_json()) == PLANS[2]


# The order


def test_each_unit_takes_part_in_its_own_step_of_every_pass():
    trainer = make_trainer(replace(PLAN, noise=Independent()))
    samples = [batch.sample.units for batch in trainer.batches(rows(22))]
    assert len(samples) == 10
    for step, units in enumerate(samples):
        assert units.tolist() == [unit for unit in range(22) if unit % 4 == step % 4]


@pytest.mark.keeps_out("An order of batches that is chosen later, or that one person's name changes for others")
def test_chunks_and_blocks_of_named_units_depend_on_their_own_names_only():
    """A person of another name, who sorts before all others, moves nobody else."""
    names = np.array([f"p{number}" for number in range(50)])
    other = np.where(names == "p30", "a", names)
    one = _by_name(FixedOrder.of(50, 7, names=names), names)
    two = _by_name(FixedOrder.of(50, 7, names=other), other)
    assert {name: place for name, place in one.items() if name != "p30"} == {
        name: place for name, place in two.items() if name != "a"
    }
    assert len({block for block, _ in one.values()}) == 7
    assert all(0 <= place < 1 for _, place in one.values())


def _by_name(order, names):
    return dict(
        zip(np.unique(names), zip(order.block.tolist(), order.places.tolist(), strict=True), strict=True)
    )


# Runs


@pytest.mark.parametrize("plan", PLANS)
def test_a_run_is_charged_its_plan_and_its_certificate_verifies(plan, ledger):
    trainer = make_trainer(plan, ledger)
    take(trainer, None)
    certificate = trainer.certificate(delta=1e-5)
    assert certificate.verify().pld == pytest.approx(plan.epsilon(1e-5))
    assert check_plan(certificate)
    assert any("fixed, public order" in caveat for caveat in certificate.caveats)
    assert ledger.epsilon_spent == pytest.approx(plan.epsilon(1e-5))


@pytest.mark.parametrize("plan", PLANS[:2])
def test_what_is_released_is_the_sum_plus_correlated_noise(plan):
    """On no rows at all the weights move by C⁻¹z: multiplied by C, steps are independent and of size σ."""
    big = replace(plan, steps=6, expected_batch=1.0)
    model = nn.Linear(200, 100)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=1.0), big)
    found = []
    empty = torch.zeros(0, 200), torch.zeros(0, dtype=torch.int64)
    for batch in trainer.batches(empty):
        trainer.step(batch, cross_entropy)
        found.append(torch.cat([p.grad.flatten() for p in trainer.parameters.values()]).double().numpy())
    column = big.noise.column(6)
    drawn = [sum(column[i] * found[t - i] for i in range(min(t + 1, len(column)))) for t in range(6)]
    sigma = 2.0 * (1 + trainer.eta)
    for one in drawn:  # 20,100 draws: s/σ is within 2.5% but for a chance of 1e-6
        assert np.std(one) == pytest.approx(sigma, rel=0.025)
    together = np.corrcoef(np.stack(drawn))
    assert np.abs(together - np.eye(6)).max() < 0.04  # 5.6 standard errors


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("gone", [0, 3, 18])
def test_neighbours_differ_by_the_sensitivity_and_in_nothing_else(plan, gone):
    """The same run, noise frozen, one record zeroed out: C times the difference is what is priced."""
    inputs, targets = rows()
    inputs = inputs * 50
    less = inputs.clone()
    less[gone] = torch.nan  # a record that adds exactly nothing
    (one, first), (two, second) = (replay(plan, (x, targets)) for x in (inputs, less))
    moved = one - two
    turn = np.arange(plan.steps) % 4 == gone % 4
    assert not moved[~turn].any()
    assert all(np.linalg.norm(row) > 0.5 * plan.clip_norm for row in moved[turn])
    column = plan.noise.column(plan.steps)
    echoed = [sum(column[i] * moved[t - i] for i in range(min(t + 1, len(column)))) for t in range(plan.steps)]
    priced = sensitivity(plan.noise, steps=plan.steps, steps_a_pass=4) * plan.clip_norm * (1 + first.eta)
    assert np.linalg.norm(echoed) <= priced * (1 + 1e-5)
    assert first.certificate(delta=1e-5).to_json() == second.certificate(delta=1e-5).to_json()


def replay(plan, data):
    model = nn.Linear(5, 3)
    with torch.no_grad():
        model.weight.fill_(0.1)
        model.bias.zero_()
    stream = SecretStream(test_seed=7)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.0), plan, sampler=stream)
    released = []
    for batch in trainer.batches(data):
        trainer.step(batch, cross_entropy)
        gradient = torch.cat([p.grad.flatten() for p in trainer.parameters.values()])
        released.append(gradient.double().numpy() * plan.expected_batch)
    return np.stack(released), trainer


@pytest.mark.parametrize("plan", PLANS)
def test_an_interrupted_run_goes_on_in_the_middle_of_a_pass(plan, tmp_path, ledger):
    first = make_trainer(plan, ledger)
    take(first, 3)
    save_checkpoint(first, tmp_path / "c.safetensors")
    second = make_trainer(plan, ledger)
    resume(second, tmp_path / "c.safetensors")
    assert [batch.step for batch in second.batches(rows())][:1] == [3]
    take(second, None)
    assert second.finish().event == plan.event()
    assert ledger.epsilon_spent == pytest.approx(plan.epsilon(1e-5))


def test_a_run_that_is_stopped_pays_for_the_passes_it_began(ledger):
    trainer = make_trainer(PLAN, ledger)
    take(trainer, 5)
    charge = trainer.finish()
    assert charge.event == PLAN.event(5)
    assert charge.planned == PLAN.event()
    certificate = trainer.certificate(delta=1e-5)
    certificate.verify()
    assert check_plan(certificate)


@pytest.mark.keeps_out("Past noise kept in a checkpoint, readable by others, or left behind")
def test_a_run_folder_is_left_without_past_noise(tmp_path, ledger):
    seen = set()

    def look(trainer):
        seen.update(path.name for path in (tmp_path / "out" / "private").iterdir() if path.suffix == ".noise")

    train(nn.Linear(5, 3), rows(), PLAN, ledger=ledger, out=tmp_path / "out", on_step=look)
    assert seen  # there was some at the ends of passes
    assert not [path for path in (tmp_path / "out").rglob("*") if "noise" in path.name]


def plan_of_certificate(plan):
    from sfumato.ledger import Certificate

    return Certificate.of(
        plan.event(), purpose="a run", delta=1e-5, relation=plan.relation, plan=plan.to_json()
    )
