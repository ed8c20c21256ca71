"""Heights of blocks: only those at which a unit's bits are the same at every place."""

import math
import random
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sfumato.randomness import SecretStream, secret_global_generators
from sfumato.training import Flat, blocks, clip_chunk, cross_entropy, engine, terms
from sfumato.training.blocks import Heights, reference_height
from sfumato.training.devices import plain_float32
from sfumato.training.engine import Engine
from sfumato.training.losses import same_settings


def kernel(*, bad=(), uneven=(), mixed=()):
    """A make-believe kernel: rounds otherwise at `bad` heights, by place at `uneven`, by company at `mixed`."""

    def bits(units):
        values = torch.tensor(units, dtype=torch.float64) * 1.5
        if len(units) in bad:
            values += 1e-9
        if len(units) in uneven:
            values += torch.arange(len(units)) * 1e-9
        if len(units) in mixed:
            values += sum(units) * 1e-9
        return [values]

    return bits


@given(units=st.integers(1, 3000), rows=st.sampled_from([1, 2, 5, 40]))
def test_blocks_hold_every_unit_with_little_padding(units, rows):
    heights = Heights().split(units, rows, kernel())
    assert sum(heights[:-1]) < units <= sum(heights)
    assert sum(heights) - units <= max(8, units // 8, reference_height(rows))
    assert len(heights) == 1 or rows > 1


@given(units=st.integers(1, 500), bad=st.sets(st.integers(1, 600).filter(lambda height: height != 32)))
def test_heights_that_round_otherwise_are_never_used(units, bad):
    heights = Heights().split(units, 1, kernel(bad=bad))
    assert not bad.intersection(heights)
    assert sum(heights[:-1]) < units <= sum(heights)


@given(units=st.integers(1, 500), rows=st.sampled_from([1, 3, 9]), most=st.sampled_from([8, 16, 64]))
def test_no_block_has_more_rows_than_fit(units, rows, most):
    heights = Heights(most).split(units, rows, kernel())
    assert sum(heights[:-1]) < units <= sum(heights)
    assert max(heights) * rows <= max(most, rows)


@pytest.mark.parametrize("units", range(1, 40))
def test_where_rows_are_dear_few_are_padded(units):
    heights = Heights(8).split(units, 1, kernel())
    assert sum(heights) - units < 4
    assert set(heights[:-1]) <= {8}


@pytest.mark.parametrize("how", ["bad", "uneven", "mixed"])
def test_small_heights_that_differ_are_never_used(how):
    assert Heights(8).split(11, 1, kernel(**{how: {4}})) == [8, 8]


def test_the_bits_to_compare_with_are_not_kept():
    heights = Heights()
    heights.split(64, 1, kernel())
    assert heights._expected is None


@pytest.mark.parametrize("most", [8, 16, 1 << 20])
def test_no_more_than_one_block_of_bits_is_held_at_a_time(most):
    """They are as large as all that a pass keeps: of large models, ten blocks of them would not fit."""
    alive, held = weakref.WeakSet(), []

    def bits(units):
        for column in range(3):
            held.append(len(alive))
            values = torch.tensor(units, dtype=torch.float64) + column
            alive.add(values)
            yield values
            del values

    Heights(most).split(100, 1, bits)
    assert len(held) >= 12
    assert max(held) <= 1


@pytest.mark.parametrize("value", [-0.0, float("nan"), float("inf")])
def test_zeros_and_nans_are_alike_and_other_bits_are_not(value):
    column = torch.tensor([[1.0, value], [1.0, value], [1.0, -value], [1.0, 2.0]])
    first, second, third, fourth = blocks.digests(column)
    assert first == second != fourth
    assert (first == third) == (value != float("inf"))
    longer = torch.tensor([[1.0, 2.0, 0.0]])
    assert fourth not in (blocks.digests(longer)[0], blocks.digests(torch.tensor([[2.0, 1.0]]))[0])


def split(model, loss, data, units, **more):
    with torch.no_grad():
        return Engine(model, loss, data, **more).split(units, 1)


def tokens_model():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Embedding(11, 24), nn.LayerNorm(24), nn.Linear(24, 20), nn.Flatten(), nn.Linear(320, 3)
    )


def in_parts(monkeypatch):
    monkeypatch.setattr(engine, "_FORMED_BYTES", 8 * 4 * 24 * 20)


