"""The step: what it guarantees, and how it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import small_runs
from sfumato.accounting import Budget, NoEvent, Relation
from sfumato.caveats import Code
from sfumato.errors import BudgetExceeded, InvalidInput, Refused, RelationMismatch, UnsupportedModel
from sfumato.ledger import Ledger
from sfumato.randomness import SecretStream
from sfumato.training import (
    AdaptiveClipping,
    PrivateTrainer,
    TrainingPlan,
    clipped_gradient_sum,
    cross_entropy,
    resume,
    save_checkpoint,
)
from sfumato.training.clip import SMALLEST_NORM
from sfumato.training.data import TrainingData
from sfumato.training.engine import Engine
from small_runs import rows

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=4, noise_multiplier=1.0, clip_norm=1.0)


def small_model(seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def make_trainer(plan=PLAN, model=None, learning_rate=0.1, **more):
    model = small_model() if model is None else model
    return small_runs.make_trainer(plan, model, rate=learning_rate, **more)


def run(trainer, data, **more):
    for batch in trainer.batches(data, **more):
        trainer.step(batch, cross_entropy)
    return trainer


class Tape:
    """A sampler whose uniforms come from a real stream and whose noise is none, or a recorded one."""

    private = False

    def __init__(self, noise=None):
        self.stream = SecretStream(test_seed=7)
        self.noise = noise
        self.asked = []

    def uniform(self, size):
        return self.stream.uniform(size)

    def rounded_normal(self, scale, size):
        self.asked.append((scale, size))
        return np.ones(size, dtype=np.int64) if self.noise is None else self.noise

    def __getattr__(self, name):
        return getattr(self.stream, name)


@pytest.mark.keeps_out("Division by the realised batch size")
def test_a_step_is_the_bounded_sum_plus_noise_over_the_declared_batch():
    """With everyone in, and noise of one grid step, the weights move by lr · sum / expected_batch."""
    model, data = small_model(), rows()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sums = clipped_gradient_sum(model, cross_entropy, *data, 1.0)
    run(make_trainer(replace(PLAN, sample_rate=1.0, steps=1), model, sampler=Tape()), data)
    for name, value in model.state_dict().items():
        expected = before[name] - 0.1 * sums[name] / 10  # the declared batch, not the 20 that came
        torch.testing.assert_close(value, expected, atol=1e-4, rtol=0)


def test_noise_has_the_scale_of_the_declared_sensitivity():
    trainer = run(make_trainer(sampler=(tape := Tape())), rows())
    dimension = sum(parameter.numel() for parameter in trainer.model.parameters())
    grid = 2.0 ** math.floor(math.log2(2.0**-10 / math.sqrt(dimension)))
    assert [size for _, size in tape.asked] == [dimension] * PLAN.steps
    for scale, _ in tape.asked:
        assert scale * grid == pytest.approx(PLAN.noise_multiplier * PLAN.clip_norm * (1 + trainer.eta))
    assert 0 < trainer.eta < 0.02


@pytest.mark.keeps_out("An empty Poisson batch crashes, is skipped, or is filled")
def test_an_empty_batch_takes_a_step_of_noise():
    model = small_model()
    before = model[0].weight.detach().clone()
    trainer = run(make_trainer(replace(PLAN, sample_rate=1e-12), model), rows())
    assert trainer.steps_done == 4
    assert trainer.private_log.steps[0].units == 0
    assert not torch.equal(before, model[0].weight)


def test_an_empty_batch_of_dicts_takes_a_step_of_noise():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, values):
            return self.layer(values)

    inputs, targets = rows(4)
    items = [{"values": inputs[n], "labels": targets[n]} for n in range(4)]
    model = Named()
    before = model.layer.weight.detach().clone()
    run(make_trainer(replace(PLAN, sample_rate=1e-9, expected_batch=1), model), items)
    assert not torch.equal(model.layer.weight, before)


class Against(nn.Module):
    """What a discriminator says of a row, and of one that a generator makes up."""

    def __init__(self, generator):
        super().__init__()
        self.discriminator, self.made_by = small_model(), [generator]  # in a list: it is not trained here

    def forward(self, inputs):
        layer = self.made_by[0]  # its weights are constants of the graph: what becomes of them is seen there
        made = F.linear(torch.randn(len(inputs), 2), layer.weight.detach(), layer.bias.detach())
        return self.discriminator(inputs)[:, 0], self.discriminator(made)[:, 0]


def test_a_discriminator_is_trained_privately_and_its_generator_from_it():
    generator = nn.Linear(2, 5)
    model = Against(generator)
    makes = torch.optim.SGD(generator.parameters(), lr=0.5)
    trainer = make_trainer(model=model)
    before = [value.detach().clone() for value in generator.parameters()]
    for batch in trainer.batches(rows()):
        trainer.step(batch, lambda said, _: F.softplus(-said[0]) + F.softplus(said[1]))
        makes.zero_grad()
        F.softplus(-model.discriminator(generator(torch.randn(8, 2)))[:, 0]).mean().backward()
        makes.step()  # from what was released: it costs nothing
    assert trainer.steps_done == PLAN.steps
    assert not any(torch.equal(old, new) for old, new in zip(before, generator.parameters(), strict=True))


def test_no_rows_at_all_still_train():
    inputs, targets = rows()
    trainer = run(make_trainer(), (inputs[:0], targets[:0]))
    assert trainer.steps_done == 4


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_are_not_finite_add_nothing_and_nobody_learns_of_them(value):
    inputs, targets = rows()
    inputs[3] = value
    plan = replace(PLAN, sample_rate=1.0, steps=1)
    spoilt, clean = small_model(), small_model()
    trainer = run(make_trainer(plan, spoilt, sampler=Tape()), (inputs, targets))
    keep = torch.arange(20) != 3
    run(make_trainer(plan, clean, sampler=Tape()), (inputs[keep], targets[keep]))
    for ours, theirs in zip(spoilt.parameters(), clean.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert trainer.private_log.steps[0].not_finite == 1
    assert "not_finite" not in str(trainer.certificate(delta=1e-5).to_json())


@pytest.mark.keeps_out("Noise not drawn, or weights not moved, while ε is printed")
def test_a_sampler_that_draws_no_noise_stops_the_step():
    trainer = make_trainer(sampler=Tape(noise=np.zeros(75, dtype=np.int64)))
    batch = next(trainer.batches(rows()))
    with pytest.raises(Refused, match="no noise"):
        trainer.step(batch, cross_entropy)


@pytest.mark.keeps_out("Noise not drawn, or weights not moved, while ε is printed")
def test_an_optimizer_that_does_not_move_stops_the_run():
    model = small_model()

    class Idle(torch.optim.SGD):
        def step(self, closure=None):
            return None

    trainer = PrivateTrainer(model, Idle(model.parameters(), lr=0.1), PLAN)
    batch = next(trainer.batches(rows()))
    with pytest.raises(Refused, match="did not move"):
        trainer.step(batch, cross_entropy)


def test_an_optimizer_that_lacks_a_parameter_is_refused():
    model = small_model()
    with pytest.raises(InvalidInput, match=r"2\.weight"):
        PrivateTrainer(model, torch.optim.SGD(model[0].parameters(), lr=0.1), PLAN)


def test_frozen_parameters_stay_and_adapters_move():
    model = small_model()
    model[0].requires_grad_(False)
    frozen, adapter = model[0].weight.clone(), model[2].weight.detach().clone()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
    run(PrivateTrainer(model, optimizer, PLAN), rows())
    assert torch.equal(frozen, model[0].weight)
    assert not torch.equal(adapter, model[2].weight)


def insert(model):
    model.insert(1, nn.Linear(8, 8))


def replace_weight(model):
    model[0].weight = nn.Parameter(torch.zeros(8, 5))


@pytest.mark.parametrize(
    "change",
    [lambda model: model[0].requires_grad_(False), lambda model: model.pop(0), insert, replace_weight],
    ids=["frozen", "popped", "inserted", "replaced"],
)
@pytest.mark.parametrize("step", [0, 2])
def test_parameters_that_nobody_draws_noise_for_or_moves_are_refused_before_the_step(change, step):
    trainer = make_trainer()
    batches = trainer.batches(rows())
    for _ in range(step):
        trainer.step(next(batches), cross_entropy)
    change(trainer.model)
    with pytest.raises(Refused, match="make another trainer"):
        trainer.step(next(batches), cross_entropy)
    assert trainer.steps_started == step


def test_batch_norm_is_refused_with_the_remedy_before_anything_ran():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    trainer = make_trainer(model=model)
    batch = next(trainer.batches(rows()))
    with pytest.raises(UnsupportedModel, match="replace_batchnorm"):
        trainer.step(batch, cross_entropy)
    assert trainer.steps_started == 0


def test_the_state_dict_keeps_its_keys():
    model = small_model()
    keys = list(model.state_dict())
    run(make_trainer(model=model), rows())
    assert list(model.state_dict()) == keys


def test_a_batch_is_used_once_and_in_turn():
    trainer = make_trainer()
    batches = trainer.batches(rows())
    first = next(batches)
    trainer.step(first, cross_entropy)
    with pytest.raises(Refused, match="used once"):
        trainer.step(first, cross_entropy)


def test_more_units_than_declared_are_refused_rather_than_under_noised():
    with pytest.raises(Refused, match="declare"):
        run(make_trainer(), rows(2000))


def test_a_unit_counts_once_however_many_rows_it_has():
    """Ten rows of one person move the sum by C at most, and rows beyond the declared number are left out."""
    inputs, targets = rows(20)
    people = np.repeat(["ann", "bob"], 10)
    plan = replace(PLAN, sample_rate=1.0, expected_batch=2, steps=1, clip_norm=0.1, rows_per_unit=10)
    model = small_model()
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    run(make_trainer(plan, model, learning_rate=1.0, sampler=Tape()), (inputs, targets), units=people)
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - start
    assert float(moved.norm()) * 2 <= 2 * 0.1 * 1.02
    with pytest.raises(InvalidInput, match="rows_per_unit"):
        next(make_trainer().batches((inputs, targets), units=people))

    short = replace(plan, rows_per_unit=3)
    capped, trimmed = small_model(), small_model()
    run(make_trainer(short, capped, sampler=Tape()), (inputs, targets), units=people)
    first = np.r_[0:3, 10:13]
    run(make_trainer(short, trimmed, sampler=Tape()), (inputs[first], targets[first]), units=people[first])
    for ours, theirs in zip(capped.parameters(), trimmed.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_views_of_a_row_are_averaged_before_clipping():
    """Four equal views are the row itself."""
    plan = replace(PLAN, sample_rate=1.0, steps=1)
    once, fourfold = small_model(), small_model()
    run(make_trainer(plan, once, sampler=Tape()), rows())
    views = lambda inputs: inputs[:, None].expand(-1, 4, -1)  # noqa: E731
    run(make_trainer(plan, fourfold, sampler=Tape()), rows(), views=views)
    for ours, theirs in zip(once.parameters(), fourfold.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_adaptive_clipping_follows_the_norms():
    """Everyone's gradient is far above the bound, so it grows; the count is drawn with noise."""
    plan = replace(
        PLAN,
        sample_rate=1.0,
        expected_batch=20,
        steps=30,
        clip_norm=1e-3,
        adaptive=AdaptiveClipping(count_noise=0.5),
    )
    trainer = run(make_trainer(plan, learning_rate=1e-6), rows())
    # exp(0.2 · 0.5) a step while all are clipped: 20-fold after 30 steps, less the noise of the count
    assert 5e-3 < trainer.clip_norm < 8e-2


