"""What is changed between two steps, after the survey, and what runs beside the model: no rows meet by it."""

from __future__ import annotations

import contextlib
import types

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sfumato.errors import UnsupportedModel
from sfumato.training import PrivateTrainer, TrainingPlan, clipped_gradient_sum, cross_entropy, task
from sfumato.training.probe import survey

CLIP, ROWS = 0.1, 12
MIXES = False

pytestmark = pytest.mark.filterwarnings("ignore:the model looks at values")


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


class Configured(nn.Module):
    """Centres the batch if told to, which nobody tells it during the survey."""

    mixes = False

    def __init__(self, told):
        super().__init__()
        self.inner, self.told = network(), told
        self.settings, self.switches = types.SimpleNamespace(mixes=False), {"of": {"mixing": [False]}}
        self.flag = torch.zeros(())
        self.register_buffer("kept", torch.zeros(()))
        self.frozen = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, inputs):
        return self.inner(inputs - inputs.mean(0) if self.told(self) else inputs)

    def quieten(self):
        for module in self.modules():
            module.eval()


def globally(_):
    return MIXES


WAYS = {
    "settings": (lambda m: m.settings.mixes, lambda m: setattr(m.settings, "mixes", True)),
    "a nest": (
        lambda m: m.switches["of"]["mixing"][0],
        lambda m: m.switches["of"]["mixing"].__setitem__(0, True),
    ),
    "a tensor": (lambda m: bool(m.flag), lambda m: m.flag.fill_(1)),
    "a tensor's data": (lambda m: bool(m.flag), lambda m: m.flag.data.fill_(1)),
    "a buffer": (lambda m: bool(m.kept), lambda m: m.kept.data.fill_(1)),
    "a frozen weight": (lambda m: bool(m.frozen), lambda m: m.frozen.data.fill_(1)),
    "a class": (
        lambda m: type(m).mixes,
        lambda m: setattr(Configured, "mixes", True),
    ),
    "a global name": (globally, lambda m: globals().update(MIXES=True)),
    "a weight's attribute": (
        lambda m: getattr(m.inner[0].weight, "mixes", False),
        lambda m: setattr(m.inner[0].weight, "mixes", True),
    ),
}


def data():
    inputs = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
    inputs[-1] = 1e4
    return inputs, torch.zeros(ROWS, dtype=torch.long)


def moved_after(model, change):
    """How far one row moves the sum, after something was changed that the survey did not know of."""
    inputs, targets = data()
    clipped_gradient_sum(model, cross_entropy, inputs, targets, CLIP)
    change()
    with_row = clipped_gradient_sum(model, cross_entropy, inputs, targets, CLIP)
    without = clipped_gradient_sum(model, cross_entropy, inputs[:-1], targets[:-1], CLIP)
    return float(torch.sqrt(sum((with_row[k] - without[k]).square().sum() for k in with_row))) / CLIP


@pytest.mark.parametrize("way", WAYS)
def test_what_is_switched_on_anywhere_after_the_survey_is_surveyed_too(way, monkeypatch):
    monkeypatch.setattr(Configured, "mixes", False)
    monkeypatch.setitem(globals(), "MIXES", False)
    told, change = WAYS[way]
    model = Configured(told)
    with contextlib.suppress(UnsupportedModel):
        assert moved_after(model, lambda: change(model)) <= 1.001


def test_a_step_looks_again_at_what_was_changed_since_the_last():
    model = Configured(lambda model: model.settings.mixes)
    plan = TrainingPlan(sample_rate=0.5, expected_batch=6, steps=3, noise_multiplier=4.0)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    batches = trainer.batches(data())
    trainer.step(next(batches), cross_entropy)
    model.settings.mixes = True
    batch = next(batches)
    with pytest.raises(UnsupportedModel, match="rows to be independent"):
        trainer.step(batch, cross_entropy)
    assert trainer.steps_started == 1


def test_whether_a_weight_has_a_gradient_decides_nothing():
    model = Configured(lambda model: model.inner[0].weight.grad is not None)
    plan = TrainingPlan(sample_rate=0.5, expected_batch=6, steps=2, noise_multiplier=4.0)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    centred = []
    model.inner[0].register_forward_pre_hook(lambda module, args: centred.append(model.told(model)))
    for batch in trainer.batches(data()):
        trainer.step(batch, cross_entropy)
    assert not any(centred)


def test_nothing_is_surveyed_again_where_nothing_was_changed(monkeypatch):
    model, rows, scale = Configured(lambda model: model.settings.mixes), data(), 2.0

    def looked():
        return survey(model, lambda outputs, targets: scale * cross_entropy(outputs, targets), *rows)

    known = looked()
    monkeypatch.setitem(globals(), "MIXES", True)  # a name that neither model nor loss uses
    assert looked() is known
    scale = 3.0
    assert looked() is not known


class Counting(nn.Parameter):
    """A weight whose class does something else after many calls."""

    calls, honest = 0, 10**9

    @classmethod
    def __torch_function__(cls, func, kinds, args=(), kwargs=None):
        Counting.calls += 1
        if func is nn.functional.linear and Counting.calls > Counting.honest:
            with torch._C.DisableTorchFunctionSubclass():
                return func(args[0] - args[0].mean(0), *args[1:])
        return super().__torch_function__(func, kinds, args, kwargs or {})


