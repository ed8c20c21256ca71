"""Random modules, their rows and losses, and what the training compiler must keep for each of them.

`module(seed)` returns a case: a program of 3 to 10 steps (layers, residuals, sharing, indexing, reductions over
any dimension, attention, recurrences, control flow on shapes) over one to three inputs, and a loss.
`outcome(case)` compares the compiler with a loop over rows. `bench/random_modules.py` runs thousands.
"""

from __future__ import annotations

import math
import random
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from sfumato.errors import UnsupportedModel
from sfumato.training import Flat
from sfumato.training.checks import _Constant, constant_draws
from sfumato.training.engine import Engine

ROWS, TOKENS = 5, 7
_MOST_VALUES = 600  # of one row, in one value
Pair = namedtuple("Pair", "first second")


@dataclass
class Triple:
    first: Tensor
    second: Tensor


class Program(nn.Module):
    """Steps over a growing list of values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.own = nn.ModuleList(), nn.ParameterList()
        self.steps: list[tuple[str, tuple[int, ...], Callable[..., Any]]] = []
        self.ending: Callable[..., Any] = lambda values: values[-1]

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        values = [*inputs, *named.values()]
        for _, places, run in self.steps:
            values.append(run(*[values[place] for place in places]))
        return self.ending(values)


@dataclass
class Case:
    seed: int
    model: Program
    inputs: Any
    targets: Any
    loss: Callable[[Any, Any], Tensor]
    says: list[str] = field(default_factory=list)

    def single(self) -> Case:
        """The same in float32."""
        inputs, targets = pytree.tree_map_only(
            Tensor, lambda leaf: leaf.float() if leaf.is_floating_point() else leaf, (self.inputs, self.targets)
        )
        return Case(self.seed, self.model.float(), inputs, targets, self.loss, self.says)


class Builder:
    """Chooses steps; every choice comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.r, self.program = random.Random(seed), Program()

    def layer(self, module: nn.Module) -> Callable[..., Any]:
        layers = self.program.layers
        place = len(layers)
        layers.append(module.double())
        return lambda *args, **more: layers[place](*args, **more)

    def own(self, *shape: int) -> Callable[[], Tensor]:
        own = self.program.own
        place = len(own)
        own.append(
            nn.Parameter(torch.randn(shape, dtype=torch.float64) / math.sqrt(max(1, shape[-1] if shape else 1)))
        )
        return lambda: own[place]

    def dim(self, x: Tensor) -> int:
        """A dimension that is not the rows', counted from either side."""
        dim = self.r.randrange(1, x.dim())
        return dim if self.r.random() < 0.5 else dim - x.dim()

    def width(self) -> int:
        return self.r.randint(1, 6)


_PLAIN = (
    "relu elu selu celu gelu silu mish softplus softsign tanh tanhshrink hardtanh hardsigmoid "
    "hardswish hardshrink softshrink leaky_relu logsigmoid sigmoid relu6"
)

_ELEMENTWISE = "sin cos atan erf expm1 asinh square sinc sign abs floor round frac neg trunc ceil i0 sinh cosh"
STEPS: dict[str, tuple[Callable[[Builder, Tensor], Any], int, int]] = {}


def step(least: int = 1, most: int = 4) -> Callable[..., Any]:
    """Registers a step for values of so many dimensions beside the rows."""

    def note(make: Callable[[Builder, Tensor], Any]) -> Callable[[Builder, Tensor], Any]:
        STEPS[make.__name__] = make, least, most
        return make

    return note


def untied(x: Tensor) -> Tensor:
    """Without equal values, whose order no function fixes."""
    return x + torch.arange(x[0].numel(), dtype=x.dtype).view(x.shape[1:]).mul(0.01).cos()


# Layers


@step()
def linear(b, x):
    return b.layer(nn.Linear(x.shape[-1], b.width(), bias=b.r.random() < 0.7))


@step()
def normed_linear(b, x):
    made = nn.Linear(x.shape[-1], max(2, b.width()))
    if b.r.random() < 0.2:
        made = parametrizations.spectral_norm(made).eval()
    elif b.r.random() < 0.5:
        made = parametrizations.weight_norm(made, dim=b.r.choice([0, 1]))
    else:
        made = parametrizations.orthogonal(made)
    return b.layer(made)


@step()
def two_layers(b, x):
    w = x.shape[-1]
    parts = [
        nn.Linear(w, 3),
        b.r.choice([nn.Tanh, nn.GELU, nn.ReLU, nn.SiLU])(),
        nn.Dropout(0.3),
        nn.Linear(3, w),
    ]
    return b.layer(nn.Sequential(*parts))


@step()
def matrix(b, x):
    p = b.own(x.shape[-1], b.width())
    return lambda x: x @ p()


@step(2, 3)
def left_matrix(b, x):
    p = b.own(b.width(), x.shape[-2])
    return lambda x: p() @ x


@step()
def affine(b, x):
    scale, shift = b.own(*x.shape[b.r.randrange(1, x.dim()) :]), b.own(*x.shape[x.dim() - 1 :])
    return lambda x: x * scale() + shift()


@step(0, 4)
def number(b, x):
    p = b.own()
    return lambda x: x * p() + p()


@step(1, 2)
def bilinear(b, x):
    made = b.layer(nn.Bilinear(x.shape[-1], x.shape[-1], b.width()))
    return lambda x: made(x, x.tanh())


