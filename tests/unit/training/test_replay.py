"""Steps that are played from a recording: the same bits as the ordinary way."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sfumato.models import CNN, resnet18
from sfumato.randomness import SecretStream
from sfumato.training import (
    AdaptiveClipping,
    PrivateTrainer,
    TrainingPlan,
    cross_entropy,
    listing,
    moved_by_a_pixel,
)
from sfumato.training.replay import Example, Recordings, record

aten = torch.ops.aten


# A computation and its recording


def recorded(compute, *given, into=(), scratch=()):
    return record([Example(lambda: compute(*given), given)], into=into, scratch=scratch)


def test_does_the_same_on_other_values():
    def compute(a, b):
        rows = F.relu(a.view(4, 6).t() @ b)
        rows += 1  # written over
        return [rows.sum(1), rows[2:].mean(), a.flatten()[3:7]]

    one, other = (torch.randn(24), torch.randn(4, 5)), (torch.randn(24), torch.randn(4, 5))
    played = recorded(compute, *one).play(other)
    assert all(map(torch.equal, played, compute(*other)))


def test_plays_a_backward_pass():
    weight = torch.randn(3, 5, requires_grad=True)

    def compute(rows, weight):
        with torch.enable_grad():
            hidden = (rows @ weight.t()).tanh()
        return torch.autograd.grad(hidden.square().sum(), weight)

    recording = recorded(compute, torch.randn(7, 5), weight)
    rows = torch.randn(7, 5)
    with torch.no_grad():
        weight.mul_(2)
    assert torch.equal(recording.play([rows, weight])[0], compute(rows, weight)[0])


def test_gives_up_where_python_would_be_told_something_else():
    def compute(a):
        return [a + 1 if bool((a > 0).all()) else a - 1]

    recording = recorded(compute, torch.ones(3))
    assert recording.play([torch.full((3,), 2.0)])[0].tolist() == [3, 3, 3]
    assert recording.play([-torch.ones(3)]) is None


def test_gives_up_on_tensors_that_lie_otherwise():
    recording = recorded(lambda a: [a.t() + 1], torch.randn(3, 3))
    assert recording.play([torch.randn(3, 3)]) is not None
    assert recording.play([torch.randn(3, 3).t()]) is None
    assert recording.play([torch.randn(4, 3)[1:]]) is None
    assert recording.play([torch.randn(3, 3).double()]) is None


@pytest.mark.parametrize(
    "compute",
    [
        lambda a: [a + torch.randn(3)],
        lambda a: [F.dropout(a, 0.5)],
        lambda a: [a[a > 0]],
        lambda a: [a.nonzero()],
        lambda a: [a.add_(1)],
        lambda a: [OUTSIDE.add_(a)],
    ],
)
def test_what_does_not_repeat_itself_is_not_recorded(compute):
    assert recorded(compute, torch.ones(3)) is None


OUTSIDE = torch.zeros(3)


def test_a_number_asked_for_after_writing_is_not_recorded():
    def compute(a, out):
        out.copy_(a)
        return [a + 1 if bool(a.any()) else a]

    a, out = torch.ones(3), torch.zeros(3)
    assert record([Example(lambda: compute(a, out), [a])], into=[out]) is None


def test_a_recording_that_comes_to_other_bits_is_not_kept(monkeypatch):
    large = torch.randn(1 << 15)  # memory that is written over
    assert recorded(lambda a: [(a + 0).relu() * 2], large) is not None
    monkeypatch.setitem(listing._IN_PLACE, aten.relu.default, listing._Twin(aten.neg_.default))
    assert recorded(lambda a: [(a + 0).relu() * 2], large) is None


def test_what_is_handed_out_is_new_each_time():
    recording = recorded(lambda a: [a.sum(0, keepdim=True), torch.zeros(2)], torch.randn(8))
    first, second = recording.play([torch.ones(8)]), recording.play([torch.full((8,), 2.0)])
    assert (first[0].item(), second[0].item()) == (8, 16)
    first[1].add_(1)
    assert second[1].tolist() == recording.play([torch.ones(8)])[1].tolist() == [0, 0]


def test_memory_is_written_over_only_when_nobody_needs_it():
    def compute(a):
        first = a + 0
        shown = first.view(2, 4)
        second = first.relu()  # `first` is needed below, by its view
        third = second.relu()
        fourth = third * shown.flatten()
        return [third.sum(), fourth, fourth.relu()]

    a = torch.randn(8)
    assert all(map(torch.equal, recorded(compute, torch.randn(8)).play([a]), compute(a)))


OPERATIONS = {
    "relu": lambda a, b: a.relu(),
    "tanh": lambda a, b: a.tanh(),
    "add": lambda a, b: a + b,
    "add in place": lambda a, b: a.clone().add_(b),
    "mul": lambda a, b: a.tanh() * b.tanh(),
    "view": lambda a, b: a.reshape(-1).view(4, 4).tanh(),
    "transposed": lambda a, b: a.t(),
    "part": lambda a, b: torch.cat([a[:2], b[2:]]),
    "written part": lambda a, b: a.clone().index_fill_(0, torch.tensor([1]), 2.0),
    "product": lambda a, b: a.tanh() @ b.tanh(),
    "rows": lambda a, b: a.sum(1, keepdim=True) + b,
    "zeros": lambda a, b: torch.zeros_like(a).copy_(b),
    "expanded": lambda a, b: a[0].expand(4, 4) * 2,
}


@pytest.mark.parametrize("least", [0, 1 << 16])
@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 30), st.integers(0, 30)), max_size=12
    )
)
def test_any_computation_comes_to_its_bits(least, steps):
    """Whether memory is written over or small tensors have their own."""

    def compute(a, b):
        known = [a, b]
        for name, first, second in steps:
            known.append(OPERATIONS[name](known[first % len(known)], known[second % len(known)]))
        return known[2:][-3:] or [a + b]

    examples = [(torch.randn(4, 4), torch.randn(4, 4)) for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_SMALL", least)
        recording = recorded(compute, *examples[0])
    assert recording is not None
    for example in examples[1:]:
        assert all(map(torch.equal, recording.play(example), compute(*example)))


# Steps


def images(rows):
    return torch.randn(rows, 1, 28, 28), torch.randint(0, 10, (rows,))


def vectors(rows):
    return torch.randn(rows, 12), torch.randint(0, 3, (rows,))


def small(*layers):
    return lambda: nn.Sequential(*(layer() for layer in layers))


MODELS = {
    "CNN": (CNN, images),
    "linear": (small(lambda: nn.Linear(12, 3)), vectors),
    "tanh": (small(lambda: nn.Linear(12, 8), nn.Tanh, lambda: nn.Linear(8, 3)), vectors),
    "normed": (
        small(lambda: nn.Linear(12, 8), lambda: nn.LayerNorm(8), nn.GELU, nn.Sigmoid, lambda: nn.Linear(8, 3)),
        vectors,
    ),
    "in place": (
        small(lambda: nn.Linear(12, 8), lambda: nn.ReLU(inplace=True), lambda: nn.Linear(8, 3)),
        vectors,
    ),
    "attention": (
        small(
            lambda: nn.Unflatten(1, (3, 4)),
            lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
            nn.Flatten,
            lambda: nn.Linear(12, 3),
        ),
        vectors,
    ),
}


def trained(model, data, *, steps=7, views=None, change=lambda step, model: None, rate=0.25, rows=200, **plan):
    """The weights after a few steps with public coins."""
    torch.manual_seed(3)
    model, given = model(), data(rows)
    plan = {"noise_multiplier": 0.5, "clip_norm": 1.0, **plan}
    plan = TrainingPlan(sample_rate=rate, expected_batch=rows * rate, steps=steps, **plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = PrivateTrainer(model, optimizer, plan, ledger=None, sampler=SecretStream(test_seed=5))
    for step, batch in enumerate(trainer.batches(given, views=views)):
        change(step, model)
        trainer.step(batch, cross_entropy)
    return [parameter.detach() for parameter in model.parameters()]


@pytest.fixture
def plays(monkeypatch):
    """Whether each block was played."""
    found, play = [], Recordings.play

    def noted(self, *arguments):
        found.append(play(self, *arguments))
        return found[-1]

    monkeypatch.setattr(Recordings, "play", noted)
    return found


@pytest.fixture
def unplayed(monkeypatch):
    """Train without any recording."""

    def run(*arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(Recordings, "play", lambda *_: None)
            return trained(*arguments, **options)

    return run


@pytest.mark.parametrize("name", MODELS)
def test_a_run_has_the_bits_of_one_without_recordings(name, plays, unplayed):
    found = trained(*MODELS[name])
    assert sum(played is not None for played in plays) >= 2
    assert all(map(torch.equal, found, unplayed(*MODELS[name])))


def test_of_a_deep_network(plays, unplayed):
    found = trained(resnet18, images, rows=12, rate=0.5, steps=4)
    assert any(played is not None for played in plays)
    assert all(map(torch.equal, found, unplayed(resnet18, images, rows=12, rate=0.5, steps=4)))


@pytest.mark.parametrize(
    "options",
    [
        {"clipping": "per-layer"},
        {"clipping": "automatic"},
        {"views": moved_by_a_pixel},
        {"rate": 1.0},
        {"rate": 0.03},
    ],
    ids=["per layer", "automatic", "views", "all rows", "few rows"],
)
def test_of_all_kinds(options, plays, unplayed):
    found = trained(CNN, images, **options)
    assert any(played is not None for played in plays)
    assert all(map(torch.equal, found, unplayed(CNN, images, **options)))


def spoilt(value, target):
    """Images of which every twelfth is not finite, or has a target that raises."""

    def data(rows):
        inputs, targets = images(rows)
        inputs[::12], targets[5::12] = value, target
        return inputs, targets

    return data


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "data", [spoilt(math.nan, 1), spoilt(1e30, 1), spoilt(0.0, 11)], ids=["nan", "huge", "raises"]
)
def test_rows_that_spoil_a_block_send_it_the_ordinary_way(data, plays, unplayed):
    found = trained(CNN, data, rate=0.5)
    assert None in plays[3:]
    assert all(map(torch.equal, found, unplayed(CNN, data, rate=0.5)))
    assert all(bool(each.isfinite().all()) for each in found)


def shared(model):
    model.conv2.bias.data = model.hidden.bias.data  # 32 numbers each


CHANGES = {
    "another library's kernels": lambda model: setattr(torch.backends.mkldnn, "enabled", False),
    "other weights": lambda model: model.conv1.weight.data.mul_(-1),
    "other memory": lambda model: setattr(model.conv1.weight, "data", model.conv1.weight.data.clone() * 2),
    "other layout": lambda model: model.to(memory_format=torch.channels_last),
    "eval": lambda model: model.eval(),
    "less padding": lambda model: setattr(model.conv1, "padding_mode", "circular"),
    "frozen": lambda model: model.conv1.weight.requires_grad_(False).requires_grad_(True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_steps_counts_at_once(name, unplayed):
    def change(step, model):
        if step == 5:
            CHANGES[name](model)

    options = {"steps": 9, "rate": 1.0, "change": change}
    try:
        played = trained(CNN, images, **options)
        torch.backends.mkldnn.enabled = True
        assert all(map(torch.equal, played, unplayed(CNN, images, **options)))
    finally:
        torch.backends.mkldnn.enabled = True


def test_weights_that_share_memory_no_more(unplayed):
    def change(step, model):
        if step == 0:
            shared(model)
        if step == 5:
            model.conv2.bias.data = model.conv2.bias.data.clone() * -2

    options = {"steps": 9, "rate": 1.0, "change": change}
    assert all(map(torch.equal, trained(CNN, images, **options), unplayed(CNN, images, **options)))


def test_a_kernel_that_lays_out_its_result_otherwise_sends_it_the_ordinary_way():
    """A recording reads parts of what an operation made by where they lay."""
    one, form = torch.randn(2, 3, 100, 100), {"format": torch.contiguous_format}

    class Laid(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            return found.contiguous(memory_format=form["format"]) if func is aten.exp.default else found

    recording = recorded(lambda a: [a.exp()[:, 1:] + 1], one.clone())
    form["format"] = torch.channels_last
    with Laid():
        assert recording.play([one]) is None


class Own(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs)


@pytest.mark.parametrize(
    "model",
    [lambda: Own(12, 3), small(lambda: nn.Dropout(0.5), lambda: nn.Linear(12, 3))],
    ids=["own", "random"],
)
def test_own_code_and_what_draws_are_not_recorded(model, plays):
    trained(model, vectors)
    assert not plays


def test_a_clipping_norm_that_moves_is_not_recorded(plays, unplayed):
    adaptive = {"adaptive": AdaptiveClipping(count_noise=5.0)}
    found = trained(CNN, images, **adaptive)
    assert not any(plays)
    assert all(map(torch.equal, found, unplayed(CNN, images, **adaptive)))
