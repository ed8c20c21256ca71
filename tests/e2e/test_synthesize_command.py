"""`sfumato synthesize` from a file to a certificate that verifies."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from sfumato.ledger import Ledger
from sfumato.randomness import public_generator
from sfumato.synthesis import SyntheticModel

POLICY = """
[table]
name = "people"
source = "people.csv"

[unit]
column = "person"
rows = 2

[budget]
epsilon = 2.0
delta = 1e-6

[columns.age]
type = "integer"
lower = 0
upper = 99

[columns.city]
type = "text"
categories = ["Delft", "Gouda"]
"""


@pytest.fixture
def policy(tmp_path):
    draw = public_generator(3)
    age = draw.integers(20, 60, 3000)
    city = np.where(age < 40, "Delft", "Gouda")
    people = pd.DataFrame({"person": np.arange(3000) // 2, "age": age, "city": city})
    people.to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.toml").write_text(POLICY)
    return tmp_path / "people.toml"


def test_a_table_is_charged_drawn_and_certified(policy, sfumato):
    pytest.importorskip("mbi")
    out = policy.with_name("s.csv")
    wanted = ["--rows", "700", "--epsilon", "1.5", "--target", "city", "--out", str(out), "--attack", "--json"]
    code, text, _ = sfumato("synthesize", str(policy), *wanted)
    assert code == 0
    answer = json.loads(text)
    assert {"epsilon", "delta", "rows", "seconds"} <= set(answer)
    assert answer["epsilon"] <= 1.5
    made = pd.read_csv(out)
    assert len(made) == 700
    young = made["age"] < 39
    assert (made["city"][young] == "Delft").mean() > 0.75 > 0.25 > (made["city"][~young] == "Delft").mean()
    attack = json.loads((policy.parent / "private" / "s.attack.json").read_text())
    assert attack["claimed_epsilon"] == answer["epsilon"]
    assert 0 <= attack["right"] <= attack["guesses"] <= attack["canaries"]
    assert attack["linkage"]["column"] == "city"
    assert attack["linkage"]["allowed_if_in"] <= 1
    assert "lower_bound" not in text  # what concerns real people is not printed
    code, _, _ = sfumato("verify", str(policy.with_name("s.certificate.json")))
    assert code == 0
    again = sfumato("synthesize", str(policy), *wanted)
    assert again[0] == 2  # a release is made once
    wanted[wanted.index(str(out))] = str(policy.with_name("t.csv"))
    assert sfumato("synthesize", str(policy), *wanted)[0] == 3  # the budget is spent


def test_wrong_usage_costs_nothing(policy, sfumato):
    pytest.importorskip("mbi")
    common = ["synthesize", str(policy), "--rows", "10", "--epsilon", "1"]
    for wrong in (["--out", "x.json"], ["--out", "nowhere/x.csv"], ["--out", "x.csv", "--target", "person"]):
        code, _, error = sfumato(*common, *wrong)
        assert code == 2
        assert "expected" in error
    assert not policy.with_suffix(".ledger.db").exists()


def test_a_dry_run_prices_and_makes_nothing(policy, sfumato):
    pytest.importorskip("mbi")
    common = ["synthesize", str(policy), "--rows", "10", "--dry-run"]
    code, text, _ = sfumato(*common, "--epsilon", "1", "--json")
    answer = json.loads(text)
    assert (code, answer["dry_run"], answer["columns"]) == (0, True, ["age", "city"])
    assert 0.99 <= answer["epsilon"] <= 1
    assert "Nothing was spent; ε left 2." in sfumato(*common, "--epsilon", "1")[1]
    assert sfumato(*common, "--epsilon", "3")[0] == 3  # does not fit
    assert sorted(place.name for place in policy.parent.iterdir()) == ["people.csv", "people.toml"]


def test_what_was_written_is_named_and_more_is_drawn_for_nothing(policy, sfumato):
    pytest.importorskip("mbi")
    out = policy.with_name("s.csv")
    words = ["--rows", "50", "--epsilon", "1", "--out", str(out), "--columns", "city", "--purpose", "a trial"]
    code, text, _ = sfumato("synthesize", str(policy), *words, "--attack")
    shown = "".join(text.split())
    assert code == 0
    for file in ("s.csv", "s.certificate.json", "s.model.npz", "s.fidelity.html", "private/s.distances.json"):
        assert file in shown
        assert (policy.parent / file).exists()
    assert "guessesright" in shown
    with Ledger.open(policy.with_suffix(".ledger.db")) as ledger:
        (charge,) = ledger.charges()
        assert charge.purpose == "a trial: synthetic table"
    more = policy.with_name("more.csv")
    drawing = ["synthesize", "--from", str(policy.with_name("s.model.npz")), "--rows", "70", "--out", str(more)]
    code, text, _ = sfumato(*drawing)
    assert code == 0
    assert "Nothing was spent" in text
    found = pd.read_csv(more)
    assert (len(found), set(found["city"])) == (70, {"Delft", "Gouda"})
    assert sfumato(*drawing)[0] == 2  # the file is there
    assert sfumato(*drawing[:-1], str(policy.with_name("x.csv")), "--epsilon", "1")[0] == 2
    assert sfumato("synthesize", str(policy), "--rows", "5", "--out", "x.csv")[0] == 2  # no --epsilon


PATIENTS = """
[table]
name = "patients"
source = "patients.csv"
public_size = 20000

[budget]
epsilon = 20.0
delta = 1e-6