@step(2, 4)
def convolution(b, x):
    space = x.dim() - 2
    kernel = [b.r.randint(1, min(3, size)) for size in x.shape[2:]]
    groups = b.r.choice([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0])
    modes = ["zeros", "circular", "replicate", *(["reflect"] if space < 3 else [])]
    pads = [b.r.randint(0, k // 2) for k in kernel]
    kind = [nn.Conv1d, nn.Conv2d, nn.Conv3d][space - 1]
    return b.layer(
        kind(
            x.shape[1], groups * b.r.randint(1, 3), kernel, groups=groups,
            stride=b.r.randint(1, 2), padding=pads,
            dilation=1 if max(kernel) > 2 else b.r.randint(1, 2), bias=b.r.random() < 0.7,
            padding_mode=b.r.choice(modes) if b.r.random() < 0.4 else "zeros",
        )
    )  # fmt: skip


@step(2, 4)
def transposed(b, x):
    kind = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d][x.dim() - 3]
    stride = b.r.randint(1, 2)
    groups = b.r.choice([g for g in (1, 2) if x.shape[1] % g == 0])
    more = {"padding": b.r.randint(0, 1), "output_padding": b.r.randint(0, stride - 1), "groups": groups}
    return b.layer(kind(x.shape[1], groups * b.r.randint(1, 2), b.r.randint(2, 3), stride=stride, **more))


@step(2, 2)
def own_kernel(b, x):
    """A convolution whose kernel depends on the row."""
    k = min(3, x.shape[2])
    made = b.layer(nn.Linear(x.shape[2], k))

    def run(x):
        rows, channels, length = x.shape
        kernel = made(x).reshape(rows * channels, 1, k)
        return F.conv1d(x.reshape(1, rows * channels, length), kernel, groups=rows * channels).reshape(
            rows, channels, -1
        )

    return run


@step()
def norm(b, x):
    shape = list(x.shape[b.r.randrange(1, x.dim()) :])
    if b.r.random() < 0.3:
        return b.layer(nn.RMSNorm(shape, eps=1e-2))
    return b.layer(nn.LayerNorm(shape, eps=1e-2, elementwise_affine=b.r.random() < 0.7))


@step(2, 4)
def channel_norm(b, x):
    channels = x.shape[1]
    kind = b.r.randrange(3)
    if kind == 0:
        return b.layer(
            nn.GroupNorm(
                b.r.choice([g for g in range(1, channels + 1) if channels % g == 0]), channels, eps=1e-2
            )
        )
    if kind == 1:
        made = [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d][x.dim() - 3]
        return b.layer(made(channels, affine=b.r.random() < 0.5, eps=1e-2))
    made = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d][x.dim() - 3](channels)
    made.running_mean.normal_()
    return b.layer(made.eval())


@step(0, 4)
def activation(b, x):
    return getattr(F, b.r.choice(_PLAIN.split()))


@step()
def learned_activation(b, x):
    if x.dim() > 2 and b.r.random() < 0.5:
        return b.layer(nn.PReLU(x.shape[1]))
    return b.layer(nn.PReLU())


@step()
def gated(b, x):
    made = b.layer(nn.Linear(x.shape[-1], 2 * b.width()))
    return lambda x: F.glu(made(x), -1)


@step(0, 4)
def elementwise(b, x):
    if b.r.random() < 0.5:
        return getattr(torch, b.r.choice(_ELEMENTWISE.split()))
    positive = b.r.choice(["sqrt", "rsqrt", "log", "log1p", "reciprocal", "lgamma", "digamma", "log2", "log10"])
    return lambda x: getattr(torch, positive)(x.abs() + 0.3)


@step(0, 4)
def arithmetic(b, x):
    number = b.r.choice([2, 3, -1, 0.5, 1.5])
    ways = [
        lambda x: x + number,
        lambda x: number - x,
        lambda x: x / number,
        lambda x: number / (x.square() + 1),
        lambda x: x.abs().add(0.1) ** number,
        lambda x: x.clamp(-1, 1.5),
        lambda x: x.clamp(min=x.new_tensor(-0.5)),
        lambda x: x % 2.5,
        lambda x: x // 0.7 + x,
        lambda x: torch.fmod(x, 1.3),
        lambda x: abs(number) ** x.tanh(),
        lambda x: torch.where(x > 0.1, x, x * 0.3),
        lambda x: x.masked_fill(x > 1, 0.25),
        lambda x: x * (x > 0),
        lambda x: torch.lerp(x, x.sin(), 0.3),
        lambda x: torch.addcmul(x, x, x.cos(), value=0.5),
        lambda x: torch.addcdiv(x, x, x.square() + 1),
        lambda x: torch.nan_to_num(x),
        lambda x: torch.heaviside(x.detach(), x.new_ones(())) + x,
        lambda x: x.to(torch.float64).exp().clamp(max=9).to(x.dtype),
        lambda x: x.int().to(x.dtype) + x,
        lambda x: torch.hypot(x, x.cos()),
        lambda x: torch.atan2(x, x.abs() + 1),
        lambda x: torch.logaddexp(x, -x),
        lambda x: torch.copysign(x, x.sin()),
        lambda x: torch.xlogy(x, x.abs() + 1),
        lambda x: torch.special.entr(x.sigmoid()),
        lambda x: torch.logit(x.sigmoid(), eps=1e-3),
        lambda x: torch.maximum(x, -x) + torch.fmin(x, x * 2),
        lambda x: F.threshold(x, 0.1, 0.2),
        lambda x: F.normalize(x, dim=-1, eps=0.1) if x.dim() > 1 else x,
    ]
    return b.r.choice(ways)


# Shapes


