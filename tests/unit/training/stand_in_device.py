"""A whole step on another device.

No accelerator is needed: `Remote` tensors say that they are on a device that is not there, hold their values on
the CPU and never mix with tensors of the CPU. What CUDA refuses is refused here: operations on tensors of two
devices (but for numbers without dimensions, and indices, which CUDA takes from the CPU), and `.numpy()`. Draws
come from a generator of the device's own. Values are those that the CPU computes, so that a step can be
compared with the same step on the CPU.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from sfumato.errors import UnsupportedModel
from sfumato.randomness import FreshGenerators, SecretStream
from sfumato.training import (
    AdaptiveClipping,
    PrivateTrainer,
    TrainingPlan,
    clipped_gradient_sum,
    resume,
    save_checkpoint,
)
from sfumato.training.clip import PerLayer

NAME = "elsewhere"
GENERATOR = torch.Generator()


class Mixed(RuntimeError):
    """An operation met tensors of two devices."""


class Remote(Tensor):
    """A tensor on the other device; `held` has its values."""

    __slots__ = ("held",)  # nothing that code could hang on it
    __module__ = "torch"  # it stands for code of torch, which keeps nothing

    @staticmethod
    def __new__(cls, held):
        shape = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made = Tensor._make_wrapper_subclass(cls, held.size(), dtype=held.dtype, device=f"{NAME}:0", **shape)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})

    @property
    def data(self):
        return Remote(self.held.data)

    @data.setter
    def data(self, other):
        self.held = other.held

    def __deepcopy__(self, memo):
        twin = Remote(self.held.clone()).requires_grad_(self.requires_grad)
        twin._is_param = isinstance(self, nn.Parameter)
        return memo.setdefault(id(self), twin)

    def __repr__(self, *, tensor_contents=None):
        return f"Remote({tuple(self.shape)}, {self.dtype})"


class Module(_DummyBackendModule):
    """torch.elsewhere: its generator."""

    def get_rng_state(self, device=None):
        return GENERATOR.get_state()

    def set_rng_state(self, state, device=None):
        GENERATOR.set_state(state)

    def manual_seed(self, seed):
        GENERATOR.manual_seed(seed)


def compute(func, args, kwargs):
    name, wanted = func.overloadpacket.__name__, kwargs.get("device")
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = any(isinstance(leaf, Remote) for leaf in leaves)
    if here and name not in ("_to_copy", "copy_"):
        refuse_mixing(name, args, leaves)
    stays = here if wanted is None else torch.device(wanted).type == NAME
    args, kwargs = pytree.tree_map_only(Remote, lambda leaf: leaf.held, (args, kwargs))
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = (
        drawn(func, args, kwargs) if torch.Tag.nondeterministic_seeded in func.tags else func(*args, **kwargs)
    )
    return pytree.tree_map_only(Tensor, Remote, result) if stays else result


def refuse_mixing(name, args, leaves):
    if name in ("index", "index_put", "index_put_", "_index_put_impl_") and isinstance(args[0], Remote):
        leaves = [leaf for leaf in leaves if not any(leaf is index for index in args[1])]
    local = [leaf for leaf in leaves if not isinstance(leaf, Remote) and leaf.dim() > 0]
    if local:
        raise Mixed(f"{name} met a tensor of shape {tuple(local[0].shape)} on the CPU")


def drawn(func, args, kwargs):
    """A draw from the device's own generator."""
    before = torch.get_rng_state()
    watching = sys.getprofile()
    sys.setprofile(None)  # nobody sees what a device does inside
    torch.set_rng_state(GENERATOR.get_state())
    try:
        return func(*args, **kwargs)
    finally:
        GENERATOR.set_state(torch.get_rng_state())
        torch.set_rng_state(before)
        sys.setprofile(watching)


LIBRARY = torch.library.Library("aten", "IMPL")


