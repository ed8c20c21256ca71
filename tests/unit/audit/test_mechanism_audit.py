"""Dirac canaries through the installed training step, and the commands around them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from sfumato.audit import Verdict, dirac_scores
from sfumato.audit.runs import canaries as run_audit
from sfumato.audit.runs import mechanism as mechanism_audit
from sfumato.cli import audit as command
from sfumato.errors import InvalidInput
from sfumato.randomness import SecretStream, public_generator
from sfumato.runs import Training, write_run
from sfumato.storage import RunFolder
from sfumato.training import TrainingPlan, clipped_gradient_sum


@pytest.fixture(scope="module")
def app():
    made = typer.Typer()
    command.register(made)
    return made


def test_a_canary_owns_one_coordinate():
    """The clipped gradient of canary j is the clip norm at weight j, and nothing anywhere else."""
    side = 5
    model = mechanism_audit.CanaryModel(side)
    for canary in (0, 17, 49):
        rows = mechanism_audit.canary_rows(np.arange(2 * side * side) == canary, side, 16.0)
        sums = clipped_gradient_sum(model, mechanism_audit.chosen_output, *rows, 0.5)
        flat = torch.cat([part.flatten() for part in sums.values()])
        assert float(flat[canary]) == pytest.approx(0.5, rel=1e-6)
        assert float(flat.abs().sum()) == pytest.approx(0.5, rel=1e-6)


def test_the_bound_is_close_to_the_claim():
    """At 400 pairs of steps the bound is about 99% of 2.382; at 40 it is about 97 ± 1.1%."""
    verdict = mechanism_audit.run(pairs=40)
    assert verdict.claimed_epsilon == pytest.approx(2.38169, abs=1e-3)
    assert 0.91 * verdict.claimed_epsilon <= verdict.lower_bound
    assert verdict.sure_bound < verdict.lower_bound
    assert not verdict.refuted
    assert any("sampler" in text for text in verdict.untested)


def test_less_noise_than_claimed_is_refuted():
    """Noise drawn at 1.0 under a claim of 1.1."""
    scores = mechanism_audit.canary_scores(replace(mechanism_audit.TUTORIAL, noise_multiplier=1.0), pairs=32)
    assert scores.mu_bound(alpha=1e-6) > 1 / 1.1


def test_ideal_noise_is_measured_as_it_is():
    """n = 200,000 a pair: the bound is √2·μ less about 2·1.96·.44/(.33·√n) = .012."""
    draw = public_generator(5)
    scores = dirac_scores(
        lambda present: present + draw.normal(0, 1, present.size),
        canaries=400_000,
        pairs=1,
        coins=SecretStream(),
    )
    assert 0.97 < scores.mu_bound(alpha=0.05) < 1.01


def test_a_step_that_releases_nan_is_no_step():
    with pytest.raises(InvalidInput, match="finite"):
        dirac_scores(lambda present: present * np.nan, canaries=4, pairs=1, coins=SecretStream())


def test_command(app):
    result = CliRunner().invoke(app, ["audit", "mechanism", "--pairs", "16", "--steps", "100", "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["lower_bound"] > 0
    assert answer["sure_bound"] < answer["claimed_epsilon"]  # fails once in a million
    assert answer["refuted"] is False


def test_a_refuted_claim_is_exit_code_one(app, tmp_path):
    """A run folder that says it cost a tenth of what its plan costs."""
    folder = run_folder(tmp_path, epsilon=0.1)
    result = CliRunner().invoke(app, ["audit", "run", str(folder), "--pairs", "2", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["refuted"] is True


def run_folder(path, *, epsilon, canaries=None):
    plan = TrainingPlan(sample_rate=0.1, expected_batch=10, steps=20, noise_multiplier=1.0)
    result = Training(epsilon=epsilon, delta=1e-5, test_accuracy=None)
    write_run(RunFolder.make(path), result, certificate=None, plan=plan.to_json())
    if canaries is not None:
        (path / "private" / "canaries.json").write_text(json.dumps(canaries))
    return path


def test_a_run_with_canaries_of_its_own(tmp_path):
    """Canaries that are found without a mistake refute ε = 3 where the plan's own noise does not."""
    coins = public_generator(6).permutation([True, False] * 200).tolist()
    canaries = {
        "kind": "dirac",
        "included": coins,
        "scores": [coin - 0.5 for coin in coins],
        "guesses": 400,
    }
    verdict = run_audit.run(run_folder(tmp_path, epsilon=3.0, canaries=canaries), pairs=1)
    assert verdict.details["right"] == 400
    assert verdict.refuted
    written = json.loads((tmp_path / "private" / "audit.json").read_text())
    assert set(written) == {"mechanism", "one run"}
    assert (tmp_path / "private" / "audit.png").exists()
    assert not list((tmp_path / "release").glob("audit*"))


def test_canaries_of_a_plan_about_people_are_a_person_each():
    """98% of the claim in the mean, as for records; a plan about people ended in a request for units."""
    people = replace(mechanism_audit.TUTORIAL, unit="patient", rows_per_unit=4)
    verdict = mechanism_audit.run(people, pairs=40)
    assert 0.91 * verdict.claimed_epsilon <= verdict.lower_bound
    assert not verdict.refuted


def test_a_run_whose_plan_has_no_such_steps_is_refused_in_one_sentence_before_any_work(app, tmp_path):
    """The plan of boosted trees, as `sfumato train POLICY --target` writes it."""
    plan = {"model": "boosted", "counts_noise": 36.0, "steps": 200, "unit": "patient"}
    result = Training(epsilon=1.0, delta=1e-5, test_accuracy=None)
    write_run(RunFolder.make(tmp_path), result, certificate=None, plan=plan)
    answer = CliRunner().invoke(app, ["audit", "run", str(tmp_path)])
    assert isinstance(answer.exception, InvalidInput)
    assert "model='boosted'" in str(answer.exception)
    assert not (tmp_path / "private" / "audit.json").exists()


def test_no_run_folder(app, tmp_path):
    result = CliRunner().invoke(app, ["audit", "run", str(tmp_path)])
    assert isinstance(result.exception, InvalidInput)


def test_verdict_in_words():
    verdict = Verdict(claimed_epsilon=2.0, delta=1e-5, lower_bound=1.9, sure_bound=1.8)
    assert "95% of the claim" in verdict.in_words
    assert "refuted: an attack proves ε ≥ 2.5" in replace(verdict, sure_bound=2.5).in_words
    assert not replace(verdict, lower_bound=2.1).refuted  # a bound for reading decides nothing
