"""The recipe on small images: rows, file and figures are there and agree."""

from dataclasses import replace
from pathlib import Path

import pytest

from sfumato import datasets
from sfumato.runs import read_run
from sfumato_lab.reproduce import pate


@pytest.fixture(scope="module")
def data():
    private = datasets.load("digits", "train", side=28).excerpt(300)
    public = replace(datasets.load("digits", "test", side=28).take(60), visibility="public")
    return private, public


def test_rows_figures_and_file(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pate, "TEACHERS", {20.0: 30})
    report = pate.run(
        tmp_path, seeds=2, epsilons=(20.0,), prior="strokes", adapt_steps=0, source=False, data=data
    )
    row = report["rows"][0]
    assert 19.9 <= row["epsilon"] <= 20
    assert len(row["accuracies"]) == 2
    assert 0 < report["agreement"]["30"] <= 1
    assert read_run(tmp_path).result.findings["rows"][0]["teachers"] == 30
    assert [Path(path).name for path in report["figures"]] == ["histograms.png", "accuracy.png"]


def test_the_table_of_the_source(data):
    rows = pate.project_table(*data, teachers=(4,), epochs=(1,), gammas=(0.1, 0.5))
    assert [(row["teachers"], row["epochs"], row["gamma"], row["queries"]) for row in rows] == [
        (4, 1, 0.1, 54),
        (4, 1, 0.5, 54),
    ]
    assert rows[0]["epsilon"] < rows[1]["epsilon"]
    # 54 queries at γ = .1, δ = 1e-5: min over l of 54·½·.2²·(l+1) + ln(1e5)/l = 1.08·4 + 11.5129/3.
    assert rows[0]["source_moments_epsilon"] == pytest.approx(1.08 * 4 + 11.512925 / 3)
    assert rows[0]["data_dependent_epsilon"] <= rows[0]["epsilon"]
