"""The accuracy table: every run counts, and runs that are there are not done again."""

import pytest

from sfumato import datasets
from sfumato.errors import InvalidInput
from sfumato_lab.reproduce import accuracy


@pytest.fixture
def runs(monkeypatch):
    """Stand in for training: note what was asked for and return a result of its own."""
    done = []

    def once(cell, folder, number, prepared):
        done.append((cell.epsilon, number))
        return 0.9 + number / 100, cell.epsilon

    monkeypatch.setattr(accuracy, "_once", once)
    return done


def test_all_runs_are_counted_and_done_once(runs, tmp_path):
    lines = accuracy.run(tmp_path)
    assert [line.name for line in lines] == list(accuracy.CELLS)
    assert len(runs) == sum(accuracy.runs_of(name) for name in accuracy.CELLS)
    one = next(line for line in lines if line.name == "mnist-1")
    assert one.accuracies == pytest.approx((0.91, 0.92, 0.93, 0.94, 0.95))
    assert one.to_json()["deviation"] == pytest.approx((0.001 / 4) ** 0.5)
    assert next(line for line in lines if line.name == "plain").epsilon is None
    runs.clear()
    assert accuracy.run(tmp_path) == lines
    assert runs == []


def test_lines_and_their_number_of_runs_can_be_chosen(runs, tmp_path):
    (line,) = accuracy.run(tmp_path, only=["mnist-1"], most=2)
    assert line.accuracies == pytest.approx((0.91, 0.92))
    assert accuracy.runs_of("prior", 2) == 1  # no line is run more often than it says
    with pytest.raises(InvalidInput, match="to be one of prior, mnist"):
        accuracy.run(tmp_path, only=["imagenet"])


def test_the_prior_alone_is_measured_on_public_images(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(accuracy.datasets, "load", lambda name, split: asked.append((name, split)))
    monkeypatch.setattr(accuracy, "evaluate", lambda net, data: type("E", (), {"accuracy": 0.96}))
    (line,) = accuracy.run(tmp_path, only=["prior"])
    assert asked == [("mnist", "test")]
    assert (line.accuracies, line.epsilon) == ((0.96,), 0.0)


def test_the_whole_network_costs_what_was_asked_for_and_has_less_noise_than_published():
    """Published: 1.23, for an ε of 3 by an early conversion of Rényi divergences."""
    plan = accuracy.whole_plan(3.0, 60_000)
    assert 2.98 < plan.epsilon(1e-5) <= 3.0
    assert plan.noise_multiplier < 1.23
    assert datasets.DATASETS["mnist"].public_size["train"] == 60_000