@step()
def reduction(b, x):
    dim, keep = b.dim(x), b.r.random() < 0.3
    if x.dim() > 2 and b.r.random() < 0.25:
        dim = tuple(b.r.sample(range(1, x.dim()), 2))
    several = [
        lambda x: x.sum(dim, keepdim=keep),
        lambda x: x.mean(dim, keepdim=keep),
        lambda x: untied(x).amax(dim, keepdim=keep),
        lambda x: untied(x).amin(dim, keepdim=keep),
        lambda x: x.logsumexp(dim, keepdim=keep),
        lambda x: (x + 0.1).norm(dim=dim, keepdim=keep),
        lambda x: untied(x).var(dim, correction=0, keepdim=keep),
        lambda x: (untied(x).var(dim, correction=0, keepdim=keep) + 0.1).sqrt(),
        lambda x: torch.linalg.vector_norm(x + 0.1, 3, dim=dim, keepdim=keep),
    ]
    one = [
        lambda x: x.prod(dim, keepdim=keep),
        lambda x: untied(x).max(dim, keepdim=keep).values,
        lambda x: untied(x).min(dim, keepdim=keep)[0],
        lambda x: untied(x).median(dim, keepdim=keep).values,
        lambda x: untied(x).kthvalue(1, dim, keepdim=keep).values,
        lambda x: untied(x).argmax(dim, keepdim=keep).to(x.dtype) + x.mean(dim, keepdim=keep),
        lambda x: (x > 0).any(dim, keepdim=keep) * x.sum(dim, keepdim=keep),
        lambda x: untied(x).topk(1, dim).values.sum(dim, keepdim=keep),
        lambda x: torch.count_nonzero(x > 0, dim).to(x.dtype) + x.mean(dim),
    ]  # fmt: skip
    return b.r.choice(several if isinstance(dim, tuple) else several + one)


@step()
def reduction_of_all(b, x):
    dims = tuple(range(1, x.dim()))
    return b.r.choice(
        [
            lambda x: x.flatten(1).mean(1),
            lambda x: x.sum(dims),
            lambda x: x.reshape(len(x), -1).logsumexp(-1),
            lambda x: x.pow(2).mean(dims, keepdim=True) + x,
            lambda x: torch.stack([row.mean() for row in x]),
        ]
    )


@step()
def along(b, x):
    dim = b.dim(x)
    return b.r.choice(
        [
            lambda x: x.softmax(dim),
            lambda x: x.log_softmax(dim),
            lambda x: x.cumsum(dim),
            lambda x: x.tanh().cumprod(dim),
            lambda x: x.logcumsumexp(dim),
            lambda x: untied(x).cummax(dim).values,
            lambda x: untied(x).sort(dim).values,
            lambda x: untied(x).sort(dim, descending=True)[0],
            lambda x: x.flip(dim),
            lambda x: x.roll(1, dim),
            lambda x: x - x.mean(dim, keepdim=True),
            lambda x: x / (x.abs().amax(dim, keepdim=True).detach() + 1),
            lambda x: F.softmin(x, dim),
            lambda x: F.gumbel_softmax(x, dim=dim) * x,
            lambda x: torch.take_along_dim(x, untied(x).argsort(dim), dim),
            lambda x: x.gather(dim, untied(x).argsort(dim)),
            lambda x: torch.zeros_like(x).scatter(dim, untied(x).argsort(dim), x),
            lambda x: torch.zeros_like(x).scatter_add_(dim, (x > 0).long() % x.shape[dim], x),
            lambda x: x.diff(dim=dim) if x.shape[dim] > 1 else x,
            lambda x: F.one_hot(untied(x).argmax(dim), x.shape[dim]).to(x.dtype) + x.mean(),
        ][:19]
    )


@step()
def moved(b, x):
    order = [0, *b.r.sample(range(1, x.dim()), x.dim() - 1)]
    one, other = b.dim(x), b.dim(x)
    return b.r.choice(
        [
            lambda x: x.permute(order),
            lambda x: x.permute(order).contiguous(),
            lambda x: x.transpose(one, other),
            lambda x: x.movedim(one, other),
            lambda x: x.flatten(1),
            lambda x: x.unsqueeze(1) if x.dim() < 5 else x,
            lambda x: x.unsqueeze(-1) if x.dim() < 5 else x,
            lambda x: x.reshape(len(x), -1, x.shape[1]),
            lambda x: x.flatten(1).unflatten(1, (x.shape[1], -1)),
            lambda x: x.swapaxes(one, other).reshape(x.shape[0], -1),
        ]
    )


@step()
def part(b, x):
    dim = b.r.randrange(1, x.dim())
    size = x.shape[dim]
    at = b.r.randrange(size)
    lead = (slice(None),) * dim
    return b.r.choice(
        [
            lambda x: x.select(dim, at),
            lambda x: x[(*lead, slice(at, None))],
            lambda x: x[(*lead, slice(None, None, 2))],
            lambda x: x[(*lead, at)],
            lambda x: x[(*lead, [at, 0, -1])],
            lambda x: x[(*lead, torch.tensor([0, at]))],
            lambda x: x.narrow(dim, 0, at + 1),
            lambda x: x.index_select(dim, torch.tensor([at, 0])),
            lambda x: x[..., -1],
            lambda x: x[:, None],
            lambda x: x.chunk(2, dim)[0],
            lambda x: torch.cat([part.sin() for part in x.split(1, dim)], dim),
            lambda x: torch.stack(x.unbind(dim), dim),
            lambda x: sum(x.unbind(dim)),
            lambda x: x.repeat_interleave(2, dim),
            lambda x: x.repeat(1, *[2] * (x.dim() - 1)),
            lambda x: x.unsqueeze(dim).expand(*x.shape[:dim], 2, *x.shape[dim:]),
            lambda x: torch.cat([x, x.flip(dim)], dim),
            lambda x: F.pad(x, (1, 2), value=0.5),
            lambda x: x.unfold(dim, min(2, size), 1),
            lambda x: torch.tile(x, (1,) * (x.dim() - 1) + (2,)),
        ]
    )


