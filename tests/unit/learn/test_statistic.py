"""What is measured before a head is trained: bounded, exact but for its noise, and priced with the head."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import sfumato
from sfumato import Budget, Ledger
from sfumato.accounting import GaussianEvent, epsilon
from sfumato.cli.verify import check_plan
from sfumato.datasets import Dataset
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.learn import CLOTHES, SCENES, Canaries, Classifier, HoldOut, features
from sfumato.learn.statistic import KINDS, StatisticPlan
from sfumato.randomness import SecretStream
from sfumato_lab.drawings import strokes

WIDTH = 12
MORE = {"leading": {"places": ((0, 4), (6, 9)), "directions": 3}}
QUICK = replace(
    CLOTHES, extractors=("shapes",), drawn=200, directions=32, steps=10, sample_rate=0.5, statistic_share=0.2
)


def rows_of(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(count, WIDTH, generator=generator) + 0.3, dim=1)


def images_of(count, seed=3):
    images, labels = strokes.draw(count, seed=seed)
    inputs = images[:, None].astype(np.float32) / 255
    return Dataset(
        inputs=inputs, targets=labels, name="own", visibility="private", classes=10, public_size=count
    )


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.5, 1.0, 1.0001, 3.0, 1e30, math.nan, math.inf]))
@settings(max_examples=25, deadline=None)
def test_one_row_moves_the_sums_by_at_most_its_bound(kind, seed, scale):
    plan = StatisticPlan(kind=kind, width=WIDTH, noise_multiplier=1.0, **MORE.get(kind, {}))
    rows = rows_of(20, seed)
    rows[7] *= scale  # what a broken extractor might give
    without = torch.cat([rows[:7], rows[8:]])
    moved = np.linalg.norm(plan._sums(rows) - plan._sums(without))
    assert moved <= plan.mechanism.sensitivity
    assert moved == 0 or moved > 0.2  # a row counts in full, or not at all


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_rows_changes_no_bit(kind):
    plan = StatisticPlan(kind=kind, width=WIDTH, noise_multiplier=1.0, **MORE.get(kind, {}))
    rows = rows_of(500)
    assert np.array_equal(plan._sums(rows), plan._sums(rows[torch.randperm(500)]))


def test_the_mean_has_the_noise_that_is_paid_for():
    plan = StatisticPlan(kind="mean", width=4000, noise_multiplier=5.0)
    rows = torch.zeros(10, 4000)
    rows[:, 0] = 1.0
    found = plan.measure(rows, public_size=10, sampler=SecretStream())
    sigma = plan.mechanism.sigma / 10
    # The mean square of 3,999 normals: five deviations, √(2/3999) each, fail by chance with 6e-7.
    assert abs(float(found[1:].square().mean()) / sigma**2 - 1) < 5 * math.sqrt(2 / 3999)
    assert abs(float(found[0]) - 1) < 5.1 * sigma  # 4e-7


def test_the_basis_makes_directions_as_wide_as_each_other():
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(20_000, WIDTH, generator=generator) * torch.linspace(0.3, 3, WIDTH)
    rows = functional.normalize(wide, dim=1)
    plan = StatisticPlan(kind="moment", width=WIDTH, noise_multiplier=1.0)
    basis = plan.measure(rows, public_size=20_000, sampler=SecretStream())
    widths = (rows @ basis).square().mean(0)
    assert widths.max() / widths.min() < 1.3  # 100 before
    before = rows.square().mean(0)
    assert before.max() / before.min() > 30


def test_noise_alone_does_not_stretch_any_direction():
    plan = StatisticPlan(kind="moment", width=30, noise_multiplier=1e4)
    basis = plan.measure(
        functional.normalize(torch.randn(50, 30), dim=1), public_size=50, sampler=SecretStream()
    )
    lengths = basis.norm(dim=0)
    assert lengths.max() / lengths.min() < 1.5


def test_leading_directions_are_found_beside_the_mean():
    generator = torch.Generator().manual_seed(2)
    scales = torch.tensor([3.0, 1, 1, 1, 9, 9, 2, 1, 1, 1, 1, 1])  # the widest are not at the places
    rows = functional.normalize(torch.randn(20_000, WIDTH, generator=generator) * scales, dim=1)
    plan = StatisticPlan(kind="leading", width=WIDTH, noise_multiplier=1.0, **MORE["leading"])
    found = plan.measure(rows, public_size=20_000, sampler=SecretStream())
    assert found.shape == (4, WIDTH)
    # Noise of deviation √11·1.002/20,000 in each value: six of them fail by chance with 2e-8.
    assert (found[0] - rows.mean(0)).abs().max() < 6 * 3.33 / 20_000
    assert not found[1:, 4:6].any()
    assert not found[1:, 9:].any()
    directions = functional.normalize(found[1:], dim=1)
    assert directions[0, 0].abs() > 0.99
    assert directions[1, 6].abs() > 0.99
    assert torch.all(found[1:].norm(dim=1).diff() > 0)  # narrower ones are longer
    some = functional.normalize(rows[:, [0, 1, 2, 3, 6, 7, 8]], dim=1).square().mean(0)
    assert found[2].norm() == pytest.approx(float(some[0] / some[4]) ** 0.25, rel=0.01)


def test_leading_values_that_are_not_there_are_refused():
    whole = StatisticPlan(kind="leading", width=WIDTH, noise_multiplier=1.0, **MORE["leading"])
    for change in (
        {"directions": 8},
        {"directions": 0},
        {"places": ()},
        {"places": ((6, 9), (0, 4))},
        {"places": ((0, 6), (4, 9))},  # a value twice would count twice
        {"places": ((8, 13),)},
        {"kind": "mean"},
    ):
        with pytest.raises(InvalidInput, match="expected"):
            replace(whole, **change)


def test_both_parts_have_one_exact_price():
    statistic, head = SCENES.plans(epsilon=1.0, delta=1e-5, public_size=50_000, sizes=(1500, 100))
    assert statistic is not None
    # All are Gaussian releases of all rows: one of them, with 1/σ² summed.
    whole = (statistic.noise_multiplier**-2 + head.steps * head.noise_multiplier**-2) ** -0.5
    assert 0.998 < epsilon(GaussianEvent(whole), 1e-5) <= 1.0
    assert statistic.noise_multiplier**-2 * whole**2 == pytest.approx(0.11, rel=0.01)


def test_a_run_is_charged_once_and_loads_again(tmp_path):
    rows, test = images_of(400), replace(images_of(100, seed=4), visibility="public")
    ready = Classifier.prepare(rows, test, epsilon=3, recipe=QUICK)
    assert 2.97 <= ready.epsilon <= 3
    reports = []
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=3, delta=1e-5)) as ledger:
        trained = ready.train(ledger=ledger, out=tmp_path / "run", on_epoch=reports.append)
        (charge,) = ledger.charges()
        with pytest.raises(BudgetExceeded):
            ready.train(ledger=ledger, out=tmp_path / "again")
    assert epsilon(charge.event, 1e-5) == pytest.approx(ready.epsilon)
    assert check_plan(trained.certificate)
    assert trained.epsilon == ready.epsilon
    # What was shown after each epoch counts what was measured first.
    assert reports[0].epsilon_if_fixed_in_advance > ready.plan.epsilon(1e-5, reports[0].step)
    assert reports[-1].epsilon_if_fixed_in_advance == pytest.approx(ready.epsilon)
    loaded = sfumato.load(tmp_path / "run")
    assert np.array_equal(loaded.predict(test.inputs), trained.predictor.predict(test.inputs))
    right = (loaded.predict(test.inputs) == test.targets).mean()
    assert right == pytest.approx(trained.test_accuracy)
    assert not torch.equal(trained.model.basis, torch.eye(32))
    assert torch.equal(ready.network.basis, torch.eye(32))  # prepared once, trained often


def test_products_of_leading_directions_are_learned_from_and_load_again(tmp_path):
    rows, test = images_of(400), replace(images_of(100, seed=4), visibility="public")
    leading = replace(QUICK, directions=None, statistic="leading", products=5)
    ready = Classifier.prepare(rows, test, epsilon=8, recipe=leading)
    width = ready.network.width
    assert ready.statistic.places == ((0, 200),)
    trained = ready.train(out=tmp_path / "run")
    assert trained.model.head.weight.shape == (10, width + 15)
    assert not torch.equal(trained.model.leading, ready.network.leading)
    assert trained.model.head.weight[:, width:].any()
    assert check_plan(trained.certificate)
    loaded = sfumato.load(tmp_path / "run")
    assert np.array_equal(loaded.predict(test.inputs), trained.predictor.predict(test.inputs))
    with pytest.raises(InvalidInput, match="products"):
        replace(leading, products=0)
    with pytest.raises(InvalidInput, match="directions"):
        replace(leading, directions=32)


def test_nothing_is_measured_that_is_not_paid_for(tmp_path, monkeypatch):
    ready = Classifier.prepare(images_of(200), epsilon=3, recipe=QUICK)
    monkeypatch.setattr(StatisticPlan, "measure", lambda *args, **more: pytest.fail("a row was looked at"))
    with (
        Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1, delta=1e-5)) as ledger,
        pytest.raises(BudgetExceeded),
    ):
        ready.train(ledger=ledger, out=tmp_path / "run")


def test_what_is_kept_out_is_adapted_too():
    ready = Classifier.prepare(images_of(400), epsilon=8, recipe=QUICK, hold_out=HoldOut(share=0.5, epsilon=4))
    trained = ready.train()
    assert trained.held_out is not None
    assert trained.held_out.accuracy > 0.2  # guessing: .1; the noise of counts of 200 is about one record
    assert trained.epsilon_with_hold_out > ready.epsilon


def test_canaries_attack_the_head_alone():
    assert features.head_only("fashion-mnist").statistic is None
    assert features.head_only("mnist") is features.recipe_for("mnist")
    ready = Classifier.prepare(images_of(200), epsilon=3, canaries=Canaries(count=10), recipe=None)
    assert ready.statistic is None


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_that_leaves_nothing_is_refused(share):
    with pytest.raises(InvalidInput, match="statistic_share"):
        replace(QUICK, statistic_share=share)
