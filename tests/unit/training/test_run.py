import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput
from sfumato.training import Optimization, TrainingPlan, estimate, train

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=20, steps=6, noise_multiplier=1.0)


def make_dataset(visibility, rows=40, seed=0):
    generator = np.random.default_rng(seed)
    return Dataset(
        inputs=generator.standard_normal((rows, 5)).astype(np.float32),
        targets=generator.integers(0, 3, rows),
        name="toy",
        visibility=visibility,
        public_size=40,
        classes=3,
    )


def test_a_run_leaves_a_whole_folder(tmp_path):
    result = train(nn.Linear(5, 3), make_dataset("private"), PLAN, test=make_dataset("public"), out=tmp_path)
    release = tmp_path / "release"
    assert json.loads((release / "result.json").read_text())["test_accuracy"] == result.test_accuracy
    assert TrainingPlan.from_json(json.loads((release / "plan.json").read_text())) == PLAN
    assert len((release / "history.jsonl").read_text().splitlines()) == 3
    assert result.epsilon == pytest.approx(PLAN.epsilon(1e-5))


@pytest.mark.keeps_out("Tuning, early stopping and logged losses not charged")
def test_the_release_holds_nothing_seen_of_private_rows(tmp_path):
    """Training losses, batch sizes and times are private files; a neighbour's release has the same fields."""
    train(nn.Linear(5, 3), make_dataset("private"), PLAN, out=tmp_path)
    released = "".join(
        path.read_text() for path in (tmp_path / "release").iterdir() if path.suffix in (".json", ".jsonl")
    )
    for word in ("mean_loss", "not_finite", "seconds", "units"):
        assert word not in released
    log = [json.loads(line) for line in (tmp_path / "private" / "steps.jsonl").read_text().splitlines()]
    assert [sorted(step) for step in log] == [["mean_loss", "not_finite", "units"]] * 6
    assert (tmp_path / "private").stat().st_mode & 0o077 == 0


@pytest.mark.keeps_out("Tuning, early stopping and logged losses not charged")
def test_accuracy_on_private_rows_is_refused():
    with pytest.raises(InvalidInput, match="release of its own"):
        train(nn.Linear(5, 3), make_dataset("private"), PLAN, test=make_dataset("private"))


def test_the_size_must_be_declared():
    rows = torch.zeros(40, 5), torch.zeros(40, dtype=torch.int64)
    with pytest.raises(InvalidInput, match="declare how many people"):
        train(nn.Linear(5, 3), rows, epsilon=1)
    with pytest.raises(InvalidInput, match="plan or epsilon"):
        train(nn.Linear(5, 3), rows)


def test_rates_follow_their_schedule():
    cosine = Optimization(learning_rate=2.0, schedule="cosine", warmup_share=0.5)
    assert cosine.rate_at(0.0) == 0
    assert cosine.rate_at(0.25) == pytest.approx(2.0 * 0.5 * 0.5 * (1 + 2**-0.5))
    assert Optimization(learning_rate=2.0, schedule="linear").rate_at(0.75) == 0.5


def test_the_released_weights_are_the_averaged_ones():
    plan = replace(PLAN, average_decay=0.5)
    averages = {}

    def remember(trainer):
        averages.update({name: value.clone() for name, value in trainer.average.values.items()})

    result = train(nn.Linear(5, 3), make_dataset("private"), plan, on_step=remember)
    assert torch.equal(result.model.weight, averages["weight"])


def test_an_estimate_trains_nothing():
    model = nn.Linear(5, 3)
    before = model.weight.detach().clone()
    guess = estimate(model, PLAN, (5,), classes=3)
    assert torch.equal(before, model.weight)
    assert guess.seconds > 0
    assert guess.megabytes > 10
