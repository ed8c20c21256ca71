"""A glance at a model: whatever is put in another's place is seen."""

import pytest
import torch
from torch import nn

from sfumato.training.memory import Tensors, written_nowhere
from sfumato.training.structure import Structure


class Twice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))


def replace_weights(model):
    model[0].weight.data = torch.zeros(5, 3)


def rename(model):
    del model[1].p
    model[1].rate = 0.5


CHANGES = {
    "attribute": lambda model: setattr(model[1], "p", 0.25),
    "new attribute": lambda model: setattr(model[0], "note", "mine"),
    "renamed": rename,
    "hook": lambda model: model[0].register_forward_hook(lambda *_: None),
    "backward hook": lambda model: model[2].register_full_backward_hook(lambda *_: None),
    "hook on a weight": lambda model: model[0].weight.register_hook(lambda gradient: gradient),
    "later hook on a weight": lambda model: model[0].weight.register_post_accumulate_grad_hook(lambda _: None),
    "forward": lambda model: setattr(model[0], "forward", lambda x: x),
    "module": lambda model: model.__setitem__(1, nn.ReLU()),
    "module added": lambda model: model.append(nn.ReLU()),
    "parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(4, 3))),
    "buffer": lambda model: model[0].register_buffer("seen", torch.zeros(1)),
    "frozen": lambda model: model[0].weight.requires_grad_(False),
    "type": lambda model: model.double(),
    "shape": replace_weights,
    "class": lambda model: setattr(model[0], "__class__", Twice),
    "mode": lambda model: model.eval(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(change):
    model = network()
    structure = Structure(model)
    assert structure.same()
    CHANGES[change](model)
    assert not structure.same()


def test_training_and_looking_change_nothing():
    model = network()
    structure = Structure(model)
    model.eval()
    model(torch.zeros(1, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.train()
    assert structure.same()


@pytest.mark.parametrize("by_version", [False, True])
def test_a_write_in_place_is_refused_and_undone_or_wiped(by_version):
    model = network()
    before = model[0].weight.detach().clone()
    with (
        pytest.raises(Exception, match=r"wrote 0\.weight"),
        written_nowhere(Tensors(Structure(model)), by_version=by_version),
        torch.no_grad(),
    ):
        model[0].weight.add_(1.0)
    assert model[0].weight.isnan().all() if by_version else torch.equal(model[0].weight, before)


def test_what_was_written_is_wiped_whatever_else_goes_wrong():
    model = network()

    def write_and_fail():
        with written_nowhere(Tensors(Structure(model)), by_version=True), torch.no_grad():
            model[0].weight.add_(1.0)
            raise KeyError

    with pytest.raises(KeyError):
        write_and_fail()
    assert model[0].weight.isnan().all()


def test_another_class_of_a_weight_is_seen():
    model = network()
    structure = Structure(model)
    model[0].weight.__class__ = type("Own", (torch.nn.Parameter,), {})
    assert not structure.same()


def test_a_write_past_the_count_is_refused_where_code_is_the_users():
    model = network()
    tensors = Tensors(Structure(model))
    for _ in range(2):  # the room is used again
        before = model[0].weight.detach().clone()
        with pytest.raises(Exception, match=r"wrote 0\.weight"), written_nowhere(tensors):
            model[0].weight.data.add_(1.0)
        assert torch.equal(model[0].weight, before)
