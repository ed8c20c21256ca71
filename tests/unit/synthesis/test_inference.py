"""Fits: what is measured comes out, whatever the graph, and from wherever the search starts."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sfumato.errors import MissingExtra
from sfumato.randomness import public_generator
from sfumato.synthesis import inference
from sfumato.synthesis.inference import Measurement, expanded, fit, independent, load_mbi
from sfumato.synthesis.model import marginal, steps_of

SIZES = dict.fromkeys("abcd", 3)
TOTAL = 10_000.0


def measured(joint: np.ndarray, *cliques: str) -> list[Measurement]:
    tables = [
        joint.sum(axis=tuple("abcd".index(name) for name in "abcd" if name not in clique)) for clique in cliques
    ]
    return [
        Measurement(tuple(clique), table * TOTAL, 10.0) for clique, table in zip(cliques, tables, strict=True)
    ]


def test_a_fit_goes_on_where_the_last_one_ended():
    """A cycle is triangulated by one chord, and measured by the other afterwards: cliques of the first fit are
    then no part of the second one's."""
    pytest.importorskip("mbi")
    joint = public_generator(3).dirichlet(np.ones(81)).reshape(3, 3, 3, 3)
    first = measured(joint, "a", "b", "c", "d", "ab", "bc", "cd", "ad")
    start = independent(SIZES, {name: np.full(3, 1 / 3) for name in SIZES})
    once = fit(first, total=TOTAL, start=start, blocks=4)
    chords = [clique for clique in (("a", "c"), ("b", "d")) if not _inside(clique, once.tables)]
    twice = fit(
        [*first, *measured(joint, *("".join(clique) for clique in chords))], total=TOTAL, start=once, blocks=4
    )
    steps = steps_of(twice.tables)
    for clique in ("ab", "bc", "cd", "ad", *("".join(chord) for chord in chords)):
        [wanted] = measured(joint, clique)
        np.testing.assert_allclose(marginal(steps, tuple(clique)), wanted.counts / TOTAL, atol=0.01)


def test_a_fit_finds_what_mbi_itself_finds():
    """Of noisy pairs that contradict each other: the best fit is one, whoever looks for it."""
    mbi = pytest.importorskip("mbi")
    draw = public_generator(5)
    exact = measured(draw.dirichlet(np.ones(81)).reshape(3, 3, 3, 3), "ab", "bc", "cd")
    noisy = [Measurement(one.clique, one.counts + 100 * draw.standard_normal((3, 3)), 100.0) for one in exact]
    start = independent(SIZES, {name: np.full(3, 1 / 3) for name in SIZES})
    ours = steps_of(fit(noisy, total=TOTAL, start=start, blocks=8).tables)
    theirs = mbi.estimation.MirrorDescent().estimate(
        mbi.Domain.fromdict(SIZES),
        [mbi.LinearMeasurement(one.counts.reshape(-1), one.clique, one.sigma) for one in noisy],
        TOTAL,
        iters=800,
    )
    for one in noisy:
        wanted = np.asarray(theirs.project(one.clique).values) / TOTAL
        np.testing.assert_allclose(marginal(ours, one.clique), wanted, atol=2e-3)


def test_a_compiler_that_does_not_know_an_option_is_used_without(monkeypatch):
    pytest.importorskip("mbi")
    monkeypatch.setattr(inference, "_QUICKLY", {"xla_cpu_no_such_option": "1"})
    inference._options.cache_clear()
    assert inference._options(True) is None
    inference._options.cache_clear()


def _inside(clique, tables):
    return any(set(clique) <= set(other) for other in tables)


def test_without_mbi_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mbi", None)
    with pytest.raises(MissingExtra, match=r"sfumato\[synthesis\]"):
        load_mbi()


def test_expanded_potentials_describe_the_same_distribution():
    old = {("a", "b"): np.arange(9.0).reshape(3, 3), ("c",): np.arange(3.0)}
    new = expanded(old, [("a", "b", "c")], SIZES)
    assert new["a", "b", "c"][1, 2, 1] == old["a", "b"][1, 2] + old["c",][1]
