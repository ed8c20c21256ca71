"""What code keeps of one row must not reach another: wherever Python lets it keep something.

Every loss here is honest until it has seen one marked row, and then changes what it returns for all others.
Every model keeps something in a place that no gradient passes through.
"""

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import ctypes
import enum
import functools
import importlib
import io
import logging
import mmap
import multiprocessing
import os
import sqlite3
import sys
import threading
import types
import weakref

import numpy as np
import pandas as pd
import pytest
import torch
import wrapt
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.dummy import DummyClassifier
from torch import nn

from sfumato import Budget, Ledger, PrivateTrainer, TrainingPlan, trust
from sfumato.errors import UnsupportedModel
from sfumato.randomness import SecretStream, key_anew
from sfumato.training import Flat, clip_chunk, clipped_gradient_sum, cross_entropy, places
from sfumato.training.memory import Memory
from sfumato.training.predictions import predictions
from sfumato.training.sources import Items
from sfumato.trust import is_trusted_module

CLIP = 0.1
MARK = 90.0
ROWS = 12
PLAN = TrainingPlan(sample_rate=0.5, expected_batch=6, steps=3, noise_multiplier=1.0, clip_norm=CLIP)

pytestmark = pytest.mark.filterwarnings("ignore:loss_fn runs row by row", "ignore:views runs row by row")


def lie(state, outputs, targets):
    """Flips the sign of every loss after the marked row; `state`: calls so far, whether it was seen."""
    state[0] += 1
    state[1] = state[1] or float(targets[0]) == MARK
    return outputs[:, 0] * (-1.0 if state[1] else 1.0)


class Object:
    def __init__(self):
        self.state = [0, False]

    def __call__(self, outputs, targets):
        return lie(self.state, outputs, targets)

    def method(self, outputs, targets):
        return self(outputs, targets)


class Slots:
    __slots__ = ("calls", "seen")

    def __init__(self):
        self.calls, self.seen = 0, False

    def __call__(self, outputs, targets):
        state = [self.calls, self.seen]
        found = lie(state, outputs, targets)
        self.calls, self.seen = state
        return found


class Evasive(dict):
    """Says that it cannot be changed, copied or emptied."""

    def clear(self):
        pass

    def update(self, *_):
        pass

    def __deepcopy__(self, memo):
        return self

    def __call__(self, outputs, targets):
        state = [self.get("calls", 0), self.get("seen", False)]
        found = lie(state, outputs, targets)
        self["calls"], self["seen"] = state
        return found


def of_object():
    return Object()


def of_method():
    return Object().method


def of_slots():
    return Slots()


def of_dictionary():
    return Evasive()


def of_partial():
    return functools.partial(lie, [0, False])


def of_default():
    def loss(outputs, targets, state=[0, False]):  # noqa: B006
        return lie(state, outputs, targets)

    return loss


def of_closure():
    calls, seen = 0, False

    def loss(outputs, targets):
        nonlocal calls, seen
        state = [calls, seen]
        found = lie(state, outputs, targets)
        calls, seen = state
        return found

    return loss


def of_function():
    def loss(outputs, targets):
        return lie(loss.state, outputs, targets)

    loss.state = [0, False]
    return loss


def of_class():
    class Loss:
        calls, seen = 0, False

        def __call__(self, outputs, targets):
            state = [Loss.calls, Loss.seen]
            found = lie(state, outputs, targets)
            Loss.calls, Loss.seen = state
            return found

    return Loss()


def of_name():
    globals().pop("remembered", None)

    def loss(outputs, targets):
        global remembered
        state = list(globals().get("remembered", (0, False)))
        found = lie(state, outputs, targets)
        remembered = tuple(state)
        return found

    return loss


def of_a_called_function():
    def loss(outputs, targets):
        return through(outputs, targets)

    THROUGH[:] = [0, False]
    return loss


THROUGH = [0, False]


def through(outputs, targets):
    return lie(THROUGH, outputs, targets)


def of_module():
    notes = types.ModuleType("notes")
    notes.state = [0, False]
    sys.modules["notes"] = notes

    def loss(outputs, targets):
        return lie(notes.state, outputs, targets)

    return loss


def of_cache():
    @functools.cache
    def kept(_):
        return [0, False]

    def loss(outputs, targets):
        return lie(kept(0), outputs, targets)

    return loss


def of_deque():
    state = collections.deque([(0, False)])

    def loss(outputs, targets):
        last = list(state[-1])
        found = lie(last, outputs, targets)
        state.append(tuple(last))
        return found

    return loss


def of_array():
    kept = np.zeros(2)

    def loss(outputs, targets):
        return lie(kept, outputs, targets)

    return loss


def of_tensor():
    kept = torch.zeros(2)

    def loss(outputs, targets):
        state = kept.data.numpy()  # leaves no trace in the tensor's version
        return lie(state, outputs, targets)

    return loss


def of_module_loss():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(2))

        def forward(self, outputs, targets):
            return lie(self.state.numpy(), outputs, targets)

    return Loss()


