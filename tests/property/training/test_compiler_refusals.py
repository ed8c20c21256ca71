"""Code that is no graph of one row is refused in one sentence with its line, before anything is spent."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfumato.errors import UnsupportedModel
from sfumato.training.engine import Engine


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


ROW = torch.randn(1, 6), torch.zeros(1, dtype=torch.long)
LARGE = torch.randn(50, 60)


class Model(nn.Module):
    def __init__(self, code):
        super().__init__()
        self.code, self.head = code, nn.Linear(6, 3)
        self.table = nn.Embedding(5, 3, max_norm=1.0)
        self.register_buffer("state", torch.zeros(3))

    def forward(self, inputs):
        return self.code(self, self.head(inputs), inputs)


def asks(model, seen, inputs):
    return seen * 2 if seen.sum() > 0 else seen


def takes_a_number(model, seen, inputs):
    return seen * seen.max().item()


def masks(model, seen, inputs):
    return seen + seen[seen > 0].sum()


def counts(model, seen, inputs):
    return seen + len(seen.nonzero())


def leaves_torch(model, seen, inputs):
    return seen * torch.from_numpy(seen.detach().numpy())


def writes(model, seen, inputs):
    model.state += seen.detach()[0]
    return seen


def copies_in(model, seen, inputs):
    model.state.copy_(seen.detach().mean(0))
    return seen


def renorms(model, seen, inputs):
    return seen + model.table(inputs[:, :1].long().clamp(0, 4))[:, 0]


def own_generator(model, seen, inputs):
    return seen + torch.randn(1, 3, generator=torch.Generator())


def draws_classes(model, seen, inputs):
    return seen + torch.multinomial(seen.softmax(1), 1)


def permutes(model, seen, inputs):
    return seen[:, torch.randperm(3)]


def overlaps(model, seen, inputs):
    return torch.as_strided(seen, (1, 3), (0, 1))


def has_no_batching(model, seen, inputs):
    return seen * torch.special.bessel_j0(seen)


def large(model, seen, inputs):
    return seen + LARGE.sum()


REFUSED = {
    asks: "a question about a value",
    takes_a_number: "a question about a value",
    masks: "a mask as an index",
    counts: "torch.nonzero",
    leaves_torch: "numpy",
    writes: "a write to state",
    copies_in: "a write to state",
    renorms: "a write to table.weight",
    own_generator: "a generator of your own",
    draws_classes: r"torch.multinomial .* F.gumbel_softmax",
    permutes: "torch.randperm",
    overlaps: r"torch.as_strided .* as of STFT, by Tensor.unfold",
    has_no_batching: "torch.special_bessel_j0",
    large: r"one of shape \(50, 60\)",
}


@pytest.mark.parametrize("code", REFUSED)
def test_code_that_is_no_graph(code):
    with pytest.raises(UnsupportedModel, match=REFUSED[code]) as found:
        Engine(Model(code), cross_entropy, ROW)
    first = code.__code__.co_firstlineno
    assert any(f"{__file__}:{line}" in str(found.value) for line in (first + 1, first + 2))


def test_a_large_tensor_that_is_declared():
    engine = Engine(Model(large), cross_entropy, ROW, public=[LARGE])
    assert len(engine.caveats) == 1
    assert "(50, 60)" in engine.caveats[0]


def test_a_part_of_the_private_rows():
    rows = torch.randn(20, 3)
    with pytest.raises(UnsupportedModel, match="a part of the training data"):
        Engine(
            Model(lambda model, seen, inputs: seen + rows[4]), cross_entropy, ROW, data=(rows, torch.zeros(20))
        )


MIXING = {
    "squeeze": lambda model, seen, inputs: seen * (1 + seen.squeeze().sum(-1, keepdim=True).mean()),
    "softmax over rows": lambda model, seen, inputs: seen * seen.softmax(0),
    "mean over rows": lambda model, seen, inputs: seen * (1 + inputs.mean(0).sum()),
    "statistics": lambda model, seen, inputs: (
        F.batch_norm(seen[..., None].expand(-1, -1, 2), None, None, training=True)[..., 0]
        * torch.arange(3.0)  # a shift of all scores is no other loss
        + seen
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXING)
def test_code_that_mixes_rows(name):
    with pytest.raises(UnsupportedModel, match="that of the row alone") as found:
        Engine(Model(MIXING[name]), cross_entropy, ROW)
    assert f"{__file__}:{Model.forward.__code__.co_firstlineno}" in str(found.value)


@pytest.mark.keeps_out("Statistics over a batch that two made-up rows do not show")
def test_statistics_of_two_rows_could_differ_alike():
    """Two rows lie one above and one below their mean: in one of four models a softmax sees no difference."""
    for _ in range(8):
        with pytest.raises(UnsupportedModel, match="that of the row alone"):
            Engine(Model(MIXING["statistics"]), cross_entropy, ROW)


def test_a_loss_that_mixes_rows():
    def loss(outputs, targets):
        return cross_entropy(outputs, targets) / outputs.detach().abs().sum()

    with pytest.raises(UnsupportedModel, match="that of the row alone") as found:
        Engine(nn.Linear(6, 3), loss, ROW)
    assert f"{__file__}:{loss.__code__.co_firstlineno}" in str(found.value)


def test_code_that_does_something_else_each_time():
    def scaled(model, seen, inputs):
        return seen * random.random()

    with pytest.raises(UnsupportedModel, match="does the same each time"):
        Engine(Model(scaled), cross_entropy, ROW)


def test_a_loss_that_learns_nothing():
    with pytest.raises(UnsupportedModel, match="gradient of zero"):
        Engine(nn.Linear(6, 3), lambda out, _: (out * 0).sum(1), ROW)


def test_batch_norm_is_named():
    with pytest.raises(UnsupportedModel, match="BatchNorm1d at '1'"):
        Engine(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), cross_entropy, ROW)


def test_hooks_on_parameters():
    model = nn.Linear(6, 3)
    model.bias.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(UnsupportedModel, match="hook on a parameter, got one on bias"):
        Engine(model, cross_entropy, ROW)


def test_parameters_outside_of_the_model():
    outside = nn.Parameter(torch.zeros(3))
    with pytest.raises(UnsupportedModel, match=r"parameters of the model, got one of shape \(3,\)"):
        Engine(Model(lambda model, seen, inputs: seen + outside), cross_entropy, ROW)


def test_a_model_is_as_it_was_before():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.kept = nn.LSTM(6, 3, batch_first=True), []

        def forward(self, inputs):
            found = self.cells(inputs[:, None])[0][:, 0]
            self.kept.append(found)
            self.last = found
            return found

    model = Keeps()
    flat = list(model.cells._flat_weights)
    Engine(model, cross_entropy, ROW)
    assert model.kept == []
    assert not hasattr(model, "last")
    assert all(one is other for one, other in zip(flat, model.cells._flat_weights, strict=True))
    assert torch.equal(model(torch.zeros(1, 6)), model(torch.zeros(1, 6)))


@cache
def ramp(length):
    return torch.ones(length).cumsum(0)


@pytest.mark.keeps_out("Code whose cache keeps tensors of a trace, so that it fails from then on")
def test_what_code_keeps_for_later_has_values():
    model = Model(lambda model, seen, inputs: seen * ramp(3))
    Engine(model, cross_entropy, ROW)
    assert type(ramp(3)) is torch.Tensor
    counting = Model(lambda model, seen, inputs: seen + model.state.add_(1))
    with pytest.raises(UnsupportedModel, match="a write to state"):
        Engine(counting, cross_entropy, ROW)
    assert counting.state.tolist() == [0, 0, 0]


def test_generators_are_where_they_were():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
    before = torch.get_rng_state(), random.getstate()
    Engine(model, cross_entropy, ROW)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize("arguments", [(10, (1, 1)), (2, 10, (1, 1))])
def test_draws_of_whole_numbers_are_inputs(arguments: tuple[object, ...]) -> None:
    class Stepped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.layer(rows) * torch.randint(*arguments)

    example = torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)
    assert len(Engine(Stepped(), cross_entropy, example).row.draws) == 1