@step()
def written(b, x):
    """Writes in place, into memory of its own."""
    dim = b.r.randrange(1, x.dim())
    at = b.r.randrange(x.shape[dim])
    lead = (slice(None),) * dim

    def rows(x):
        out = torch.empty_like(x)
        for place in range(x.shape[dim]):
            out[(*lead, place)] = x[(*lead, place)] * (place + 1)
        return out

    def one(x):
        out = x.clone()
        out[(*lead, at)] = x[(*lead, 0)].tanh()
        return out

    def added(x):
        out = torch.zeros_like(x)
        out.index_add_(dim, torch.arange(x.shape[dim]) // 2, x)
        return out

    def mixed(x):
        out = x * 2
        out.mul_(x).add_(1).tanh_()
        out[(*lead, slice(0, 1))] += 1
        return out

    def put(x):
        out = x.new_zeros(len(x), x[0].numel())
        return out.index_put((torch.arange(len(x))[:, None], torch.arange(x[0].numel())), x.flatten(1)).view_as(
            x
        )

    def copied(x):
        out = x.new_empty(x.shape)
        out.copy_(x)
        out.select(dim, at).zero_()
        return out.masked_fill_(x > 1, 0.3)

    return b.r.choice([rows, one, added, mixed, put, copied])


@step(2, 2)
def triangle(b, x):
    return b.r.choice(
        [
            lambda x: x.tril(),
            lambda x: x.triu(1) + x,
            lambda x: x.diagonal(dim1=1, dim2=2),
            lambda x: torch.diag_embed(x[..., 0]),
            lambda x: x.masked_fill(torch.ones(x.shape[1:]).triu(1).bool(), -1.0),
            lambda x: torch.einsum("btw,bsw->bts", x, x),
            lambda x: x @ x.mT,
            lambda x: torch.cdist(x, x.sin() + 2),
            lambda x: torch.bmm(x.transpose(1, 2), x),
            lambda x: torch.einsum("bij,bij->b", x, x.cos()),
            lambda x: torch.baddbmm(x.mean((1, 2), keepdim=True), x, x.mT),
            lambda x: F.cosine_similarity(x, x.cos(), dim=2),
            lambda x: torch.tensordot(x, torch.ones(x.shape[2], 2, dtype=x.dtype), dims=1),
        ]
    )


@step(2, 2)
def solved(b, x):
    def matrix(x):
        return x @ x.mT / x.shape[2] + torch.eye(x.shape[1], dtype=x.dtype)

    return b.r.choice(
        [
            lambda x: torch.linalg.cholesky(matrix(x)),
            lambda x: torch.linalg.inv(matrix(x)),
            lambda x: torch.linalg.solve(matrix(x), x),
            lambda x: torch.linalg.det(matrix(x)),
            lambda x: torch.linalg.slogdet(matrix(x))[1],
            lambda x: torch.logdet(matrix(x)),
            lambda x: torch.linalg.matrix_power(matrix(x), 2),
            lambda x: torch.linalg.matrix_norm(matrix(x)),
            lambda x: torch.trace(matrix(x)[0]) + x.flatten(1).sum(1) if len(x) == 1 else _trace(matrix(x), x),
        ][:8]
    )


def _trace(made, x):
    return made.diagonal(dim1=1, dim2=2).sum(1) + x.flatten(1).sum(1)


@step(2, 4)
def pooled(b, x):
    space = x.dim() - 2
    k = tuple(min(2, size) for size in x.shape[2:])
    stride = b.r.randint(1, 2)
    name = f"{space}d"
    ways = [
        lambda x: getattr(F, "max_pool" + name)(x, k, stride),
        lambda x: getattr(F, "avg_pool" + name)(x, k, stride),
        lambda x: getattr(F, "adaptive_avg_pool" + name)(x, 2),
        lambda x: getattr(F, "adaptive_avg_pool" + name)(x, 1),
    ]
    if space < 3:
        ways.append(lambda x: getattr(F, "lp_pool" + name)(x.abs() + 0.1, 2, 2 if min(x.shape[2:]) > 1 else 1))
        ways.append(lambda x: getattr(F, "adaptive_max_pool" + name)(x, 1))
        ways.append(lambda x: F.pad(x, (1, 1) * space, mode=b_mode))
    b_mode = b.r.choice(["replicate", "circular"])
    return b.r.choice(ways)


@step(3, 3)
def resized(b, x):
    channels = x.shape[1]
    ways = [
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", align_corners=False),
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        lambda x: F.unfold(x, 1),
        lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
        lambda x: F.grid_sample(x, _grid(x), align_corners=False),
        lambda x: F.channel_shuffle(x, 2) if channels % 2 == 0 else x,
        lambda x: F.fold(F.unfold(x, 2, padding=1), x.shape[2:], 2, padding=1),
    ]
    return b.r.choice(ways)


def _grid(x):
    theta = torch.tensor([[0.8, 0.1, 0.05], [-0.1, 0.7, 0.02]], dtype=x.dtype).expand(len(x), 2, 3)
    return F.affine_grid(
        theta * (1 + 0.01 * x.mean((1, 2, 3)).tanh()[:, None, None]), [len(x), 1, 3, 3], align_corners=False
    )


# Sequences


@step(2, 2)
def recurrent(b, x):
    kind, hidden = b.r.choice([nn.LSTM, nn.GRU, nn.RNN]), b.width()
    more = {
        "bidirectional": b.r.random() < 0.3,
        "num_layers": b.r.choice([1, 1, 2]),
        "bias": b.r.random() < 0.8,
    }
    if kind is nn.LSTM and hidden > 1 and b.r.random() < 0.2:
        more["proj_size"] = 1
    first = b.r.random() < 0.7
    made = b.layer(kind(x.shape[2], hidden, batch_first=first, **more))
    if not first:
        return lambda x: made(x.transpose(0, 1))[0].transpose(0, 1)
    if b.r.random() < 0.3 and kind is not nn.LSTM:
        return lambda x: made(x)[1].transpose(0, 1)
    return lambda x: made(x)[0]


@step(2, 2)
def cells(b, x):
    """A loop over steps, whose length is a shape."""
    h = b.width()
    cell = b.layer(b.r.choice([nn.GRUCell, nn.RNNCell])(x.shape[2], h))

    def run(x):
        state, seen = x.new_zeros(len(x), h), []
        for t in range(x.shape[1]):
            state = cell(x[:, t], state)
            if t % 2 == 0:
                seen.append(state)
        return torch.stack(seen, 1)

    return run


@step(2, 2)
def scanned(b, x):
    """A linear recurrence written by hand."""
    decay = b.own(x.shape[2])

    def run(x):
        state = torch.zeros_like(x[:, 0])
        for t in reversed(range(x.size(1))):
            state = decay().sigmoid() * state + x[:, t]
        return state if x.shape[1] % 2 else torch.cat([state, x[:, 0]], 1)

    return run


@step(2, 2)
def attention(b, x):
    heads = b.r.choice([h for h in (1, 2, 3) if x.shape[2] % h == 0])
    made = b.layer(nn.MultiheadAttention(x.shape[2], heads, batch_first=True, add_bias_kv=b.r.random() < 0.2))
    if b.r.random() < 0.3:
        return lambda x: made(x, x, x, key_padding_mask=_padding(x), need_weights=False)[0]
    return lambda x: made(x, x.sin(), x)[0]


def _padding(x):
    return (torch.arange(x.shape[1]) > 0) & (x.mean(2) > 0.2)


@step(2, 3)
def plain_attention(b, x):
    q, k = b.own(x.shape[-1], 3), b.own(x.shape[-1], 3)
    causal = b.r.random() < 0.5
    if b.r.random() < 0.5:
        return lambda x: F.scaled_dot_product_attention(x @ q(), x @ k(), x, is_causal=causal)

    def run(x):
        scores = (x @ q()) @ (x @ k()).transpose(-1, -2) / math.sqrt(3)
        if causal:
            length = x.shape[-2]
            scores = scores.masked_fill(torch.full((length, length), True).triu(1), -math.inf)
        return scores.softmax(-1) @ x

    return run


@step(2, 2)
def encoder(b, x):
    if x.shape[2] % 2:
        return None
    norm_first = b.r.random() < 0.5
    activation = b.r.choice(["relu", "gelu"])
    made = nn.TransformerEncoderLayer(
        x.shape[2], 2, 4, 0.1, activation, batch_first=True, norm_first=norm_first
    )
    return b.layer(made)


@step(2, 2)
def positions(b, x):
    table = b.layer(nn.Embedding(x.shape[1], x.shape[2]))
    return lambda x: x + table(torch.arange(x.shape[1]))


@step(1, 2)
def looked_up(b, x):
    """A table at whole numbers that depend on values."""
    padding = b.r.choice([None, 1])
    table = b.layer(nn.Embedding(4, b.width(), padding_idx=padding))
    own = b.own(4, 2)
    if b.r.random() < 0.3:
        bag = b.layer(nn.EmbeddingBag(4, b.width(), mode=b.r.choice(["sum", "mean"])))
        return lambda x: bag((x.flatten(1) * 2).long().clamp(0, 3))
    return b.r.choice(
        [
            lambda x: table((x * 2).long().clamp(0, 3)).flatten(2),
            lambda x: own()[(x > 0).long()].flatten(2),
            lambda x: F.one_hot((x > 0).long(), 4).to(x.dtype) @ own() + x.mean(-1, keepdim=True).unsqueeze(-1),
        ]
    )


@step(2, 2)
def experts(b, x):
    """All experts run, and the best two count, by a mask."""
    gate = b.layer(nn.Linear(x.shape[2], 3))
    each = [b.layer(nn.Linear(x.shape[2], 2)) for _ in range(3)]

    def run(x):
        scores = gate(x).softmax(-1)
        weights = torch.zeros_like(scores).scatter(-1, untied(scores).topk(2, -1).indices, 1.0) * scores
        return sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(each))

    return run


