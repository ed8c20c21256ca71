"""Attacks through the files of a run: by who may read them, by numbers that JSON has no word for, by lies."""

import json
import os
import stat
from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato import runs as results
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput
from sfumato.report import write_report
from sfumato.storage import RunFolder
from sfumato.training import TrainingPlan, train

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=8, steps=2, noise_multiplier=1.0)


@pytest.fixture
def rows():
    inputs = torch.arange(64, dtype=torch.float32).reshape(16, 4) / 64
    return Dataset(
        inputs=inputs.numpy(),
        targets=(torch.arange(16) % 2).numpy(),
        name="patients-of-dr-who",
        visibility="private",
        public_size=16,
        classes=2,
    )


@pytest.fixture
def trained(rows, tmp_path):
    """A private run, made by somebody whose files others may read."""
    before = os.umask(0o000)
    try:
        train(nn.Linear(4, 2), rows, PLAN, out=tmp_path / "run")
    finally:
        os.umask(before)
    return RunFolder(tmp_path / "run")


def modes(folder):
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.keeps_out("Released files that only their writer can read, or private ones that everybody can")
def test_another_user_reads_the_release_and_nothing_private(trained):
    """Another user of the machine opens every file of the run: losses and batch sizes are among the private."""
    assert modes(trained.release) == {0o644}
    assert modes(trained.private) == {0o600}
    assert stat.S_IMODE(trained.private.stat().st_mode) == 0o700


def test_the_name_of_a_private_data_set_is_not_published(trained):
    """A folder's name may say whose data it holds."""
    for path in trained.release.rglob("*"):
        assert path.is_dir() or b"patients-of-dr-who" not in path.read_bytes()


@pytest.mark.keeps_out("`NaN` in a JSON file, which strict readers refuse")
def test_a_model_that_diverged_leaves_files_that_every_reader_reads(rows, tmp_path):
    """A loss that is not a number once came out as `NaN`, which is not JSON and stops strict readers."""
    model = nn.Linear(4, 2)
    nn.init.constant_(model.weight, float("nan"))
    public = replace(rows, visibility="public")
    train(model, rows, PLAN, test=public, out=tmp_path / "run")
    for path in (tmp_path / "run").rglob("*.json*"):
        for text in [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines():
            json.loads(text, parse_constant=pytest.fail)
    run = results.read_run(tmp_path / "run")
    assert run.result.test_loss is None
    assert run.history[-1].test_loss is None


@pytest.mark.keeps_out("A report that draws what a tampered file says")
@pytest.mark.parametrize(
    "lie",
    [
        {"test_accuracy": 98.5},  # a percentage would be drawn beyond the chart
        {"epsilon": -3.0},
        {"epsilon": "0.1"},
        {"kind": "tuning"},  # of another kind than its fields
        {"kind": "training "},
        {"format": 99},
    ],
)
def test_a_result_that_was_tampered_with_is_refused_with_its_name(tmp_path, lie):
    honest = results.Training(epsilon=8.0, delta=1e-5, test_accuracy=0.9, test_loss=0.1, data="mnist")
    folder = RunFolder.make(tmp_path / "run")
    folder.write_json("result.json", {**honest.to_json(), **lie})
    with pytest.raises(InvalidInput, match=r"run/release/result\.json"):
        write_report([folder.path], tmp_path / "report.html")


def test_a_sheet_of_endless_digits_is_refused(tmp_path):
    """One number in a file of a hundred bytes made the page loop for ever."""
    folder = RunFolder.make(tmp_path / "run")
    levels = [{"epsilon": 1.0, "readable": 0.5}] * 3
    endless = {"delta": 0.0, "sheet": "a.png", "digits": 10**12, "levels": levels}
    folder.write_json("result.json", {"kind": "noised-digits", "format": 2, **endless})
    with pytest.raises(InvalidInput, match="from 0 to 100"):
        write_report([folder.path], tmp_path / "report.html")