@pytest.mark.parametrize("where", ["weight", "buffer"])
@pytest.mark.parametrize("honest", [0, 150, 300, 310, 325])
def test_a_class_of_weights_that_changes_its_mind_is_refused(honest, where, monkeypatch):
    """Put back after each pass, it would still count what is done between a survey and a step."""
    monkeypatch.setattr(Counting, "honest", Counting.calls + honest)
    model = network()
    if where == "weight":
        model[0].weight = Counting(model[0].weight.data)
    else:
        model[0].register_buffer("shift", Counting(torch.zeros(1), requires_grad=False))
    with pytest.raises(UnsupportedModel, match=r"use nn\.Parameter"):
        moved_after(model, lambda: None)


def test_a_weight_that_is_given_another_class_after_a_survey_is_refused(monkeypatch):
    monkeypatch.setattr(Counting, "honest", Counting.calls + 10**6)
    model, (inputs, targets) = network(), data()
    clipped_gradient_sum(model, cross_entropy, inputs, targets, CLIP)
    model[0].weight.__class__ = Counting
    with pytest.raises(UnsupportedModel, match=r"use nn\.Parameter"):
        clipped_gradient_sum(model, cross_entropy, inputs, targets, CLIP)


def centred(module, args):
    return (args[0] - args[0].mean(0),) if isinstance(module, nn.Sequential) else None


class Centring(TorchFunctionMode):
    def __torch_function__(self, func, kinds, args=(), kwargs=None):
        if func is nn.functional.linear:
            args = (args[0] - args[0].mean(0), *args[1:])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["hook", "mode", "saved"])
def test_what_listens_to_all_modules_or_operations_is_refused(kind):
    around = {
        "hook": lambda: nn.modules.module.register_module_forward_pre_hook(centred),
        "mode": Centring,
        "saved": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.flip(0)),
    }[kind]
    model, (inputs, targets) = network(), data()
    clipped_gradient_sum(model, cross_entropy, inputs, targets, CLIP)
    with around(), pytest.raises(UnsupportedModel, match="of your own around a step"):
        clipped_gradient_sum(model, cross_entropy, inputs, targets, CLIP)
    clipped_gradient_sum(model, cross_entropy, inputs, targets, CLIP)


def reseeded(inputs):
    torch.manual_seed(0)
    return inputs


def put_back(inputs):
    torch.set_rng_state(STATE)
    return inputs


STATE = torch.get_rng_state()


class Seeding(nn.Module):
    """Dropout whose masks everybody knows, by the place of a row."""

    def __init__(self, before):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.before, self.last = nn.Linear(4, 64), before, nn.Linear(64, 3)

    def forward(self, inputs):
        return self.last(nn.functional.dropout(self.before(self.first(inputs)), 0.5))


@pytest.mark.filterwarnings("ignore:the model calls")
@pytest.mark.parametrize("before", [reseeded, put_back])
def test_a_model_that_seeds_draws_nothing_by_the_place_of_a_row(before):
    model, (inputs, targets) = Seeding(before), data()
    with_row = clipped_gradient_sum(model, cross_entropy, inputs, targets, CLIP)
    without = clipped_gradient_sum(model, cross_entropy, inputs[1:], targets[1:], CLIP)
    assert float(torch.sqrt(sum((with_row[k] - without[k]).square().sum() for k in with_row))) <= 1.001 * CLIP


@pytest.mark.parametrize("where", ["views", "loss", "model"])
@pytest.mark.filterwarnings("ignore:the model", "ignore:loss_fn runs", "ignore:views runs")
def test_what_a_row_seeds_decides_nothing_for_others(where, monkeypatch):
    """Not even on a rare value: what others draw is keyed from the secret stream again."""
    begun, run = [], task.run
    monkeypatch.setattr(task, "run", lambda *args: begun.append(torch.get_rng_state()) or run(*args))

    def views(rows):
        return (reseeded(rows) if (rows > 1e3).any() else rows).unsqueeze(1)

    def loss(outputs, targets):
        return cross_entropy(reseeded(outputs) if outputs.abs().max() > 100 else outputs, targets)

    def looking(hidden):  # each row is worked on alone
        return (
            reseeded(hidden)
            if where == "model" and float(hidden.max()) > 100
            else hidden * float(hidden[0, 0] != 9)
        )

    model = Seeding(looking)
    plan = TrainingPlan(sample_rate=1.0, expected_batch=ROWS, steps=1, noise_multiplier=4.0)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    inputs, targets = data()
    inputs = inputs.flip(0)  # the rare row is the first
    for batch in trainer.batches((inputs, targets), views=views if where == "views" else None):
        trainer.step(batch, loss if where == "loss" else cross_entropy)
    reseeded(None)
    public = [torch.get_rng_state()]
    nn.functional.dropout(torch.ones(1, 64), 0.5)
    public.append(torch.get_rng_state())
    assert len(begun) >= ROWS
    assert not any(torch.equal(state, known) for state in begun[-ROWS:] for known in public)
