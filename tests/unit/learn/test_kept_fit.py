"""What was learned from drawings is made once on a machine, and made anew where the file is damaged."""

from dataclasses import replace

import pytest
import torch

from sfumato.learn import DIGITS, features, kept_fit

SMALL = features.Recipe(extractors=("strokes",), drawn=40, directions=8)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path))
    features._fitted_to_drawings.cache_clear()
    yield tmp_path
    features._fitted_to_drawings.cache_clear()


def fitted(recipe):
    features._fitted_to_drawings.cache_clear()
    return features.build(recipe, classes=3).state_dict()


def test_the_second_time_it_is_read_and_has_the_same_bits(cache, monkeypatch):
    first = fitted(SMALL)
    monkeypatch.setattr(features, "_fit_to_drawings", lambda recipe: pytest.fail("made twice"))
    second = fitted(SMALL)
    assert first["directions"].any()
    assert all(value.equal(second[name]) for name, value in first.items())


def test_weights_that_ship_with_the_package_are_not_taken_from_the_cache(cache):
    assert set(features._fitted_to_drawings(SMALL)) == {"centre", "directions"}


@pytest.mark.parametrize(
    "other",
    [
        {"drawn": 41},
        {"directions": 9},
        {"extractors": ("shapes",)},
        {"drawings": "shapes"},
        {"weights": (0.7,)},
    ],
)
def test_other_settings_are_another_file(cache, other):
    fitted(SMALL)
    fitted(features.replace(SMALL, **other))
    assert len(list((cache / "fits").iterdir())) == 2


def test_a_damaged_file_is_made_anew(cache):
    first = fitted(SMALL)
    (file,) = (cache / "fits").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    assert fitted(SMALL)["directions"].equal(first["directions"])


def test_changed_sources_are_another_file(cache, monkeypatch):
    fitted(SMALL)
    monkeypatch.setattr(kept_fit, "_source", lambda: "changed")
    fitted(SMALL)
    assert len(list((cache / "fits").iterdir())) == 2


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "file"))
    made = kept_fit.kept_fit("settings", lambda: {"one": torch.ones(2)})
    assert made["one"].tolist() == [1, 1]


def test_what_cannot_be_a_fit_is_made_anew():
    """A file in the cache that names weights, or lacks what is wanted, or holds no numbers."""
    recipe = replace(DIGITS, extractors=("strokes-wide",), drawn=100, directions=8)
    right = features._fit_to_drawings(recipe)
    wrong = (
        {**right, "head.weight": torch.ones(1, 8)},
        {"centre": right["centre"]},
        {**right, "centre": right["centre"][:3]},
        {**right, "centre": right["centre"] * float("nan")},
        {**right, "centre": right["centre"].double()},
        {},
    )
    assert features._fits(right, recipe)
    assert not any(features._fits(kept, recipe) for kept in wrong)
