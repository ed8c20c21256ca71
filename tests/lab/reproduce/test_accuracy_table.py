"""The accuracy table: every run counts, and runs that are there are not done again."""

from __future__ import annotations

import json
import math

import pytest

from sfumato.errors import InvalidInput
from sfumato_lab.reproduce import accuracy


@pytest.fixture
def runs(monkeypatch):
    """Stands in for training: notes what was asked for and writes a result of its own."""
    done = []

    def once(cell, folder, number, ready, nets):
        done.append((cell.epsilon, number) if nets is None else (cell.epsilon, nets.name))
        result = {"epsilon": cell.epsilon, "test_accuracy": 0.9 + number / 100, "seconds": 1.0}
        accuracy.RunFolder.make(folder).write_json("measured.json", result)

    monkeypatch.setattr(accuracy, "_once", once)
    return done


def test_all_runs_are_counted_and_done_once(runs, tmp_path):
    seen = []
    lines = accuracy.run(tmp_path, on_run=lambda name, number: seen.append(name))
    assert [line.name for line in lines] == list(accuracy.CELLS)
    assert len(runs) == len(seen) == accuracy.total_runs()
    one = next(line for line in lines if line.name == "mnist-1")
    assert one.accuracies == pytest.approx((0.91, 0.92, 0.93, 0.94, 0.95))
    assert one.mean == pytest.approx(0.93)
    assert one.deviation == pytest.approx(math.sqrt(0.001 / 4))  # Σ squares of ±.01, ±.02, over n − 1
    assert (tmp_path / "accuracy.png").stat().st_size > 0
    assert len(json.loads((tmp_path / "accuracy.json").read_text())) == len(accuracy.CELLS)
    runs.clear()
    assert accuracy.run(tmp_path) == lines
    assert runs == []


def test_an_interrupted_run_is_done_again(runs, tmp_path, monkeypatch):
    """`train` itself writes a result; only a run that came to its end was measured."""
    folder = accuracy.RunFolder.make(tmp_path / "prior" / "run-1")
    folder.write_json("result.json", {"epsilon": 0, "test_accuracy": 0.5})

    def once(cell, folder, number, ready, nets):
        done = accuracy.RunFolder(folder)
        done.write_json("measured.json", {"epsilon": 0, "test_accuracy": 0.7, "seconds": 1.0})

    monkeypatch.setattr(accuracy, "_once", once)
    (line,) = accuracy.run(tmp_path, only=["prior"])
    assert line.accuracies == (0.7,)


def test_fewer_runs_can_be_asked_for(runs, tmp_path):
    (line,) = accuracy.run(tmp_path, only=["mnist-1"], most=2)
    assert line.accuracies == pytest.approx((0.91, 0.92))
    assert accuracy.total_runs(["mnist-1"], 2) == 2
    assert accuracy.total_runs(["prior"], 2) == 1  # no line is run more often than it says


def test_lines_can_be_chosen_by_name(runs, tmp_path):
    assert [line.name for line in accuracy.run(tmp_path, only=["plain"])] == ["plain"]
    assert accuracy.total_runs(["plain"]) == 3
    with pytest.raises(InvalidInput, match="to be one of prior, mnist"):
        accuracy.run(tmp_path, only=["imagenet"])


def test_five_runs_with_features_and_three_elsewhere():
    five = ("mnist-0.5", "mnist-1", "mnist-3", "fashion-1", "fashion-3", "cifar-1", "cifar-3")
    expected = {**dict.fromkeys(five, 5), "designed-3": 3, "whole-3": 3, "moved-3": 3, "plain": 3}
    assert {name: accuracy.CELLS[name].runs for name in expected} == expected


def test_the_prior_alone_is_measured_on_public_images(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(accuracy.datasets, "load", lambda name, split: asked.append((name, split)))
    monkeypatch.setattr(accuracy, "evaluate", lambda net, data: type("E", (), {"accuracy": 0.96}))
    (line,) = accuracy.run(tmp_path, only=["prior"])
    assert asked == [("mnist", "test")]
    assert (line.mean, line.epsilon) == (0.96, 0.0)


def test_runs_can_stand_on_other_networks(runs, tmp_path):
    """One run of each line on each folder, whatever the number of runs on those that ship."""
    folders = [tmp_path / "a", tmp_path / "b"]
    lines = accuracy.run(tmp_path / "out", only=["mnist-1", "fashion-3"], nets=folders)
    assert runs == [(1.0, "a"), (3.0, "a"), (1.0, "b"), (3.0, "b")]
    assert [line.accuracies for line in lines] == [pytest.approx((0.91, 0.92))] * 2
    assert accuracy.total_runs(["mnist-1", "fashion-3"], nets=2) == 4


@pytest.mark.parametrize("name", ["prior", "plain", "whole-3", "moved-3", "designed-3", "cifar-1"])
def test_lines_without_networks_are_refused_on_others(name, runs, tmp_path):
    with pytest.raises(InvalidInput, match=f"got {name}"):
        accuracy.run(tmp_path, only=[name], nets=[tmp_path])
    assert runs == []
