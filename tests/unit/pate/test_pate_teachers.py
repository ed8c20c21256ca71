"""Teachers as one ensemble: the same as one by one, and none knows another's rows."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato import models
from sfumato.errors import InvalidInput
from sfumato.pate import EnsembleFit, StudentConfig, TeacherConfig, learn, shard_table, train_teachers, vote
from sfumato.pate.public import beliefs
from sfumato.pate.teachers import coefficients_pay, fit, stack
from sfumato.randomness import public_torch_generator


def images(rows=60, side=28, seed=0):
    source = public_torch_generator(seed)
    targets = torch.randint(3, (rows,), generator=source)
    inputs = torch.rand(rows, 1, side, side, generator=source) * 0.2
    inputs[torch.arange(rows), 0, targets * 6] += 0.8  # a bright line tells the class
    return inputs, targets


def one_by_one(model, inputs, targets, rows, how):
    """The definition: one model, its own rows, plain autograd and SGD."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=how.learning_rate, momentum=how.momentum)
    first = [parameter.detach().clone() for parameter in model.parameters()]
    source = public_torch_generator(how.seed)
    rows = torch.from_numpy(rows)
    for _ in range(how.epochs):
        for places in torch.randperm(len(rows), generator=source).split(how.batch):
            own = rows[places]
            own = own[own >= 0]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[own]), targets[own]) if len(own) else 0.0
            pull = sum((p - f).square().sum() for p, f in zip(model.parameters(), first, strict=True))
            (loss + 0.5 * how.weight_decay * pull).backward()
            optimizer.step()
    return model


def model_and_inputs(kind):
    inputs, targets = images()
    if kind == "head":
        return nn.Linear(200, 3), inputs.flatten(1)[:, :200], targets
    if kind == "cnn of three channels, 33 × 33":
        inputs = F.pad(inputs, (2, 3, 1, 4)).repeat(1, 3, 1, 1) * torch.tensor([1.0, 0.5, -0.5])[:, None, None]
        return models.build("cnn", classes=3, in_channels=3, side=33), inputs, targets
    if kind == "cnn on blank paper":  # most patches are equal, so that pools decide between equals
        return models.build("cnn", classes=3), inputs * (inputs > 0.5), targets
    if kind == "cnn with tanh":  # by automatic differentiation
        return models.CNN(classes=3, activation=nn.Tanh), inputs, targets
    return models.build(kind, classes=3), inputs, targets


@pytest.mark.parametrize(
    "kind",
    ["mlp", "head", "cnn", "cnn on blank paper", "cnn of three channels, 33 × 33", "cnn with tanh"],
)
def test_batched_is_the_loop(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs, targets = model_and_inputs(kind)
    table = shard_table(np.arange(60) % 3, teachers=4, capacity=24)  # the fourth teacher has no rows
    how = EnsembleFit(epochs=2, batch=8, learning_rate=0.1, weight_decay=0.01)
    trained = fit(stack([model] * 4), inputs, targets, table, how)
    for teacher in range(4):
        alone = one_by_one(model, inputs, targets, table[teacher], how)
        for name, value in alone.named_parameters():
            # A pool between two values that are nearly equal may choose by their last bit.
            torch.testing.assert_close(trained.parameters[name][teacher], value.detach(), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("epochs", [1, 6])
def test_both_ways_of_keeping_a_wide_layer_are_the_loop(epochs):
    """Few epochs keep the weights, more of them keep coefficients of the rows."""
    assert coefficients_pay(20, 784, 128, epochs) == (epochs == 6)
    inputs, targets = images()
    model = models.build("mlp", classes=3)
    first, other = copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        other.layers[1].weight.mul_(0.5)  # teachers need not start alike
    table = shard_table(np.arange(60) % 3, teachers=3, capacity=20)
    how = EnsembleFit(epochs=epochs, batch=6, learning_rate=0.1, weight_decay=0.02)
    trained = fit(stack([first, other, first]), inputs, targets, table, how)
    for teacher, start in enumerate([first, other, first]):
        alone = one_by_one(start, inputs, targets, table[teacher], how)
        for name, value in alone.named_parameters():
            torch.testing.assert_close(trained.parameters[name][teacher], value.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_record_changes_one_teacher_and_not_a_bit_of_the_others(kind):
    inputs, targets = images()
    owner = np.arange(60) % 3
    table = shard_table(owner, teachers=3, capacity=30)
    without = shard_table(owner[:-1], teachers=3, capacity=30)  # the last record, of teacher 2, is gone
    config = TeacherConfig(kind=kind, fit=EnsembleFit(epochs=2, batch=8))
    one = train_teachers(inputs, targets, table, config, classes=3)
    other = train_teachers(inputs[:-1], targets[:-1], without, config, classes=3)
    for name, value in one.parameters.items():
        same = [torch.equal(value[teacher], other.parameters[name][teacher]) for teacher in range(3)]
        assert same == [True, True, False], name


def test_a_record_that_is_no_number_spoils_its_own_teacher_only():
    inputs, targets = images()
    inputs[0] = float("nan")  # of teacher 0, and what an empty place in any shard would read
    table = shard_table(np.arange(60) % 3, teachers=4, capacity=24)
    config = TeacherConfig(kind="mlp", fit=EnsembleFit(epochs=1, batch=8))
    trained = train_teachers(inputs, targets, table, config, classes=3)
    for value in trained.parameters.values():
        assert value[0].isnan().any()
        assert value[1:].isfinite().all()


def test_teachers_learn_and_vote():
    inputs, targets = images(rows=120)
    table = shard_table(np.arange(120) % 4, teachers=4, capacity=40)
    config = TeacherConfig(kind="mlp", fit=EnsembleFit(epochs=15, batch=16, learning_rate=0.05))
    votes = vote(inputs, targets, table, inputs[:20], config, classes=3)
    assert votes.shape == (4, 20)
    assert (votes == targets[:20].numpy()).mean() > 0.9


def test_a_head_needs_a_start():
    with pytest.raises(InvalidInput, match="start"):
        train_teachers(
            torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64), np.array([[0, 1]]), TeacherConfig(), classes=2
        )


def blobs():
    source = public_torch_generator(1)
    targets = torch.arange(300) % 3
    features = 4.0 * F.one_hot(targets, 3).float() + torch.randn(300, 3, generator=source)
    return features, targets.numpy()


def test_the_student_learns_from_a_few_labels():
    features, targets = blobs()
    start = nn.Linear(3, 3)
    with torch.no_grad():
        start.weight.zero_()
        start.bias.zero_()
    labels = np.full(300, -1)
    labels[:60] = targets[:60]
    head = learn(start, features, labels, StudentConfig(label_weight=50.0, learning_rate=0.1, pull=0.0))
    with torch.no_grad():
        right = head(features[60:]).argmax(1).numpy() == targets[60:]
    assert right.mean() > 0.9
    assert not start.weight.any()  # the head it starts from is left as it was


def test_a_label_weighs_as_much_as_it_is_trusted():
    head = nn.Linear(1, 2)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.0, np.log(3.0)]))  # ¼ against ¾
    config = StudentConfig(trust=0.9, softness=1.0)
    found = beliefs(head, torch.zeros(3, 1), np.array([-1, 0, 1]), config)
    assert found[0].tolist() == pytest.approx([0.25, 0.75], rel=1e-5)
    assert found[1, 0] == pytest.approx(0.25 * 0.9 / (0.25 * 0.9 + 0.75 * 0.1), rel=1e-5)
    assert found[2, 1] == pytest.approx(0.75 * 0.9 / (0.75 * 0.9 + 0.25 * 0.1), rel=1e-5)