[columns]
age = {type = "integer", lower = 0, upper = 100}
sex = {type = "text", categories = ["f", "m"]}
bmi = {type = "real", lower = 10, upper = 60}
systolic = {type = "integer", lower = 70, upper = 220}
creatinine = {type = "real", lower = 20, upper = 300}
cholesterol = {type = "real", lower = 1, upper = 12}
died = {type = "date", lower = 2015-01-01, upper = 2024-12-31}
"""
PREDICTORS = ["age", "sex", "bmi", "systolic", "creatinine", "cholesterol"]


def patients(seed: int, size: int = 20_000) -> pd.DataFrame:
    """A third of the patients have died, most of them the old: the day of death is there or missing."""
    draw = public_generator(seed)
    age = np.clip(np.rint(draw.normal(55, 20, size)), 0, 100)
    male = draw.random(size) < 0.5
    bmi = np.clip(draw.normal(24 + 0.05 * age, 4), 10, 60).round(1)
    systolic = np.clip(np.rint(draw.normal(100 + 0.5 * age + 0.4 * bmi, 14)), 70, 220)
    creatinine = np.clip(draw.normal(60 + 0.3 * age + 12 * male, 18), 20, 300).round()
    risk = (age - 66) / 8 + (bmi - 27) / 8 + (systolic - 139) / 25 + (creatinine - 88) / 40 + 0.4 * male - 0.3
    died = draw.random(size) < 1 / (1 + np.exp(-risk))
    day = np.datetime64("2015-01-01") + draw.integers(0, 3650, size)
    return pd.DataFrame(
        {
            "age": age.astype(int),
            "sex": np.where(male, "m", "f"),
            "bmi": bmi,
            "systolic": systolic.astype(int),
            "creatinine": creatinine,
            "cholesterol": np.clip(draw.normal(5, 1, size), 1, 12).round(1),
            "died": np.where(died, day.astype(str), ""),
        }
    )


@pytest.mark.keeps_out("Pairs with the target that have too many cells, dropped without a word")
def test_whether_a_date_is_there_goes_with_the_rest_as_it_does_among_people(tmp_path, sfumato):
    """At ε = 1, over two seeds of the noise. Runs differ by .004 in the correlation and by .001 in the AUC."""
    pytest.importorskip("mbi")
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def numbers(table: pd.DataFrame) -> pd.DataFrame:
        return table[PREDICTORS].assign(sex=table["sex"] == "m").astype(float)

    def learned(table: pd.DataFrame) -> tuple[float, float]:
        died = table["died"].notna() & (table["died"] != "")
        model = make_pipeline(StandardScaler(), LogisticRegression()).fit(numbers(table), died)
        scores = model.decision_function(numbers(others))
        return np.corrcoef(table["age"], died)[0, 1], roc_auc_score(others["died"] != "", scores)

    (tmp_path / "patients.toml").write_text(PATIENTS)
    real, others = patients(1), patients(2)
    real.to_csv(tmp_path / "patients.csv", index=False)
    correlation, auc = learned(real)
    assert (correlation > 0.6, auc > 0.9) == (True, True)
    for seed in (1, 2):
        out = tmp_path / f"s{seed}.csv"
        wanted = ["--rows", "20000", "--epsilon", "1", "--target", "died", "--out", str(out)]
        code, text, error = sfumato(
            "synthesize", tmp_path / "patients.toml", *wanted, "--test-seed", str(seed), "--json"
        )
        assert code == 0, error
        found = learned(pd.read_csv(out))
        assert found == (pytest.approx(correlation, abs=0.05), pytest.approx(auc, abs=0.02))
        told = json.loads(text)["not_measured"]
        assert not [clique for clique in told if "died" in clique]
    shown = json.loads(out.with_suffix(".fidelity.json").read_text())
    assert ["died" in item["columns"] for item in shown["measured"]][:7] == [True] * 6 + [False]
    assert shown["not_measured"] == told
    page = out.with_suffix(".fidelity.html").read_text()
    assert (
        page.index("Columns with the target, died") < page.index("Single columns") < page.index("Not measured")
    )
    model = SyntheticModel.read(out.with_suffix(".model.npz"))
    assert model.groups
    assert model.table(50).column_names == [*PREDICTORS, "died"]  # a view of a column is no column
    cells = model.draw(2000)
    strangers = {**cells, "age": public_generator(4).permutation(cells["age"])}
    assert model.log_chances(cells).mean() > model.log_chances(strangers).mean()


@pytest.mark.keeps_out("A column without categories left out of what was paid for, without being asked")
def test_a_column_that_says_nothing_is_refused_before_the_charge_or_left_out_on_purpose(policy, sfumato):
    pytest.importorskip("mbi")
    policy.write_text(POLICY + '\n[columns.note]\ntype = "text"\n\n[columns.weight]\ntype = "real"\n')
    table = pd.read_csv(policy.with_name("people.csv")).assign(note="x", weight=70.0)
    table.to_csv(policy.with_name("people.csv"), index=False)
    wanted = ["synthesize", policy, "--rows", "50", "--epsilon", "1", "--out", policy.with_name("s.csv")]
    for more in ([], ["--leave-out", "note"], ["--dry-run"]):
        code, _, error = sfumato(*wanted, *more)
        assert (code, "lower and upper for weight" in error) == (2, True)
        assert "--leave-out weight" in error
    assert not policy.with_name("people.ledger.db").exists() or _spent(policy) == 0
    code, text, error = sfumato(*wanted, "--leave-out", "note", "--leave-out", "weight", "--json")
    assert code == 0, error
    assert json.loads(text)["left_out"] == ["note", "weight"]
    assert list(pd.read_csv(policy.with_name("s.csv"))) == ["age", "city"]
    certificate = json.loads(policy.with_name("s.certificate.json").read_text())
    assert "left out on purpose: note, weight" in [caveat["text"] for caveat in certificate["caveats"]]


def _spent(policy) -> float:
    with Ledger.open(policy.with_name("people.ledger.db")) as ledger:
        return ledger.epsilon_spent
