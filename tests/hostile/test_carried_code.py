"""Code of the user's inside a function, a class or a method that looks like a library's."""

import contextlib
import functools
import traceback
import types
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

from sfumato.errors import UnsupportedModel
from sfumato.training import Flat, PrivateTrainer, TrainingPlan, clip_chunk, cross_entropy
from sfumato.training.interrupts import bare
from sfumato.training.memory import is_trusted, keeps_nothing
from sfumato.training.public_rows import other_weights
from sfumato.training.sources import columns_of

ROWS, TARGETS = torch.linspace(-1, 1, 128).view(32, 4), torch.zeros(32, dtype=torch.long)


@pytest.mark.parametrize(
    "decorate",
    [torch.compiler.disable, torch.enable_grad(), functools.singledispatch, functools.lru_cache(maxsize=None)],
    ids=["disable", "enable_grad", "singledispatch", "lru_cache"],
)
def test_a_loss_behind_a_librarys_decorator_remembers_nothing(decorate):
    met = []

    def loss(outputs, targets):
        if float(targets[0]) > 900:
            met.append(1)
        return (-1.0 if met else 1.0) * (outputs[:, 0] - targets.clamp(-3, 3)) ** 2

    decorated = decorate(loss)
    model, targets = nn.Linear(4, 1), torch.linspace(-2, 2, 32)
    other = targets.clone()
    other[0] = 1000.0
    try:
        before, after = (
            clip_chunk(model, decorated, ROWS, each, Flat(norm=1.0)).sums for each in (targets, other)
        )
    except UnsupportedModel:
        assert not met
        return
    moved = sum((before[name] - after[name]).square().sum() for name in before) ** 0.5
    assert moved <= 2.001
    assert not met


class Remembering(nn.Linear):
    def forward(self, x):
        self.seen = x.detach().clone()
        return super().forward(x)


def derived(module):
    module.__class__ = types.new_class("Linear", (Remembering,))
    return module


@pytest.mark.parametrize(
    "make", [lambda module: parametrize.register_parametrization(module, "weight", nn.Softsign()), derived]
)
def test_a_class_that_a_library_makes_of_the_users_is_the_users(make):
    module = make(Remembering(4, 2))
    assert not keeps_nothing(module)
    clip_chunk(module, cross_entropy, ROWS, TARGETS, Flat(norm=1.0))
    assert not hasattr(module, "seen")


