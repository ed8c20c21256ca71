"""The recipe writes its numbers and figures, and compares methods run by run."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sfumato.cli.app import whole_app
from sfumato.errors import InvalidInput
from sfumato.runs import read_run
from sfumato_lab.reproduce import tracing
from sfumato_lab.tracing import TestKit


def test_recipe_writes_rows_figures_and_the_published_table(tmp_path):
    towns = tracing.Towns(people=300, days=4, seeds=(1,))
    rows = tracing.run(tmp_path, towns, epsilons=(1.0,), methods=("dpfn", "traditional", "none"))
    document = read_run(tmp_path).result.findings
    assert len(document["rows"]) == len(rows) == 7
    assert document["published_peak_permille"]["traditional"] == 105.7
    assert document["attack"]["unprotected"]["accuracy"] == 1
    assert document["attack"]["epsilon 1"]["accuracy"] < 0.7
    assert [Path(path).name for path in document["figures"]] == ["peak.png", "prevalence.png"]


def test_repeats_and_test_errors_are_kept_and_every_method_is_compared_with_traditional(tmp_path):
    kit = TestKit(false_positive_rate=0)
    towns = tracing.Towns(people=300, days=4, seeds=(5, 6), repeats=3, kit=kit)
    methods = ("dpfn", "traditional")
    rows = tracing.run(tmp_path, towns, epsilons=(1.0,), methods=methods, unprotected=False)
    document = read_run(tmp_path).result.findings
    assert document["towns"] == [5, 6]
    assert document["repeats"] == 3
    assert document["test_errors"]["false_positive_rate"] == 0
    assert [(row.method, row.span) for row in rows] == [
        (m, s) for m in methods for s in ("release", "lifetime")
    ]
    for row, kept in zip(rows[:2], document["rows"], strict=False):
        assert len(row.peaks) == 6
        assert kept["ratio"] == {
            "of_medians": row.ratio.of_medians,
            "geometric_mean": row.ratio.geometric_mean,
            "error": row.ratio.error,
        }
    assert rows[2].ratio is rows[3].ratio is None  # traditional is not compared with itself


def test_confirmed_methods_are_compared_with_traditional_as_published_and_alike(tmp_path):
    towns = tracing.Towns(people=300, days=4, seeds=(5, 6), repeats=2)
    rows = tracing.run(
        tmp_path,
        towns,
        epsilons=(1.0,),
        methods=("traditional",),
        confirmed=("dpfn", "traditional"),
        unprotected=False,
    )
    plain, dpfn, confirmed = (next(row for row in rows[place:]) for place in (0, 2, 4))
    assert [(row.method, row.confirm) for row in (plain, dpfn, confirmed)] == [
        ("traditional", False),
        ("dpfn", True),
        ("traditional", True),
    ]
    assert plain.ratio is None
    assert dpfn.ratio == tracing.ratio(dpfn.peaks, plain.peaks, 2)
    assert dpfn.ratio_confirmed == tracing.ratio(dpfn.peaks, confirmed.peaks, 2)
    assert confirmed.ratio == tracing.ratio(confirmed.peaks, plain.peaks, 2)
    assert confirmed.ratio_confirmed is None
    # One of 30 tests a day is set aside, and every positive test has a second.
    assert all(4 * 29 <= row.tests <= 4 * 31 if row.confirm else row.tests == 4 * 30 for row in rows)
    assert {row["confirm"] for row in read_run(tmp_path).result.findings["rows"]} == {
        True,
        False,
    }


def test_scores_may_be_kept_from_knowing_ages():
    assert tracing.Towns(simulator="covasim").setting.disease.susceptibility
    assert not tracing.Towns(simulator="covasim", ages=False).setting.disease.susceptibility


def test_a_ratio_is_paired_by_run_and_its_error_is_that_of_towns():
    # Two towns of two runs: ratios 1/2, 1/2 and 2, 8. Means of the logarithms: −ln 2 and 2 ln 2.
    found = tracing.ratio((1.0, 2.0, 6.0, 8.0), (2.0, 4.0, 3.0, 1.0), repeats=2)
    assert found.of_medians == pytest.approx(4 / 2.5)
    assert found.geometric_mean == pytest.approx(math.sqrt(2))
    assert found.error == pytest.approx(3 * math.log(2) / 2)  # deviation 3 ln 2 / √2 of two towns, over √2
    assert tracing.ratio((1.0, 2.0), (2.0, 2.0), repeats=2).error is None
    with pytest.raises(ValueError, match="zip"):
        tracing.ratio((1.0,), (1.0, 2.0), repeats=1)


def test_repeats_of_a_town_differ_in_their_test_errors_and_towns_do_not_meet():
    runs = tracing.Towns(seeds=range(11, 21), repeats=5).runs
    assert len({errors for _, errors in runs}) == 50
    assert [town for town, _ in runs[:5]] == [11] * 5
    assert runs[5] == (12, 12)
    with pytest.raises(InvalidInput, match="repeats"):
        tracing.Towns(repeats=0)


def test_command_shows_the_ratios(tmp_path):
    words = "reproduce tracing --people 300 --days 3 --towns 2 --repeats 2 --epsilon 1 --no-unprotected"
    methods = ["--method", "dpfn", "--method", "traditional", "--false-positives", "0"]
    done = CliRunner().invoke(whole_app(), [*words.split(), *methods, "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 4
    assert rows[0]["ratio"]["geometric_mean"] > 0
    shown = CliRunner().invoke(whole_app(), [*words.split(), *methods, "--out", str(tmp_path)])
    assert "2 × 2 runs" in shown.output
    assert "traditional" in shown.output


def test_command_shows_both_comparisons(tmp_path):
    words = (
        "reproduce tracing --people 300 --days 3 --towns 2 --epsilon 1 --no-unprotected --method traditional"
    )
    confirmed = ["--confirm", "dpfn", "--confirm", "traditional", "--out", str(tmp_path)]
    shown = CliRunner().invoke(whole_app(), [*words.split(), *confirmed])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("both with confirming tests") == 2  # a release and a life, of dpfn
