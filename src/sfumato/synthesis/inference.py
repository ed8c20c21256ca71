"""Noisy marginals → the distribution of largest entropy that fits them best. mbi does the mathematics.

McKenna, Sheldon & Miklau 2019, "Graphical-model based estimation and inference for differential privacy".

JAX compiles a program for each structure of cliques, which takes longer than the descent itself, and a small
one for every operation outside of it. So each fit is one program, and everything else is done in NumPy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sfumato.errors import MissingExtra
from sfumato.synthesis.counting import Clique

Floats = npt.NDArray[np.float64]

_SIMPLY = {"xla_cpu_use_fusion_emitters": "False"}  # compiles in a third of the time, and runs as fast
_QUICKLY = {**_SIMPLY, "xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": "True"}
_STEPS = 50  # of a block
_QUICK_BLOCKS = 8  # beyond so many blocks a program that takes longer to compile is worth it


@dataclass(frozen=True)
class Measurement:
    """A marginal as it was measured: noisy counts of shape (buckets of each column), and the noise's σ."""

    clique: Clique
    counts: Floats
    sigma: float


@dataclass(frozen=True)
class Fitted:
    """A graphical model: potentials of measured marginals, and probabilities of a junction tree's cliques."""

    sizes: Mapping[str, int]
    potentials: Mapping[Clique, Floats]
    tables: Mapping[Clique, Floats]


