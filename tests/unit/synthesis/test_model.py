"""The model: exact marginals, draws that meet them, a file that runs no code."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from sfumato.errors import DataCorrupted, InvalidInput
from sfumato.randomness import SecretStream, public_generator
from sfumato.synthesis import CellColumn, SyntheticModel
from sfumato.synthesis.inference import connected, model_cells

NAMES = ("a", "b", "c", "d")
SIZES = {"a": 2, "b": 3, "c": 4, "d": 2}
CLIQUES = (("a", "b"), ("b", "c"), ("c", "d"))


def joint() -> np.ndarray:
    """A chain a – b – c – d, whose pairs along the chain say everything."""
    draw = public_generator(5)
    first = draw.dirichlet(np.ones(2))
    ab, bc, cd = (draw.dirichlet(np.ones(k), size=n) for n, k in ((2, 3), (3, 4), (4, 2)))
    return np.einsum("a,ab,bc,cd->abcd", first, ab, bc, cd)


def summed(table: np.ndarray, clique: tuple[str, ...]) -> np.ndarray:
    return table.sum(axis=tuple(place for place, name in enumerate(NAMES) if name not in clique))


@pytest.fixture(scope="module")
def model() -> SyntheticModel:
    columns = [CellColumn(name=name, type="integer", values=tuple(range(SIZES[name] - 1))) for name in NAMES]
    tables = {clique: summed(joint(), clique) for clique in CLIQUES}
    return SyntheticModel.of(columns, {name: np.eye(SIZES[name]) for name in NAMES}, tables, 1000.0)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_marginals_are_those_of_the_joint_distribution(model, size):
    for clique in itertools.combinations(NAMES, size):
        np.testing.assert_allclose(model.marginal(clique), summed(joint(), clique), atol=1e-12)
        np.testing.assert_allclose(model.cells(clique), summed(joint(), clique), atol=1e-12)


def test_draws_meet_the_chances(model):
    rows = 20_000
    cells = model.draw(rows, sampler=SecretStream(test_seed=1))
    for clique in CLIQUES:
        shape = [SIZES[name] for name in clique]
        index = np.ravel_multi_index([cells[name] for name in clique], shape)
        found = np.bincount(index, minlength=int(np.prod(shape))).reshape(shape) / rows
        # Within a group draws are spread evenly: each cell is off by less than 2 rows for each line it is on.
        assert np.abs(found - summed(joint(), clique)).max() < 30 / rows


def test_chances_of_rows_are_those_of_the_joint_distribution(model):
    rows = dict(zip(NAMES, np.unravel_index(np.arange(48), (2, 3, 4, 2)), strict=True))
    np.testing.assert_allclose(model.log_chances(rows), np.log(joint().reshape(-1)), atol=1e-6)


def test_a_model_survives_its_file(model, tmp_path):
    model.write(tmp_path / "m.npz")
    again = SyntheticModel.read(tmp_path / "m.npz")
    assert again.columns == model.columns
    np.testing.assert_array_equal(again.marginal(("a", "d")), model.marginal(("a", "d")))
    assert len(again.draw(7)["a"]) == 7


@pytest.mark.parametrize("fault", ["text", "shape", "format", "order"])
def test_another_file_is_refused(model, tmp_path, fault):
    place = tmp_path / "m.npz"
    model.write(place)
    if fault == "text":
        place.write_text("hello")
    else:
        with np.load(place, allow_pickle=False) as archive:
            parts = {name: archive[name] for name in archive.files}
        described = json.loads(parts["description"].tobytes())
        if fault == "shape":
            parts["chances0"] = parts["chances0"][..., :1]
        elif fault == "format":
            described["format"] = 99
        else:
            described["steps"].reverse()
        parts["description"] = np.frombuffer(json.dumps(described).encode(), dtype=np.uint8)
        np.savez(place, **parts)
    with pytest.raises(DataCorrupted):
        SyntheticModel.read(place)


@pytest.mark.parametrize("rows", [0, -1, 10**12])
def test_rows_that_make_no_sense(model, rows):
    with pytest.raises(InvalidInput, match="rows"):
        model.draw(rows)


def test_the_size_of_a_model():
    assert model_cells(SIZES, CLIQUES) == 2 * 3 + 4 * 2 + 3 * 4 + 4  # a, d, b, and c alone
    assert model_cells(SIZES, itertools.combinations(NAMES, 2)) >= 2 * 3 * 4 * 2


def test_parts_of_a_graph():
    part = connected([("a", "b"), ("c", "d")], NAMES)
    assert part["a"] == part["b"] != part["c"] == part["d"]
