"""Models for which per-example clipping means nothing are refused, before they see private data."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import InvalidInput, UnsupportedModel
from sfumato.models import CNN, resnet18
from sfumato.training import clipped_gradient_sum
from sfumato.training.engine import Engine

cross_entropy = partial(F.cross_entropy, reduction="none")


class Plain(nn.Module):
    """Two linear layers; what stands between them is the test's."""

    def __init__(self, between):
        super().__init__()
        self.first, self.second, self.between = nn.Linear(4, 4), nn.Linear(4, 3), between

    def forward(self, inputs):
        return self.second(self.between(self.first(inputs)))


class Borrowing(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        return F.linear(inputs, self.layer.weight)


class HalfBorrowing(Borrowing):
    def forward(self, inputs):
        return self.layer(inputs) + F.linear(inputs, self.layer.weight)


class RowsSecond(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.layer(inputs.transpose(0, 1)).mean(0)


class SharedPositions(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.positions, self.layer = nn.Embedding(length, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.layer(inputs + self.positions(torch.arange(inputs.shape[1]))).mean(1)


class ChangesItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        inputs = inputs.clone()
        outputs = self.layer(inputs)
        inputs.zero_()
        return outputs


def refuse(model, inputs, match):
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(UnsupportedModel, match=match):
        clipped_gradient_sum(model, cross_entropy, inputs, torch.zeros(len(inputs), dtype=torch.long), 1.0)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    assert not any(module._forward_hooks for module in model.modules())


vectors = torch.randn(6, 4)


@pytest.mark.keeps_out("BatchNorm")
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4)])
def test_batch_norm_with_the_remedy(norm):
    refuse(Plain(norm), vectors, "replace_batchnorm")


def test_batch_norm_inside_a_resnet():
    refuse(resnet18(norm="batch"), torch.randn(2, 1, 28, 28), "replace_batchnorm")


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_spectral_norm_with_the_remedy(norm):
    refuse(nn.Sequential(norm(nn.Linear(4, 3))), vectors, "in that of spectral norm weight_norm, or call eval")


def test_frozen_batch_norm_in_eval_mode_mixes_nothing():
    model = Plain(nn.BatchNorm1d(4).requires_grad_(False).eval())
    model.between.running_mean += 1
    sums = clipped_gradient_sum(model, cross_entropy, vectors, torch.zeros(6, dtype=torch.long), 1.0)
    assert sums["first.weight"].any()


def test_instance_norm_with_running_statistics():
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.InstanceNorm1d(3, track_running_stats=True), nn.Flatten())
    refuse(model, torch.randn(6, 2, 3), "got a write to 1.num_batches_tracked|got a write to 1.running")


@pytest.mark.keeps_out("BatchNorm")
@pytest.mark.parametrize(
    "between",
    [
        lambda hidden: hidden - hidden.mean(0),
        lambda hidden: hidden / hidden.abs().amax(),
        lambda hidden: hidden.sort(0).values,
        lambda hidden: hidden + 0.3 * hidden.roll(1, 0),
        lambda hidden: hidden * torch.softmax(hidden, 0),
    ],
)
def test_whatever_mixes_examples(between):
    refuse(Plain(between), vectors, "the loss of each row to be that of the row alone")


@pytest.mark.keeps_out("Tied weights or custom layers silently mis-clipped")
@pytest.mark.parametrize("family", [Borrowing, HalfBorrowing])
def test_a_parameter_used_past_its_layer_is_exact(family, clipped_by_loop, distance):
    model, targets = family(), torch.zeros(6, dtype=torch.long)
    expected = clipped_by_loop(model, cross_entropy, vectors, targets, 0.1)
    assert distance(clipped_gradient_sum(model, cross_entropy, vectors, targets, 0.1), expected) < 1e-5


def test_an_input_changed_in_place():
    refuse(ChangesItsInput(), vectors, "inplace operation")


@pytest.mark.parametrize("length", [2, 3, 6])
def test_rows_in_the_second_dimension_inside_the_model(length, clipped_by_loop, distance):
    model, rows, targets = RowsSecond(), torch.randn(6, length, 4), torch.zeros(6, dtype=torch.long)
    expected = clipped_by_loop(model, cross_entropy, rows, targets, 0.1)
    assert distance(clipped_gradient_sum(model, cross_entropy, rows, targets, 0.1), expected) < 1e-5


@pytest.mark.parametrize("length", [2, 3, 6])
def test_positions_without_rows(length, clipped_by_loop, distance):
    model, rows = SharedPositions(length), torch.randn(6, length, 4)
    targets = torch.zeros(6, dtype=torch.long)
    expected = clipped_by_loop(model, cross_entropy, rows, targets, 0.1)
    assert distance(clipped_gradient_sum(model, cross_entropy, rows, targets, 0.1), expected) < 1e-5


@pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"sparse": True}])
def test_embeddings_whose_gradients_are_not_of_the_row_or_not_dense(options):
    model = nn.Sequential(nn.Embedding(5, 3, **options), nn.Flatten())
    refuse(model, torch.zeros(6, 1, dtype=torch.long), "plain Embedding")


def test_packed_sequences_with_the_remedy():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.GRU(4, 3, batch_first=True)

        def forward(self, inputs):
            lengths = torch.full((len(inputs),), 2)
            packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths, batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)[0][:, -1]

    refuse(Packed(), torch.randn(6, 2, 4), "padded sequences and a mask")


