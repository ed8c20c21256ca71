"""Synthetic copies of public tables: what is measured of them, and that a run is kept."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sfumato.errors import InvalidInput
from sfumato.runs import read_run
from sfumato_lab.reproduce import synthetic_tables as recipe
from sfumato_lab.reproduce.synthetic_tables import Split


def split() -> Split:
    some = pd.DataFrame({"a": np.arange(40) % 2, "b": np.arange(40) % 4, "c": np.arange(40) % 2})
    return Split(some, some, {"a": 2, "b": 4, "c": 2}, "c")


def test_the_table_itself_is_no_distance_away_and_learned_from():
    found = recipe.judged(split(), split().train)
    assert (found["distance_1"], found["distance_2"], found["distance_3"]) == (0, 0, 0)
    assert found["auc"] == 1


def test_distance_is_half_the_sum_of_differences():
    """Of three columns one is moved wholly: 1, 0, 0 for single columns."""
    moved = split().train.assign(b=0)
    assert recipe.distance(split(), moved, 1) == pytest.approx(0.75 / 3)  # one row in four was at 0 before


def test_tables_have_the_declared_values_and_are_cut_once():
    found = recipe.load("fair")
    assert (len(found.train), len(found.test)) == (5092, 1274)
    for name, size in found.sizes.items():
        assert found.train[name].between(0, size - 1).all()


def test_nobody_is_on_both_sides_of_the_cut(monkeypatch):
    """Visits differ from year to year; what was asked once does not."""
    raw = pd.DataFrame({"mdvis": np.arange(500), **dict.fromkeys(recipe.SAME["randhie"], np.arange(500) // 5)})
    raw = raw.assign(lncoins=0, idp=0, fmde=0)
    loaded = type("Loaded", (), {"data": raw})
    monkeypatch.setattr("statsmodels.api.datasets.randhie.load_pandas", lambda: loaded)
    found = recipe.load("randhie")
    people = recipe.people_of(raw, recipe.SAME["randhie"])
    assert (len(found.train), len(found.test)) == (400, 100)
    assert not set(people[found.train.index]) & set(people[found.test.index])


def test_a_run_that_is_there_is_not_made_again(tmp_path, monkeypatch):
    record = dict.fromkeys(recipe.MEASURES, 0.5)
    monkeypatch.setattr(recipe, "load", lambda name: split())
    monkeypatch.setattr(recipe, "_once", lambda split, epsilon: record)
    first = recipe.run(tmp_path / "out", only=["fair"], runs=2)
    assert [line.epsilon for line in first] == [None, *recipe.EPSILONS]
    stated = read_run(tmp_path / "out").result.findings
    assert stated["marriages (Fair 1978), ε = 1"].startswith("accuracy 0.500")
    monkeypatch.setattr(recipe, "_once", lambda split, epsilon: pytest.fail("made again"))
    assert recipe.run(tmp_path / "out", only=["fair"], runs=2)[1].mean("auc") == 0.5
    with pytest.raises(InvalidInput, match="randhie"):
        recipe.run(tmp_path / "out", only=["nonsense"])
