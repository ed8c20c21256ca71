"""Functions of libraries that the user has replaced: named before a run, refused within it."""

import contextlib
import functools
import importlib.util
import subprocess
import sys
import types
import warnings

import pytest
import torch
from torch import library, nn
from torch.nn import functional as F

from sfumato.accounting import Budget
from sfumato.datasets import Dataset
from sfumato.errors import UnsupportedModel
from sfumato.ledger import Ledger
from sfumato.training import (
    HeldOut,
    PrivateTrainer,
    TrainingPlan,
    clipped_gradient_sum,
    cross_entropy,
    replaced,
)
from sfumato.training.own_code import OWN_CODE
from sfumato.training.replaced import Standing

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=8, steps=2, noise_multiplier=4.0)
ROWS = torch.rand(16, 1, 8, 8), torch.zeros(16, dtype=torch.long)


def network():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 2)
    )


def trainer(model, **kwargs):
    return PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN, **kwargs)


def wrapped(original):
    return lambda *args, **kwargs: original(*args, **kwargs)


@contextlib.contextmanager
def put(owner, name, thing):
    """In the place of what is there, or of nothing."""
    there, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, thing)
    try:
        yield
    finally:
        setattr(owner, name, before) if there else delattr(owner, name)


def another(owner, name):
    return lambda: put(owner, name, wrapped(getattr(owner, name)))


@contextlib.contextmanager
def kernel():
    ours = library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the kernel is replaced
        ours.impl("relu", lambda x: x.clamp(min=0), "CPU")
    try:
        yield
    finally:
        ours._destroy()


@contextlib.contextmanager
def kernel_by_name():
    ours = library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("aten::relu", "cpu", lib=ours)(lambda x: x.clamp(min=0))
    try:
        yield
    finally:
        ours._destroy()


def relu_of_mine(input, inplace=False):
    return input.clamp(min=0)


def other_module():
    module = types.ModuleType("functional")
    vars(module).update(vars(F))
    module.relu = relu_of_mine
    return put(nn.modules.activation, "F", module)


