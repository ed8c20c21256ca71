"""`sfumato synthesize` from a file to a certificate that verifies."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from sfumato.ledger import Ledger
from sfumato.randomness import public_generator

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