# Python


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values**3

    @staticmethod
    def backward(ctx, gradient):
        (values,) = ctx.saved_tensors
        return 3 * values**2 * gradient


@step(0, 4)
def own_function(b, x):
    return lambda x: _Cube.apply(x.tanh())


@step()
def again(b, x):
    made = b.layer(nn.Sequential(nn.Linear(x.shape[-1], 3), nn.Dropout(0.5), nn.Tanh()))
    return lambda x: checkpoint(made, x, use_reentrant=False)


@step()
def noisy(b, x):
    rate = b.r.choice([0.1, 0.5])
    ways = [
        lambda x: F.dropout(x, rate),
        lambda x: x + 0.1 * torch.randn_like(x),
        lambda x: x * torch.rand(x.shape, dtype=x.dtype),
        lambda x: F.dropout1d(x, rate) if x.dim() == 3 else x,
        lambda x: x * torch.bernoulli(torch.full_like(x, 0.7)),
        lambda x: F.alpha_dropout(x, rate, training=True),
    ]
    return b.r.choice(ways)


@step()
def counted(b, x):
    """Control flow on shapes."""

    def run(x):
        while x.shape[-1] > 3:
            x = x[..., ::2] - x[..., 1::2].mean(-1, keepdim=True)
        if x.numel() // len(x) % 2:
            x = x * 2
        for _ in range(x.dim()):
            x = x.tanh()
        return x

    return run


