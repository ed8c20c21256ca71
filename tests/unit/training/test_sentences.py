"""What users do wrong, and the sentence that says what to do; nothing is spent on any of it."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato.accounting import Budget
from sfumato.errors import InvalidInput, SfumatoError, UnsupportedModel
from sfumato.ledger import Ledger
from sfumato.training import PrivateTrainer, TrainingPlan, clipped_gradient_sum, cross_entropy, train
from sfumato.training.data import columns_of

INPUTS, TARGETS = torch.zeros(8, 3), torch.zeros(8, dtype=torch.int64)


def model():
    return nn.Linear(3, 2)


class CastsInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = model()

    def forward(self, rows):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(rows).float()


class Widened(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2).double()

    def forward(self, rows):
        return self.layer(rows.double())


def contrastive(outputs, targets):
    """InfoNCE: each row against all rows of the batch; of one row, there is nothing to tell it from."""
    likeness = F.normalize(outputs) @ F.normalize(outputs).T / 0.1
    return F.cross_entropy(likeness, torch.arange(len(outputs)), reduction="none")


def far_from_the_mean(outputs, targets):
    return (outputs - outputs.mean(0)).square().sum(1)


def shares_of_the_batch(outputs, targets):
    return -outputs.log_softmax(0).mean(1)


def detached(outputs, targets):
    return cross_entropy(outputs.detach(), targets)


def frozen():
    return model().requires_grad_(False)


def compiled_in_part():
    return nn.Sequential(torch.compile(model()))


def in_torchscript():
    return torch.jit.script(model())


def in_torchscript_in_part():
    return nn.Sequential(torch.jit.trace(nn.Tanh(), INPUTS), model())


def on_two_devices():
    return nn.Sequential(model(), nn.Linear(2, 2, device="meta"))


def reduced(outputs, targets):
    return F.cross_entropy(outputs, targets)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = model()

    def forward(self, numbers, others):
        return self.layer(numbers + others)


CALLED = r"items \(\(a, b\), target\) call model\(a, b\)"

WRONG = {
    "two inputs for a model of one": ({"data": ((INPUTS, INPUTS), TARGETS)}, CALLED),
    "one input for a model of two": ({"model": Wide()}, CALLED),
    "inputs of other names": (
        {"model": Wide(), "data": ({"numbers": INPUTS, "rest": INPUTS}, TARGETS)},
        CALLED,
    ),
    "float64 inputs": (
        {"data": (INPUTS.double(), TARGETS)},
        r"are torch.float64: convert them with .to\(torch.float32\)",
    ),
    "bytes": (
        {"data": (INPUTS.to(torch.uint8), TARGETS)},
        r"the inputs are torch.uint8: convert them with .to\(torch.float32\)",
    ),
    "classes as int32": (
        {"data": (INPUTS, TARGETS.int())},
        r"the targets are torch.int32: convert classes with .to\(torch.int64\)",
    ),
    "inputs alone": ({"data": INPUTS}, "got Tensor; hand inputs and targets over as two columns"),
    "a table alone": ({"data": pd.DataFrame(INPUTS.numpy())}, "got DataFrame; hand inputs and targets over"),
    "a file": ({"data": "people.csv"}, "got str; hand .* or read a file with sfumato.datasets.table_dataset"),
    "a class of models": ({"model": nn.Linear}, "got the class Linear; build one and pass it"),
    "a function": ({"model": lambda rows: rows}, "expected model to be a torch.nn.Module, got function"),
    "a model on two devices": (
        {"model": on_two_devices()},
        r"on cpu and 1.weight on meta; call model.to\('cpu'\)",
    ),
    "a loss of nothing": (
        {"loss_fn": lambda outputs, targets: None},
        r"use sfumato.training.default_loss\(model\)",
    ),
    "a loss that reduces": ({"loss_fn": reduced}, "use reduction='none'"),
    "a loss that sums": ({"loss_fn": nn.CrossEntropyLoss(reduction="sum")}, "use reduction='none'"),
    "a contrastive loss": (
        {"loss_fn": contrastive},
        "put all rows that a loss compares into one",
    ),
    "a loss about the mean": ({"loss_fn": far_from_the_mean}, "put all rows that a loss compares into one"),
    "shares of the batch": ({"loss_fn": shares_of_the_batch}, "put all rows that a loss compares into one"),
    "a loss that is detached": ({"loss_fn": detached}, r"leave out detach\(\)"),
    "several losses a row": (
        {"model": nn.Linear(3, 1), "data": (INPUTS, INPUTS[:, :1]), "loss_fn": nn.MSELoss(reduction="none")},
        r"got \(1, 1\); use losses.flatten\(1\).mean\(1\)",
    ),
    "one class": (
        {"model": nn.Linear(3, 1), "data": (INPUTS, INPUTS[:, :1])},
        "expected outputs for two classes or more, got 1; pass a loss_fn",
    ),
    "a frozen model": ({"model": frozen()}, "set requires_grad on some"),
    "texts": ({"data": (np.array(["a"] * 8), TARGETS)}, "turn them into numbers first"),
    "texts in a list": ({"data": (["a"] * 8, TARGETS)}, "turn them into numbers first"),
    "rows of several lengths": ({"data": ([[0.0, 1.0], [0.0]] * 4, TARGETS)}, "or rows of several lengths"),
    "a list of tensors": ({"data": (INPUTS, [torch.tensor(0)] * 8)}, "torch.stack for a list of tensors"),
    "a list too short": ({"data": (INPUTS, [0, 1])}, "expected inputs and targets of equal length"),
    "a list of nothing": ({"data": (INPUTS, [])}, "expected inputs and targets of equal length"),
    "dicts in a list": ({"data": (INPUTS, [{"class": 0}] * 8)}, "got a single number"),
    "a data set of texts": ({"data": [("a", 0)] * 8}, "turn texts and images into numbers"),
    "a generator": (
        {"data": (row for row in zip(INPUTS, TARGETS, strict=True))},
        "make a data set with __getitem__",
    ),
    "no size": ({"public_size": None}, "expected public_size=..., got none; declare"),
    "a size of nobody": ({"public_size": 0}, "whole number >= 1, got public_size=0"),
    "half a person": ({"public_size": 2.5}, "whole number >= 1, got public_size=2.5"),
    "a bfloat16 model": (
        {"model": model().bfloat16(), "data": (INPUTS.bfloat16(), TARGETS)},
        r"got weight of torch.bfloat16; call model.float\(\)",
    ),
    "a float16 model": ({"model": model().half(), "data": (INPUTS.half(), TARGETS)}, r"call model.float\(\)"),
    "weights of two types": (
        {"model": nn.Sequential(model(), Widened()), "data": (INPUTS, TARGETS)},
        r"got 0.weight of torch.float32 and 1.layer.weight of torch.float64; call model.float\(\)",
    ),
    "a model without values": ({"model": nn.Linear(3, 2, device="meta")}, "build the model on a real device"),
    "a compiled part": ({"model": compiled_in_part()}, "got '0', which was compiled by itself"),
    "a model in TorchScript": ({"model": in_torchscript()}, "give the model before torch.jit.script"),
    "a part in TorchScript": ({"model": in_torchscript_in_part()}, "got '0' in TorchScript"),
}


@pytest.mark.keeps_out(
    "A loss over the batch (contrastive, ranking) that is zero for each row alone: the whole ε "
    "spent, nothing learned"
)
@pytest.mark.parametrize(("wrong", "sentence"), WRONG.values(), ids=WRONG)
def test_the_sentence_names_the_remedy_and_nothing_is_spent(wrong, sentence, tmp_path):
    ledger = Ledger.open(tmp_path / "book.db", budget=Budget(epsilon=2, delta=1e-5))
    right = {"model": model(), "data": (INPUTS, TARGETS), "public_size": 8}
    given = {**right, **wrong}
    with pytest.raises(SfumatoError, match=sentence):
        train(given.pop("model"), given.pop("data"), epsilon=1, epochs=1, ledger=ledger, **given)
    assert ledger.epsilon_spent == 0


def test_a_mistake_inside_a_model_is_not_taken_for_one_of_its_inputs():
    with pytest.raises(UnsupportedModel) as told:
        train(nn.Sequential(model(), Wide()), (INPUTS, TARGETS), epsilon=1, epochs=1, public_size=8)
    assert "TypeError" in str(told.value)
    assert "target) call model" not in str(told.value)


def test_several_inputs_are_several_arguments():
    plan = TrainingPlan(sample_rate=0.5, expected_batch=4, steps=1, noise_multiplier=1.0)
    for data in (((INPUTS, INPUTS), TARGETS), [((INPUTS[0], INPUTS[0]), 0)] * 8):
        wide = Wide()
        trainer = PrivateTrainer(wide, torch.optim.SGD(wide.parameters(), lr=0.1), plan)
        for batch in trainer.batches(data):
            trainer.step(batch, cross_entropy)
        assert trainer.steps_done == 1


def test_a_batch_that_is_unpacked_says_what_to_do_with_it():
    small = model()
    plan = TrainingPlan(sample_rate=0.5, expected_batch=4, steps=1, noise_multiplier=1.0)
    trainer = PrivateTrainer(small, torch.optim.SGD(small.parameters(), lr=0.1), plan)
    with pytest.raises(InvalidInput, match=r"trainer.step\(batch, loss_fn\)"):
        for _inputs, _targets in trainer.batches((INPUTS, TARGETS)):
            pass


@pytest.mark.parametrize(
    "data",
    [
        (
            pd.DataFrame(INPUTS.numpy(), index=range(100, 108)),
            pd.Series(TARGETS.numpy(), index=range(100, 108)),
        ),
        torch.utils.data.DataLoader(list(zip(INPUTS, TARGETS, strict=True)), batch_size=None),
    ],
    ids=["tables", "a loader without batches"],
)
def test_what_has_rows_is_taken_as_it_is(data):
    assert train(model(), data, epsilon=1, epochs=1, public_size=8).epsilon <= 1


def test_a_read_only_file_is_taken_without_a_word(tmp_path):
    np.save(tmp_path / "inputs.npy", INPUTS.numpy())
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns, _ = columns_of((mapped, TARGETS))
    assert columns.data_ptr() == mapped.ctypes.data  # not read into memory


def test_weights_of_two_types_may_stay_if_one_of_them_is_frozen():
    """A unit has one coefficient, for gradients of one type."""
    own = nn.Sequential(model(), Widened())
    with pytest.raises(UnsupportedModel, match="trainable parameters of one type"):
        clipped_gradient_sum(own, each, INPUTS + 1, TARGETS, 0.1)
    own[0].requires_grad_(False)
    assert {total.dtype for total in clipped_gradient_sum(own, each, INPUTS + 1, TARGETS, 0.1).values()} == {
        torch.float64
    }


def test_batches_that_were_drawn_elsewhere_are_refused():
    own = model()
    plan = TrainingPlan(sample_rate=0.5, expected_batch=4, steps=1, noise_multiplier=1.0)
    trainer = PrivateTrainer(own, torch.optim.SGD(own.parameters(), lr=0.1), plan)
    with pytest.raises(InvalidInput, match=r"hand the data or its DataLoader to trainer\.batches"):
        trainer.step((INPUTS, TARGETS), each)
    assert trainer.steps_started == 0


def test_autocast_around_a_step_changes_nothing():
    """The sums, and so η, are those of float32 whatever was switched on outside."""
    own, generator = model(), torch.Generator().manual_seed(1)
    inputs = torch.randn(8, 3, generator=generator)
    expected = clipped_gradient_sum(own, each, inputs, TARGETS, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = clipped_gradient_sum(own, each, inputs, TARGETS, 0.1)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_compiled_model_is_trained_as_it_was_written():
    own = model()
    expected = clipped_gradient_sum(own, each, INPUTS + 1, TARGETS, 0.1)
    found = clipped_gradient_sum(torch.compile(own), each, INPUTS + 1, TARGETS, 0.1)
    assert found.keys() == expected.keys() == {"weight", "bias"}
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    before = own.weight.detach().clone()
    result = train(torch.compile(own), (INPUTS, TARGETS), epsilon=1, epochs=1, public_size=8)
    assert result.model is own
    assert not torch.equal(before, own.weight)


def each(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    "data",
    [
        (INPUTS, TARGETS.tolist()),
        (INPUTS, tuple(TARGETS.tolist())),
        (INPUTS.tolist(), TARGETS),
        {"rows": INPUTS.tolist(), "labels": [np.int64(0)] * 8},
    ],
    ids=["targets", "a tuple", "inputs", "in a dict"],
)
def test_lists_of_numbers_are_columns(data):
    inputs, targets = columns_of(data)
    inputs = inputs["rows"] if isinstance(inputs, dict) else inputs
    assert torch.equal(inputs, INPUTS)
    assert torch.equal(targets, TARGETS)


def test_several_inputs_stay_several():
    (one, other), _ = columns_of(((INPUTS, INPUTS.tolist()), TARGETS))
    assert one.shape == other.shape == INPUTS.shape
