"""Which marginals a run may choose from, and that many columns stay possible."""

from __future__ import annotations

import itertools
import time

import numpy as np

from sfumato.randomness import SecretStream
from sfumato.synthesis import CellColumn, PaidTable, SynthesisPlan, Synthesizer, workload
from sfumato.synthesis.inference import model_cells
from sfumato.synthesis.synthesizer import MOST_MODEL_CELLS, _connecting, _simplex


class Counts:
    rows = 1

    def prepare(self) -> None:
        pass

    def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
        return np.full([2] * len(clique), 100)


def synthesizer(columns: int, cells: int = 8) -> Synthesizer:
    found = [
        CellColumn(name=f"c{place}", type="integer", values=tuple(range(cells - 1))) for place in range(columns)
    ]
    plan = SynthesisPlan(
        columns=columns, picks=(columns - 1,), single_sigma=9.0, joint_sigma=9.0, choice_scale=9.0
    )
    return Synthesizer(PaidTable(plan, Counts(), SecretStream()), found, workload(found))


def test_a_tree_comes_first_and_the_model_stays_small():
    run = synthesizer(12)
    sizes = {column.name: 8 for column in run.columns}
    chosen: list[tuple[str, ...]] = []
    while allowed := run._allowed(sizes, [one for one in run.candidates if one not in chosen], chosen):
        if len(chosen) < 11:
            assert all(
                model_cells(sizes, [*chosen, one]) == 64 * (len(chosen) + 1) + _rest(chosen, one)
                for one in allowed
            )
        chosen.append(allowed[-1])
    assert 11 < len(chosen) < len(run.candidates)
    assert model_cells(sizes, chosen) <= MOST_MODEL_CELLS


def _rest(chosen, one):
    """Of each part of a forest the last column is eliminated alone."""
    edges = [*chosen, one]
    return 8 * (12 - len(edges))


def test_sixty_four_columns_are_looked_through_in_seconds():
    run = synthesizer(64)
    sizes = {column.name: 8 for column in run.columns}
    tree = [(f"c{place}", f"c{place + 1}") for place in range(63)]
    started = time.process_time()
    assert run._allowed(sizes, [one for one in run.candidates if one not in tree], tree)
    assert time.process_time() - started < 10


def test_connecting_candidates():
    pairs = list(itertools.combinations("abcd", 2))
    assert _connecting(pairs, [("a", "b")], "abcd") == [pair for pair in pairs if pair != ("a", "b")]
    assert _connecting(pairs, [("a", "b"), ("b", "c"), ("c", "d")], "abcd") == []
    assert _connecting([("a", "b", "c")], [("a", "b")], "abcd") == []


def test_the_nearest_distribution():
    np.testing.assert_allclose(_simplex(np.array([0.5, 0.5])), [0.5, 0.5])
    np.testing.assert_allclose(_simplex(np.array([1.4, 0.2, -3.0])), [1, 0, 0], atol=1e-8)
    np.testing.assert_allclose(_simplex(np.array([0.7, 0.5, -0.4])), [0.6, 0.4, 0], atol=1e-8)