KINDS = {
    "torch.relu": another(torch, "relu"),
    "torch.conv2d": another(torch, "conv2d"),
    "torch.nn.functional.relu": another(F, "relu"),
    "torch.nn.functional.max_pool2d": another(F, "max_pool2d"),
    "torch._C._nn.gelu": another(torch._C._nn, "gelu"),
    "torch.Tensor.flatten": another(torch.Tensor, "flatten"),  # hides that of a base which cannot be written
    "torch.Tensor.split": another(torch.Tensor, "split"),
    "torch.nn.modules.conv.Conv2d.forward": another(nn.Conv2d, "forward"),
    "torch.nn.modules.conv.Conv2d._conv_forward": another(nn.Conv2d, "_conv_forward"),
    "torch.nn.modules.conv.Conv2d.__call__": another(nn.Conv2d, "__call__"),
    "torch.nn.modules.module.Module.__call__": another(nn.Module, "__call__"),
    "torch.nn.modules.module.Module._call_impl": another(nn.Module, "_call_impl"),
    "torch.nn.modules.activation.F": other_module,
    "torch.nn.functional.len": lambda: put(F, "len", wrapped(len)),  # hides a builtin
    "torch.autograd.grad": another(torch.autograd, "grad"),
    "the kernel of aten::relu": kernel,
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_replaced_before_a_run_is_named(name):
    model = network()
    with KINDS[name]():
        run = trainer(model)
        for batch in run.batches(ROWS):
            run.step(batch, cross_entropy)
        caveats = run.certificate(delta=1e-5).caveats
    assert OWN_CODE in caveats
    assert any(f"({name});" in caveat for caveat in caveats)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_replaced_within_a_run_is_refused_before_anything_is_computed(name, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.db", Budget(epsilon=30, delta=1e-5))
    model = network()
    run = trainer(model, ledger=ledger)
    first, second = run.batches(ROWS)
    run.step(first, cross_entropy)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with KINDS[name](), pytest.raises(UnsupportedModel, match="code of your own as ") as refusal:
        run.step(second, cross_entropy)
    assert name in str(refusal.value)
    assert run.steps_started == 1
    assert all(map(torch.equal, before, model.parameters()))
    run.step(second, cross_entropy)  # once it is put back


def test_a_kernel_that_is_set_by_a_function_of_torchs_is_the_users():
    with kernel_by_name():
        assert list(replaced.replaced(network())) == ["the kernel of aten::relu"]
    assert not replaced.replaced(network())


def test_a_function_that_waits_for_the_second_step_is_named():
    """Nothing is changed within the run, so that the survey has seen what there is to see."""
    steps = []

    def waits(input, inplace=False):
        out = torch.relu(input)
        return out - out.mean(0) if steps else out

    with put(F, "relu", waits):
        run = trainer(network())
        for batch in run.batches(ROWS):
            with contextlib.suppress(UnsupportedModel):
                run.step(batch, cross_entropy)
            steps.append(1)
    assert OWN_CODE in run.certificate(delta=1e-5).caveats


def test_what_a_function_in_a_librarys_place_remembers_is_put_back():
    met = []

    def remembers(input, inplace=False):
        out = torch.relu(input)
        met.append(1)
        return out

    with put(F, "relu", remembers):
        clipped_gradient_sum(network(), cross_entropy, *ROWS, 1.0)
    assert not met


class Liar:
    """Is equal to everything, and says that it is a function of torch's."""

    __hash__ = None
    __code__, __globals__, __closure__ = F.relu.__code__, F.relu.__globals__, None
    __defaults__ = __kwdefaults__ = None

    @property
    def __class__(self):
        return types.FunctionType

    def __eq__(self, other):
        return True

    def __call__(self, *args, **kwargs):
        return relu_of_mine(*args, **kwargs)


class Partial(functools.partial):
    def __call__(self, *args, **kwargs):
        return relu_of_mine(*args, **kwargs)


def forged():
    mine = types.FunctionType(relu_of_mine.__code__, globals(), "relu")
    mine.__module__, mine.__qualname__ = "torch.nn.functional", "relu"
    return mine


def without_trace():
    cached = functools.lru_cache(relu_of_mine)
    del cached.__wrapped__
    return cached


FORGED = {
    "what it says": forged,
    "names of torch's": lambda: types.FunctionType(relu_of_mine.__code__, vars(F), "relu"),
    "equal to all": Liar,
    "a method of C": lambda: relu_of_mine.__call__,
    "static": lambda: staticmethod(relu_of_mine),
    "behind a cache": without_trace,
    "partial": lambda: functools.partial(relu_of_mine),
    "a class of partial": lambda: Partial(F.relu),
    "a decorator of torch's": lambda: torch.no_grad()(relu_of_mine),
    "compiled": lambda: torch.jit.script(relu_of_mine_for_script),
    "a module": lambda: nn.Sequential(nn.Sequential(Mine())),
}


class Mine(nn.Module):
    def forward(self, rows):
        return rows


def relu_of_mine_for_script(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return input.clamp(min=0)


@pytest.mark.parametrize("make", FORGED.values(), ids=FORGED)
def test_what_looks_like_a_librarys_is_still_the_users(make):
    model = network()
    standing = Standing(model)
    with put(F, "relu", make()):
        assert list(replaced.replaced(model)) == ["torch.nn.functional.relu"]
        assert not standing.same()
        with pytest.raises(UnsupportedModel, match=r"functional\.relu"):
            standing.refuse_own()
    assert not replaced.replaced(model)
    assert standing.same()


def test_other_code_in_a_librarys_function_is_the_users():
    model = network()
    standing, before = Standing(model), F.relu.__code__
    F.relu.__code__ = relu_of_mine.__code__
    try:
        assert list(replaced.replaced(model)) == ["torch.nn.functional.relu"]
        with pytest.raises(UnsupportedModel, match=r"functional\.relu"):
            assert standing.same() or standing.refuse_own()
    finally:
        F.relu.__code__ = before
    assert standing.same()


def test_another_function_of_torchs_is_surveyed_again():
    """`torch.cumsum` is nobody's own, but what was surveyed is no longer what runs."""
    run = trainer(network())
    first, second = run.batches(ROWS)
    run.step(first, cross_entropy)
    with (
        put(F, "relu", functools.partial(torch.cumsum, dim=0)),
        pytest.raises(UnsupportedModel),  # it knows no inplace=, and would mix rows
    ):
        run.step(second, cross_entropy)


def test_a_name_that_is_new_and_hides_nothing_is_none_of_it():
    model = network()
    standing = Standing(model)
    with put(torch, "helper_of_mine", relu_of_mine):
        assert standing.same()


def test_a_run_that_has_not_begun_takes_what_is_replaced_with_a_caveat():
    run = trainer(network())
    run.rehearse(ROWS, cross_entropy)
    with KINDS["torch.relu"]():
        for batch in run.batches(ROWS):
            run.step(batch, cross_entropy)
    assert any("(torch.relu);" in caveat for caveat in run.certificate(delta=1e-5).caveats)


def test_a_hold_out_names_what_is_replaced():
    data = Dataset(inputs=ROWS[0].numpy(), targets=ROWS[1].numpy(), name="toy", visibility="private")
    with KINDS["torch.relu"]():
        found = HeldOut(rows=data).accuracy(network(), epsilon=1.0)
    assert OWN_CODE in found.certificate.caveats
    assert any("(torch.relu);" in caveat for caveat in found.certificate.caveats)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_hook_on_a_weight_is_refused(register, steps_before):
    model = network()
    run = trainer(model)
    batches = run.batches(ROWS)
    for _ in range(steps_before):
        run.step(next(batches), cross_entropy)
    handle = getattr(model[0].weight, register)(lambda gradient: None)
    batch = next(batches)
    with pytest.raises(UnsupportedModel, match=r"hook of your own on a weight, got one on 0\.weight"):
        run.step(batch, cross_entropy)
    assert run.steps_started == steps_before
    handle.remove()
    run.step(batch, cross_entropy)


LIBRARIES = """
import importlib, sys, torch
from torch import nn
from sfumato.training import PrivateTrainer, TrainingPlan, cross_entropy, replaced
from sfumato.training.own_code import OWN_CODE

names = sys.argv[1:]
model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
plan = TrainingPlan(sample_rate=0.5, expected_batch=8, steps=len(names) + 1, noise_multiplier=4.0)
trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
relu, names = torch.relu, iter(names)
for batch in trainer.batches((torch.rand(16, 4), torch.zeros(16, dtype=torch.long))):
    trainer.step(batch, cross_entropy)
    importlib.import_module(next(names, "torch"))
    torch.relu = torch.compiler.disable(relu)  # as torch does with some of its own
assert torch.relu is not relu
assert not replaced.replaced(model)
assert OWN_CODE not in trainer.certificate(delta=1e-5).caveats
"""


def test_what_libraries_replace_within_a_run_is_theirs():
    names = ["torch._dynamo", "transformers", "peft", "accelerate", "opacus", "lightning"]
    found = [name for name in names if importlib.util.find_spec(name) is not None]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIBRARIES, *found], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


LEFT_OUT = (
    *("torch._jit_internal", "torch.overrides", "torch._ops"),  # choose what to call by types
    *("torch._decomp", "torch._prims_common"),  # what torch's core was handed when they were loaded
    *("torch.random", "torch.optim"),  # no rows
)


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(8, 4, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, rows):
        return self.head(self.attention(self.recurrent(rows[:, 0])[0])[:, -1])


@pytest.mark.parametrize("model", [network(), Sequence()])
def test_modules_through_which_rows_pass_are_looked_at(model):
    """Python code of torch's that is handed tensors in a step is among what is compared."""
    met = set()

    def note(frame, event, _):
        given = [each for each in frame.f_locals.values() if isinstance(each, list | tuple | torch.Tensor)]
        tensors = [each for each in given if isinstance(each, torch.Tensor) or any_tensor(each)]
        if event == "call" and tensors:
            met.add(str(frame.f_globals.get("__name__")))

    run = trainer(model)
    first, second = run.batches(ROWS)
    run.step(first, lambda out, targets: F.cross_entropy(out, targets, reduction="none"))
    sys.setprofile(note)
    try:
        run.step(second, lambda out, targets: F.cross_entropy(out, targets, reduction="none"))
    finally:
        sys.setprofile(None)
    looked_at = {*replaced.MODULES, *(type(module).__module__ for module in model.modules())}
    torchs = {name for name in met if name.startswith("torch.") and not name.startswith(LEFT_OUT)}
    assert "torch.nn.functional" in torchs
    assert torchs <= looked_at


def any_tensor(things):
    return any(isinstance(each, torch.Tensor) for each in things)