@step()
def statistics(b, x):
    def run(x):
        with torch.no_grad():
            spread = x.flatten(1).abs().mean(1)
        return x / (1 + spread.view(-1, *[1] * (x.dim() - 1)))

    return run


@step()
def constant(b, x):
    held = torch.randn(x.shape[-1], dtype=torch.float64)
    return lambda x: x + held.to(x.dtype)


@step()
def every_row(b, x):
    """Code of its own for a row, mapped by the model."""
    made = b.layer(nn.Linear(x.shape[-1], 2))
    if b.r.random() < 0.5:
        return lambda x: torch.vmap(lambda row: made(row).tanh())(x)
    return lambda x: torch.stack([made(row) for row in x])


# Programs


def _inputs(b: Builder) -> list[Tensor]:
    found = []
    for _ in range(b.r.choice([1, 1, 1, 2, 3])):
        kind = b.r.choice(["vector", "steps", "steps", "image", "image", "tokens", "volume", "number"])
        shape = {
            "vector": (b.r.randint(1, 9),), "steps": (b.r.randint(1, 6), b.r.randint(1, 6)),
            "image": (b.r.randint(1, 4), b.r.randint(3, 7), b.r.randint(3, 7)), "tokens": (b.r.randint(1, 5),),
            "volume": (b.r.randint(1, 2), 3, b.r.randint(3, 4), 3), "number": (),
        }[kind]  # fmt: skip
        if kind == "tokens":
            found.append(torch.randint(0, TOKENS, (ROWS, *shape)))
        else:
            found.append(torch.randn(ROWS, *shape, dtype=torch.float64))
    return found


def _joined(b: Builder, x: Tensor, y: Tensor) -> Callable[..., Tensor] | None:
    """Two values as one."""
    if x.shape == y.shape:
        return b.r.choice(
            [torch.add, torch.mul, torch.sub, torch.maximum, lambda x, y: torch.where(x > y, x, y * 0.5)]
        )
    if x.dim() == y.dim() and x.dim() > 1 and x.shape[:-1] == y.shape[:-1]:
        return lambda x, y: torch.cat([x, y], -1)
    if y.dim() < x.dim() and y.shape[1:] == x.shape[x.dim() - y.dim() + 1 :]:
        return lambda x, y: x * y.reshape(len(y), *[1] * (x.dim() - y.dim()), *y.shape[1:])
    if x.dim() == 3 and y.dim() == 3 and x.shape[2] == y.shape[2]:
        return b.r.choice([lambda x, y: x @ y.mT, lambda x, y: F.scaled_dot_product_attention(x, y, y)])
    if y.dim() == 2 and x.dim() >= 2:
        made = b.layer(nn.Linear(y.shape[1], x.shape[-1]))
        return lambda x, y: x + made(y).view(len(x), *[1] * (x.dim() - 2), -1)
    return None


def _fits(value: Any) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and value.dim() <= 5 and len(value) == ROWS
        and 0 < value[0].numel() <= _MOST_VALUES and bool(value.isfinite().all())
        and float(value.detach().abs().max()) < 50
    )  # fmt: skip


def _steps(b: Builder, values: list[Tensor]) -> None:
    names = list(STEPS)
    wanted, tries = b.r.randint(3, 10), 0
    done: list[tuple[str, Callable[..., Any], tuple[int, ...]]] = []
    while wanted and tries < 60:
        tries += 1
        place = b.r.randrange(len(values)) if b.r.random() < 0.4 else len(values) - 1
        x = values[place]
        places: tuple[int, ...] = (place,)
        if not x.is_floating_point():
            name, run = "embedding", b.layer(nn.Embedding(TOKENS, b.width(), padding_idx=b.r.choice([None, 0])))
        elif len(values) > 1 and b.r.random() < 0.2:
            other = b.r.randrange(len(values))
            if not values[other].is_floating_point():
                continue
            name, run, places = "joined", _joined(b, x, values[other]), (place, other)
        elif done and b.r.random() < 0.15:
            alike = [(name, run) for name, run, shape in done if shape == x.shape]
            if not alike:
                continue
            name, run = b.r.choice(alike)
            name += " again"
        else:
            name = b.r.choice(names)
            make, least, most = STEPS[name]
            if not least <= x.dim() - 1 <= most:
                continue
            run = make(b, x)
        if run is None:
            continue
        try:
            with _Constant():
                made = run(*[values[each] for each in places])
        except (
            RuntimeError,
            IndexError,
            ValueError,
            TypeError,
            UnsupportedModel,
        ):  # a shape that this step cannot take
            continue
        if not _fits(made):
            continue
        if len(places) == 1 and b.r.random() < 0.3 and made.shape == x.shape:
            inner, name = run, name + " + residual"
            run = lambda x, inner=inner: x + inner(x)  # noqa: E731
            made = x + made
        b.program.steps.append((name, places, run))
        values.append(made)
        if len(places) == 1:
            done.append((name, run, x.shape))
        wanted -= 1


