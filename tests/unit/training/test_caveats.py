"""What a certificate of training says besides its ε."""

import contextlib
import gc
import sys
import threading
import types
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sfumato.training.own_code import OWN_CODE
from sfumato.trust import OWN_NOISE
from torch import nn

from sfumato import trust
from sfumato.accounting import Budget
from sfumato.audit.replay import RecordingSampler
from sfumato.datasets import Dataset
from sfumato.errors import UnsupportedModel
from sfumato.ledger import Ledger
from sfumato.randomness import SecretStream
from sfumato.training import (
    HeldOut,
    PrivateClassifier,
    PrivateTrainer,
    TrainingPlan,
    cross_entropy,
    own_code,
    resume,
    save_checkpoint,
)
from sfumato.training.trainer import SHAPE_READ

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=10, steps=1, noise_multiplier=4.0)
ROWS = torch.rand(20, 2), torch.zeros(20, dtype=torch.long)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, rows):
        return self.layer(rows)


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, row):
        return ROWS[0][row], int(ROWS[1][row])


def caveats_of(model, *, loss=cross_entropy, rows=ROWS):
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN)
    for batch in trainer.batches(rows):
        trainer.step(batch, loss)
    return trainer.certificate(delta=1e-5).caveats


def test_code_of_libraries_needs_no_caveat():
    assert OWN_CODE not in caveats_of(nn.Linear(2, 2))


def test_a_model_of_ones_own_is_named():
    assert OWN_CODE in caveats_of(Own())


def test_a_loss_of_ones_own_is_named():
    assert OWN_CODE in caveats_of(nn.Linear(2, 2), loss=lambda out, targets: out.square().sum(1))


def test_a_data_set_of_ones_own_is_named():
    assert OWN_CODE in caveats_of(nn.Linear(2, 2), rows=Items())


class Column:
    """Turns into an array when it is asked to."""

    def __init__(self, values):
        self._values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self._values

    def __len__(self):
        return len(self._values)


class Rows:
    @property
    def inputs(self):
        return ROWS[0]

    @property
    def targets(self):
        return ROWS[1]


@pytest.mark.parametrize(
    "rows", [(Column(ROWS[0]), ROWS[1]), ({"rows": ROWS[0], "more": Column(ROWS[0])}, ROWS[1]), Rows()]
)
def test_a_class_of_columns_of_ones_own_is_named(rows):
    model = nn.Linear(2, 2)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN)
    assert next(trainer.batches(rows)).data.runs_own_code


def test_people_named_by_a_class_of_ones_own_are_named():
    trainer = PrivateTrainer(
        model := nn.Linear(2, 2),
        torch.optim.SGD(model.parameters(), lr=0.1),
        replace(PLAN, unit="person", rows_per_unit=1),
    )
    assert next(trainer.batches(ROWS, units=Column(range(20)))).data.runs_own_code


def test_an_estimator_names_a_class_of_columns_of_ones_own():
    declared = {"classes": (0, 1), "public_size": 20, "bounds": (0.0, 1.0), "epochs": 1}
    targets = np.arange(20) % 2
    for inputs, expected in ((Column(ROWS[0]), True), (ROWS[0].numpy(), False)):
        fitted = PrivateClassifier(epsilon=1.0, **declared).fit(inputs, targets)
        assert fitted.result_.certificate.caveats.count(OWN_CODE) == expected


@pytest.mark.parametrize(
    "rows",
    [
        (pd.DataFrame(ROWS[0].numpy()), pd.Series(ROWS[1].numpy())),
        (ROWS[0].numpy(), ROWS[1].numpy()),
        {"inputs": ROWS[0], "labels": ROWS[1]},
        types.SimpleNamespace(inputs=ROWS[0], targets=ROWS[1]),
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*ROWS)),
    ],
    ids=["tables", "arrays", "a dict", "a namespace", "a loader"],
)
def test_columns_of_libraries_need_no_caveat(rows):
    trainer = PrivateTrainer(
        model := nn.Linear(2, 2), torch.optim.SGD(model.parameters(), lr=0.1), replace(PLAN, steps=1)
    )
    assert not next(trainer.batches(rows)).data.runs_own_code


@contextlib.contextmanager
def hooked(place, kind):
    before = getattr(place, f"get{kind}")()
    getattr(place, f"set{kind}")(lambda *_: None)
    try:
        yield
    finally:
        getattr(place, f"set{kind}")(before)


HOOKS = [(sys, "profile"), (sys, "trace"), (threading, "profile"), (threading, "trace")]