def test_adaptive_clipping_stays_where_norms_can_be_told_apart():
    plan = replace(PLAN, expected_batch=20, clip_norm=1e-9, adaptive=AdaptiveClipping(count_noise=0.5))
    trainer = make_trainer(plan)
    for _ in range(60):
        trainer._adapt(10.0)  # all of the batch below the bound
    assert trainer.clip_norm == SMALLEST_NORM


@pytest.mark.parametrize("clipping", ["flat", "per-layer", "automatic"])
def test_every_clipping_rule_trains(clipping):
    trainer = run(make_trainer(replace(PLAN, clipping=clipping)), rows())
    assert trainer.steps_done == PLAN.steps


def test_averaged_weights_are_kept_apart():
    model = small_model()
    trainer = run(make_trainer(replace(PLAN, average_decay=0.9), model), rows())
    last = model[0].weight.detach().clone()
    with trainer.averaged() as averaged:
        assert not torch.equal(averaged[0].weight, last)
    assert torch.equal(model[0].weight, last)


def test_shuffling_trains_and_says_so():
    plan = replace(PLAN, sampling="shuffle", relation=Relation.ZERO_OUT)
    trainer = run(make_trainer(plan), rows())
    assert trainer.steps_done == 4
    assert any("without amplification" in caveat for caveat in trainer.certificate(delta=1e-5).caveats)