def _mean_each(losses: Tensor) -> Tensor:
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def _loss(b: Builder) -> tuple[int, Any, Callable[[Tensor, Any], Tensor]]:
    """The width of the outputs, targets, and one loss for each row."""
    classes = torch.randint(0, 3, (ROWS,))
    reals = torch.randn(ROWS, 3, dtype=torch.float64)
    labels = (reals > 0).to(reals.dtype)
    smoothing = b.r.choice([0.0, 0.1])

    def picked(out, t):
        return -out.log_softmax(1)[torch.arange(len(out)), t]

    kinds = [
        (3, classes, lambda out, t: F.cross_entropy(out, t, reduction="none", label_smoothing=smoothing)),
        (3, classes, lambda out, t: F.nll_loss(out.log_softmax(1), t, reduction="none")),
        (3, classes, lambda out, t: F.cross_entropy(out, t, out.new_tensor([1.0, 2, 0.5]), reduction="none")),
        (3, classes, picked),
        (3, classes, lambda out, t: -out.log_softmax(1).gather(1, t[:, None])[:, 0]),
        (3, classes, lambda out, t: 1 - out.softmax(1)[torch.arange(len(t)), t] + 0.01 * out.square().sum(1)),
        (3, reals, lambda out, t: _mean_each(F.mse_loss(out, t, reduction="none"))),
        (3, reals, lambda out, t: F.huber_loss(out, t, reduction="none").sum(1)),
        (3, reals, lambda out, t: F.smooth_l1_loss(out, t, reduction="none").mean(1)),
        (3, reals, lambda out, t: -torch.distributions.Normal(out, out.exp()).log_prob(t).mean(1)),
        (3, reals, lambda out, t: 1 - F.cosine_similarity(out, t)),
        (3, reals, lambda out, t: F.cross_entropy(out, t.softmax(1), reduction="none")),
        (3, reals, lambda out, t: F.kl_div(out.log_softmax(1), t.softmax(1), reduction="none").sum(1)),
        (3, reals, lambda out, t: F.triplet_margin_loss(out, t, t.flip(1), reduction="none")),
        (3, labels, lambda out, t: F.binary_cross_entropy_with_logits(out, t, reduction="none").mean(1)),
        (3, labels, lambda out, t: F.binary_cross_entropy(out.sigmoid(), t, reduction="none").mean(1)),
        (3, reals.abs().floor(), lambda out, t: F.poisson_nll_loss(out.tanh(), t, reduction="none").sum(1)),
        (1, reals[:, 0], lambda out, t: (out[:, 0] - t).abs()),
        (1, reals[:, 0], lambda out, t: F.soft_margin_loss(out[:, 0], t.sign(), reduction="none")),
        (3, {"class": classes, "mass": reals[:, 0]}, lambda out, t: picked(out, t["class"]) * t["mass"].abs()),
    ]  # fmt: skip
    return b.r.choice(kinds)


def module(seed: int) -> Case:
    """The module of a seed: one whose gradients are finite, and not all zero, on its rows."""
    for attempt in range(100):
        torch.manual_seed(seed * 100 + attempt)
        case = _attempt(seed, Builder(seed * 100 + attempt))
        with _Constant():
            gradients = case and loop(case)
        norms = gradients is not None and torch.stack([row.norm() for row in gradients])
        if gradients is not None and bool((norms.isfinite() & (norms > 1e-6) & (norms < 1e6)).all()):
            return case
    raise AssertionError(f"no module for seed {seed}")


def _attempt(seed: int, b: Builder) -> Case | None:
    inputs = _inputs(b)
    values = list(inputs)
    _steps(b, values)
    made = values[len(inputs) :][-2:]
    if not made or not all(value.is_floating_point() for value in made):
        return None
    width, targets, loss = _loss(b)
    heads = [b.layer(nn.Linear(value[0].numel(), width)) for value in made]
    way = b.r.choice(["plain", "plain", "sum", "dict", "pair", "class", "list"])
    count = len(made)

    def ending(values: list[Tensor]) -> Any:
        outputs = [
            head(value.reshape(len(value), -1)) for head, value in zip(heads, values[-count:], strict=True)
        ]
        first, second = outputs[-1], outputs[0]
        kinds = {"dict": lambda: {"first": first, "second": second}, "pair": lambda: Pair(first, second),
                 "class": lambda: Triple(first, second), "list": lambda: [first, second],
                 "sum": lambda: first + second.tanh(), "plain": lambda: first}  # fmt: skip
        return kinds[way]()

    def of_outputs(outputs: Any, targets: Any) -> Tensor:
        if isinstance(outputs, Tensor):
            return loss(outputs, targets)
        if isinstance(outputs, dict):
            outputs = Triple(**outputs)
        first, second = outputs if isinstance(outputs, tuple | list) else (outputs.first, outputs.second)
        return loss(first, targets) + 0.3 * loss(second, targets)

    b.program.ending = ending
    for parameter in b.program.parameters():
        parameter.requires_grad_(b.r.random() < 0.93)
    if not any(parameter.requires_grad for parameter in b.program.parameters()):
        return None
    given: Any = tuple(inputs) if len(inputs) > 1 else inputs[0]
    if b.r.random() < 0.2:
        given = {f"input{place}": value for place, value in enumerate(inputs)}
    says = [f"{name}{places}" for name, places, _ in b.program.steps]
    return Case(seed, b.program, given, targets, of_outputs, says)


# What must hold


def rows_of(case: Case, rows: Any) -> tuple[Any, Any]:
    return pytree.tree_map_only(Tensor, lambda leaf: leaf[rows], (case.inputs, case.targets))


def loop(case: Case) -> list[Tensor] | None:
    """Each row's gradient, one row at a time, by autograd; None where a row cannot be had."""
    named = [p for p in case.model.parameters() if p.requires_grad]
    found = []
    for row in range(ROWS):
        inputs, targets = rows_of(case, slice(row, row + 1))
        try:
            if isinstance(inputs, dict):
                outputs = case.model(**inputs)
            else:
                outputs = case.model(*inputs) if isinstance(inputs, tuple) else case.model(inputs)
            given = torch.autograd.grad(case.loss(outputs, targets).sum(), named, allow_unused=True)
        except (RuntimeError, ValueError):
            return None
        found.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).double().flatten()
                    for p, g in zip(named, given, strict=True)
                ]
            )
        )
    return found


