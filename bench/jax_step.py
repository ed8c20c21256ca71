"""JAX-Privacy's training step for the PyTorch models of bench/step.py: same layers, weights, loss, batch.

The model's graph is run with JAX's operations in place of PyTorch's layers, in the layout that is quickest
for XLA on a CPU. Clipping and noise are JAX-Privacy's own, and the whole step is one compiled program.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

# read once, when JAX starts
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["NPROC"] = str(torch.get_num_threads())

import jax
import jax.numpy as jnp
import optax
from jax_privacy.clipping import clipped_grad
from jax_privacy.noise_addition import gaussian_privatizer

Weights = dict[str, jax.Array]

# Layers: each from a PyTorch layer, its weights and images (examples, height, width, channels)


def convolution(layer: nn.Conv2d, own: Weights, images: jax.Array) -> jax.Array:
    maps = jax.lax.conv_general_dilated(
        images,
        own["weight"],
        layer.stride,
        [(side, side) for side in layer.padding],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return maps + own["bias"] if "bias" in own else maps


def linear(layer: nn.Linear, own: Weights, features: jax.Array) -> jax.Array:
    return features @ own["weight"].T + own["bias"]


def group_norm(layer: nn.GroupNorm, own: Weights, images: jax.Array) -> jax.Array:
    grouped = images.reshape(*images.shape[:3], layer.num_groups, -1)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = grouped.var((1, 2, 4), keepdims=True)
    normal = (grouped - mean) * jax.lax.rsqrt(variance + layer.eps)
    return normal.reshape(images.shape) * own["weight"] + own["bias"]


def max_pool(layer: nn.MaxPool2d, own: Weights, images: jax.Array) -> jax.Array:
    """The greatest of shifted slices: on a CPU, XLA's gradient of a window's maximum takes far longer."""
    kernel, stride, padding = layer.kernel_size, layer.stride, layer.padding
    sides = (padding, padding)
    padded = jnp.pad(images, ((0, 0), sides, sides, (0, 0)), constant_values=-jnp.inf)
    height, width = ((side - kernel) // stride * stride + 1 for side in padded.shape[1:3])
    shifted = (
        padded[:, down : down + height : stride, right : right + width : stride]
        for down, right in itertools.product(range(kernel), repeat=2)
    )
    return functools.reduce(jnp.maximum, shifted)


def flatten(layer: nn.Flatten, own: Weights, images: jax.Array) -> jax.Array:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


LAYERS: dict[type[nn.Module], Callable[[Any, Weights, jax.Array], jax.Array]] = {
    nn.Conv2d: convolution,
    nn.Linear: linear,
    nn.GroupNorm: group_norm,
    nn.MaxPool2d: max_pool,
    nn.AdaptiveAvgPool2d: lambda layer, own, images: images.mean((1, 2), keepdims=True),
    nn.Flatten: flatten,
    nn.ReLU: lambda layer, own, inputs: jax.nn.relu(inputs),
    nn.Identity: lambda layer, own, inputs: inputs,
}


class InJax(fx.Interpreter):
    """Runs a traced PyTorch model on JAX's arrays, with JAX's weights."""

    def __init__(self, traced: fx.GraphModule, weights: Weights) -> None:
        super().__init__(traced)
        self.weights = weights

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> jax.Array:
        layer = self.fetch_attr(target)
        own = {name: self.weights[f"{target}.{name}"] for name, _ in layer.named_parameters()}
        return LAYERS[type(layer)](layer, own, *args)


def in_jax(tensor: Tensor) -> jax.Array:
    """Images and convolutions with channels last: (N, C, H, W) to NHWC, (O, I, H, W) to HWIO."""
    return jnp.asarray(tensor.detach().numpy())


def weights_of(model: nn.Module) -> Weights:
    return {
        name: in_jax(each.permute(2, 3, 1, 0) if each.ndim == 4 else each)
        for name, each in model.named_parameters()
    }


def private_step(
    model: nn.Module, inputs: Tensor, targets: Tensor, microbatch: int | None
) -> Callable[[], None]:
    """One step of SGD with noise multiplier 1 and clip norm 1; `microbatch` rows are clipped at a time."""
    traced = fx.symbolic_trace(model)
    weights = weights_of(model)
    images, labels = in_jax(inputs.permute(0, 2, 3, 1)), in_jax(targets)

    def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits = InJax(traced, weights).run(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    gradient = clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=(1, 2), microbatch_size=microbatch)
    noise = gaussian_privatizer(stddev=gradient.sensitivity(), prng_key=0)
    optimizer = optax.chain(noise, optax.scale(1 / len(images)), optax.sgd(1e-4))
    state = optimizer.init(weights)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(weights: Weights, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Weights, Any]:
        change, state = optimizer.update(gradient(weights, images, labels), state)
        return optax.apply_updates(weights, change), state

    def step() -> None:
        nonlocal weights, state
        weights, state = jax.block_until_ready(update(weights, state, images, labels))

    return step
