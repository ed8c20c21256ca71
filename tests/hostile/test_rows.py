"""One row must not reach another: through the loss, views, randomness, shapes, errors or an interrupt.

Every test states an attack. `moved` is how far, in clipping norms, the sum moves when one row is added: the
promise is 1 and a little rounding.
"""

from __future__ import annotations

import contextlib
import gc
import traceback

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato import Budget, Ledger, PrivateTrainer, TrainingPlan
from sfumato.errors import Refused, SfumatoError, UnsupportedModel
from sfumato.randomness import SecretStream
from sfumato.training import Flat, clip_chunk, clipped_gradient_sum, cross_entropy
from sfumato.training.engine import Engine

CLIP = 0.1
ROWS = 24
PLAN = TrainingPlan(sample_rate=0.5, expected_batch=12, steps=4, noise_multiplier=1.0, clip_norm=CLIP)


def data(rows=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def moved(loss_fn, inputs, targets, model=None):
    """‖sum with the last row - sum without it‖ / C."""
    model = model or network()
    with_row = clipped_gradient_sum(model, loss_fn, inputs, targets, CLIP)
    without = clipped_gradient_sum(model, loss_fn, inputs[:-1], targets[:-1], CLIP)
    return float(torch.sqrt(sum((with_row[k] - without[k]).square().sum() for k in with_row))) / CLIP


def standardised(outputs, targets):
    return (outputs[:, 0] - (targets - targets.mean()) / (targets.std(correction=0) + 1e-6)).square()


def class_weighted(outputs, targets):
    weights = 1.0 / torch.bincount(targets, minlength=3).clamp_min(1)
    return outputs[:, 0] * weights[targets]


def divided(outputs, targets):
    return outputs[:, 0] / len(outputs)


def centred(outputs, targets):
    return F.cross_entropy(outputs - 50 * outputs.mean(0), targets, reduction="none")


# The loss


def crowd():
    """All gradients are C in one direction but the last, which is C in the other.

    A loss that divides by the number of rows, which was n - 1, would shrink them all as the last row comes.
    """
    inputs, targets = torch.ones(ROWS, 6) * CLIP / 6**0.5 * (ROWS - 1), torch.zeros(ROWS, dtype=torch.long)
    inputs[-1] *= -1
    return inputs, targets


def spread():
    inputs, _ = data()
    targets = torch.full((ROWS,), 0.01) * torch.arange(ROWS)
    targets[-1] = 1e4
    return inputs, targets


@pytest.mark.keeps_out("A check that a layer at zero, or an earlier good loss, makes blind")
@pytest.mark.keeps_out("A loss, view or target transform that looks at other rows or at the batch size")
@pytest.mark.parametrize(
    ("loss", "rows"),
    [(standardised, spread), (class_weighted, crowd), (divided, crowd), (centred, data)],
)
def test_a_loss_that_compares_or_counts_rows_is_refused_or_moves_nobody_else(loss, rows):
    model = nn.Linear(6, 3, bias=False)
    moved(cross_entropy, *crowd(), model=model)
    with contextlib.suppress(UnsupportedModel):
        assert moved(loss, *rows(), model=model) <= 1.001


@pytest.mark.keeps_out(
    "A loss, views or a model that keep something of a row, and act on it when they see another"
)
@pytest.mark.keeps_out("A loss or view that keeps something from call to call")
@pytest.mark.parametrize("keep", ["sum", "count"])
def test_a_loss_that_remembers_is_refused(keep):
    seen = {"sum": 0.0, "count": 0.0}

    def remembering(outputs, targets):
        seen["count"] += 1
        seen["sum"] = seen["sum"] + targets.float().sum() + 1
        return F.cross_entropy(outputs, targets, reduction="none") * (1 + seen[keep])

    with pytest.raises(UnsupportedModel, match=r"test_rows\.py"):
        moved(remembering, *data())


def test_a_model_that_divides_by_the_number_of_rows_is_refused():
    class Dividing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, inputs):
            return self.inner(inputs) / len(inputs)

    with pytest.raises(UnsupportedModel, match="that of the row alone"):
        moved(cross_entropy, *data(), model=Dividing())