def of_subclass_of_partial():
    class Loss(functools.partial):
        """Passes for the loss that needs no map."""

        def __call__(self, outputs, targets):
            return lie(self.state, outputs, targets)

    loss = Loss(nn.functional.cross_entropy, reduction="none")
    loss.state = [0, False]
    return loss


class OfClasses(type):
    """A class of classes, which keep something on it."""


def of_metaclass():
    class Loss(metaclass=OfClasses):
        def __call__(self, outputs, targets):
            state = list(getattr(type(type(self)), "state", (0, False)))
            found = lie(state, outputs, targets)
            type(type(self)).state = tuple(state)
            return found

    return Loss()


def of_weak_owner():
    owner = Object()
    weak = weakref.ref(owner)
    alive.append(owner)
    return lambda outputs, targets: lie(weak().state, outputs, targets)


def of_order():
    """The idiom of caches that keep what was used last."""
    recent = collections.OrderedDict(new=1, old=2)

    def loss(outputs, targets):
        if float(targets[0]) == MARK:
            recent.move_to_end("new")
        return outputs[:, 0] * (1.0 if next(iter(recent)) == "new" else -1.0)

    return loss


def of_decorator_in_c():
    kept = Object()

    @wrapt.decorator
    def keeping(wrapped, instance, arguments, named):
        return lie(kept.state, *arguments)

    return keeping(lambda outputs, targets: outputs[:, 0])


alive = []


def of_attribute_beside_a_decorator():
    @torch.enable_grad()
    def loss(outputs, targets):
        return lie(loss.state, outputs, targets)

    loss.state = [0, False]
    return loss


def of_partial_behind_a_decorator():
    return torch.enable_grad()(functools.partial(lie, [0, False]))


def of_function_that_is_compiled():
    state = [0, False]
    return torch.compiler.disable(functools.partial(lie, state))


@pytest.fixture(autouse=True)
def _nothing_hangs_on_libraries():
    yield
    for library in (builtins, torch, nn.Linear):
        if "kept_by_a_loss" in vars(library):
            del library.kept_by_a_loss


def of_builtins():
    builtins.kept_by_a_loss = [0, False]
    return lambda outputs, targets: lie(kept_by_a_loss, outputs, targets)  # noqa: F821


def of_a_library():
    torch.kept_by_a_loss = [0, False]
    return lambda outputs, targets: lie(torch.kept_by_a_loss, outputs, targets)


def of_a_class_of_a_library():
    nn.Linear.kept_by_a_loss = [0, False]
    return lambda outputs, targets: lie(nn.Linear.kept_by_a_loss, outputs, targets)


LOSSES = [value for name, value in list(globals().items()) if name.startswith("of_")]


def crowd(marked):
    """Rows whose gradients all point one way, after a first one that is marked or not there."""
    inputs, targets = torch.ones(ROWS, 6), torch.zeros(ROWS)
    targets[0] = MARK
    return (inputs, targets) if marked else (inputs[1:], targets[1:])


def sum_of(loss, marked):
    model = nn.Linear(6, 1, bias=False)
    torch.manual_seed(3)
    nn.init.normal_(model.weight)
    return clipped_gradient_sum(model, loss, *crowd(marked), CLIP)["weight"]


@pytest.mark.parametrize("make", LOSSES, ids=lambda make: make.__name__)
def test_a_loss_that_starts_to_remember_moves_the_sum_by_one_row(make):
    moved = sum_of(make(), True) - sum_of(make(), False)
    assert float(moved.norm()) / CLIP <= 1.001


def test_a_loss_that_is_honest_for_its_first_calls():
    calls, seen = [0], []

    def loss(outputs, targets):
        calls[0] += 1
        seen.append(float(targets[0]))
        return outputs[:, 0] * (-1.0 if calls[0] > 600 and MARK in seen[-ROWS:] else 1.0)

    model, sums = nn.Linear(6, 1, bias=False), []
    for marked in (True, False):
        clipped_gradient_sum(model, loss, *crowd(marked), CLIP)
        calls[0] = 1000  # what many steps would come to
        sums.append(clipped_gradient_sum(model, loss, *crowd(marked), CLIP)["weight"])
    assert float((sums[0] - sums[1]).norm()) / CLIP <= 1.001


def test_a_loss_that_holds_what_cannot_be_put_back_is_refused():
    def endless():
        calls = 0
        while True:
            calls += 1
            yield 1.0 if calls < 10_000 else -1.0

    signs = endless()
    with pytest.raises(UnsupportedModel, match="loss_fn to hold only what can be put back"):
        sum_of(lambda outputs, targets: outputs[:, 0] * next(signs), True)


def test_views_that_start_to_remember():
    seen = [0, False]

    def views(inputs):
        seen[0] += 1
        seen[1] = seen[1] or float(inputs[0, 0]) == MARK
        return (inputs * (-1.0 if seen[1] else 1.0))[:, None]

    model = nn.Linear(6, 1, bias=False)
    loss = of_plain_outputs
    sums = []
    for marked in (True, False):
        seen[:] = [0, False]
        inputs, targets = torch.ones(ROWS, 6), torch.zeros(ROWS)
        inputs[0, 0] = MARK
        data = (inputs, targets) if marked else (inputs[1:], targets[1:])
        sums.append(clip_chunk(model, loss, *data, Flat(norm=CLIP), views=views).sums["weight"])
    assert float((sums[0] - sums[1]).norm()) / CLIP <= 1.001


