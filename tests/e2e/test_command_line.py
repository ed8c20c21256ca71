"""The commands other tools rely on: their names, their JSON, their exit codes, their one-sentence errors."""

import json
import subprocess
import sys

import pytest

from sfumato.accounting import Relation, pure
from sfumato.ledger import Ledger


def test_epsilon(sfumato_json):
    answer = sfumato_json(
        "epsilon", "--noise-multiplier", 1.1, "--sample-rate", 0.0042667, "--steps", 14062, "--delta", 1e-5
    )
    assert answer["pld"] == pytest.approx(2.3817, abs=2e-4)
    assert answer["rdp"] == pytest.approx(2.5966, abs=1e-3)
    assert 0.01 < answer["attacker_true_positive_rate"] < 0.05
    assert answer["group"] > answer["pld"]


def test_sigma(sfumato_json):
    assert sfumato_json("sigma", "--epsilon", 1, "--delta", 1e-5)["noise_multiplier"] == pytest.approx(
        3.730632, abs=1e-6
    )
    found = sfumato_json("sigma", "--epsilon", 1, "--delta", 1e-5, "--sample-rate", 0.01, "--steps", 100)
    assert 0.99 <= found["pld"] <= 1


def test_the_calculators_speak_plainly(sfumato):
    code, out, _ = sfumato("epsilon", "--noise-multiplier", 2, "--delta", 1e-5)
    assert code == 0
    assert "pure guessing" in out


def test_ledger_from_creation_to_verification(sfumato, sfumato_json, tmp_path):
    place = tmp_path / "people.db"
    sfumato_json("ledger", "create", place, "--epsilon", 3, "--delta", 1e-5)
    shown = sfumato_json("ledger", "show", place)
    assert shown["epsilon_spent"] == 0
    assert shown["epsilon_left"] == pytest.approx(3)
    assert shown["charges"] == []
    assert sfumato_json("ledger", "verify", place)["valid"]
    code, out, _ = sfumato("ledger", "export", place)
    assert code == 0
    assert json.loads(out)["budget"]["epsilon"] == 3
    assert sfumato("ledger", "create", place, "--epsilon", 3)[0] == 1  # there is one already
    assert sfumato("ledger", "show", place)[0] == 0


def test_a_reservation_that_never_began_is_released_and_the_ledger_moves(sfumato, sfumato_json, tmp_path):
    place, other = tmp_path / "people.db", tmp_path / "elsewhere.db"
    made = sfumato_json("ledger", "create", place, "--epsilon", 3, "--dataset", "people-2026")
    assert made["dataset"] == "people-2026"
    terms = {"relation": Relation.ADD_REMOVE, "unit": "record"}
    with Ledger.open(place) as ledger:
        waiting = ledger.reserve(pure(1.0), purpose="died early", begun=False, **terms).head.sequence
        begun = ledger.reserve(pure(0.5), purpose="touched rows", **terms).head.sequence
    assert sfumato_json("ledger", "release", place, waiting)["epsilon_spent"] == pytest.approx(0.5)
    code, _, problem = sfumato("ledger", "release", place, begun)
    assert code != 0
    assert "stays spent" in problem
    moved = sfumato_json("ledger", "move", place, other)
    assert moved["epsilon_spent"] == pytest.approx(0.5)
    assert sfumato_json("ledger", "verify", other)["valid"]
    code, _, problem = sfumato("ledger", "release", place, begun)
    assert code == 1
    assert "moved to" in problem


