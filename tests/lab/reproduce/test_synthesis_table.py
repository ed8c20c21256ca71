"""The table of synthetic images: every run is measured, and one that is there is taken from its folder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sfumato import datasets
from sfumato.datasets import Dataset
from sfumato.learn import DIGITS, features
from sfumato.runs import read_run
from sfumato_lab.drawings import strokes
from sfumato_lab.images import StyleSettings
from sfumato_lab.reproduce import synthesis


@pytest.fixture
def few(monkeypatch):
    """Drawings in the place of MNIST, few styles and a quick head."""

    def drawn(name: str, split: str) -> Dataset:
        images, labels = strokes.draw(300, seed=len(split))
        inputs = (images[:, np.newaxis] / 255).astype(np.float32)
        visibility = "private" if split == "train" else "public"
        return Dataset(
            inputs=inputs, targets=labels, name=name, visibility=visibility, classes=10, public_size=300
        )

    quick = replace(DIGITS, drawn=100, directions=16, steps=3, sample_rate=0.5)
    monkeypatch.setattr(datasets, "load", drawn)
    monkeypatch.setattr(features, "RECIPES", {"mnist": quick})
    monkeypatch.setattr(synthesis, "_SEEN", 300)
    settings = StyleSettings(drawings=300, directions=8)
    monkeypatch.setattr(StyleSettings, "for_data", lambda data, prior=None: settings)
    synthesis._reader.cache_clear()
    yield
    synthesis._reader.cache_clear()


def test_a_line_is_measured_once_and_kept(few, tmp_path, monkeypatch):
    wanted = {"only": ("mnist-1-statistics",), "runs": 1, "images": 200}
    (line,) = synthesis.run(tmp_path, **wanted)
    (record,) = line.records
    assert record["epsilon"] <= 1.0
    for share in ("test_accuracy", "read_as_labelled", "coverage"):
        assert 0 <= record[share] <= 1
    assert record["frechet_prior"] > 0
    assert 0 < record["nearest_least"] <= record["nearest_median"]
    place = tmp_path / "mnist-1-statistics" / "run-1"
    assert (place / "images.png").is_file()
    assert read_run(tmp_path).result.name == "synthesis"
    monkeypatch.setattr(synthesis, "_release", lambda *given: pytest.fail("the images were there"))
    next(place.glob("measured-*.json")).unlink()
    assert synthesis.run(tmp_path, **wanted) == (line,)  # measured again, from the same images
    monkeypatch.setattr(synthesis, "measured", lambda *given, **more: pytest.fail("the run was there"))
    assert synthesis.run(tmp_path, **wanted) == (line,)
