"""`sfumato images` from a user's file to a certificate that verifies."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from sfumato.learn import THINGS, features
from sfumato_lab.drawings import strokes
from sfumato_lab.images import StyleSettings


@pytest.fixture
def own_images(tmp_path, monkeypatch):
    """Two classes of drawings, as a user's file; a quick head."""
    small = replace(THINGS, drawn=100, directions=16, steps=5, sample_rate=0.5, extractors=("shapes",))
    monkeypatch.setattr(features, "THINGS", small)
    few = StyleSettings(drawings=500, directions=8, matched=False)
    monkeypatch.setattr(StyleSettings, "for_data", lambda data, prior: few)
    images, labels = strokes.draw(600, seed=4)
    chosen = labels < 2
    np.savez(tmp_path / "mine.npz", images=images[chosen], labels=np.array(["nought", "one"])[labels[chosen]])
    return tmp_path / "mine.npz"


def test_own_images_are_charged_drawn_and_certified(own_images, sfumato):
    folder = own_images.parent
    ledger, out = str(folder / "l.db"), folder / "s.npz"
    assert sfumato("ledger", "create", ledger, "--epsilon", "5", "--delta", "1e-5")[0] == 0
    words = ["--images", "40", "--epsilon", "4", "--out", str(out), "--ledger", ledger, "--json"]
    told = ["--public-size", "120", "--classes", "nought,one"]
    code, text, error = sfumato("images", str(own_images), *words, *told, "--prior", "strokes")
    assert code == 0, error
    answer = json.loads(text)
    assert answer["epsilon"] <= 4
    assert answer["epsilon_left"] < 1.1
    with np.load(out) as content:
        assert content["images"].shape == (40, 28, 28)
        assert set(content["labels"]) <= {"nought", "one"}
    assert sfumato("verify", str(folder / "s.certificate.json"))[0] == 0
    code, _, error = sfumato("predict", str(folder / "s.sampler"), str(out))
    assert code != 0
    assert "draw images with" in error
    code, _, error = sfumato("images", str(own_images), *words[:4], "--out", str(folder / "t.npz"), *told,
                             "--ledger", ledger)  # fmt: skip
    assert code == 3, error
    assert not (folder / "t.npz").exists()


def test_images_start_from_a_public_file_that_is_named(own_images, sfumato, monkeypatch):
    few = StyleSettings(prior="public", drawings=200, directions=8)
    monkeypatch.setattr(StyleSettings, "for_data", lambda data, prior: few)
    folder = own_images.parent
    images, labels = strokes.draw(300, seed=9)
    public = folder / "public.npz"
    np.savez(public, images=images[labels < 2], labels=np.array(["nought", "one"])[labels[labels < 2]])
    words = ["--images", "20", "--epsilon", "4", "--public-size", "120", "--classes", "nought,one"]
    out = ["--out", str(folder / "s.npz"), "--prior", str(public)]
    code, _, error = sfumato("images", str(own_images), *words, *out)
    assert code == 0, error
    assert "says is public" in (folder / "s.certificate.json").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--images", "5", "--out", "s.csv"], "npz"),
        (["--out", "s.npz"], "--images"),
        (["--images", "5", "--out", "s.npz", "--prior", "faces"], "prior"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_read(words, said, tmp_path, monkeypatch, sfumato):
    monkeypatch.chdir(tmp_path)
    code, _, error = sfumato("images", "mnist", "--epsilon", "1", *words)
    assert code != 0
    assert said in error
    assert list(tmp_path.iterdir()) == []
