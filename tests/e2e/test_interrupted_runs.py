"""An interrupted run: what is asked of it says so, and `--finish` ends and keeps it."""

import json

import pytest

from sfumato.ledger import Certificate, Ledger
from sfumato.training import run

TRAIN = ("train", "--data", "digits", "--model", "mlp", "--epsilon", "2", "--epochs", "4", "--batch", "300")


@pytest.fixture
def interrupted(sfumato, tmp_path, monkeypatch):
    """The words of a run that ended after its second epoch, by Ctrl-C."""
    words = (*TRAIN, "--ledger", tmp_path / "l.db", "--out", tmp_path / "out")
    sfumato("ledger", "create", tmp_path / "l.db", "--epsilon", "3", "--delta", "1e-5")
    reported = run._report
    with monkeypatch.context() as patched:

        def stop(trainer, *more):
            report = reported(trainer, *more)
            if report.epoch == 3:
                raise KeyboardInterrupt
            return report

        patched.setattr(run, "_report", stop)
        code, _, err = sfumato(*words)
    assert code == 130
    assert "the same command goes on" in err
    return words


def test_whatever_asks_for_its_release_is_told(interrupted, sfumato, tmp_path):
    out = tmp_path / "out"
    for words in (
        ("predict", out, "digits"),
        ("verify", out / "release" / "certificate.json"),
        ("report", out, "--out", tmp_path / "report.html"),
    ):
        code, _, err = sfumato(*words)
        assert code != 0
        assert "interrupted" in err, words
        assert "--finish" in err, words


def test_a_folder_without_a_run_is_not_called_interrupted(sfumato, tmp_path):
    for words in (
        ("predict", tmp_path, "digits"),
        ("verify", tmp_path / "release" / "c.json"),
        ("report", tmp_path),
    ):
        code, _, err = sfumato(*words)
        assert code != 0
        assert "interrupted" not in err


def test_it_can_be_ended_and_kept(interrupted, sfumato, sfumato_json, tmp_path):
    out = tmp_path / "out"
    before = Ledger.open(tmp_path / "l.db").epsilon_spent
    answer = sfumato_json(*interrupted, "--finish")
    assert (answer["steps"], answer["steps_planned"]) == (14, 19)
    assert answer["epsilon"] <= 2
    assert answer["epsilon_spent"] <= before
    certificate = Certificate.read(out / "release" / "certificate.json")
    assert certificate.planned is not None
    assert sfumato("verify", out / "release" / "certificate.json")[0] == 0
    assert sfumato("predict", out, "digits")[0] == 0
    assert sfumato("report", out, "--out", tmp_path / "report.html")[0] == 0
    history = [json.loads(line) for line in (out / "release" / "history.jsonl").read_text().splitlines()]
    assert [epoch["epoch"] for epoch in history] == [1, 2, 3]
    code, _, err = sfumato(*interrupted, "--finish")
    assert (code, "finished run" in err) == (2, True)


def test_only_an_interrupted_run_can_be_ended(sfumato, tmp_path):
    code, _, err = sfumato(*TRAIN, "--finish")
    assert (code, "--out" in err) == (2, True)
    code, _, err = sfumato(*TRAIN, "--finish", "--out", tmp_path / "out")
    assert (code, "interrupted run to finish" in err) == (2, True)