@pytest.mark.parametrize("rows", [3, 8, 40])
def test_gradients_that_are_formed_part_by_part_are_those_formed_at_once(rows, monkeypatch):
    model, data = tokens_model(), (torch.randint(0, 11, (rows, 16)), torch.zeros(rows, dtype=torch.long))
    whole = Engine(model, cross_entropy, data).clipped(*data, Flat(norm=0.1))
    in_parts(monkeypatch)
    parted = Engine(tokens_model(), cross_entropy, data)
    assert len(list(parted._parts(32, 1))) == 4
    found = parted.clipped(*data, Flat(norm=0.1))
    torch.testing.assert_close(found.norms, whole.norms)
    torch.testing.assert_close(found.sums, whole.sums)
    assert torch.equal(found.losses, whole.losses)
    assert found.rounding <= parted.rounding_bound(units=rows)


def test_a_rows_bits_do_not_depend_on_its_part(monkeypatch):
    in_parts(monkeypatch)
    data = torch.randint(0, 11, (45, 16)), torch.zeros(45, dtype=torch.long)
    parted = Engine(tokens_model(), cross_entropy, data)
    here = parted.clipped(*data, Flat(norm=0.1))
    for some in (torch.arange(45).flip(0), torch.arange(20, 45), torch.arange(44, 45)):
        there = parted.clipped(*(each[some] for each in data), Flat(norm=0.1))
        assert torch.equal(here.norms[some], there.norms)


def test_a_height_at_which_a_part_rounds_otherwise_is_never_used(monkeypatch):
    in_parts(monkeypatch)
    formed = terms._formed_of_matrices

    def otherwise(inputs, gradients):
        found, norms = formed(inputs, gradients)
        return found, norms * (1 + 1e-6 * (len(inputs) < 8))

    monkeypatch.setattr(terms, "_formed_of_matrices", otherwise)
    data = torch.randint(0, 11, (45, 16)), torch.zeros(45, dtype=torch.long)
    parted = Engine(tokens_model(), cross_entropy, data)
    parted._heights = Heights(16)
    with torch.no_grad():
        assert parted.split(12, 1) == [16]  # and not 12, in parts of 8 and 4


@pytest.mark.parametrize("how", ["uneven", "mixed"])
@pytest.mark.parametrize("height", [36, 64, 300])
def test_heights_at_which_place_or_company_matters_are_never_used(how, height):
    heights = Heights().split(height, 1, kernel(**{how: {height}}))
    assert height not in heights
    assert sum(heights[:-1]) < height <= sum(heights)


def test_a_height_is_compared_with_bits_of_the_same_weights():
    heights = Heights()
    assert heights.split(64, 1, kernel(), stamp=1) == [64]
    other = kernel(bad=range(600))  # weights that give other bits, at every height alike
    assert heights.split(256, 1, other, stamp=2) == [256]


def counted(bits):
    """The same kernel, and the heights that it was asked for."""
    asked = []

    def of(units):
        asked.append(len(units))
        return bits(units)

    return of, asked


@pytest.mark.parametrize("height", [64, 96, 208])
def test_one_place_that_rounds_otherwise_is_found_wherever_it_is(height):
    for place in range(height):

        def bits(units, place=place):
            values = torch.tensor(units, dtype=torch.float64) * 1.5
            if len(units) == height:
                values[place] += 1e-9
            return [values]

        assert Heights().split(height, 1, bits) != [height]


@pytest.mark.keeps_out("Shapes of blocks that depend on how many rows earlier steps had")
@given(
    before=st.lists(st.integers(1, 700), max_size=8),
    units=st.integers(1, 700),
    bad=st.sets(st.integers(2, 24).map(lambda height: 32 * height)),
)
def test_the_blocks_of_some_units_do_not_depend_on_those_before(before, units, bad):
    heights, bits = Heights(), kernel(bad=bad)
    for size in before:
        heights.split(size, 1, bits)
    assert heights.split(units, 1, bits) == Heights().split(units, 1, bits)


@pytest.mark.keeps_out(
    "Rows at the end of a block that torch computes with other code than the rest, so that one row "
    "more moves others"
)
@given(units=st.integers(1, 3000), rows=st.integers(1, 40), most=st.sampled_from([40, 640, 5000]))
def test_whole_vectors_hold_the_rows_of_a_block(units, rows, most):
    heights = Heights(most).split(units, rows, kernel())
    reference = reference_height(rows)
    if reference * rows <= most:
        assert all(height * rows % 32 == 0 or height * 4 % reference == 0 for height in heights)


