"""One row moves each exact sum by at most what is declared, whatever the others are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.learn.table.additive import GROUPS, Additive, Rows, additive, fit_additive, fit_pairs, noisy_counts
from sfumato.learn.table.encoding import Encoder
from sfumato.learn.table.plan import TablePlan
from sfumato.learn.table.sums import ONE, SUM_BITS, Design, clipped, release, residuals
from sfumato.policy import Column
from sfumato.randomness import SecretStream, public_generator

ENCODERS = (
    Encoder(column=Column(name="a", type="integer", lower=0, upper=6)),
    Encoder(column=Column(name="b", type="text", categories=("x", "y"))),
    Encoder(column=Column(name="c", type="real", lower=0, upper=1)),
)


def made(rows: int, seed: int, classes: int | None) -> tuple[Rows, Design, Additive]:
    draw = public_generator(seed)
    cells = np.stack([draw.integers(0, one.cells, rows) for one in ENCODERS], axis=1)
    target = draw.uniform(-1, 1, rows) if classes is None else draw.integers(0, classes, rows).astype(float)
    counts = [draw.normal(rows / one.cells, 5, one.cells) for one in ENCODERS]
    design = Design.of(ENCODERS, counts, size=rows)
    learned = draw.normal(0, 2, (1 if classes in (None, 2) else classes, design.dimension))
    return Rows(cells=cells, target=target), design, additive(design, learned)


def contributions(rows: Rows, design: Design, model: Additive, classes: int | None, clip: float):
    placed = design.place(rows.cells)
    found = residuals(model.placed_scores(placed), rows.target, classes=classes)
    return placed, clipped(found, clip / design.norms(placed))


@pytest.mark.keeps_out(
    "A sum over a table that one row moves by more than is declared, or that rounds one row by who "
    "else is there"
)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(2, 40),
    classes=st.sampled_from([None, 2, 3, 5]),
    clip=st.floats(0.01, 50),
)
def test_a_row_moves_the_sum_of_gradients_by_at_most_the_clip_norm(seed, rows, classes, clip):
    found, design, model = made(rows, seed, classes)
    placed, weights = contributions(found, design, model, classes, clip)
    with_it = design.sums(placed, weights)
    fewer = Rows(cells=found.cells[1:], target=found.target[1:])
    without = design.sums(*contributions(fewer, design, model, classes, clip))
    moved = np.linalg.norm((with_it - without).astype(float)) * 2.0**-SUM_BITS
    assert moved <= clip


def test_without_clipping_a_row_moves_it_by_more():
    """The bound above is not met by chance: the same rows break it when nothing is clipped."""
    found, design, model = made(40, 1, 2)
    placed = design.place(found.cells)
    weights = residuals(model.placed_scores(placed), found.target, classes=2)
    norms = [
        np.linalg.norm(design.sums(placed[i : i + 1], weights[i : i + 1]).astype(float)) * 2.0**-SUM_BITS
        for i in range(40)
    ]
    assert max(norms) > 1.0


@pytest.mark.keeps_out(
    "A sum over a table that one row moves by more than is declared, or that rounds one row by who "
    "else is there"
)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), classes=st.sampled_from([None, 2, 4]))
def test_a_row_has_the_same_bits_wherever_it_stands(seed, classes):
    found, design, model = made(37, seed, classes)
    _, weights = contributions(found, design, model, classes, 1.0)
    order = public_generator(seed + 1).permutation(37)[:29]
    part = Rows(cells=found.cells[order], target=found.target[order])
    assert np.array_equal(contributions(part, design, model, classes, 1.0)[1], weights[order])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), classes=st.sampled_from([2, 6]), bound=st.floats(0.01, 3))
def test_clipping_never_lets_more_through(seed, classes, bound):
    found = public_generator(seed).integers(-ONE, ONE + 1, (50, 1 if classes == 2 else classes))
    assert (np.linalg.norm(clipped(found, bound).astype(float), axis=1) <= bound * ONE).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), classes=st.sampled_from([2, 3]))
def test_features_have_the_norms_that_clipping_counts_on(seed, classes):
    """Against the obvious way: the features of one row, one by one."""
    found, design, _ = made(12, seed, classes)
    placed = design.place(found.cells)
    one_each = np.full((1, 1), ONE, dtype=np.int64)
    slow = [
        np.linalg.norm(design.sums(placed[i : i + 1], one_each).astype(float)) * 2.0**-SUM_BITS
        for i in range(12)
    ]
    assert design.norms(placed) == pytest.approx(slow, rel=1e-12)


class Tape(SecretStream):
    """Noise that is always the same, so that only the sums differ."""

    def __init__(self) -> None:
        super().__init__(test_seed=1)
        self.scales: list[float] = []

    def rounded_normal(self, scale: float, size: int):
        self.scales.append(scale)
        return np.arange(1, size + 1, dtype=np.int64)


def test_counts_move_by_one_in_each_column():
    found, _, _ = made(30, 3, 2)
    plan = TablePlan.calibrated(epsilon=1, delta=1e-6, public_size=30, columns=3)
    fewer = Rows(cells=found.cells[1:], target=found.target[1:])
    both = [np.concatenate(noisy_counts(rows, ENCODERS, plan, Tape())) for rows in (found, fewer)]
    moved = both[0] - both[1]
    assert sorted(moved[moved != 0].tolist()) == [1.0, 1.0, 1.0]


def test_the_noise_of_every_release_is_that_of_its_bound_and_of_several_rows():
    found, design, model = made(30, 3, 2)
    plan = TablePlan.calibrated(
        epsilon=1, delta=1e-6, public_size=30, columns=3, model="boosted", visits=6, rows_per_unit=4
    )
    tape = Tape()
    quiet = {"classes": 2, "sampler": tape, "watch": lambda done: None}
    noisy_counts(found, ENCODERS, plan, tape)
    fit_additive(found, design, plan, **quiet)
    fit_pairs(found, model, ENCODERS, plan, **quiet)
    wanted = [(math.sqrt(3), plan.counts_noise, sum(one.cells for one in ENCODERS))]
    wanted += [(plan.clip_norm, plan.step_noise, design.dimension)] * plan.steps
    wanted += [(plan.residual_bound, plan.pair_noise, GROUPS**2)] * plan.visits
    assert len(tape.scales) == len(wanted)
    for scale, (bound, multiplier, dimension) in zip(tape.scales, wanted, strict=True):
        grid = 2.0 ** math.floor(math.log2(4 * bound * 2.0**-10 / math.sqrt(dimension)))
        assert scale * grid >= 4 * bound * multiplier
        assert scale * grid <= 4 * bound * multiplier * 1.001


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (0.7, False)])
def test_the_noise_is_as_strong_as_it_says(factor, passes):
    """The sum of n squares of standard normals strays from n by more than 6√(2n) about once in 10⁸ runs."""

    class Weak(SecretStream):
        def rounded_normal(self, scale: float, size: int):
            return super().rounded_normal(scale * factor, size)

    size = 4096
    noisy = release(
        np.zeros(size, dtype=np.int64), bits=16, bound=2.0, rows=3, noise_multiplier=5.0, sampler=Weak()
    )
    squares = float(((noisy / (2.0 * 3 * 5.0)) ** 2).sum())
    assert (abs(squares - size) < 6 * math.sqrt(2 * size) + 0.003 * size) == passes