@pytest.mark.keeps_out("A check that a layer at zero, or an earlier good loss, makes blind")
def test_a_head_that_starts_at_zero_hides_no_mixing():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

        def forward(self, inputs):
            hidden = self.first(inputs)
            return self.head(hidden - hidden.mean(0))

    with pytest.raises(UnsupportedModel, match="that of the row alone"):
        moved(cross_entropy, *data(), model=Mixing())


# Views


class Zero(SecretStream):
    """Samples everybody, and draws noise of a known size."""

    def __init__(self):
        super().__init__(test_seed=7)

    def uniform(self, size):
        return np.zeros(size)

    def rounded_normal(self, scale, size):
        return np.full(size, 5, dtype=np.int64)


def step_of(inputs, targets, *, model=None, views=None, sampler=None, steps=1):
    """The gradients of the last step, and the trainer."""
    model = model or network()
    trainer = PrivateTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-9),
        PLAN,
        sampler=Zero() if sampler is None else sampler,
    )
    for batch in trainer.batches((inputs, targets), views=views):
        trainer.step(batch, cross_entropy)
        if trainer.steps_done == steps:
            break
    return [parameter.grad.clone() for parameter in model.parameters()], trainer


@pytest.mark.keeps_out("A loss, view or target transform that looks at other rows or at the batch size")
def test_views_that_mix_rows():
    def mixup(inputs):
        shared = 0.5 * inputs + 2 * inputs.mean(0)
        return torch.stack([inputs, shared], dim=1)

    with pytest.raises(UnsupportedModel, match="that of the row alone"):
        step_of(*data(), views=mixup)


@pytest.mark.keeps_out("A loss or view that keeps something from call to call")
def test_views_with_a_generator_of_their_own_are_refused():
    generator = torch.Generator().manual_seed(0)

    def noisy(inputs):
        return (inputs + torch.randn(inputs.shape, generator=generator))[:, None]

    with pytest.raises(UnsupportedModel, match=r"a generator of your own at .*test_rows\.py"):
        step_of(*data(), views=noisy)


# Randomness


@pytest.mark.keeps_out(
    "A model, loss or views that seed torch's generator, so that others draw what everybody knows, "
    "by their place"
)
@pytest.mark.keeps_out("Dropout and augmentation from a public seed")
def test_what_is_random_in_a_step_does_not_come_from_a_public_seed():
    """Dropout of single rows, seen in their norms."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
    inputs, targets = torch.randn(1, 6).repeat(ROWS, 1), torch.zeros(ROWS, dtype=torch.long)
    engine, found = Engine(model, cross_entropy, (inputs, targets)), []
    for sampler in (SecretStream(), SecretStream(), SecretStream(test_seed=1), SecretStream(test_seed=1)):
        torch.manual_seed(0)
        found.append(engine.clipped(inputs, targets, Flat(norm=CLIP), sampler=sampler).norms)
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
    assert len(found[0].unique()) > ROWS // 2  # a draw of each row's own


# Shapes


def wide():
    """So many terms that torch adds them in another order for a few rows."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 3))


@pytest.mark.keeps_out("Matrix kernels that round by batch shape")
@pytest.mark.parametrize("clipping", [Flat(norm=CLIP), Flat(norm=100.0)])
def test_a_rows_bits_do_not_depend_on_how_many_others_there_are(clipping):
    model, inputs, targets = wide(), torch.randn(70, 300), torch.zeros(70, dtype=torch.long)
    whole = clip_chunk(model, cross_entropy, inputs, targets, clipping)
    for rows in (1, 2, 3, 5, 7, 8, 9, 31, 33, 63, 65):
        part = clip_chunk(model, cross_entropy, inputs[:rows], targets[:rows], clipping)
        assert torch.equal(part.norms, whole.norms[:rows])
        assert torch.equal(part.losses, whole.losses[:rows])


@pytest.mark.keeps_out("Matrix kernels that round by batch shape")
def test_rows_at_the_kink_of_a_relu_stay_where_they_are():
    """Biases put three rows within one rounding of zero: a fourth row must flip none of them."""
    model, inputs, targets = wide(), torch.randn(4, 300), torch.zeros(4, dtype=torch.long)
    with torch.no_grad():
        for few in (inputs[:3], inputs):
            hidden = F.linear(few, model[0].weight)
            model[0].bias.copy_(-hidden[torch.arange(64) % 3, torch.arange(64)])
            model[2].weight.copy_(torch.randn(3, 64) * 1e3)
            assert moved(cross_entropy, inputs, targets, model=model) <= 1.001