def engine(case: Case) -> Engine:
    made = Engine(case.model, case.loss, rows_of(case, slice(0, 1)))
    made._draw = lambda draw, rows: constant_draws(made.row, rows)[made.row.draws.index(draw)]  # type: ignore[method-assign]
    return made


def _flat(sums: Any) -> Tensor:
    return torch.cat([value.double().flatten() for value in sums.values()])


def _clipped(gradients: list[Tensor], norm: float) -> Tensor:
    return sum(g * min(1.0, norm / max(float(g.norm()), 1e-300)) for g in gradients)


def _error(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm().clamp_min(1e-30))


class Broken(AssertionError):
    """A property that does not hold."""


def outcome(case: Case, *, precisions: Sequence[str] = ("double", "single")) -> str:
    """ "exact", or why the module is refused.

    Raises:
        Broken: If a property of an accepted module does not hold.
    """
    with _Constant():
        double = loop(case)
    try:
        if "double" in precisions:
            _exact(case, engine(case), double)
        if "single" in precisions:
            single = case.single()
            with _Constant():
                plain = loop(single)
            _neighbours(single, engine(single), double, plain)
    except UnsupportedModel as error:
        return str(error)
    return "exact"


def _exact(case: Case, made: Engine, double: list[Tensor]) -> None:
    norms = torch.stack([g.norm() for g in double])
    for bound, most in ((math.inf, 1e-9), (float(norms.median()), 2e-6)):
        ours = made.clipped(case.inputs, case.targets, Flat(norm=bound))
        if not bool(ours.finite.all()):
            raise Broken("a finite row does not count")
        error = float((_flat(ours.sums) - _clipped(double, bound)).norm()) / min(bound, float(norms.sum()))
        if error > most:
            raise Broken(f"float64: error {error:.1e} with norm {bound:.3g}")


def _neighbours(case: Case, made: Engine, double: list[Tensor], plain: list[Tensor]) -> None:
    norm = float(torch.stack([g.norm() for g in double]).median())
    clipping = Flat(norm=norm)
    eta = made.rounding_bound(units=ROWS + 1)
    whole = made.clipped(case.inputs, case.targets, clipping)
    if not bool(whole.finite.all()):
        raise Broken("a finite row does not count in float32")
    own = max((a - b).norm() / b.norm() for a, b in zip(plain, double, strict=True))
    error = float((_flat(whole.sums) - _clipped(double, norm)).norm()) / norm
    if error > 50 * float(own) + 1e-4:
        raise Broken(f"float32: error {error:.1e}, a loop's is {float(own):.1e}")
    slot = case.seed % ROWS
    others = [row for row in range(ROWS) if row != slot]

    def keeps(result: Any, rows: list[int], says: str) -> Any:
        mine = others[: len(rows)]
        for name in ("norms", "losses", "coefficients"):
            if not torch.equal(getattr(result, name)[rows], getattr(whole, name)[mine]):
                raise Broken(f"{says}: other rows have other {name}")
        return result

    def with_slot(change: Callable[[Tensor], Tensor]) -> Any:
        def put(leaf: Tensor) -> Tensor:
            out = leaf.clone()
            out[slot] = change(leaf[slot])
            return out

        inputs, targets = pytree.tree_map_only(Tensor, put, (case.inputs, case.targets))
        return made.clipped(inputs, targets, clipping)

    def moved(leaf: Tensor) -> Tensor:
        return leaf * -3 + 1 if leaf.is_floating_point() else leaf.roll(1) if leaf.dim() else leaf

    def broken(value: float) -> Callable[[Tensor], Tensor]:
        return lambda leaf: (
            torch.full_like(leaf, value) if leaf.is_floating_point() else torch.full_like(leaf, 99)
        )

    keeps(with_slot(moved), others, "slot changed")
    keeps(with_slot(lambda leaf: torch.zeros_like(leaf)), others, "slot of zeros")
    spoiled = [keeps(with_slot(broken(value)), others, f"slot of {value}") for value in (math.nan, math.inf)]
    for result in spoiled:
        added = (_flat(whole.sums) - _flat(result.sums)).norm()
        if not bool(result.finite[slot]) and float(added) > norm * (1 + eta):
            raise Broken(f"a row adds {float(added) / norm:.6f} of its bound")
        if not bool(_flat(result.sums).isfinite().all()):
            raise Broken("the sum is not finite")
    if not bool(spoiled[0].finite[slot] | spoiled[1].finite[slot]) and _different(spoiled[0], spoiled[1]):
        raise Broken("rows that do not count leave different sums")
    if slot == ROWS - 1:
        inputs, targets = rows_of(case, slice(0, slot))
        keeps(made.clipped(inputs, targets, clipping), others, "slot emptied")
        inputs, targets = rows_of(case, [*range(ROWS), 0])
        filled = made.clipped(inputs, targets, clipping)
        keeps(filled, others, "slot filled")
    order = [*range(1, ROWS), 0]
    inputs, targets = rows_of(case, order)
    turned = made.clipped(inputs, targets, clipping)
    if not torch.equal(turned.norms, whole.norms[order]):
        raise Broken("rows at other places have other norms")
    if float((_flat(turned.sums) - _flat(whole.sums)).norm()) > eta * norm:
        raise Broken("rows at other places add more than η differs")
    for row in range(ROWS):
        inputs, targets = rows_of(case, slice(row, row + 1))
        alone = float(_flat(made.clipped(inputs, targets, clipping).sums).norm())
        if alone > norm * (1 + eta):
            raise Broken(f"a row alone adds {alone / norm:.6f} of its bound")


def _different(one: Any, other: Any) -> bool:
    return any(not torch.equal(one.sums[name], other.sums[name]) for name in one.sums)