@pytest.fixture(scope="module")
def elsewhere():
    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    for name in ("empty.memory_format", "empty_strided"):  # what all tensors that come from nothing begin as
        LIBRARY.impl(name, partial(there_from_nothing, name.partition(".")[0]), "PrivateUse1")
    LIBRARY.impl("_copy_from", copied, "PrivateUse1")
    return torch.device(NAME, 0)


def copied(source, target, non_blocking=False):
    getattr(target, "held", target).copy_(getattr(source, "held", source))
    return target


def there_from_nothing(name, *args, **kwargs):
    return Remote(getattr(torch, name)(*args, **{**kwargs, "device": "cpu"}))


# The device itself


def test_the_other_device_refuses_what_cuda_refuses(elsewhere):
    values = torch.ones(3).to(elsewhere)
    assert (values * torch.tensor(2.0)).cpu().tolist() == [2.0, 2.0, 2.0]
    assert values[torch.tensor([0])].device == elsewhere
    with pytest.raises(Mixed):
        values + torch.ones(3)
    with pytest.raises(RuntimeError):
        values.numpy()


# Models


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(11, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        return self.head(self.norm(hidden + self.mix(hidden, hidden, hidden, need_weights=False)[0]).mean(1))


class Ruleless(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(5)), nn.Linear(5, 3)

    def forward(self, rows):
        return self.head((rows * self.scale).sin())


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), (5,)),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        ),
        (1, 4, 4),
    ),
    "strided conv": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 2, stride=2), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(16, 3)
        ),
        (2, 4, 4),
    ),
    "other ranks": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3),
            nn.InstanceNorm1d(4, affine=True),
            nn.RMSNorm(4),
            nn.Flatten(),
            nn.Unflatten(1, (1, 4, 2, 2)),
            nn.Conv3d(1, 2, 2),
            nn.InstanceNorm3d(2, affine=True),
            nn.Flatten(),
            nn.Linear(6, 3),
        ),
        (2, 6),
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)), (5,)),
    "attention": (Attention, None),
    "no rule": (Ruleless, (5,)),
}


def made(name, count=4):
    generator = torch.Generator().manual_seed(3)
    build, shape = MODELS[name]
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    if shape is None:
        inputs = torch.randint(0, 11, (count, 6), generator=generator)
    else:
        inputs = torch.randn(count, *shape, generator=generator)
    return model, inputs, torch.randint(0, 3, (count,), generator=generator)


