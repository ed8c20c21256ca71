"""The recipe writes its numbers and figures."""

import json

from sfumato.reproduce import tracing


def test_recipe_writes_rows_figures_and_the_published_table(tmp_path):
    rows = tracing.run(
        tmp_path, people=300, days=4, epsilons=(1.0,), seeds=(1,), methods=("dpfn", "traditional", "none")
    )
    document = json.loads((tmp_path / "tracing.json").read_text())
    assert len(document["rows"]) == len(rows) == 7
    assert document["published_peak_permille"]["traditional"] == 105.7
    assert document["attack"]["unprotected"]["accuracy"] == 1
    assert document["attack"]["epsilon 1"]["accuracy"] < 0.7
    for name in ("peak.png", "prevalence.png"):
        assert (tmp_path / name).stat().st_size > 10_000