def of_plain_outputs(outputs, targets):
    return outputs[:, 0]


@given(
    places=st.recursive(
        st.just(None),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("ab"), inner, max_size=3)),
    ),
    value=st.integers(),
)
@settings(max_examples=60)
def test_whatever_is_written_in_a_nest_of_containers_is_put_back(places, value):
    def fill(place):
        if isinstance(place, list):
            for inner in list(place):
                fill(inner)
            place.append(value)
        elif isinstance(place, dict):
            for inner in list(place.values()):
                fill(inner)
            place["new"] = value
            place.pop("a", None)

    before = repr(places)
    memory = Memory(lambda: places, name="the code")
    fill(places)
    assert memory.put_back() == (repr(places) != before or places is not None)
    assert repr(places) == before
    assert not memory.put_back()


# Models


class Keeping(nn.Module):
    """Does something with its rows beside computing."""

    def __init__(self, keep):
        super().__init__()
        self.layer, self.keep, self.kept, self.calls = nn.Linear(6, 3), keep, None, 0
        self.register_buffer("top", torch.zeros(()))

    def forward(self, inputs):
        return self.layer(self.keep(self, inputs))


def in_attribute(model, inputs):
    model.kept = inputs
    return inputs


def on_a_weight(model, inputs):
    model.layer.weight.kept = inputs
    return inputs


def in_a_class(model, inputs):
    Keeping.rows = inputs
    return inputs


def in_a_hook(model, inputs):
    model.layer.register_forward_hook(lambda *_, rows=inputs: None)
    return inputs


def in_a_gradient(model, inputs):
    model.top.grad = inputs.max().detach()
    return inputs


def trainer_of(model, ledger=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivateTrainer(model, optimizer, PLAN, ledger=ledger, sampler=SecretStream(test_seed=1))


def take_steps(trainer, inputs):
    for batch in trainer.batches((inputs, torch.zeros(len(inputs), dtype=torch.long))):
        trainer.step(batch, cross_entropy)


def reachable(model):
    """All tensors that can be found from a model by whoever gets it."""
    waiting, seen = [model, Keeping], {}
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, dict):
            waiting += thing.values()
        elif isinstance(thing, list | tuple):
            waiting += thing
        elif isinstance(thing, nn.Module | torch.Tensor | types.FunctionType) or thing is Keeping:
            waiting += vars(thing).values()
            waiting += (getattr(thing, "grad", None), getattr(thing, "__defaults__", None))
    return [thing for thing in seen.values() if isinstance(thing, torch.Tensor)]


@pytest.mark.parametrize("keep", [in_attribute, on_a_weight, in_a_class, in_a_hook, in_a_gradient])
def test_no_row_is_left_on_the_model(keep):
    model = Keeping(keep)
    take_steps(trainer_of(model), torch.full((ROWS, 6), MARK))
    assert not [tensor for tensor in reachable(model) if bool((tensor.detach() == MARK).any())]


def kept_by(keep, model):
    where = {in_attribute: model, on_a_weight: model.layer.weight, in_a_class: Keeping}[keep]
    return getattr(where, "rows" if keep is in_a_class else "kept", None)


@pytest.mark.parametrize("keep", [in_attribute, on_a_weight, in_a_class])
def test_a_model_that_remembers_moves_no_later_chunk(keep):
    """One chunk holds the marked row, or not; the next one must come out the same."""

    def remembering(model, inputs):
        before = kept_by(keep, model)
        keep(model, inputs.amax().expand(1))
        return inputs if before is None else inputs * torch.where(before.amax() == MARK, -1.0, 1.0)

    sums = []
    for marked in (True, False):
        torch.manual_seed(4)
        model, targets = Keeping(remembering), torch.zeros(ROWS, dtype=torch.long)
        inputs = torch.ones(ROWS, 6)
        inputs[0] = MARK if marked else 1.0
        for rows in (inputs, torch.ones(ROWS, 6)):
            found = clip_chunk(model, cross_entropy, rows, targets, Flat(norm=CLIP))
        sums.append(found.sums)
    assert all(torch.equal(sums[0][name], sums[1][name]) for name in sums[0])


def to_buffer(model):
    return model.top


def to_frozen(model):
    return model.layer.bias


def to_trained(model):
    return model.layer.weight


