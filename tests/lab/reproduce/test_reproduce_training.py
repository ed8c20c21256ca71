"""The recipes on small data: tables, JSON, figures, run folders that are found again."""

import json
from pathlib import Path

import pytest

from sfumato.runs import read_run
from sfumato_lab.reproduce import epsilon_sweep


def check_figures(answer):
    assert answer["figures"]
    for path in answer["figures"]:
        assert Path(path).read_bytes()[:4] == b"\x89PNG"
        assert Path(path).stat().st_size > 5000


def test_private_cnn(sfumato, sfumato_json, tmp_path):
    words = ("reproduce", "private-cnn", "--quick", "--out", tmp_path)
    answer = sfumato_json(*words)
    check_figures(answer)
    assert len(answer["figures"]) == 4
    plain, source, priced, ours, moved, drawn = answer["settings"]
    assert plain["epsilon"] is None
    assert source["runs"][0]["noise_multiplier"] == 1.2
    assert priced["epsilon"] <= 0.79
    assert 0.78 < ours["epsilon"] <= 0.79
    assert 0.78 < drawn["epsilon"] <= 0.79
    assert moved["epsilon"] == ours["epsilon"]  # views of one person are one person's
    assert len(ours["runs"][0]["accuracy"]) == len(ours["runs"][0]["loss"]) == 2
    assert read_run(tmp_path).result.findings == answer
    certificate = tmp_path / "seed-0" / "ours" / "release" / "certificate.json"
    assert sfumato_json("verify", certificate)["pld"] == pytest.approx(ours["epsilon"])
    after_drawings = json.loads((tmp_path / "seed-0" / "drawn" / "release" / "certificate.json").read_text())
    assert any("drawn by code" in caveat for caveat in after_drawings["caveats"])
    code, out, _ = sfumato(*words)  # found again, and told in words
    assert code == 0
    assert "93.4%" in out
    assert "14.1" in out


def test_epsilon_sweep(sfumato, sfumato_json, tmp_path, monkeypatch):
    monkeypatch.setattr(epsilon_sweep, "EPSILONS", (10.0,))
    words = ("reproduce", "epsilon-sweep", "--quick", "--out", tmp_path)
    answer = sfumato_json(*words)
    check_figures(answer)
    assert [setting["name"] for setting in answer["settings"]] == ["ε = 10", "no privacy"]
    runs = [run for setting in answer["settings"] for run in setting["runs"]]
    assert all(len(run["accuracy"]) == 2 for run in runs)
    noise = [run["noise_multiplier"] for run in runs[:-1]]
    assert noise == sorted(noise, reverse=True)
    assert "no privacy" in sfumato(*words)[1]


def test_published_mnist(sfumato, sfumato_json, tmp_path):
    words = ("reproduce", "published-mnist", "--quick", "--out", tmp_path, "--seeds", 2)
    rows = ("--row", "tanh CNN", "--row", "scattering + linear")
    answer = sfumato_json(*words, *rows)
    check_figures(answer)
    tanh, scattering = answer["rows"]
    assert tanh["published"]["true_epsilon"] < 2.4 < tanh["published"]["claimed_epsilon"]
    assert scattering["published"]["true_epsilon"] < 2.59 < scattering["published"]["claimed_epsilon"]
    assert scattering["ours"]["standard_deviation"] >= 0
    # Guessing gets .1; five standard errors on 500 test digits are .07: .4 is learned, not guessed.
    assert scattering["ours"]["test_accuracy"] > 0.4
    assert len({run["folder"] for run in scattering["ours"]["runs"]}) == 2
    assert "98.7%" in sfumato(*words, *rows)[1]


def test_a_row_that_is_not_there_is_named(sfumato, tmp_path):
    code, _, error = sfumato("reproduce", "published-mnist", "--quick", "--out", tmp_path, "--row", "resnet")
    assert code == 2
    assert "tanh CNN" in error