# The ledger


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.db", budget=Budget(epsilon=200, delta=1e-5)) as opened:
        yield opened


@pytest.mark.keeps_out("A budget charged after the run, lost in a crash, or overspent by a race")
@pytest.mark.filterwarnings("ignore:the data set or collate_fn keeps something")
def test_the_plan_is_charged_before_a_row_is_touched(ledger, tmp_path):
    notes = tmp_path / "spent"

    class Watched:
        """Notes what was spent each time a row is read, in a file: what is in memory is put back."""

        def __len__(self):
            return 20

        def __getitem__(self, row):
            with notes.open("a") as file:
                file.write(f"{ledger.epsilon_spent!r}\n")
            return torch.zeros(5), torch.tensor(0)

    trainer = make_trainer(ledger=ledger)
    for batch in trainer.batches(Watched()):
        trainer.step(batch, cross_entropy)
    shape, *rest = map(float, notes.read_text().split())  # the first look is for the shape of a row
    assert shape == 0
    assert rest
    assert all(value == pytest.approx(PLAN.epsilon(1e-5)) for value in rest)


def test_a_plan_that_does_not_fit_leaves_everything_as_it_was(tmp_path):
    with Ledger.open(tmp_path / "small.db", budget=Budget(epsilon=0.1, delta=1e-5)) as small:
        model = small_model()
        before = model[0].weight.detach().clone()
        with pytest.raises(BudgetExceeded):
            run(make_trainer(model=model, ledger=small), rows())
        assert torch.equal(before, model[0].weight)
        assert small.epsilon_spent == 0


