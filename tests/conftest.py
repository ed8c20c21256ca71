from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Nets this small gain nothing from a second thread, and lose much where tests run side by side."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _clipped_by_loop(model, loss_fn, inputs, targets, clip_norm, units=None):
    """The definition itself: one unit at a time through plain autograd, clipped in float64."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in named.items()}
    units = torch.arange(len(targets)) if units is None else units
    for unit in units.unique():
        rows = units == unit
        loss = loss_fn(model(inputs[rows]), targets[rows]).sum()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        gradients = {n: g.double() for n, g in zip(named, found, strict=True) if g is not None}
        norm = float(torch.cat([g.flatten() for g in gradients.values()]).norm())
        for name, gradient in gradients.items():
            total[name] += min(1.0, clip_norm / max(norm, 1e-300)) * gradient
    return total


def _distance(ours, oracle):
    """Relative error over all parameters together."""
    assert set(ours) == set(oracle)
    assert all(ours[name].shape == oracle[name].shape for name in oracle)
    error = torch.stack([(ours[name].double() - oracle[name]).norm() for name in oracle]).norm()
    return float(error / torch.stack([value.norm() for value in oracle.values()]).norm().clamp_min(1e-30))


@pytest.fixture(scope="session")
def clipped_by_loop():
    return _clipped_by_loop


@pytest.fixture(scope="session")
def distance():
    return _distance
