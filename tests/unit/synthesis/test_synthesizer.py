"""Which marginals a run may choose from, and that many columns stay possible."""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from sfumato import accounting
from sfumato.errors import InvalidInput, MissingExtra
from sfumato.ledger import Certificate
from sfumato.randomness import SecretStream, public_generator
from sfumato.synthesis import CellColumn, PaidTable, SynthesisPlan, Synthesizer, inference, workload
from sfumato.synthesis.inference import Measurement, expanded, fit, independent, load_mbi, model_cells
from sfumato.synthesis.model import marginal, steps_of
from sfumato.synthesis.plan import RELATION, default_picks
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


def plan(**changes) -> SynthesisPlan:
    wanted = {"epsilon": 1.0, "delta": 1e-6, "columns": 13, "picks": (12, 6, 6), "rows": 1} | changes
    return SynthesisPlan.calibrated(**wanted)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("rows", [1, 5])
def test_the_price_is_what_was_asked_for(epsilon, rows):
    found = plan(epsilon=epsilon, rows=rows)
    assert 0.99 * epsilon <= found.epsilon(1e-6) <= epsilon


def test_a_price_that_was_computed_by_hand():
    """Without choices a plan is Gaussian: k of σ at Δ are one of σ/(Δ√k), and σ/Δ = 4.530877 is ε = .92739."""
    single = SynthesisPlan(
        columns=9, picks=(), single_sigma=3 * 2 * 4.530877, joint_sigma=1.0, choice_scale=1.0, rows=2
    )
    assert single.epsilon(1e-6) == pytest.approx(0.92739, rel=1e-3)


def test_each_choice_and_measurement_is_in_the_event():
    found = plan()
    atoms = accounting.event_to_json(found.event())["events"]
    assert [(part["count"], part["event"]["kind"]) for part in atoms] == [
        (13, "gaussian"),
        (24, "gaussian"),
        (24, "exponential-mechanism"),
    ]
    # An exponential mechanism that moves each score by Δ costs 2Δ/scale.
    assert atoms[2]["event"]["epsilon"] == pytest.approx(2 / found.choice_scale, rel=1e-5)


def test_noise_grows_with_the_rows_of_a_person():
    assert plan(rows=10).joint_sigma == pytest.approx(10 * plan().joint_sigma, rel=0.01)


def test_a_smaller_scale_costs_more():
    found = plan()
    for name in ("single_sigma", "joint_sigma", "choice_scale"):
        assert replace(found, **{name: getattr(found, name) * 0.7}).epsilon(1e-6) > found.epsilon(1e-6)


def test_a_certificate_of_the_plan_verifies():
    found = plan()
    certificate = Certificate.of(found.event(), purpose="synthetic table", delta=1e-6, relation=RELATION)
    assert certificate.verify().pld == pytest.approx(found.epsilon(1e-6), rel=1e-3)


@pytest.mark.parametrize("delta", [0, 0.0])
def test_delta_is_needed(delta):
    with pytest.raises(InvalidInput, match="delta > 0"):
        plan(delta=delta)


@pytest.mark.parametrize(
    ("columns", "candidates", "fixed", "picks"),
    [
        (1, 0, 0, ()),
        (2, 1, 0, (1,)),
        (2, 0, 1, ()),
        (3, 3, 0, (2, 1)),
        (3, 1, 2, (1,)),
        (13, 78, 0, (12, 6, 6)),
        (13, 66, 12, (12, 6)),
        (13, 2, 0, (2,)),
    ],
)
def test_no_more_choices_than_candidates(columns, candidates, fixed, picks):
    assert default_picks(columns, candidates, fixed) == picks