@pytest.mark.parametrize(("place", "kind"), HOOKS, ids=[f"{place.__name__}.{kind}" for place, kind in HOOKS])
def test_a_hook_that_sees_every_frame_is_named(place, kind):
    model = nn.Linear(2, 2)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN)
    for batch in trainer.batches(ROWS):
        trainer.rehearse(ROWS, cross_entropy)  # not under a hook, which makes a survey slow
        with hooked(place, kind):
            trainer.step(batch, cross_entropy)
    assert OWN_CODE in trainer.certificate(delta=1e-5).caveats
    held = HeldOut(rows=DATA)
    with hooked(place, kind):
        assert OWN_CODE in held.accuracy(nn.Linear(2, 2), epsilon=1.0).certificate.caveats


def test_a_tool_that_monitors_is_named(monkeypatch):
    tools = types.SimpleNamespace(get_tool=lambda tool: "mine" if tool == 3 else None)
    monkeypatch.setattr(sys, "monitoring", tools, raising=False)
    assert OWN_CODE in HeldOut(rows=DATA).accuracy(nn.Linear(2, 2), epsilon=1.0).certificate.caveats


DATA = Dataset(inputs=ROWS[0].numpy(), targets=ROWS[1].numpy(), name="toy", visibility="private")


@pytest.mark.parametrize(("model", "expected"), [(nn.Linear(2, 2), False), (Own(), True)])
def test_a_hold_out_says_whose_model_was_measured(model, expected, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.db", Budget(epsilon=3, delta=1e-5))
    held = HeldOut(rows=replace(DATA, classes=2))
    for found in (
        held.accuracy(model, epsilon=0.1),
        held.accuracy(model, epsilon=0.1, ledger=ledger),
        held.accuracy_by_class(model, epsilon=0.1),
        held.accuracy_by_group(model, ROWS[1].numpy(), names=["all"], epsilon=0.1),
    ):
        assert (OWN_CODE in found.certificate.caveats) == expected


def test_a_hold_out_names_groups_of_ones_own_class():
    found = HeldOut(rows=DATA).accuracy_by_group(nn.Linear(2, 2), Column(ROWS[1]), names=["all"], epsilon=0.1)
    assert OWN_CODE in found.certificate.caveats


def test_a_hook_on_all_modules_is_refused_before_a_hold_out_is_paid_for(tmp_path):
    """It could mix the rows that a trusted model is shown together."""
    ledger = Ledger.create(tmp_path / "ledger.db", Budget(epsilon=3, delta=1e-5))
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: output.mean(0) + output
    )
    try:
        with pytest.raises(UnsupportedModel, match="hook on all modules"):
            HeldOut(rows=DATA).accuracy(nn.Linear(2, 2), epsilon=1.0, ledger=ledger)
    finally:
        hook.remove()
    assert ledger.epsilon_spent == 0


@pytest.mark.parametrize("name", ["linear", "cross_entropy"])
def test_a_function_in_the_place_of_torchs_is_named(monkeypatch, name):
    original = getattr(nn.functional, name)
    monkeypatch.setattr(nn.functional, name, lambda *args, **kwargs: original(*args, **kwargs))
    assert OWN_CODE in caveats_of(nn.Linear(2, 2))


@pytest.mark.parametrize("steps_before", [1, 2])
def test_a_resumed_run_says_what_its_first_steps_met(tmp_path, steps_before):
    """Also where they were all."""
    plan = replace(PLAN, steps=2)

    def trainer():
        model = nn.Linear(2, 2)
        return PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)

    first = trainer()
    batches = first.batches(Items())
    for _ in range(steps_before):
        first.step(next(batches), cross_entropy)
    save_checkpoint(first, tmp_path / "run.safetensors")
    second = trainer()
    resume(second, tmp_path / "run.safetensors")
    for batch in second.batches(ROWS):
        second.step(batch, cross_entropy)
    before, after = (each.certificate(delta=1e-5) for each in (first, second))
    assert {OWN_CODE, SHAPE_READ} <= set(before.caveats)
    assert {OWN_CODE, SHAPE_READ} <= set(after.caveats)
    assert before.eta == after.eta


class Wrapped(pd.api.extensions.ExtensionArray):
    """A column of pandas with code of its own; no more of it is needed here than what tells whose it is."""

    dtype = pd.api.extensions.ExtensionDtype()

    def __init__(self, values):
        self._values = values

    def __len__(self):
        return len(self._values)

    def isna(self):
        return np.zeros(len(self), bool)

    def copy(self):
        return self


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (pd.Series(Wrapped(np.arange(3))), True),
        (pd.DataFrame({"a": [1, 2, 3], "b": pd.Series(Wrapped(np.arange(3)))}), True),
        (np.array([Name("a"), "b"], dtype=object), True),
        (pd.Series([Name("a"), "b"], dtype=object), True),
        (np.array(["a", "b", None], dtype=object), False),
        (pd.Series(["a", "b"]), False),
        (pd.DataFrame({"a": [1.0], "b": ["x"], "c": pd.to_datetime(["2026-01-01"])}), False),
        (pd.Categorical(["a", "b"]), False),
    ],
)
def test_what_a_table_or_an_array_of_objects_holds_is_looked_at(data, expected):
    assert own_code.brings(data) == expected