def own_loss(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("name", [name for name in MODELS if name != "dropout"])
def test_clipped_sums_are_those_of_the_cpu(name, elsewhere):
    model, inputs, targets = made(name)
    there = copy.deepcopy(model).to(elsewhere)
    units = torch.tensor([0, 0, 1, 1])
    expected = clipped_gradient_sum(model, own_loss, inputs, targets, PerLayer(norm=0.1), units=units)
    found = clipped_gradient_sum(there, own_loss, inputs, targets, PerLayer(norm=0.1), units=units)
    for part, value in found.items():
        assert value.device == elsewhere
        torch.testing.assert_close(value.cpu(), expected[part])


def test_rows_without_a_result_or_not_finite_are_left_out_there_too(elsewhere):
    model, inputs, targets = made("linear")
    there, targets[1], inputs[2] = copy.deepcopy(model).to(elsewhere), 7, torch.nan
    kept = torch.tensor([0, 3])
    expected = clipped_gradient_sum(model, own_loss, inputs[kept], targets[kept], 0.1)
    found = clipped_gradient_sum(there, own_loss, inputs, targets, 0.1)
    for part, value in found.items():
        torch.testing.assert_close(value.cpu(), expected[part])


PLAN = TrainingPlan(sample_rate=1.0, expected_batch=4, steps=2, noise_multiplier=1.0, clip_norm=0.5)


class Tape:
    """Everyone is in, and the noise is one grid step."""

    private = False

    def rounded_normal(self, scale, size):
        return np.ones(size, dtype=np.int64)

    def __getattr__(self, name):
        return getattr(SecretStream(test_seed=7), name)


def trained(model, data, plan=PLAN, *, steps=None, **more):
    trainer = PrivateTrainer(model, torch.optim.Adam(model.parameters(), lr=0.01), plan, **more)
    for number, batch in enumerate(trainer.batches(data), 1):
        trainer.step(batch, own_loss)
        if number == steps:
            break
    return trainer


def test_training_there_is_training_here(elsewhere):
    model, *data = made("linear")
    plan = replace(PLAN, adaptive=AdaptiveClipping(quantile=0.5, rate=0.2, count_noise=2.0), average_decay=0.9)
    there = copy.deepcopy(model).to(elsewhere)
    here = trained(model, tuple(data), plan, sampler=Tape())
    trainer = trained(there, tuple(data), plan, sampler=Tape())
    assert trainer.eta == here.eta
    for ours, theirs in zip(there.parameters(), model.parameters(), strict=True):
        assert ours.device == elsewhere
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.keeps_out("Dropout on an accelerator from a public seed")
def test_dropout_there_is_keyed_from_the_secret_stream(elsewhere):
    """A public seed of the device's generator must not decide the masks."""
    seen = []
    for _ in range(2):
        GENERATOR.manual_seed(1)
        model, *data = made("dropout")
        seen.append(
            trained(model.to(elsewhere), tuple(data), replace(PLAN, steps=1)).private_log.steps[0].mean_loss
        )
    assert seen[0] != seen[1]


@pytest.mark.keeps_out(
    "A model, loss or views that seed torch's generator, so that others draw what everybody knows, "
    "by their place"
)
def test_a_generator_there_that_a_row_seeds_is_keyed_anew(elsewhere):
    with FreshGenerators(device=elsewhere) as generators:
        GENERATOR.manual_seed(5)
        known = GENERATOR.get_state()
        generators.refresh()
        assert not torch.equal(GENERATOR.get_state(), known)


def test_a_checkpoint_of_one_device_goes_on_on_another(elsewhere, tmp_path):
    model, *data = made("linear")
    plan = replace(PLAN, average_decay=0.9)
    there = copy.deepcopy(model).to(elsewhere)
    first = trained(there, tuple(data), plan, steps=1)
    save_checkpoint(first, tmp_path / "c")
    again = PrivateTrainer(model, torch.optim.Adam(model.parameters(), lr=0.01), plan)
    resume(again, tmp_path / "c")
    save_checkpoint(again, tmp_path / "d")
    last = PrivateTrainer(there, torch.optim.Adam(there.parameters(), lr=0.01), plan)
    resume(last, tmp_path / "d")
    assert all(value.device == elsewhere for value in last.average.values.values())
    for batch in last.batches(tuple(data)):
        last.step(batch, own_loss)
    assert last.steps_done == 2


def test_a_model_on_two_devices_is_refused_with_both_names(elsewhere):
    model, *_ = made("linear")
    model[2].to(elsewhere)
    with pytest.raises(UnsupportedModel, match=r"0.weight on cpu and 2.weight on elsewhere:0; call model.to"):
        PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN)


# Sabotage: what a forgotten move looks like


def test_rows_that_are_not_moved_are_noticed(elsewhere, monkeypatch):
    monkeypatch.setattr("sfumato.training.engine.moved", lambda data, device: data)
    model, *data = made("linear")
    with pytest.raises((Mixed, UnsupportedModel)):
        clipped_gradient_sum(model.to(elsewhere), own_loss, *data, 0.1)


def test_gradients_that_are_not_moved_are_noticed(elsewhere, monkeypatch):
    monkeypatch.setattr(
        PrivateTrainer, "_move", lambda self, gradients: self.parameters["0.weight"].add(gradients["0.weight"])
    )
    model, *data = made("linear")
    with pytest.raises(Mixed):
        trained(model.to(elsewhere), tuple(data))
