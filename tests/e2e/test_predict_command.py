"""`sfumato predict`: what every kind of run left answers as the run did in memory."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from sfumato import datasets, load, pate
from sfumato.learn import DIGITS, features
from sfumato_lab.drawings import strokes


@pytest.fixture(autouse=True)
def _few_drawings(monkeypatch):
    """A small recipe: what is tested is that a file gives back what was in memory."""
    small = replace(DIGITS, drawn=400, directions=64)
    monkeypatch.setattr(features, "RECIPES", {"digits": small, "strokes": small})


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", "test")


def accuracy(predictions, truth):
    return float(np.mean(np.array(predictions) == truth))


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "mlp", "--epochs", 2),
        ("--model", "cnn", "--epochs", 1, "--train-size", 200, "--batch", 50),
        ("--model", "resnet18", "--epochs", 1, "--train-size", 24, "--batch", 12),
        ("--epochs", 2),
    ],
    ids=["mlp", "cnn", "resnet18", "recipe"],
)
def test_a_trained_model_answers_as_it_did_in_memory(sfumato_json, digits, tmp_path, words):
    run = tmp_path / "run"
    trained = sfumato_json("train", "--data", "digits", "--epsilon", 8, *words, "--out", run)
    found = sfumato_json("predict", run, "digits")
    assert set(found) == {"predictions"}
    assert accuracy(found["predictions"], digits.targets) == trained["test_accuracy"]
    model = load(run)
    assert model.predict(digits).tolist() == found["predictions"]
    assert model.certificate.prices.pld == pytest.approx(trained["epsilon"])
    assert np.allclose(model.predict_proba(digits).sum(axis=1), 1, atol=1e-5)


def test_a_model_trained_without_privacy_answers_too_and_has_no_certificate(sfumato_json, digits, tmp_path):
    run = tmp_path / "run"
    words = ("train", "--data", "digits", "--plain", "--epochs", 1, "--out", run)
    trained = sfumato_json(*words)
    found = sfumato_json("predict", run, "digits")["predictions"]
    assert accuracy(found, digits.targets) == trained["test_accuracy"]
    assert load(run).certificate is None


def test_the_best_of_a_search_answers_by_the_names_that_were_declared(sfumato_json, tmp_path):
    images, labels = strokes.draw(500, seed=3)
    chosen = labels < 2
    names = np.array(["nought", "one"])[labels[chosen]]
    np.savez(tmp_path / "strokes.npz", images=images[chosen], labels=names)
    own = ("--data", tmp_path / "strokes.npz", "--public-size", 100, "--classes", "nought,one")
    words = ("tune", *own, "--epsilon", 8, "--trials", 1.5, "--test-data", tmp_path / "strokes.npz")
    tuned = sfumato_json(*words, "--out", tmp_path / "run")
    found = sfumato_json("predict", tmp_path / "run", tmp_path / "strokes.npz", "--probabilities")
    assert accuracy(found["predictions"], names) == tuned["test_accuracy"]
    assert found["classes"] == ["nought", "one"]
    likeliest = np.array(found["classes"])[np.argmax(found["probabilities"], axis=1)]
    assert likeliest.tolist() == found["predictions"]


def test_a_student_answers_by_what_it_learned_from_the_votes(sfumato_json, tmp_path, monkeypatch):
    """The net has a second head, which knows drawings only: it must not be the one that answers."""
    made = []
    run = pate.run
    monkeypatch.setattr(pate, "run", lambda *rows, **terms: made.append(run(*rows, **terms)) or made[-1])
    words = ("pate", "--data", "digits", "--epsilon", 8, "--teachers", 20, "--epochs", 2, "--adapt-steps", 0)
    sfumato_json(*words, "--folds", 2, "--out", tmp_path / "run")
    public = datasets.load("digits", "test", side=28)
    found = sfumato_json("predict", tmp_path / "run", "digits")["predictions"]
    (result,) = made
    assert found == result.predictor.predict(public).tolist()
    scores = result.model.linear(result.model.features(public.tensors()[0])).detach()
    assert found == scores.argmax(1).tolist()


@pytest.mark.parametrize("classifier", ["linear", "quadratic"])
def test_what_was_learned_from_reports_answers(sfumato_json, sfumato, digits, tmp_path, classifier):
    noised = tmp_path / "noised.npz"
    view = ("--prior", "none", "--dimension", 16)
    sfumato_json("local", "release", "digits", "--epsilon", 8, *view, "--out", noised)
    words = ("local", "learn", noised, "--classifier", classifier, "--out", tmp_path / "run")
    learned = sfumato_json(*words)
    found = sfumato_json("predict", tmp_path / "run", "digits")["predictions"]
    assert accuracy(found, digits.targets) == learned["test_accuracy"]
    assert sfumato(*words)[0] == 2  # a finished run is left alone
    noised.with_suffix(".certificate.json").unlink()
    code, _, error = sfumato(*words[:-1], tmp_path / "other")
    assert code == 1
    assert "certificate" in error


def test_a_folder_of_images_and_a_table_of_answers(sfumato, sfumato_json, tmp_path):
    run = tmp_path / "run"
    sfumato_json("train", "--data", "digits", "--model", "mlp", "--epsilon", 8, "--epochs", 1, "--out", run)
    folder = tmp_path / "pictures"
    (folder / "deeper").mkdir(parents=True)
    levels = (datasets.load("digits", "test").inputs[:3, 0] * 255).round().astype(np.uint8)
    for number, name in enumerate(("b.png", "a.png", "deeper/c.png")):
        Image.fromarray(levels[number]).resize((28, 28)).save(folder / name)
    found = sfumato_json("predict", run, folder, "--out", tmp_path / "answers.csv", "--probabilities")
    with (tmp_path / "answers.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["input"] for line in lines] == ["a.png", "b.png", "deeper/c.png"]
    assert [int(line["prediction"]) for line in lines] == found["predictions"]
    assert float(lines[0]["p(3)"]) == pytest.approx(found["probabilities"][0][3], rel=1e-4)
    header, first, *_ = sfumato("predict", run, folder, "--probabilities")[1].splitlines()
    assert header.split() == list(lines[0])
    assert first.split()[0] == "a.png"
    np.save(tmp_path / "levels.npy", levels)
    assert (
        sfumato_json("predict", run, tmp_path / "levels.npy")["predictions"]
        == load(run).predict(levels).tolist()
    )
    (folder / "broken.png").write_bytes(b"no picture")
    code, _, error = sfumato("predict", run, folder)
    assert code == 1
    assert "broken.png" in error
    assert sfumato("predict", run, tmp_path / "nothing")[0] == 1
    assert sfumato("predict", tmp_path / "nothing", "digits")[0] == 1