def test_a_hold_out_names_a_data_set_of_ones_own_class():
    class Mine(Dataset):
        pass

    mine = Mine(**{name: getattr(DATA, name) for name in DATA.__dataclass_fields__})
    for rows, expected in ((mine, True), (DATA, False)):
        found = HeldOut(rows=rows).accuracy(nn.Linear(2, 2), epsilon=0.1)
        assert (OWN_CODE in found.certificate.caveats) == expected


class SaysAnything(type):
    """Makes classes that are equal to a library's, and say that they are one."""

    def __eq__(cls, other):
        return True

    def __hash__(cls):
        return hash(pd.DataFrame)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pandas.core.frame", "DataFrame"),
        ("pandas.core.frame", "Frame"),
        ("polars", "DataFrame"),
        ("torch", "Tensor"),
        ("sfumato.datasets.dataset", "Dataset"),
        ("builtins", "list"),
    ],
)
def test_what_a_class_says_of_itself_is_not_believed(module, name):
    kind = type(name, (), {**vars(Column), "__module__": module, "__qualname__": name})
    assert own_code.brings(kind(ROWS[0]))
    assert not own_code.brings(pd.DataFrame({"a": [1]}), ROWS[0], ROWS[0].numpy(), [1.0])


def test_a_class_that_is_equal_to_a_librarys_is_not_that():
    assert not own_code.brings(pd.DataFrame({"a": [1]}))
    kind = SaysAnything("DataFrame", (), {**vars(Column), "__module__": "pandas.core.frame"})
    assert own_code.brings(kind(ROWS[0]))


def test_a_model_that_says_it_is_torchs_is_named():
    kind = type("Linear", (Own,), {"__module__": "torch.nn.modules.linear", "__qualname__": "Linear"})
    kind.forward = Own.forward
    assert OWN_CODE in caveats_of(kind())


@pytest.mark.parametrize("module", ["numpy", "polars.x", "torch.nn.parameter"])
def test_a_class_that_was_known_under_its_own_name_is_not_believed_another(module, monkeypatch):
    kind = type("Known", (), {**vars(Column), "__module__": __name__, "__qualname__": "Known"})
    monkeypatch.setitem(globals(), "Known", kind)
    assert own_code.brings(kind(ROWS[0]))
    kind.__module__ = module
    assert own_code.brings(kind(ROWS[0]))


class Loader(torch.utils.data.DataLoader):
    """Makes its data set when it is asked for it."""

    @property
    def dataset(self):
        return torch.utils.data.TensorDataset(ROWS[0] - ROWS[0].mean(0), ROWS[1])

    @dataset.setter
    def dataset(self, given):
        pass


def test_a_loader_of_ones_own_is_named():
    stock = torch.utils.data.TensorDataset(*ROWS)
    assert OWN_CODE in caveats_of(nn.Linear(2, 2), rows=Loader(stock))
    assert OWN_CODE not in caveats_of(nn.Linear(2, 2), rows=torch.utils.data.DataLoader(stock))


class Ones(SecretStream):
    def rounded_normal(self, scale, size):
        return np.ones(size, dtype=np.int64)


def with_ones():
    stream = SecretStream()
    stream.rounded_normal = Ones().rounded_normal
    return stream


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (None, False),
        (SecretStream(), False),
        (RecordingSampler(SecretStream()), False),
        (Ones(), True),
        (with_ones(), True),
        (RecordingSampler(Ones()), True),
    ],
)
def test_a_sampler_of_ones_own_is_named(sampler, expected):
    model = nn.Linear(2, 2)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN, sampler=sampler)
    for batch in trainer.batches(ROWS):
        trainer.step(batch, cross_entropy)
    found = HeldOut(rows=DATA).accuracy(nn.Linear(2, 2), epsilon=1.0, sampler=sampler)
    for certificate in (trainer.certificate(delta=1e-5), found.certificate):
        assert (OWN_NOISE in certificate.caveats) == expected


def test_a_stream_that_was_given_another_method_is_named(monkeypatch):
    monkeypatch.setattr(SecretStream, "rounded_normal", Ones.rounded_normal)
    model = nn.Linear(2, 2)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN)
    assert OWN_NOISE in trainer.certificate(delta=1e-5).caveats


def test_classes_that_libraries_make_on_the_way_need_no_caveat():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))  # torch makes a class of its own for it
    assert type(model).__qualname__ == "ParametrizedLinear"
    assert trust.is_class_of(type(model), trust.TRUSTED)


def test_classes_are_forgotten_with_their_modules():
    kind = type("Short", (), {})
    own_code.brings(kind())
    number = id(kind)
    assert number in trust._found
    del kind
    gc.collect()
    assert number not in trust._found