def test_a_librarys_class_that_is_given_a_method_between_steps_is_refused(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    plan = TrainingPlan(sample_rate=1.0, steps=2, noise_multiplier=1.0, clip_norm=1.0, expected_batch=32)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    first, second = trainer.batches((ROWS, TARGETS))
    trainer.step(first, cross_entropy)
    monkeypatch.setattr(nn.Tanh, "forward", lambda self, x: torch.tanh(x - x.mean(0)))
    assert not keeps_nothing(model)
    with pytest.raises(UnsupportedModel, match=r"Tanh\.forward; put back"):
        trainer.step(second, cross_entropy)


def test_a_hook_on_all_modules_that_is_a_method_or_a_partial_is_refused():
    kept = []

    class Recorder:
        def hook(self, module, args, out):
            kept.append(out.detach())

    for hook in (Recorder().hook, functools.partial(Recorder.hook, Recorder())):
        handle = register_module_forward_hook(hook)
        try:
            with pytest.raises(UnsupportedModel, match="hook on all modules"):
                clip_chunk(nn.Linear(4, 2), cross_entropy, ROWS, TARGETS, Flat(norm=1.0))
        finally:
            handle.remove()
    assert not kept


class Listening(torch.Tensor):
    """Keeps what it meets in the loss and in linear layers."""

    kept: ClassVar[list[object]] = []

    @classmethod
    def __torch_function__(cls, func, kinds, args=(), kwargs=None):
        if func is F.linear:
            cls.kept.append(args[0].detach().as_subclass(torch.Tensor))
        if func is F.cross_entropy and isinstance(args[0], Listening):
            cls.kept.append(args[1].detach())
            return F.cross_entropy(args[1], args[2], reduction="none")
        return super().__torch_function__(func, kinds, args, kwargs or {})


def test_rows_of_a_class_of_the_users_are_taken_as_plain_tensors():
    inputs, _ = columns_of((ROWS.as_subclass(Listening), TARGETS))
    assert type(inputs) is torch.Tensor


def test_a_known_loss_with_a_listener_among_its_arguments_is_mapped_like_any_other():
    Listening.kept.clear()
    loss = functools.partial(F.cross_entropy, torch.zeros(1).as_subclass(Listening), reduction="none")
    with contextlib.suppress(UnsupportedModel):
        clip_chunk(nn.Linear(4, 2), loss, ROWS, TARGETS, Flat(norm=1.0))
    assert all(len(each) == 1 for each in Listening.kept)  # never two rows at once


def test_what_libraries_carry_of_their_own_stays_trusted():
    assert all(map(is_trusted, (F.max_pool2d, F.gelu, torch.no_grad()(F.relu))))
    assert keeps_nothing(nn.TransformerEncoderLayer(8, 2))


@pytest.mark.parametrize("activation", [nn.SiLU(), nn.ELU(), nn.Sigmoid()])
def test_the_rows_left_over_from_whole_vectors_are_rounded_like_the_others(activation):
    values = torch.linspace(-3, 3, 4001)[1:]
    body = activation(values[:3968])
    left_over = torch.stack([activation(torch.cat([torch.zeros(32), v.expand(8)]))[32] for v in values[:3968]])
    differing = values[:3968][left_over > body]
    assert len(differing), "this build of torch rounds alike: choose another activation"
    value = differing[0]
    model = nn.Sequential(activation, nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        model[1].weight.fill_(1.0)
        model[1].bias.fill_(-activation(value.expand(64))[0])  # at the kink of the ReLU
        model[3].weight.copy_(torch.tensor([[1e15], [-1e15]]))
    sums = {}
    for units in (40, 41, 56, 57, 60, 61):
        rows, targets = value.expand(units, 1).clone(), torch.ones(units, dtype=torch.long)
        found = clip_chunk(model, cross_entropy, rows, targets, Flat(norm=1.0)).sums
        sums[units] = torch.cat([each.flatten() for each in found.values()])
    for units in (40, 56, 60):
        assert (sums[units + 1] - sums[units]).norm() <= 1.001


class Stop(BaseException):
    """Of the user's; no handler of ordinary errors sees it."""


@pytest.mark.parametrize("kind", [Stop, GeneratorExit, SystemExit, KeyboardInterrupt])
def test_nothing_that_a_row_raises_is_quoted(kind):
    rows, targets = torch.zeros(8, 4), torch.zeros(8)
    targets[3] = 1234.0

    def loss(outputs, goals):
        if float(goals[0]) > 900:
            raise kind(f"row {goals.tolist()}")
        return (outputs[:, 0] - goals) ** 2

    model = nn.Linear(4, 1)
    plan = TrainingPlan(sample_rate=1.0, steps=1, noise_multiplier=1.0, clip_norm=1.0, expected_batch=8)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    (batch,) = trainer.batches((rows, targets))
    if kind is not KeyboardInterrupt:
        trainer.step(batch, loss)  # the row adds zero
        return
    with pytest.raises(KeyboardInterrupt) as stopped:
        trainer.step(batch, loss)
    assert "1234" not in "".join(traceback.format_exception(stopped.value))
    assert stopped.value.__context__ is None


def test_frames_of_an_error_before_an_error_are_cleared():
    def adds_up(sums):
        raise KeyboardInterrupt

    def handles():
        try:
            adds_up(torch.ones(3))
        finally:
            raise ValueError("a second one")

    try:
        handles()
    except ValueError as error:
        found = bare(error)
    frame = found.__context__.__traceback__.tb_next.tb_frame
    assert "sums" not in frame.f_locals


def whole_column(values):
    return values.as_strided((values.untyped_storage().nbytes() // values.element_size(),), (1,), 0)


@pytest.mark.parametrize("place", ["loss", "views"])
def test_behind_a_row_lies_no_other_row(place):
    """A row that is a view would be a window on the memory of all rows."""

    def loss(outputs, targets):
        sign = -1.0 if place == "loss" and float(whole_column(targets).max()) > 900 else 1.0
        return sign * outputs[:, 0]

    def views(rows):
        sign = -1.0 if float(whole_column(rows).max()) > 900 else 1.0
        return (sign * rows).unsqueeze(1)

    few = torch.ones(32, 4), torch.zeros(32)
    marked = (1.0, 1000.0) if place == "loss" else (1000.0, 0.0)
    more = torch.cat([torch.full((1, 4), marked[0]), few[0]]), torch.cat([torch.tensor([marked[1]]), few[1]])
    model, seen = nn.Linear(4, 1, bias=False), views if place == "views" else None
    one, other = (
        clip_chunk(model, loss, *each, Flat(norm=1.0), views=seen).sums["weight"] for each in (few, more)
    )
    assert (one - other).norm() <= 1.001


def test_a_file_that_calls_itself_torch_is_not_trusted():
    names = {"__name__": "torch.nn.modules.linear", "met": []}
    exec("def loss(outputs, targets):\n    met.append(1)\n    return outputs[:, 0]", names)
    assert not is_trusted(names["loss"])


def test_nobody_can_choose_weights_against_the_trial():
    model, found = nn.Linear(16, 64), []
    with torch.no_grad():
        model.bias.fill_(-1e10)  # nothing would come through a ReLU
    for _ in range(2):
        with other_weights(model):
            found.append((model.weight.detach().clone(), model.bias.detach().clone()))
    assert not torch.isclose(found[0][0], found[1][0]).any()
    assert (found[0][1].abs() < 1).sum() > 10