def test_a_model_around_a_model_with_the_remedy():
    refuse(nn.DataParallel(nn.Linear(4, 3)), vectors, "give model.module")


def test_half_precision():
    refuse(nn.Linear(4, 3).bfloat16(), vectors.bfloat16(), "float32 or float64")


@pytest.mark.keeps_out("A class of weights whose code sees every operation")
def test_weights_of_a_class_of_ones_own_are_refused():
    class Own(nn.Parameter):
        pass

    model = nn.Linear(4, 3)
    model.weight = Own(torch.randn(3, 4))
    refuse(model, vectors, "torch's own classes, got weight of Own")


def test_dropout_is_allowed():
    model = Plain(nn.Dropout(0.5)).train()
    state = torch.get_rng_state()
    Engine(model, cross_entropy, (vectors, torch.zeros(6, dtype=torch.long)))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("loss", [F.cross_entropy, lambda outputs, targets: outputs, lambda o, t: 0.0])
def test_losses_that_are_not_one_a_row(loss):
    with pytest.raises(InvalidInput, match=r"use reduction='none'|losses\.flatten"):
        clipped_gradient_sum(nn.Linear(4, 3), loss, vectors, torch.zeros(6, dtype=torch.long), 1.0)


def test_a_model_that_needs_the_contiguous_layout_gets_it(clipped_by_loop, distance):
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.output = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, 3)

        def forward(self, images):
            return self.output(self.conv(images).view(len(images), -1))

    model, images, targets = Viewing(), torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    ours = clipped_gradient_sum(model, cross_entropy, images, targets, 0.1)
    assert distance(ours, clipped_by_loop(model, cross_entropy, images, targets, 0.1)) <= 1e-5


def test_chunks_of_the_usual_nets():
    label, image = torch.zeros(1, dtype=torch.long), torch.zeros(1, 1, 28, 28)
    assert 512 <= Engine(CNN(), cross_entropy, (image, label)).chunk_rows() <= 4096


def test_units_must_fit():
    for units in (torch.zeros(5, dtype=torch.long), torch.zeros(6)):
        with pytest.raises(InvalidInput, match="units"):
            clipped_gradient_sum(
                nn.Linear(4, 3), cross_entropy, vectors, torch.zeros(6, dtype=torch.long), 1.0, units=units
            )


class LoRA(nn.Module):
    """A frozen layer with an adapter that starts at zero."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 3).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs):
        return self.frozen(inputs) + self.up(self.down(inputs))


def zero_head():
    model = Plain(nn.ReLU())
    nn.init.zeros_(model.second.weight)
    nn.init.zeros_(model.second.bias)
    return model


def dead():
    """No unit of the hidden layer ever fires at these weights."""
    model = Plain(nn.ReLU())
    nn.init.zeros_(model.first.weight)
    nn.init.constant_(model.first.bias, -1.0)
    return model


def hinge(outputs, targets):
    """Zero beyond the margin, and for rows of class 0."""
    return F.relu(0.01 - outputs[:, 0] * targets)


def of_rare_classes(outputs, targets):
    """Zero for classes 0 and 1, as the weights of classes may say."""
    return torch.where(targets > 1, outputs.square().sum(1), 0.0)


def triplet(outputs, targets):
    anchor, positive, negative = outputs.unflatten(1, (3, -1)).unbind(1)
    return F.triplet_margin_loss(anchor, positive, negative, margin=0.01, reduction="none")


words = torch.zeros(6, 5, dtype=torch.long)
padded = nn.Sequential(nn.Embedding(20, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3))


@pytest.mark.keeps_out(
    "A loss over the batch (contrastive, ranking) that is zero for each row alone: the whole ε "
    "spent, nothing learned"
)
@pytest.mark.parametrize(
    ("model", "loss", "inputs"),
    [
        (zero_head(), cross_entropy, vectors),
        (dead(), cross_entropy, vectors),
        (LoRA(), cross_entropy, vectors),
        (nn.Linear(4, 1), hinge, vectors),
        (nn.Linear(4, 1), of_rare_classes, vectors),
        (nn.Linear(4, 6), triplet, vectors),
        (padded, cross_entropy, words),
        (nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.9), nn.ReLU(), nn.Linear(8, 3)), cross_entropy, vectors),
    ],
)
def test_zero_gradients_of_some_rows_or_weights_are_no_reason_to_refuse(model, loss, inputs):
    for _ in range(5):  # other weights are drawn each time
        Engine(copy.deepcopy(model), loss, (inputs, torch.zeros(len(inputs), dtype=torch.long)))


def test_rows_without_a_finite_gradient_are_no_reason_to_refuse():
    def logarithm(outputs, targets):
        return (outputs.sum(1) - 1e6).log()

    Engine(nn.Linear(4, 3), logarithm, (vectors, torch.zeros(6, dtype=torch.long)))


def test_a_write_to_a_tensor_outside_of_the_model():
    seen = torch.zeros(3)

    def loss(outputs, targets):
        seen.add_(outputs.detach().sum(0))
        return cross_entropy(outputs + seen, targets)

    with pytest.raises(UnsupportedModel, match="a write to a tensor outside of the model; compute new values"):
        clipped_gradient_sum(nn.Linear(4, 3), loss, vectors, torch.zeros(6, dtype=torch.long), 1.0)