@pytest.mark.parametrize("target", [to_buffer, to_frozen, to_trained])
def test_a_model_that_writes_its_tensors_releases_nothing_of_it(tmp_path, target):
    """Only rows above 50 are kept, by `.data`, which leaves no trace in the tensor's version."""

    def keep(model, inputs):
        place = target(model).data
        place.copy_(torch.where(inputs.max() == MARK, inputs.max(), place))
        return inputs

    model = Keeping(keep)
    model.layer.bias.requires_grad_(target is not to_frozen)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnsupportedModel, match="write no buffer or weight"):
        take_steps(trainer_of(model), torch.full((ROWS, 6), MARK))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nothing_is_spent_on_a_model_that_cannot_be_made_to_forget(tmp_path):
    model = Keeping(in_attribute)
    model.noise = torch.Generator().manual_seed(1)
    with Ledger.open(tmp_path / "people.db", budget=Budget(epsilon=20, delta=1e-5)) as ledger:
        with pytest.raises(UnsupportedModel, match="the model to hold only what can be put back"):
            take_steps(trainer_of(model, ledger), torch.ones(ROWS, 6))
        assert ledger.epsilon_spent == 0


# Libraries, and names of libraries


def of_library():
    def loss(outputs, targets):
        state = list(getattr(torch, "kept_by_a_test", (0, False)))
        found = lie(state, outputs, targets)
        torch.kept_by_a_test = tuple(state)
        return found

    return loss


def of_library_class():
    def loss(outputs, targets):
        state = list(getattr(nn.Linear, "kept_by_a_test", (0, False)))
        found = lie(state, outputs, targets)
        setattr(nn.Linear, "kept_by_a_test", tuple(state))  # noqa: B010
        return found

    return loss


def of_environment():
    def loss(outputs, targets):
        state = [0, "KEPT_BY_A_TEST" in os.environ]
        found = lie(state, outputs, targets)
        if state[1]:
            os.environ["KEPT_BY_A_TEST"] = "1"
        return found

    return loss


def of_member():
    class Colour(enum.Enum):
        RED = 1

    Colour.RED.state = [0, False]

    def loss(outputs, targets):
        return lie(Colour.RED.state, outputs, targets)

    return loss


def of_borrowed_name():
    """A function that says it is one of torch's."""

    def kept(outputs, targets, state=[0, False]):  # noqa: B006
        return lie(state, outputs, targets)

    kept.__module__ = "torch.nn.functional"

    def loss(outputs, targets):
        return kept(outputs, targets)

    return loss