def test_training_is_charged_certified_and_refused_when_the_budget_is_spent(sfumato, sfumato_json, tmp_path):
    ledger, out = tmp_path / "digits.db", tmp_path / "run"
    sfumato_json("ledger", "create", ledger, "--epsilon", 1, "--delta", 1e-5)
    command = ("train", "--data", "digits", "--model", "mlp", "--epochs", 2, "--batch", 128, "--ledger", ledger)
    answer = sfumato_json(*command, "--epsilon", 0.9, "--out", out)
    assert {"test_accuracy", "epsilon", "delta", "seconds"} <= set(answer)
    assert 0.85 <= answer["epsilon"] <= 0.9
    assert sfumato_json("ledger", "show", ledger)["epsilon_spent"] == pytest.approx(answer["epsilon"])
    certificate = out / "release" / "certificate.json"
    assert sfumato_json("verify", certificate)["pld"] == pytest.approx(answer["epsilon"])
    assert sfumato_json("ledger", "verify", ledger, "--certificate", certificate)["valid"]

    code, printed, error = sfumato(*command, "--epsilon", 0.9, "--out", tmp_path / "again")
    assert code == 3
    assert printed == ""
    assert "epsilon_left" in error


def test_a_forged_certificate_is_found_out(sfumato, sfumato_json, tmp_path):
    out = tmp_path / "run"
    sfumato_json("train", "--data", "digits", "--model", "mlp", "--epochs", 1, "--epsilon", 5, "--out", out)
    path = out / "release" / "certificate.json"
    stated = json.loads(path.read_text())
    stated["epsilon"]["pld"] = 0.1
    path.write_text(json.dumps(stated))
    code, _, error = sfumato("verify", path)
    assert code == 1
    assert "do not rely on it" in error


def test_plain_training_and_a_dry_run(sfumato_json):
    plain = sfumato_json("train", "--data", "digits", "--model", "mlp", "--plain", "--epochs", 2)
    assert plain["epsilon"] == "inf"
    dry = sfumato_json(
        "train", "--data", "digits", "--model", "mlp", "--epsilon", 1, "--epochs", 2, "--dry-run"
    )
    assert dry["epsilon"] <= 1
    assert dry["seconds_expected"] > 0
    assert dry["memory_expected_mb"] > 0


def test_a_run_can_attack_itself(sfumato_json, tmp_path):
    words = ("train", "--data", "digits", "--model", "mlp", "--epsilon", 4, "--epochs", 2, "--batch", 512)
    for run in ("first", "second"):  # at 95% confidence one bound in twenty may be above ε
        answer = sfumato_json(*words, "--audit", 300, "--out", tmp_path / run)
        if answer["audit_lower_bound"] <= answer["epsilon"]:
            break
    assert 0 <= answer["audit_lower_bound"] <= answer["epsilon"]
    assert (tmp_path / run / "private" / "audit.json").exists()
    assert "canar" not in (tmp_path / run / "release" / "result.json").read_text()


