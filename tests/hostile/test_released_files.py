"""Files of a release: whose they are, and what a hostile one can make a reader do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sfumato
from sfumato.datasets import Dataset
from sfumato.runs import read_run
from sfumato.storage import CERTIFICATE, RunFolder
from sfumato.training import TrainingPlan, train

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=8, steps=2, noise_multiplier=1.0)


def rows(visibility: str = "private") -> Dataset:
    inputs = torch.arange(64, dtype=torch.float32).reshape(16, 4) / 64
    return Dataset(
        inputs=inputs.numpy(),
        targets=(torch.arange(16) % 2).numpy(),
        name="rows",
        visibility=visibility,
        public_size=16,
        classes=2,
    )


def released(folder: RunFolder) -> set[str]:
    return {path.name for path in folder.release.rglob("*") if path.is_file()}


# Leftovers of another run


@pytest.mark.keeps_out("A stale history or model of another run beside a new certificate")
def test_files_of_another_run_do_not_lie_beside_a_new_certificate(tmp_path):
    """Accuracies of a run without privacy, left in release/, once passed for those of the certified run."""
    clean, dirty = RunFolder(tmp_path / "clean"), RunFolder.make(tmp_path / "dirty")
    for name in ("history.jsonl", "hold_out.json", "model.safetensors", "figures/curve.png"):
        dirty.write(name, b'{"epoch": 1, "step": 1, "epsilon": 0.0, "test_accuracy": 1.0}\n')
    for folder in (clean, dirty):
        train(nn.Linear(4, 2), rows(), PLAN, out=folder.path)
    assert released(dirty) == released(clean)
    assert [report.test_accuracy for report in read_run(dirty.path).history] == [None]
    kept = dirty.private / "set-aside-1" / "history.jsonl"
    assert b'"test_accuracy": 1.0' in kept.read_bytes(), "nothing of the user's is deleted"


@pytest.mark.keeps_out("A stale history or model of another run beside a new certificate")
def test_a_run_that_is_given_up_leaves_nothing_to_the_next(tmp_path):
    folder = RunFolder(tmp_path / "run")
    train(nn.Linear(4, 2), rows(), PLAN, out=folder.path)
    folder.write("notes.txt", b"of the first run")
    folder.discard()
    assert released(folder) == set()
    with pytest.raises(sfumato.errors.DataUnavailable):
        sfumato.load(folder.path, model=nn.Linear(4, 2))


def test_a_run_that_resumes_keeps_its_history(tmp_path):
    class Stop(Exception):
        pass

    def stop(report):
        raise Stop

    plan = TrainingPlan(sample_rate=0.5, expected_batch=8, steps=4, noise_multiplier=1.0)
    with pytest.raises(Stop):
        train(nn.Linear(4, 2), rows(), plan, test=rows("public"), out=tmp_path, on_epoch=stop)
    first = read_run_history(tmp_path)
    assert len(first) == 1
    train(nn.Linear(4, 2), rows(), plan, test=rows("public"), out=tmp_path)
    assert read_run_history(tmp_path)[:1] == first
    assert len(read_run_history(tmp_path)) == 2
    assert (tmp_path / "release" / CERTIFICATE).is_file()


def read_run_history(path):
    return sfumato.runs.read_history(RunFolder(path))