def of_borrowed_file(tmp_path, monkeypatch):
    """A file of the user's with the name of a module that Python has."""
    (tmp_path / "antigravity.py").write_text("state = [0, False]\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    module = importlib.import_module("antigravity")
    is_trusted_module.cache_clear()

    def loss(outputs, targets):
        return lie(module.state, outputs, targets)

    return loss


def of_logger():
    log = logging.getLogger("kept by a test")

    def loss(outputs, targets):
        state = list(getattr(log, "kept", (0, False)))
        found = lie(state, outputs, targets)
        log.kept = tuple(state)
        return found

    return loss


def of_import_inside():
    def loss(outputs, targets):
        import builtins

        state = list(getattr(builtins, "kept_by_a_test", (0, False)))
        found = lie(state, outputs, targets)
        builtins.kept_by_a_test = tuple(state)
        return found

    return loss


def of_loaded_modules():
    def loss(outputs, targets):
        module = sys.modules["decimal"]
        state = list(getattr(module, "kept_by_a_test", (0, False)))
        found = lie(state, outputs, targets)
        module.kept_by_a_test = tuple(state)
        return found

    return loss


def of_all_globals():
    def loss(outputs, targets):
        state = list(globals().get("kept_by_a_test", (0, False)))
        found = lie(state, outputs, targets)
        globals()["kept_by_a_test"] = tuple(state)
        return found

    return loss


def of_base_class():
    class Loss(nn.Module):
        def forward(self, outputs, targets):
            base, name = type(self).__mro__[1], "_".join(["kept", "by", "a", "test"])
            state = list(getattr(base, name, (0, False)))
            found = lie(state, outputs, targets)
            setattr(base, name, tuple(state))
            return found

    return Loss()


LIBRARIES = [of_library, of_library_class, of_environment, of_member, of_borrowed_name]
LIBRARIES += [of_logger, of_import_inside, of_loaded_modules, of_all_globals, of_base_class]


@pytest.mark.parametrize("make", LIBRARIES, ids=lambda make: make.__name__)
def test_a_loss_that_keeps_something_in_a_library(make):
    moved = sum_of(make(), True) - sum_of(make(), False)
    assert float(moved.norm()) / CLIP <= 1.001


def test_a_loss_that_keeps_something_in_a_file_with_a_library_name(tmp_path, monkeypatch):
    sums = [sum_of(of_borrowed_file(tmp_path, monkeypatch), marked) for marked in (True, False)]
    monkeypatch.delitem(sys.modules, "antigravity")
    is_trusted_module.cache_clear()
    assert float((sums[0] - sums[1]).norm()) / CLIP <= 1.001


# Packages that somebody installed

LENDER = """
state = [0, False]

def keeping(function):
    kept = [0, False]
    def inner(*arguments):
        return function(kept, *arguments)
    return inner

class Shelf:
    def __init__(self):
        self.kept = [0, False]

class Loss:
    def __call__(self, lie, outputs, targets):
        return lie(state, outputs, targets)

def make(lie):
    def loss(outputs, targets):
        return lie(state, outputs, targets)
    return loss
"""


@pytest.fixture
def lender(tmp_path, monkeypatch):
    """A package where packages are installed."""
    (tmp_path / "lender.py").write_text(LENDER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sfumato.trust._INSTALLED", {*trust._INSTALLED, os.path.realpath(tmp_path)})
    for known in (is_trusted_module, trust.is_installed_file):
        known.cache_clear()
    yield lambda: importlib.reload(importlib.import_module("lender"))
    del sys.modules["lender"]
    for known in (is_trusted_module, trust.is_installed_file):
        known.cache_clear()


def by_a_decorator(package):
    inner = package.keeping(lambda kept, outputs, targets: lie(kept, outputs, targets))
    return lambda outputs, targets: inner(outputs, targets)


def by_an_object(package):
    shelf = package.Shelf()
    return lambda outputs, targets: lie(shelf.kept, outputs, targets)


def by_its_module(package):
    return package.make(lie)


def by_a_partial(package):
    return functools.partial(package.Loss(), lie)


def by_an_own_function(package):
    loss = package.make(lie)
    return lambda outputs, targets: loss(outputs, targets)


def by_its_name(package):
    return lambda outputs, targets: lie(package.state, outputs, targets)


BY_PACKAGE = [by_a_decorator, by_an_object, by_its_module, by_a_partial, by_an_own_function, by_its_name]


@pytest.mark.parametrize("make", BY_PACKAGE, ids=lambda make: make.__name__)
def test_a_loss_that_keeps_something_by_a_package_that_was_installed(lender, make):
    moved = sum_of(make(lender()), True) - sum_of(make(lender()), False)
    assert float(moved.norm()) / CLIP <= 1.001


def test_a_loss_may_not_hold_a_table():
    """Whose values lie in C, where nobody puts them back."""
    table = pd.DataFrame({"seen": [0.0]})

    def loss(outputs, targets):
        table.loc[0, "seen"] = max(table.loc[0, "seen"], float(targets[0]))
        return outputs[:, 0] * (-1.0 if table.loc[0, "seen"] == MARK else 1.0)

    with pytest.raises(UnsupportedModel, match="state of its own"):
        sum_of(loss, True)


mean, std = torch.Generator(), torch.Generator()


def test_an_attribute_is_no_global_name():
    def loss(outputs, targets):
        return sum((outputs - targets[:, None]).square().mean(dim) for dim in [1])

    Memory(loss, name="loss_fn")


def test_a_refusal_says_under_which_global_name_a_thing_was_found():
    def loss(outputs, targets):
        def inner():
            return outputs[:, 0] + torch.rand(1, generator=std)

        return inner()

    with pytest.raises(UnsupportedModel, match=r"got Generator \(under the global name 'std'\)"):
        Memory(loss, name="loss_fn")


def test_an_attribute_of_a_module_that_is_found_by_its_text(monkeypatch):
    module = types.ModuleType("notes_of_a_user")
    module.state = [0, False]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def loss(outputs, targets):
        import notes_of_a_user

        return lie(getattr(notes_of_a_user, "state"), outputs, targets)  # noqa: B009

    memory = Memory(loss, name="loss_fn")
    loss(torch.ones(1, 1), torch.tensor([MARK]))
    assert memory.put_back()
    assert module.state == [0, False]


def test_a_module_that_is_first_imported_for_a_row(tmp_path, monkeypatch):
    (tmp_path / "imported_late.py").write_text("state = [0, False]\n")
    monkeypatch.syspath_prepend(tmp_path)

    def loss(outputs, targets):
        if float(targets[0]) == MARK:
            import imported_late

            imported_late.state[1] = True
        late = sys.modules.get("imported_late")
        return outputs[:, 0] * (-1.0 if late is not None and late.state[1] else 1.0)

    moved = sum_of(loss, True) - sum_of(loss, False)
    monkeypatch.delitem(sys.modules, "imported_late")
    assert float(moved.norm()) / CLIP <= 1.001


def test_a_file_is_not_a_librarys_by_lying_in_a_package_of_the_same_name(tmp_path, monkeypatch):
    """Some package in this environment has a folder `tests`, and so has the user."""
    for place in ("installed", "own"):
        (tmp_path / place / "shared_by_two").mkdir(parents=True)
        (tmp_path / place / "shared_by_two" / f"{place}.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path / place)
    monkeypatch.setattr("sfumato.trust._INSTALLED", {os.path.realpath(tmp_path / "installed")})
    for place in ("installed", "own"):
        importlib.import_module(f"shared_by_two.{place}")
    monkeypatch.setattr(
        sys.modules["shared_by_two"], "__path__", [str(tmp_path / "installed" / "shared_by_two")]
    )
    assert is_trusted_module("shared_by_two.installed", trust.INSTALLED)
    assert not is_trusted_module("shared_by_two.own", trust.INSTALLED)


@pytest.mark.parametrize("thing", [pd.DataFrame({"a": [1.0]}), DummyClassifier()], ids=["table", "estimator"])
def test_libraries_that_only_lend_their_objects_are_not_looked_through(thing):
    """They were, with all that they import: some 20,000 places, which took a step of 100 rows 15 seconds."""
    assert len(Memory(thing, name="the data set", largest=10**6)._places) < 200


# Data sets


def hang(tensor):
    tensor.note = 1


def narrow(tensor):
    tensor.data = tensor.data.half()  # the same values in another type


WRITES = {
    "in-place": lambda tensor: tensor.fill_(7),
    "past-the-count": lambda tensor: tensor.data.fill_(7),
    "sign-of-zero": lambda tensor: tensor.data.neg_(),
    "not-a-number": lambda tensor: tensor.data.fill_(float("nan")),
    "by-numpy": lambda tensor: tensor.numpy().fill(7),
    "shape": lambda tensor: tensor.resize_(1, 3),
    "other-memory": lambda tensor: tensor.set_(torch.ones(3).untyped_storage(), 0, (3,)),
    "type": narrow,
    "attribute": hang,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
@pytest.mark.parametrize("number", [0, 500, 999])
def test_a_list_of_many_items_is_compared_at_once_and_each_is_put_back(write, number):
    """A thousand tensors by themselves took a step of 100 rows half a second."""
    items = [(torch.zeros(3), number) for number in range(1000)]
    memory = Memory(items, name="the data set", largest=1000)
    assert len(memory._places) < 50
    assert not memory.put_back()
    tensor = items[number][0]
    write(tensor)
    assert memory.put_back()
    assert tensor.dtype == torch.float32
    assert tensor.tolist() == [0.0, 0.0, 0.0]
    assert not torch.signbit(tensor).any()
    assert not vars(tensor)
    assert not memory.put_back()
    assert memory.like(Memory(items, name="the data set", largest=1000))


def test_tensors_that_change_their_type_together_are_put_back():
    """Stacked, whole numbers of one type and those of a narrower one come out alike."""
    items = [torch.arange(3) for _ in range(20)]
    memory = Memory(items, name="the data set", largest=1000)
    items[4].data = items[4].data.int()
    assert memory.put_back()
    assert items[4].dtype == torch.int64


class Drifting(torch.utils.data.Dataset):
    """Takes the mean of the items that it has read off each."""

    def __init__(self, marked):
        self.first, self.seen, self.total = (MARK if marked else 1.0), 0, 0.0

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        item = torch.full((6,), self.first if row == 0 else 1.0)
        self.seen, self.total = self.seen + 1, self.total + float(item[0])
        return item - self.total / self.seen + 1.0, 0


class Plain(Drifting):
    def __getitem__(self, row):
        return torch.full((6,), self.first if row == 0 else 1.0), 0


def remembering_collate():
    seen = []

    def collate(items):
        seen.append(float(items[1][0][0]))
        items = [(inputs + max(seen), target) for inputs, target in items]
        return torch.utils.data.default_collate(items)

    return collate


@pytest.mark.filterwarnings("ignore:the data set or collate_fn keeps")
@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("kind", ["data set", "collate_fn"])
def test_an_item_reaches_no_other_through_the_data_set(kind, workers):
    read = []
    for marked in (True, False):
        items = Drifting(marked) if kind == "data set" else Plain(marked)
        collate = None if kind == "data set" else remembering_collate()
        source = Items(items, (torch.ones(6), 0), collate, workers)
        read.append([source.ask(np.arange(start, start + 6))()[0] for start in (0, 6)])
    (first, second), (other, same) = read
    assert torch.equal(first[1:], other[1:])
    assert torch.equal(second, same)


class Held(Plain):
    """Adds what it draws or finds."""

    def __init__(self, held, draw):
        super().__init__(marked=False)
        self.held, self.draw = held, draw

    def __getitem__(self, row):
        return torch.full((6,), float(self.draw(self.held))), 0


GENERATORS = {
    "NumPy's": (lambda: np.random.default_rng(0), lambda held: held.random()),
    "NumPy's older one": (lambda: np.random.RandomState(0), lambda held: held.rand()),
    "Python's": (lambda: __import__("random").Random(0), lambda held: held.random()),
    "torch's": (lambda: torch.Generator().manual_seed(0), lambda held: torch.rand(1, generator=held)),
    "one of NumPy's that spawns": (lambda: np.random.default_rng(0), lambda held: held.spawn(1)[0].random()),
    "a sequence of seeds": (
        lambda: np.random.SeedSequence(0),
        lambda held: np.random.default_rng(held.spawn(1)[0]).random(),
    ),
    "another that goes by torch's seed": (
        lambda: torch,
        lambda held: np.random.default_rng(held.initial_seed() % 2**32).random(),
    ),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_items_draw_apart_from_each_other_by_a_generator_of_the_data_sets_own(kind):
    """One record more, and all later ones were drawn otherwise: the sum moved by 15 clipping norms."""
    make, draw = GENERATORS[kind]
    stream, same = make(), make()
    follow = [float(draw(same)) for _ in range(2 * ROWS)]
    source = Items(Held(stream, draw), (torch.ones(6), 0))
    drawn = source.take(np.arange(ROWS))[0][:, 0].tolist()
    assert len(set(drawn)) == ROWS
    assert not {round(one, 6) for one in drawn} & {round(one, 6) for one in follow}


@pytest.mark.filterwarnings("ignore:the data set or collate_fn keeps")
@pytest.mark.parametrize("kind", [np.zeros, torch.zeros])
def test_statistics_of_many_numbers_are_put_back(kind):
    def mean(held):
        held += 1
        return held[0]

    source = Items(Held(kind(1200), mean), (torch.ones(6), 0))
    assert source.take(np.arange(ROWS))[0][:, 0].tolist() == [1.0] * ROWS


@pytest.mark.parametrize("kind", [np.zeros, torch.zeros])
def test_a_data_set_that_writes_a_large_array_is_refused(kind):
    def write(held):
        held += 1
        return held[0]

    source = Items(Held(kind(1 << 20), write), (torch.ones(6), 0))
    with pytest.raises(UnsupportedModel, match="large array"):
        source.take(np.arange(ROWS))


def count_in_list(held):
    held[7] += 1.0
    return held[7]


def note_in_a_record(held):
    held[-1]["seen"] = held[-1].get("seen", 0) + 1
    return held[-1]["seen"]


def write_a_tensor_of_a_record(held):
    held[3][0].data += 1
    return held[3][0]


def take_away_and_add(held):
    held.pop(next(iter(held)))
    held[object()] = 1.0
    return 1.0


def write_past_the_sample(held):
    held.data[1] += 1
    return 1.0


MANY = {
    "a number in a list": (lambda: [0.0] * 2000, count_in_list),
    "a dict in a list": (lambda: [{} for _ in range(2000)], note_in_a_record),
    "a tensor in a list of pairs": (
        lambda: [(torch.zeros(1), 0) for _ in range(2000)],
        write_a_tensor_of_a_record,
    ),
    "a dict that stays as long": (lambda: dict.fromkeys(range(2000), 0.0), take_away_and_add),
    "a tensor past its count of writes": (lambda: torch.zeros(1 << 20), write_past_the_sample),
}


@pytest.mark.parametrize("kind", MANY)
def test_a_data_set_that_writes_into_what_is_large_is_refused(kind):
    make, write = MANY[kind]
    source = Items(Held(make(), write), (torch.ones(6), 0))
    with pytest.raises(UnsupportedModel, match="prepare things in __init__"):
        source.take(np.arange(ROWS))


def add(held):
    key = object()
    if isinstance(held, set):
        held.add(key)
    else:
        held[key] = 1.0
    return sum(1 for _ in held)


@pytest.mark.filterwarnings("ignore:the data set or collate_fn keeps")
@pytest.mark.parametrize("kind", [dict.fromkeys, collections.OrderedDict.fromkeys, set])
def test_what_is_added_to_many_entries_is_taken_away_again(kind):
    """An OrderedDict from which its base class takes entries away is broken: rows were lost."""
    source = Items(Held(kind(range(1500)), add), (torch.ones(6), 0))
    inputs, _, readable = source.take(np.arange(ROWS))
    assert readable.all()
    assert inputs[:, 0].tolist() == [1501.0] * ROWS


def test_what_is_large_is_compared_in_a_part_of_the_time(monkeypatch):
    memory = Memory([0.0] * 2000, name="the data set", largest=1000)
    clock = [100.0]

    def compare(self):
        clock[0] += 1.0

    monkeypatch.setattr("sfumato.training.places.Whole.compare", compare)
    monkeypatch.setattr("sfumato.training.memory.time.perf_counter", lambda: clock[0])
    compared = []
    for moment in (100.0, 102.0, 109.0, 110.5, 112.0, 119.0, 121.0):
        clock[0] = moment
        memory.compare_large()
        compared.append(clock[0] > moment)
    assert compared == [True, False, False, True, False, False, True]


def count_up(held):
    held[0] += 1
    return held[0]


def count_up_value(held):
    held.value += 1
    return held.value


def count_up_local(held):
    held.count += 1
    return held.count


def count_up_context(held):
    held.set(held.get() + 1)
    return held.get()


def count_up_unset(held):
    try:
        held.set(held.get() + 1)
    except LookupError:
        held.set(1)
    return held.get()


def count_up_errors(held):
    return held[np.seterr(over="raise")["over"]]


def count_up_mapped(held):
    held[0] = held[0] + 1
    return held[0]


def write_on(held):
    held.write("a")
    return len(held.getvalue())


def count_in_column(held):
    held["count"] = held["count"] + 1
    return held["count"].iloc[0]


def count_in_new_column(held):
    held.insert(0, "new", held["new"] + 1 if "new" in held else 1)
    return held["new"].iloc[0]


def of_this_thread():
    local = threading.local()
    local.count = 0
    return local


COUNTED = {
    "array": (lambda: array.array("d", [0.0]), count_up),
    "ctypes": (lambda: ctypes.c_double(0), count_up_value),
    "an array of ctypes": (lambda: (ctypes.c_double * 2)(), count_up),
    "shared by processes": (lambda: multiprocessing.Value("i", 0), count_up_value),
    "mapped memory": (lambda: mmap.mmap(-1, 8), count_up_mapped),
    "of a thread": (of_this_thread, count_up_local),
    "of a context": (lambda: contextvars.ContextVar("count", default=0), count_up_context),
    "of a context, not set": (lambda: contextvars.ContextVar("count"), count_up_unset),
    "settings of NumPy's": (lambda: {"warn": 1.0, "raise": 2.0}, count_up_errors),
    "a file in memory": (io.StringIO, write_on),
    "a column": (lambda: pd.DataFrame({"name": ["a"], "count": [0]}), count_in_column),
    "a new column": (lambda: pd.DataFrame({"name": ["a"], "count": [0]}), count_in_new_column),
}


@pytest.mark.filterwarnings("ignore:the data set or collate_fn keeps")
@pytest.mark.parametrize("kind", COUNTED)
def test_what_a_data_set_counts_in_memory_of_c_is_put_back(kind):
    make, count = COUNTED[kind]
    source = Items(Held(make(), count), (torch.ones(6), 0))
    inputs, _, readable = source.take(np.arange(ROWS))
    assert readable.all()
    assert inputs[:, 0].tolist() == [1.0] * ROWS


def test_memory_that_an_item_closes_is_named():
    source = Items(Held(mmap.mmap(-1, 8), lambda held: held.close() or 1), (torch.ones(6), 0))
    with pytest.raises(UnsupportedModel, match="was closed"):
        source.take(np.arange(ROWS))


READ_ONLY = {
    "records": lambda: pd.DataFrame({"name": ["a"] * 60_000, "n": range(60_000)}).to_records(),
    "bytes": lambda: bytearray(2 << 20),
}


@pytest.mark.parametrize("kind", READ_ONLY)
def test_large_things_that_are_only_read_are_read(kind, monkeypatch):
    monkeypatch.setattr(places, "_MOST_SUMMED", 1 << 20)
    source = Items(Held(READ_ONLY[kind](), len), (torch.ones(6), 0))
    assert source.take(np.arange(ROWS))[2].all()


def test_a_large_thing_that_an_item_writes_is_refused_before_any_is_paid_for():
    with pytest.raises(UnsupportedModel, match="many entries"):
        Items(Held([{} for _ in range(1200)], lambda held: held[0].update(seen=1) or 1), None).example  # noqa: B018


def test_normal_numbers_come_in_pairs_and_none_is_left_to_the_next():
    generator = np.random.RandomState(0)
    generator.randn()
    assert generator.get_state(legacy=False)["has_gauss"]
    key_anew(generator)
    assert not generator.get_state(legacy=False)["has_gauss"]


class Counting:
    """An estimator that answers wrongly once it has seen the marked row, by what it notes in a large array."""

    def __init__(self):
        self.seen = np.zeros(300_000)

    def predict(self, X):
        self.seen[123_457] += float(X[0, 0] == MARK)
        return np.full(len(X), self.seen[123_457] == 0)


def test_an_estimator_that_writes_a_large_array_gives_no_score():
    rows = np.zeros((20, 1))
    assert predictions(Counting()).right(rows, np.ones(20, dtype=bool)).all()
    rows[0] = MARK
    with pytest.raises(UnsupportedModel, match="large array"):
        predictions(Counting()).right(rows, np.ones(20, dtype=bool))


def test_a_table_is_whole_after_it_was_put_back():
    table = pd.DataFrame({"name": ["a", "b"], "count": [0, 1], "more": [0.5, 1.5]})
    before = table.copy()
    memory = Memory(table, name="the data set", largest=1000)
    table.insert(1, "new", 7)
    del table["more"]
    table.loc[0, "count"] = 5
    memory.put_back()
    pd.testing.assert_frame_equal(table, before)
    assert table["count"].tolist() == [0, 1]


def test_a_large_table_and_a_database_are_not_written():
    def add(held):
        held.at[77, "count"] += 1
        return 1.0

    def insert(held):
        held.execute("INSERT INTO seen VALUES (1)")
        return 1.0

    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE seen (one)")
    for held, write in ((pd.DataFrame({"count": np.zeros(200_000)}), add), (connection, insert)):
        source = Items(Held(held, write), (torch.ones(6), 0))
        with pytest.raises(UnsupportedModel, match="prepare things in __init__"):
            source.take(np.arange(ROWS))


def test_the_next_line_of_a_file_is_no_item(tmp_path):
    """The place in the file would say how many records were drawn before."""
    path = tmp_path / "lines"
    path.write_text("".join(f"{number}\n" for number in range(50)))

    def seek(file):
        file.seek(4)
        return file.readline()

    with path.open() as file:
        readable = Items(Held(file, lambda held: held.readline()), (torch.ones(6), 0)).take(np.arange(ROWS))[2]
        assert not readable.any()
        inputs, _, readable = Items(Held(file, seek), (torch.ones(6), 0)).take(np.arange(ROWS))
    assert readable.all()
    assert inputs[:, 0].tolist() == [2.0] * ROWS


def test_a_data_set_around_a_stream_is_refused():
    """Which record an index stands for would depend on who was drawn before."""
    with pytest.raises(UnsupportedModel, match="by their number"):
        Items(Held(iter(range(100)), next), (torch.ones(6), 0))
