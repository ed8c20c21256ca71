"""`sfumato trace` prints what other tools rely on."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sfumato.errors import LittleProtection
from sfumato.runs import read_run
from sfumato_lab import commands
from sfumato_lab.tracing import METHODS


def _run(*arguments):
    app = typer.Typer()
    commands.register(app)
    return CliRunner().invoke(app, ["trace", *arguments])


def test_json_has_the_relied_on_keys_and_the_whole_life_fits_epsilon():
    result = _run("--agents", "400", "--days", "6", "--epsilon", "1", "--simulator", "seir", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert 0 < answer["peak_infection_rate"] < 1
    assert answer["epsilon_release"] <= answer["epsilon_lifetime"] * (
        1 + 1e-12
    )  # two ways to compute one price
    assert answer["epsilon_lifetime"] <= 1 < answer["epsilon_person"]
    assert 6 * 38 <= answer["tests_used"] <= 6 * 42  # 38 turns a day, and a second test of each positive one


def test_per_release_epsilon_costs_more_over_a_life():
    result = _run("--agents", "300", "--days", "3", "--per-release", "--method", "dpfn-daily", "--json")
    answer = json.loads(result.stdout)
    assert answer["epsilon_release"] == pytest.approx(1, rel=1e-3)
    assert answer["epsilon_lifetime"] > 4


def test_news_that_is_priced_by_the_day_is_told_daily():
    result = _run("--agents", "300", "--days", "3", "--per-release", "--json")
    answer = json.loads(result.stdout)
    assert answer["epsilon_release"] == pytest.approx(1, rel=1e-3)
    assert answer["epsilon_lifetime"] == pytest.approx(4.4, abs=0.1)  # fourteen days in full


def test_confirming_tests_are_on_by_default_and_some_tests_are_set_aside_for_them():
    told = {}
    for option in ("--confirm", "--no-confirm"):
        told[option] = json.loads(_run("--agents", "400", "--days", "6", option, "--json").stdout)
    assert told["--confirm"]["confirm"] is True
    assert told["--no-confirm"]["confirm"] is False
    assert 6 * 38 <= told["--confirm"]["tests_used"] <= 6 * 42
    assert told["--no-confirm"]["tests_used"] == 6 * 40
    assert json.loads(_run("--agents", "400", "--days", "6", "--json").stdout)["confirm"] is True


def test_people_read_the_unit_and_all_three_prices():
    result = _run("--agents", "300", "--days", "3")
    for phrase in ("contact-day message", "day's release", "message's life", "of a person"):
        assert phrase in result.stdout


@pytest.mark.parametrize("method", sorted(METHODS))
def test_an_epidemic_is_kept_as_a_run(tmp_path, method):
    result = _run("--agents", "200", "--days", "3", "--method", method, "--out", str(tmp_path / "t"), "--json")
    answer = json.loads(result.stdout)
    kept = read_run(tmp_path / "t").result
    assert (kept.people, kept.days, kept.unit) == (200, 3, answer["unit"])
    (curve,) = kept.curves
    assert curve.method == method
    assert (curve.peak, list(curve.prevalence)) == (answer["peak_infection_rate"], answer["prevalence"])


def test_without_noise_no_epsilon_is_kept(tmp_path):
    _run("--agents", "200", "--days", "3", "--unprotected", "--out", str(tmp_path / "t"))
    (curve,) = read_run(tmp_path / "t").result.curves
    assert (curve.epsilon, curve.epsilon_lifetime, curve.epsilon_person) == (None, None, None)


def test_a_large_delta_is_warned_of():
    with pytest.warns(LittleProtection, match="this tracing promises practically no protection.*delta=0.001"):
        _run("--agents", "200", "--days", "2", "--delta", "0.001")


def test_the_default_delta_and_a_run_without_noise_are_not_warned_of(recwarn):
    _run("--agents", "200", "--days", "2")
    _run("--agents", "200", "--days", "2", "--unprotected")
    assert not recwarn.list


@pytest.mark.parametrize(("simulator", "agents"), [("seir", -5), ("seir", 1), ("covasim", 99)])
def test_a_town_without_people_is_named_by_its_option(simulator, agents):
    result = _run("--agents", str(agents), "--simulator", simulator)
    assert f"agents={agents}" in str(result.exception)
    assert "people" not in str(result.exception)


def test_one_run_is_said_to_be_one():
    text = " ".join(_run("--agents", "300", "--days", "3", "--delta", "1e-5").stdout.split())
    assert "This is one run. Peaks differ" in text
    assert "reproduce tracing --towns N --repeats N" in text