def test_stopping_early_settles_to_the_steps_that_started(ledger):
    trainer = make_trainer(ledger=ledger)
    for batch in trainer.batches(rows()):
        trainer.step(batch, cross_entropy)
        if trainer.steps_done == 2:
            break
    trainer.finish()
    assert trainer.charge.event == PLAN.event(2)
    assert PLAN.epsilon(1e-5, steps=2) < ledger.epsilon_spent <= PLAN.epsilon(1e-5)
    with pytest.raises(Refused, match="not finished"):
        next(trainer.batches(rows()))


def test_a_step_that_fails_stays_charged(ledger, monkeypatch):
    trainer = make_trainer(ledger=ledger)
    intact = Engine.clipped

    def breaks(self, *arguments, **more):
        if trainer.steps_started:
            raise ValueError("out of memory")
        return intact(self, *arguments, **more)

    monkeypatch.setattr(Engine, "clipped", breaks)
    batch = next(trainer.batches(rows()))
    with pytest.raises(ValueError, match="out of memory"):
        trainer.step(batch, cross_entropy)
    assert trainer.finish().event == PLAN.event(1)
    assert PLAN.epsilon(1e-5, steps=1) <= ledger.epsilon_spent <= PLAN.epsilon(1e-5)


def test_a_seeded_run_is_marked_not_private(ledger):
    trainer = run(make_trainer(ledger=ledger, sampler=SecretStream(test_seed=1)), rows())
    assert not ledger.private
    certificate = trainer.certificate(delta=1e-5)
    assert not certificate.private
    assert any("not private" in caveat for caveat in certificate.caveats)


def test_another_relation_is_refused(tmp_path):
    budget = Budget(epsilon=100, delta=1e-5, relation=Relation.ZERO_OUT)
    with Ledger.open(tmp_path / "other.db", budget=budget) as other, pytest.raises(RelationMismatch):
        run(make_trainer(ledger=other), rows())


def test_the_certificate_can_be_recomputed(ledger):
    trainer = run(make_trainer(ledger=ledger), rows())
    certificate = trainer.certificate(delta=1e-5)
    assert certificate.verify().pld == pytest.approx(PLAN.epsilon(1e-5))
    assert certificate.eta == trainer.eta
    assert "20" not in str(certificate.plan)  # the number of rows is in no field


