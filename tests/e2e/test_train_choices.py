"""`train --noise` and `--unit`: other neighbours and other units, said before anything is spent."""

from __future__ import annotations

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