def load_mbi() -> ModuleType:
    """mbi, without its remarks about the settings of JAX, which do not concern probabilities in float32."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import mbi
    except ImportError as error:
        raise MissingExtra(package="mbi", extra="synthesis") from error
    return mbi


def independent(sizes: Mapping[str, int], shares: Mapping[str, Floats]) -> Fitted:
    """Columns that have nothing to do with each other."""
    tables: dict[Clique, Floats] = {(name,): shares[name] for name in sizes}
    return Fitted(sizes, {clique: np.log(np.maximum(table, 1e-12)) for clique, table in tables.items()}, tables)


def fit(
    measurements: Sequence[Measurement],
    *,
    total: float,
    start: Fitted,
    blocks: int,
    before: Callable[[int], None] = lambda block: None,
) -> Fitted:
    """The model that fits the measurements best, looked for from `start` on in `blocks` of fifty steps.

    `before` is called with the number of each block before it begins; the first takes longest to prepare.
    """
    mbi = load_mbi()
    domain = mbi.Domain.fromdict(dict(start.sizes))
    tree, _ = mbi.junction_tree.make_junction_tree(domain, [item.clique for item in measurements])
    nodes = tuple(in_order(clique, list(start.sizes)) for clique in mbi.junction_tree.maximal_cliques(tree))
    loss = _loss(mbi, domain, measurements, total)
    potentials = _vector(mbi, domain, expanded(start.potentials, loss.cliques, start.sizes))
    descend = _program(mbi, nodes, quick=blocks <= _QUICK_BLOCKS)
    state = _nowhere(mbi, domain, nodes, potentials, 2.0 / loss.lipschitz)
    for block in range(blocks):
        before(block)
        state = descend(state, loss)
    return Fitted(start.sizes, _tables(state.potentials), _normalised(_tables(state.tables)))


class State(NamedTuple):
    """The state of a descent: potentials of measured marginals, and the probabilities that follow from them."""

    potentials: Any
    tables: Any  # probabilities of the junction tree's cliques
    slope: Any  # of the loss, in the marginals that are measured
    loss: Any
    width: Any  # of the next step


def _nowhere(mbi: ModuleType, domain: Any, nodes: Sequence[Clique], potentials: Any, width: float) -> State:
    """Before the first step, which goes nowhere and only computes the probabilities at the start."""
    tables = _vector(mbi, domain, {node: np.zeros(domain.project(node).shape) for node in nodes})
    flat = _vector(
        mbi, domain, {clique: np.zeros(table.shape) for clique, table in _tables(potentials).items()}
    )
    return State(potentials, tables, flat, np.float32(np.inf), np.float32(width))


def _program(mbi: ModuleType, nodes: Sequence[Clique], *, quick: bool) -> Any:
    """Fifty steps of mirror descent, as `mbi.MirrorDescent` makes them.

    mbi's own step computes all marginals twice, before and after it moves, and they are wanted once more at the
    end. Here a state carries them along, so that they are in the program once. The width of a step is carried
    from block to block.
    """
    import jax

    oracle = mbi.marginal_oracles.message_passing_hugin

    def step(now: State, loss: Any) -> State:
        potentials = now.potentials - now.width * now.slope
        tables = oracle(potentials.expand(nodes))
        cliques = now.potentials.cliques
        value, slope = jax.value_and_grad(loss)(tables.contract(cliques))
        expected = now.slope.dot(now.tables.contract(cliques) - tables.contract(cliques))
        better = now.loss - value >= 0.5 * now.width * expected
        moved = State(potentials, tables, slope, value, 1.01 * now.width)
        stayed = now._replace(width=0.5 * now.width)
        return jax.tree.map(lambda new, old: jax.lax.select(better, new, old), moved, stayed)

    def descend(state: State, loss: Any) -> State:
        return jax.lax.scan(lambda now, _: (step(now, loss), None), state, None, length=_STEPS)[0]

    return jax.jit(descend, compiler_options=_options(quick))


@cache
def _options(quick: bool) -> dict[str, str] | None:
    """Return compiler options; None if this version of the compiler does not know them."""
    import jax

    options = _QUICKLY if quick else _SIMPLY
    try:
        jax.jit(lambda value: value + 1, compiler_options=options)(0)
    except Exception:  # of any later compiler: it only costs time
        return None
    return options


def _loss(mbi: ModuleType, domain: Any, measurements: Sequence[Measurement], total: float) -> Any:
    """In shares instead of counts, which float32 holds well for any size of the table."""
    linear = [
        mbi.LinearMeasurement(
            (item.counts / total).astype(np.float32).reshape(-1), item.clique, np.float32(item.sigma / total)
        )
        for item in measurements
    ]
    return mbi.marginal_loss.from_linear_measurements(linear, domain)


def expanded(
    potentials: Mapping[Clique, Floats], cliques: Sequence[Clique], sizes: Mapping[str, int]
) -> dict[Clique, Floats]:
    """The same distribution over cliques that contain the old ones."""
    found = {clique: np.zeros([sizes[name] for name in clique]) for clique in cliques}
    for old, values in potentials.items():
        home = next(clique for clique in cliques if set(old) <= set(clique))
        shape = [sizes[name] if name in old else 1 for name in home]
        found[home] = found[home] + values.reshape(shape)
    return found


def _vector(mbi: ModuleType, domain: Any, tables: Mapping[Clique, Floats]) -> Any:
    factors = {
        clique: mbi.Factor(domain.project(clique), values.astype(np.float32))
        for clique, values in tables.items()
    }
    return mbi.CliqueVector(domain, tuple(tables), factors)


def _tables(vector: Any) -> dict[Clique, Floats]:
    return {clique: np.asarray(vector.tables[clique].values, dtype=np.float64) for clique in vector.cliques}


def _normalised(tables: Mapping[Clique, Floats]) -> dict[Clique, Floats]:
    return {clique: np.maximum(table, 0) / np.maximum(table, 0).sum() for clique, table in tables.items()}


# How large a model with given marginals would be: decided from public sizes, never by the clock


def model_cells(sizes: Mapping[str, int], cliques: Iterable[Clique]) -> int:
    """Cells of all cliques that come up when columns are eliminated, the one with the smallest clique first.

    Here a goes with its pair (2·3 cells), then b with its (3·4), and c alone (4).

    >>> model_cells({"a": 2, "b": 3, "c": 4}, [("a", "b"), ("b", "c")])
    22
    """
    neighbours = {name: {name} for name in sizes}
    for clique in cliques:
        for name in clique:
            neighbours[name] |= set(clique)
    cost = {name: _product(sizes, near) for name, near in neighbours.items()}
    total = 0
    while cost:
        name = min(cost, key=cost.__getitem__)
        total += cost.pop(name)
        near = neighbours.pop(name) - {name}
        for other in near:
            neighbours[other] = (neighbours[other] | near) - {name}
            cost[other] = _product(sizes, neighbours[other])
    return total


def _product(sizes: Mapping[str, int], names: Iterable[str]) -> int:
    return math.prod(sizes[name] for name in names)


def in_order(names: Iterable[str], order: Sequence[str]) -> Clique:
    """A clique in the order of the table's columns."""
    wanted = set(names)
    return tuple(name for name in order if name in wanted)


def connected(edges: Iterable[Clique], names: Iterable[str]) -> dict[str, str]:
    """For each column the name of the part of the graph that it is in."""
    part = {name: name for name in names}
    for edge in edges:
        first, *rest = (part[name] for name in edge)
        part = {name: first if place in rest else place for name, place in part.items()}
    return part