@pytest.mark.parametrize(
    ("outputs", "loss", "heights"),
    [
        (10, cross_entropy, [48]),
        (3, cross_entropy, [48]),  # softmax goes row by row
        (1, lambda out, _: out[:, 0].exp(), [64]),
    ],
)
def test_half_a_block_is_used_only_where_no_element_is_left_over(outputs, loss, heights):
    model, data = nn.Linear(4, outputs), (torch.rand(40, 4), torch.zeros(40, dtype=torch.long))
    assert split(model, loss, data, 40) == heights


@pytest.mark.parametrize(("rows", "heights"), [(5, [8]), (16, [16]), (20, [24]), (30, [32])])
def test_few_rows_have_low_blocks(rows, heights):
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 8))
    data = torch.rand(rows, 4), torch.zeros(rows, dtype=torch.long)
    assert split(model, cross_entropy, data, rows) == heights


def test_a_low_block_is_not_used_where_a_loop_runs_along_the_rows():
    """Of (4, rows, 2) in memory, as a product with a public factor leaves it, seen as (rows, 4, 2)."""

    class Along(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.randn(4, 3, 2))

        def forward(self, inputs):  # (rows, 4, 3)
            return (inputs.transpose(0, 1) @ self.factor).transpose(0, 1).tanh().flatten(1)

    data = torch.rand(16, 4, 3), torch.zeros(16, dtype=torch.long)
    assert split(Along(), cross_entropy, data, 16) == [32]


@pytest.mark.keeps_out(
    "Rows at the end of a block that torch computes with other code than the rest, so that one row "
    "more moves others"
)
@pytest.mark.parametrize(("width", "threads", "fits"), [(352, 1, True), (345, 2, False), (352, 2, True)])
def test_whole_vectors_hold_the_share_of_each_thread(width, threads, fits):
    """Of 96 rows of 345, each of two threads has 16560: 16 are left over after whole 32s."""
    model = nn.Sequential(nn.Linear(3, width), nn.Sigmoid(), nn.Linear(width, 3))
    data, before = (torch.rand(96, 3), torch.zeros(96, dtype=torch.long)), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert (split(model, cross_entropy, data, 96) == [96]) == fits
    finally:
        torch.set_num_threads(before)


def test_heights_are_tried_anew_with_another_number_of_threads():
    bits, asked = counted(kernel())
    heights, threads = Heights(), torch.get_num_threads()
    heights.split(64, 1, bits)
    try:
        torch.set_num_threads(threads + 1)
        heights.split(64, 1, bits)
    finally:
        torch.set_num_threads(threads)
    assert asked == 2 * [32, 32, 32, 64]


def test_heights_that_are_tried_together_share_a_reference():
    bits, asked = counted(kernel())
    Heights().find([256, 280, 240], bits)
    assert asked == [32, 32, 32, 256, 288, 240]


def test_the_reference_height_needs_no_other_trial():
    bits, asked = counted(kernel())
    assert Heights().split(32, 1, bits) == [32]
    assert asked == [32, 32, 32]


@given(units=st.integers(1, 300))
def test_where_places_differ_every_unit_is_alone(units):
    assert Heights().split(units, 1, kernel(uneven={32})) == [1] * units


def test_a_rows_bits_do_not_depend_on_its_place():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 3))
    inputs, targets = torch.randn(41, 300), torch.zeros(41, dtype=torch.long)
    order = torch.arange(41).flip(0)
    here = clip_chunk(model, cross_entropy, inputs, targets, Flat(norm=0.1))
    there = clip_chunk(model, cross_entropy, inputs[order], targets[order], Flat(norm=0.1))
    assert torch.equal(here.norms, there.norms[order])


def drawn():
    return torch.rand(3).tolist(), np.random.random(3).tolist(), random.random()  # noqa: NPY002


def test_global_generators_are_keyed_by_the_sampler_and_put_back():
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    expected = drawn()
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    inside = []
    for seed in (1, 1, 2):
        with secret_global_generators(SecretStream(test_seed=seed)):
            inside.append(drawn())
    assert drawn() == expected
    assert inside[0] == inside[1]
    for one, other, outside in zip(inside[0], inside[2], expected, strict=True):
        assert one != other
        assert one != outside