def test_data(sfumato_json):
    assert sfumato_json("data", "digits")["classes"] == 10


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("epsilon", "--noise-multiplier", -1, "--delta", 1e-5), "noise_multiplier >= 0"),
        (("epsilon", "--noise-multiplier", 1, "--delta", 2), "delta in [0, 1)"),
        (("epsilon", "--noise-multiplier", 1, "--delta", 1e-5, "--sample-rate", 2), "sample_rate in (0, 1]"),
        (("sigma", "--epsilon", 0, "--delta", 1e-5), "epsilon > 0"),
        (("train", "--data", "mnst", "--epsilon", 1), "mnist"),
        (("train", "--data", "digits"), "--epsilon or --plain"),
        (("train", "--data", "digits", "--epsilon", 1, "--plain"), "--plain without --epsilon"),
        (("train", "--data", "digits", "--epsilon", "abc"), "--epsilon"),
        (("train", "--data", "digits", "--model", "vgg", "--epsilon", 1), "tanh-cnn"),
        (("nonsense",), "nonsense"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(sfumato, words, expected):
    code, out, error = sfumato(*words)
    assert code == 2
    assert expected in " ".join(error.split())
    assert "Traceback" not in out + error


@pytest.mark.parametrize(
    "words", [("ledger", "show", "/nowhere/none.db"), ("verify", "/nowhere/certificate.json")]
)
def test_what_is_not_there_is_named(sfumato, words):
    code, _, error = sfumato(*words)
    assert code in (1, 2)
    assert "/nowhere" in error
    assert error.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_spent(sfumato, sfumato_json, tmp_path):
    ledger = tmp_path / "l.db"
    sfumato_json("ledger", "create", ledger, "--epsilon", 3, "--delta", 1e-5)
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    words = ("train", "--data", "digits", "--model", "mlp", "--epsilon", 1, "--ledger", ledger)
    code, _, error = sfumato(*words, "--out", blocked / "run")
    assert code == 2
    assert "choose another --out" in error
    assert sfumato_json("ledger", "show", ledger)["epsilon_spent"] == 0


def test_every_command_has_help_with_an_example(sfumato):
    import typer

    from sfumato.cli.app import app

    def commands(group, path=()):
        for name, command in typer.main.get_command(group).commands.items():
            if hasattr(command, "commands"):
                yield from ((*path, name, inner) for inner in command.commands)
            else:
                yield (*path, name)

    for words in commands(app):
        code, out, _ = sfumato(*words, "--help")
        assert code == 0
        assert "Example: sfumato" in " ".join(out.split()), words


def test_the_installed_command_starts():
    done = subprocess.run(
        [sys.executable, "-m", "sfumato", "--help"], capture_output=True, text=True, check=True
    )
    assert "privacy budget" in done.stdout


def test_accuracy_on_records_kept_out_is_paid_for(sfumato, sfumato_json, tmp_path):
    book, out = tmp_path / "digits.db", tmp_path / "run"
    sfumato("ledger", "create", book, "--epsilon", "2.5", "--delta", "1e-5")
    words = ("train", "--data", "digits", "--model", "mlp", "--epsilon", "1", "--epochs", "1", "--ledger", book)
    for too_much in ("1.6", "1.4"):  # the second fits as one plan, and not after the training
        code, _, err = sfumato(*words, "--hold-out", "0.2", "--hold-out-epsilon", too_much, "--out", out)
        assert code == 3
    assert "Traceback" not in err
    assert sfumato_json("ledger", "show", book)["epsilon_spent"] == 0  # training alone would have fitted
    answer = sfumato_json(*words, "--hold-out", "0.2", "--hold-out-epsilon", "0.1", "--out", out)
    low, high = answer["held_out_interval"]
    assert low <= answer["held_out_accuracy"] <= high
    assert answer["epsilon"] < answer["epsilon_with_hold_out"] <= answer["epsilon"] + 0.1
    kept = json.loads((out / "release" / "hold_out.json").read_text())
    assert kept["accuracy"] == answer["held_out_accuracy"]
    assert kept["certificate"]["purpose"] == "accuracy on records kept out"
    code, _, err = sfumato("train", "--data", "digits", "--plain", "--hold-out", "0.2")
    assert code == 2
    assert "--epsilon" in err


def test_words_fit_the_relation(sfumato):
    words = ("epsilon", "--noise-multiplier", "4", "--sample-rate", "0.01", "--steps", "9", "--delta", "1e-5")
    assert "took part" in " ".join(sfumato(*words)[1].split())
    replaced = " ".join(sfumato(*words, "--relation", "replace-one")[1].split())
    assert "which of two values" in replaced
    assert "took part" not in replaced


def test_replacing_a_record_costs_no_less_than_removing_it(sfumato_json):
    """Noise is counted in clip norms under each relation."""
    words = ("--noise-multiplier", "1.1", "--sample-rate", "0.0042667", "--steps", "50", "--delta", "1e-5")
    removed, replaced = (
        sfumato_json("epsilon", *words, "--relation", relation)["pld"]
        for relation in ("add-remove", "replace-one")
    )
    assert removed < replaced <= 2 * removed * 1.5
    words = ("--epsilon", "1", "--delta", "1e-5")
    removed, replaced = (
        sfumato_json("sigma", *words, "--relation", relation)["noise_multiplier"]
        for relation in ("add-remove", "replace-one")
    )
    assert replaced == pytest.approx(2 * removed)
