"""`train --noise` and `--unit`: other neighbours and other units, said before anything is spent."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from sfumato.ledger import Certificate, Ledger

TRAIN = ("train", "--data", "digits", "--model", "mlp", "--epsilon", "2", "--epochs", "1", "--batch", "200")


@pytest.mark.parametrize("noise", ["banded", "lambda-cgd"])
def test_noise_that_knows_the_past(noise, sfumato, tmp_path):
    place, out = tmp_path / "l.db", tmp_path / "out"
    sfumato("ledger", "create", place, "--epsilon", "3", "--delta", "1e-5", "--relation", "zero-out")
    code, _, err = sfumato(*TRAIN, "--noise", noise, "--ledger", place, "--out", out, "--json")
    assert code == 0, err
    certificate = Certificate.read(out / "release" / "certificate.json")
    certificate.verify()
    assert (str(certificate.relation), certificate.plan["sampling"]) == ("zero-out", "cyclic")
    assert certificate.plan["noise"]["kind"] == noise


def test_a_ledger_with_other_neighbours_refuses_a_fixed_order(sfumato, tmp_path):
    place = tmp_path / "l.db"
    sfumato("ledger", "create", place, "--epsilon", "3", "--delta", "1e-5")
    code, _, err = sfumato(*TRAIN, "--noise", "banded", "--ledger", place, "--out", tmp_path / "out")
    assert code != 0
    assert "zero-out" in err
    assert Ledger.open(place).epsilon_spent == 0
    code, _, err = sfumato(*TRAIN, "--noise", "pink")
    assert (code, "banded" in err) == (2, True)
    code, _, err = sfumato(*TRAIN, "--noise", "banded", "--hold-out", "0.1")
    assert (code, "--hold-out" in err) == (2, True)


def test_each_row_can_be_a_person_of_the_ledger(sfumato, tmp_path):
    place, out = tmp_path / "l.db", tmp_path / "out"
    sfumato("ledger", "create", place, "--epsilon", "5", "--delta", "1e-5", "--unit", "person")
    refused, _, err = sfumato(*TRAIN, "--ledger", place, "--out", out)
    assert refused != 0
    assert "person" in err
    words = ("--unit", "person", "--hold-out", "0.1", "--ledger", place, "--out", out)
    code, _, err = sfumato(*TRAIN, *words)
    assert code == 0, err
    assert {charge.unit for charge in Ledger.open(place).charges()} == {"person"}
    assert Certificate.read(out / "release" / "certificate.json").unit == "person"


VISITS = """
[table]
name = "visits"
source = "visits.csv"
public_size = 400

[budget]
epsilon = 4.0
delta = 1e-6
unit = "person"
ledger = "visits.db"

[columns]
age = {type = "integer", lower = 0, upper = 100}
ill = {type = "boolean"}
note = {type = "text"}
"""


@pytest.mark.keeps_out("A column without categories left out of what was paid for, without being asked")
@pytest.mark.parametrize(
    ("command", "out"),
    [
        (("train", "--target", "ill", "--epsilon", "1"), "run"),
        (("local", "release", "--epsilon", "1"), "noised.npz"),
    ],
)
def test_a_column_without_categories_is_refused_before_the_charge_or_left_out(command, out, sfumato, tmp_path):
    policy = tmp_path / "visits.toml"
    policy.write_text(VISITS if command[0] == "train" else VISITS.replace('ledger = "visits.db"', ""))
    age = np.arange(400) % 100
    pd.DataFrame({"age": age, "ill": age > 50, "note": "seen"}).to_csv(tmp_path / "visits.csv", index=False)
    words = (*command, policy, "--out", tmp_path / out, "--json")
    code, _, err = sfumato(*words)
    assert (code, "categories for note (text)" in err, "--leave-out note" in err) == (2, True, True)
    code, _, err = sfumato(*words, "--leave-out", "nose")
    assert (code, "'nose'" in err) == (2, True)
    assert not list(tmp_path.glob("*.db"))
    assert not (tmp_path / out).exists()
    code, text, err = sfumato(*words, "--leave-out", "note")
    assert code == 0, err
    assert json.loads(text)["left_out"] == ["note"]
    [place] = tmp_path.rglob("*certificate.json")
    assert "left out on purpose: note" in Certificate.read(place).caveats