def test_precision_is_plain_inside_and_as_it_was_outside():
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with plain_float32():
                assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
                assert not torch.is_autocast_enabled("cpu")
            assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
            assert torch.is_autocast_enabled("cpu")
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.parametrize("rows", [1, 5, 33])
def test_units_with_several_rows_and_alone_agree(rows):
    torch.manual_seed(1)
    model = nn.Linear(20, 3)
    inputs, targets = torch.randn(3 * rows, 20), torch.zeros(3 * rows, dtype=torch.long)
    units = torch.arange(rows).repeat(3)
    whole = clip_chunk(model, cross_entropy, inputs, targets, Flat(norm=0.1), units=units)
    mine = units == 0
    alone = clip_chunk(model, cross_entropy, inputs[mine], targets[mine], Flat(norm=0.1), units=units[mine])
    assert torch.equal(alone.norms[0], whole.norms[0])


def test_a_height_fits_whatever_was_drawn_before():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    found = []
    for rows in (50, 64):
        data = torch.rand(rows, 4), torch.zeros(rows, dtype=torch.long)
        clip_chunk(model, cross_entropy, *data, Flat(norm=1.0))  # draws masks
        found.append(split(model, cross_entropy, data, rows))
    assert found == [[64], [64]]


def test_trying_heights_draws_nothing_and_views_that_draw_get_blocks():
    def views(x):
        return torch.stack([x, x + torch.rand_like(x)], dim=1)

    model, data = nn.Linear(4, 2), (torch.rand(40, 4), torch.zeros(40, dtype=torch.long))
    before = torch.get_rng_state()
    assert split(model, cross_entropy, data, 40, views=views) == [48]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.keeps_out(
    "Threads that add to one place in the order of the moment, so that a row at a kink has another "
    "gradient each time"
)
def test_sums_at_one_place_have_one_order():
    """Without the pinned mode, two threads add to a place of `index_put` in the order of the moment."""
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(0, 50, (1_000_000,), generator=generator)
    values = torch.randn(1_000_000, generator=generator)

    def added() -> bytes:
        return torch.zeros(50).index_put((places,), values, accumulate=True).numpy().tobytes()

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with plain_float32():
            assert len({added() for _ in range(5)}) == 1
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(threads)


class Powers(nn.Module):
    """A learned power of each feature's product, in which rows lie innermost in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.power = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.rand(4) + 0.5)
        self.head = nn.Linear(4, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head((torch.einsum("bpk,pk->bp", rows, self.weight).abs() + 0.1).pow(self.power))


@pytest.mark.keeps_out("A loop along the rows whose last ones are rounded by other code")
def test_loops_along_the_rows_are_whole_vectors():
    made = Engine(Powers(), lambda out, _: out.squeeze(1), (torch.randn(1, 4, 5), torch.zeros(1)))
    assert {height % 32 for rows in (33, 48, 200) for height in made.split(rows, 1)} == {0}


class Turned(nn.Module):
    """A spatial transformer: where a row is looked at depends on the row."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.head = nn.Linear(36, 6), nn.Linear(36, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        grid = nn.functional.affine_grid(
            self.where(rows.flatten(1)).view(-1, 2, 3), list(rows.shape), align_corners=False
        )
        seen = nn.functional.grid_sample(rows, grid, padding_mode="reflection", align_corners=False)
        return self.head(seen.flatten(1))


@pytest.mark.keeps_out("A row whose numbers make a kernel read memory outside of a tensor")
@pytest.mark.parametrize("number", [math.nan, math.inf, 1e30])
def test_a_row_that_looks_nowhere_does_not_count(number):
    """Torch's sampler reads memory at the place that a grid comes to: such a row ended the process."""
    rows, targets = torch.randn(8, 1, 6, 6), torch.zeros(8, dtype=torch.long)
    made = Engine(Turned(), cross_entropy, (rows[:1], targets[:1]))
    before = made.clipped(rows, targets, Flat(norm=1.0))
    rows[2] = number
    after = made.clipped(rows, targets, Flat(norm=1.0))
    assert after.finite.tolist() == [row != 2 for row in range(8)]
    others = torch.arange(8) != 2
    assert torch.equal(after.norms[others], before.norms[others])


@pytest.mark.keeps_out("A graph that is kept although a buffer has another shape")
def test_a_buffer_of_another_shape_makes_another_graph():
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("gate", torch.ones(1, 2))
    example = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)
    before = engine.settings_for(model, cross_entropy, example, None)
    model.gate = torch.ones(16, 2)
    assert not same_settings(before, engine.settings_for(model, cross_entropy, example, None))