def test_a_certificate_before_the_end_says_that_its_plan_is_reserved(ledger):
    trainer = make_trainer(ledger=ledger)
    for batch in trainer.batches(rows()):
        trainer.step(batch, cross_entropy)
        break
    early = trainer.certificate(delta=1e-5)
    assert early.head is None
    assert any("reserved as entry 1 of a ledger, and not settled" in caveat for caveat in early.caveats)
    assert Code.UNRECORDED() not in early.caveats
    early.verify()
    trainer.finish()
    final = trainer.certificate(delta=1e-5)
    assert final.head is not None
    assert not any("settled" in caveat for caveat in final.caveats)


def test_a_certificate_without_a_ledger_says_that_none_counts_it():
    assert Code.UNRECORDED() in run(make_trainer(), rows()).certificate(delta=1e-5).caveats


@pytest.mark.keeps_out("The ε that a training loop prints after an early stop, of a plan that was never made")
@pytest.mark.parametrize(("sampling", "steps"), [*[("poisson", n) for n in range(5)], ("shuffle", 2)])
@pytest.mark.parametrize("paid", [False, True])
def test_the_trainer_and_its_certificate_state_one_epsilon(tmp_path, paid, steps, sampling):
    """Before it is stopped, after, and taken up again; that of a shorter plan has another name."""
    relation = Relation.ADD_REMOVE if sampling == "poisson" else Relation.ZERO_OUT
    plan = replace(PLAN, sampling=sampling, relation=relation, noise_multiplier=4.0)
    budget = Budget(epsilon=30, delta=1e-5, relation=relation)
    ledger = Ledger.open(tmp_path / "l.db", budget=budget) if paid else None
    trainer = make_trainer(plan, ledger=ledger)

    def same(one):
        prices = one.certificate(delta=1e-5).verify()
        assert one.epsilon(1e-5) == min(prices.pld, prices.rdp)
        assert one.epsilon_if_fixed_in_advance(1e-5) == plan.epsilon(1e-5, one.steps_started)
        return one.epsilon(1e-5)

    for batch in trainer.batches(rows()):
        if trainer.steps_done == steps:
            break
        trainer.step(batch, cross_entropy)
    stopped = same(trainer)
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    trainer.finish()
    assert same(trainer) == stopped
    if not 0 < steps < plan.steps:
        assert stopped == pytest.approx(trainer.epsilon_if_fixed_in_advance(1e-5))
        return
    assert stopped > trainer.epsilon_if_fixed_in_advance(1e-5)
    if paid:
        return
    again = make_trainer(plan)
    resume(again, tmp_path / "c.safetensors")
    assert same(again) == stopped
    assert same(run(again, rows())) == pytest.approx(plan.epsilon(1e-5))


@pytest.mark.keeps_out("The ε that a training loop prints after an early stop, of a plan that was never made")
def test_a_resumed_run_that_is_stopped_states_what_its_ledger_settled(ledger, tmp_path):
    trainer = make_trainer(ledger=ledger)
    for batch in trainer.batches(rows()):
        trainer.step(batch, cross_entropy)
        break
    save_checkpoint(trainer, tmp_path / "c.safetensors")
    again = make_trainer(ledger=ledger)
    resume(again, tmp_path / "c.safetensors")
    for batch in again.batches(rows()):
        again.step(batch, cross_entropy)
        break
    again.finish()
    stated = again.certificate(delta=1e-5)
    assert stated.event == PLAN.event(2)
    assert again.epsilon(1e-5) == min(stated.prices.pld, stated.prices.rdp) > PLAN.epsilon(1e-5, 2)
    assert again.epsilon(1e-3) < again.epsilon(1e-5)  # at another δ than the ledger's


def test_nothing_ran_costs_nothing():
    assert make_trainer().epsilon(1e-5) == 0
    assert PLAN.event(0) == NoEvent()


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, left, right):
        return self.left(left) + self.right(right)


def test_a_model_with_two_inputs_takes_them_as_a_tuple():
    """((a, b), targets): columns, not two examples."""
    inputs, targets = rows()
    model = TwoInputs()
    before = model.right.weight.detach().clone()
    trainer = run(make_trainer(model=model), ((inputs[:, :2], inputs[:, 2:]), targets))
    assert trainer.steps_done == PLAN.steps
    assert not torch.equal(before, model.right.weight)


def test_a_list_of_two_examples_is_a_data_set():
    inputs, targets = rows(2)
    assert TrainingData([(inputs[0], targets[0]), (inputs[1], targets[1])]).rows == 2