@pytest.mark.keeps_out("A shared tensor taken for rows because it is as long as the batch")
@pytest.mark.parametrize("rows", [4, 5, 8, 32])
def test_a_shared_tensor_as_long_as_the_batch_is_not_taken_for_rows(rows):
    class Shared(nn.Module):
        """Owns a parameter, so it is run by the fallback; its child sees what all rows share."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.register_buffer("table", torch.arange(rows * 6.0).reshape(rows, 6) / 10)

        def forward(self, inputs, table):
            return (inputs @ table.t()).sum(1, keepdim=True) * self.scale

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Shared()

        def forward(self, inputs):
            return self.inner(inputs, self.inner.table)

    inputs, targets = data(rows)
    model = Outer()
    got = clipped_gradient_sum(model, cross_entropy, inputs, targets, 1e9)["inner.scale"]
    cross_entropy(model(inputs), targets).sum().backward()
    torch.testing.assert_close(got, model.inner.scale.grad)


# Errors


@pytest.mark.keeps_out("A label outside the classes, or a row that raises, that stops a run or is quoted")
@pytest.mark.parametrize("label", [93, -7])
def test_a_label_outside_the_classes_adds_zero_and_is_not_quoted(label):
    inputs, targets = data()
    targets[3] = label
    others = torch.arange(ROWS) != 3
    result = clip_chunk(network(), cross_entropy, inputs, targets, Flat(norm=CLIP))
    rest = clip_chunk(network(), cross_entropy, inputs[others], targets[others], Flat(norm=CLIP))
    assert result.finite.tolist() == others.tolist()
    assert torch.equal(result.norms[others], rest.norms)
    for name, total in rest.sums.items():
        torch.testing.assert_close(result.sums[name], total)


@pytest.mark.keeps_out("A label outside the classes, or a row that raises, that stops a run or is quoted")
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_row_that_raises_in_the_data_adds_zero(error):
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return ROWS

        def __getitem__(self, row):
            if row == 5:
                raise error("cannot read the scan of Mrs Smith")
            inputs, targets = data()
            return (inputs[row], targets[row]) if row != 7 else (inputs[0, :2], 0)

    torch.manual_seed(0)
    model = network()
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN, sampler=Zero())
    for batch in trainer.batches(Rows()):
        trainer.step(batch, cross_entropy)
    assert [step.units for step in trainer.private_log.steps] == [22] * 4


def test_a_model_that_asks_about_values_is_refused_with_its_line():
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, inputs):
            if bool((inputs > 100).any()):
                raise ValueError("a patient with 100 and more")
            return self.layer(inputs)

    with pytest.raises(UnsupportedModel, match=r"a question about a value .* at .*test_rows\.py:"):
        moved(cross_entropy, *data(), model=Careful())


# Interrupts


class Interrupting(SecretStream):
    """Ctrl-C where the noise of the second step is drawn."""

    def __init__(self):
        super().__init__(test_seed=3)
        self.draws = 0

    def rounded_normal(self, scale, size):
        self.draws += 1
        if self.draws == 2:
            raise KeyboardInterrupt
        return super().rounded_normal(scale, size)


def plain_tensors():
    """Every tensor of the process that is no parameter."""
    gc.collect()
    return [found for found in gc.get_objects() if type(found) is torch.Tensor and not found.requires_grad]


@pytest.mark.keeps_out(
    "An exception past `Exception`, or a second one while the first is handled, that quotes a row or "
    "keeps a sum"
)
@pytest.mark.keeps_out("An un-noised sum left where it can be read after an interrupt")
def test_an_interrupt_before_the_noise_leaves_no_sum_behind():
    model = network()
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN, sampler=Interrupting())
    inputs, targets = data()
    earlier = plain_tensors()  # kept, so that no later tensor gets the identity of one
    released = None
    caught = None
    try:
        for batch in trainer.batches((inputs, targets)):
            trainer.step(batch, cross_entropy)
            released = [parameter.grad.clone() for parameter in model.parameters()]
    except KeyboardInterrupt as error:
        caught = error
    assert caught is not None
    assert all(parameter.grad is None for parameter in model.parameters())
    shapes = {tuple(parameter.shape) for parameter in model.parameters()}
    known = list(model.parameters())
    for found in plain_tensors():
        if tuple(found.shape) in shapes and not any(found is other for other in earlier):
            mine = any(found.data_ptr() == other.data_ptr() for other in [*known, *released])
            copied = any(torch.equal(found, weight) for weight in known)  # of weights, which are released
            assert mine or copied or not found.any(), "a sum without noise can be reached"
    with pytest.raises(Refused):
        trainer.step(batch, cross_entropy)


# Precision


@pytest.mark.keeps_out("Autocast that ruins a run, or half precision inside a model")
def test_autocast_and_bfloat16_products_are_switched_off_inside_a_step():
    plain, _ = step_of(*data())
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast, trainer = step_of(*data())
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    assert trainer.eta < 0.01
    assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))


# Spending


def train_to_the_end(trainer):
    for batch in trainer.batches(data()):
        trainer.step(batch, cross_entropy)


@pytest.mark.keeps_out("Budget spent on what could never run")
@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), nn.Linear(6, 3).bfloat16()]
)
def test_nothing_is_spent_on_a_model_that_cannot_be_trained(tmp_path, model):
    plan = TrainingPlan.calibrated(epsilon=1, delta=1e-5, public_size=100, expected_batch=10, epochs=1)
    with Ledger.open(tmp_path / "people.db", budget=Budget(epsilon=2, delta=1e-5)) as ledger:
        for _ in range(2):
            trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, ledger=ledger)
            with pytest.raises(UnsupportedModel):
                train_to_the_end(trainer)
        assert ledger.epsilon_spent == 0


# Ordinary code whose mixing random rows do not set off


class Around(nn.Module):
    """A network with something in front of it."""

    def __init__(self, before):
        super().__init__()
        self.before, self.inner = before, network()

    def forward(self, inputs):
        return self.inner(self.before(inputs))


def rescaled(inputs):
    return inputs / 255 if inputs.max() > 1 else inputs


def repaired(inputs):
    return inputs if inputs.isfinite().all() else torch.zeros_like(inputs)


def centred_when_many(inputs):
    return inputs - inputs.mean(0) if len(inputs) > 8 else inputs


def limited(inputs):
    hidden = inputs.clone().requires_grad_()
    hidden.register_hook(lambda gradient: gradient * torch.clamp(1e-3 / gradient.norm(), max=1.0))
    return hidden * 1.0


def by_length(inputs):
    return inputs[(inputs != 0).sum(1).argsort()]


@pytest.mark.keeps_out(
    "Mixing that ordinary rows do not set off: an if on a value, a mask as an index, a hook that limits a norm"
)
@pytest.mark.parametrize("last", [200.0, float("nan"), 0.0])
@pytest.mark.parametrize("before", [rescaled, repaired, centred_when_many, limited, by_length])
def test_mixing_that_random_rows_do_not_set_off(before, last):
    inputs, targets = torch.rand(ROWS, 6), data()[1]
    inputs[-1] = last
    with contextlib.suppress(UnsupportedModel):  # which comes before anything is spent
        assert moved(cross_entropy, inputs, targets, model=Around(before)) <= 1.001


@pytest.mark.keeps_out(
    "A setting, a global name, a class or a tensor that is changed between two steps and lets rows "
    "meet from then on"
)
@pytest.mark.keeps_out(
    "Mixing that ordinary rows do not set off: an if on a value, a mask as an index, a hook that limits a norm"
)
def test_what_is_switched_on_after_a_trace_is_traced_again():
    class Switched(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.mixing = network(), False

        def forward(self, inputs):
            return self.inner(inputs - inputs.mean(0) if self.mixing else inputs)

    model = Switched()
    moved(cross_entropy, *data(), model=model)
    model.mixing = True
    with pytest.raises(UnsupportedModel, match="that of the row alone"):
        moved(cross_entropy, *data(), model=model)


SHARE = 0.0


@pytest.mark.keeps_out(
    "A number that code reads from a global name or an attribute, changed between two steps, which a "
    "kept graph does not notice"
)
def test_numbers_that_change_between_steps_are_seen():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.factor = nn.Linear(6, 3), 1.0

        def forward(self, inputs):
            return self.layer(inputs) * (self.factor + SHARE)

    global SHARE
    model, rows = Scaled(), data()
    norms = [clip_chunk(model, each_loss, *rows, Flat(norm=CLIP)).norms]
    model.factor = 2.0
    norms.append(clip_chunk(model, each_loss, *rows, Flat(norm=CLIP)).norms)
    model.factor, SHARE = 1.0, 1.0
    try:
        norms.append(clip_chunk(model, each_loss, *rows, Flat(norm=CLIP)).norms)
    finally:
        SHARE = 0.0
    torch.testing.assert_close(norms[1], 2 * norms[0])
    torch.testing.assert_close(norms[2], 2 * norms[0])


def each_loss(outputs, targets):
    return outputs[:, 0]


@pytest.mark.keeps_out("Statistics of raw rows in a buffer or a frozen weight of the released model")
@pytest.mark.parametrize("kind", ["frozen weight", "buffer"])
def test_a_model_that_keeps_statistics_of_rows_is_refused(kind):
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()
            if kind == "buffer":
                self.register_buffer("top", torch.tensor(100.0))
            else:
                self.top = nn.Parameter(torch.tensor(100.0), requires_grad=False)

        def forward(self, inputs):
            with torch.no_grad():
                self.top.copy_(torch.maximum(self.top, inputs.max()))
            return self.inner(inputs)

    with pytest.raises(UnsupportedModel, match=r"a write to top at .*test_rows\.py:"):
        moved(cross_entropy, *data(), model=Keeping())


@pytest.mark.keeps_out("Raw rows left on the released model: in an attribute, a hook, a buffer, a weight")
def test_no_row_is_left_on_the_model():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.last, self.all = network(), None, []

        def forward(self, inputs):
            self.last = inputs
            self.all.append(inputs)
            return self.inner(inputs)

    model = Keeping()
    step_of(*data(), model=model, steps=2)
    assert model.last is None
    assert model.all == []


class Listening(torch.Tensor):
    """Hears of every operation."""

    heard: list[object] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.heard.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.keeps_out("Rows, or an argument of the loss, of a class that listens to every operation")
def test_rows_of_a_class_of_the_users_are_taken_as_plain_tensors():
    inputs, targets = data()
    engine = Engine(network(), cross_entropy, (inputs, targets))
    rows = inputs.as_subclass(Listening)
    Listening.heard.clear()
    found = engine.clipped(rows, targets, Flat(norm=CLIP))
    assert len(Listening.heard) <= 1  # the view as a plain tensor
    assert type(found.losses) is torch.Tensor


@pytest.mark.keeps_out("A first record whose shape decides who else counts")
def test_the_shape_of_items_is_declared_or_the_certificate_says_that_it_was_read():
    inputs, targets = data()
    items = [(x, int(y)) for x, y in zip(inputs, targets, strict=True)]
    for example, said in ((None, True), ((torch.zeros(6), 0), False)):
        model = network()
        trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN, sampler=Zero())
        for batch in trainer.batches(items, example=example):
            trainer.step(batch, cross_entropy)
        assert any("from the first record" in line for line in trainer.certificate(delta=1e-5).caveats) == said


@pytest.mark.keeps_out(
    "An exception past `Exception`, or a second one while the first is handled, that quotes a row or "
    "keeps a sum"
)
@pytest.mark.keeps_out("A first record whose shape decides who else counts")
def test_a_first_item_that_raises_is_not_quoted():
    class Broken:
        def __len__(self):
            return 5

        def __getitem__(self, row):
            raise OSError("cannot read the scan of Mrs Smith")

    model = network()
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), PLAN)
    with pytest.raises(SfumatoError) as caught:
        train_to_the_end_of(trainer, Broken())
    assert "Smith" not in "".join(traceback.format_exception(caught.value))


def train_to_the_end_of(trainer, items):
    for batch in trainer.batches(items):
        trainer.step(batch, cross_entropy)


class Strange(nn.Linear):
    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize("kind", ["closure", "extra state"])
def test_nothing_is_spent_on_a_step_or_a_checkpoint_that_cannot_be_made(tmp_path, kind):
    model = Strange(6, 3) if kind == "extra state" else nn.Linear(6, 3)
    optimizer = (torch.optim.LBFGS if kind == "closure" else torch.optim.SGD)(model.parameters(), lr=0.1)
    with Ledger.open(tmp_path / "people.db", budget=Budget(epsilon=20, delta=1e-5)) as ledger:
        trainer = PrivateTrainer(model, optimizer, PLAN, ledger=ledger)
        with pytest.raises(UnsupportedModel):
            train_to_the_end(trainer)
        assert ledger.epsilon_spent == 0
