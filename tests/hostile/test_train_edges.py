"""What a command or a call leaves out, repeats or contradicts: refused before anything is spent."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sfumato
from sfumato.accounting import Budget
from sfumato.cli import main
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput, LittleProtection
from sfumato.learn import tuning
from sfumato.ledger import Ledger
from sfumato.storage import RunFolder
from sfumato.training import PrivateTrainer, TrainingPlan, keep_out, keep_some, train

PLAN = TrainingPlan(sample_rate=0.5, expected_batch=20, steps=2, noise_multiplier=1.0)
ROWS = torch.zeros(40, 5), torch.zeros(40, dtype=torch.int64)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.db", budget=Budget(epsilon=90, delta=1e-5)) as opened:
        yield opened


@pytest.fixture
def command(monkeypatch, capsys):
    """(exit code, standard output, standard error) of `sfumato …`."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["sfumato", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def book(command, tmp_path):
    """A ledger on disk, and what was spent in it."""
    path = tmp_path / "book.db"
    assert command("ledger", "create", path, "--epsilon", 9, "--delta", 1e-5)[0] == 0

    def spent():
        return json.loads(command("ledger", "show", path, "--json")[1])["epsilon_spent"]

    return path, spent


# Units


@pytest.mark.keeps_out("A price for people while every row is clipped by itself")
@pytest.mark.parametrize(
    "choice", [{"unit": "person"}, {"rows_per_unit": 3}, {"unit": "person", "rows_per_unit": 1}]
)
def test_a_plan_about_people_needs_to_know_whose_the_rows_are(ledger, choice):
    """Three rows of one person, each clipped by itself, move the sum by 3 C under a price for C."""
    plan, model = replace(PLAN, **choice), nn.Linear(5, 3)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, ledger=ledger)
    with pytest.raises(InvalidInput, match="units="):
        next(trainer.batches(ROWS))
    with pytest.raises(InvalidInput, match="units="):
        train(model, ROWS, plan, ledger=ledger)
    assert ledger.epsilon_spent == 0


def test_train_takes_people_with_several_rows():
    people = np.arange(40) // 4
    options = {"epsilon": 5, "public_size": 10, "expected_batch": 5, "epochs": 1}
    result = train(nn.Linear(5, 3), ROWS, units=people, unit="person", rows_per_unit=4, **options)
    assert (result.plan.unit, result.plan.rows_per_unit) == ("person", 4)
    assert result.certificate.unit == "person"
    with pytest.raises(InvalidInput, match="unit='person'"):
        train(nn.Linear(5, 3), ROWS, units=people, rows_per_unit=4, **options)
    with pytest.raises(InvalidInput, match="rows_per_unit"):
        train(nn.Linear(5, 3), ROWS, units=people, unit="person", **options)


def test_a_plan_for_records_is_not_the_price_of_people():
    rows = toy(40, unit="person")
    with pytest.raises(InvalidInput, match="price of a person"):
        train(nn.Linear(1, 2), rows, PLAN)
    with pytest.raises(InvalidInput, match="among people"):
        keep_some(rows, 3)
    with pytest.raises(InvalidInput, match="among people"):
        keep_out(rows, 0.5)


# A plan, and something else


@pytest.mark.keeps_out("An ε beside a plan, or an option of 0, silently ignored")
@pytest.mark.parametrize(
    "beside",
    [
        {"epsilon": 0.5},
        {"epochs": 3},
        {"expected_batch": 5},
        {"clip_norm": 0.1},
        {"public_size": 40},
        {"unit": "person"},
        {"rows_per_unit": 2},
    ],
    ids=str,
)
def test_a_plan_and_what_it_already_says_are_refused(ledger, beside):
    with pytest.raises(InvalidInput, match=next(iter(beside))):
        train(nn.Linear(5, 3), ROWS, PLAN, ledger=ledger, **beside)
    assert ledger.epsilon_spent == 0


def test_two_declared_sizes_are_refused():
    with pytest.raises(InvalidInput, match="one declared size"):
        train(nn.Linear(1, 2), toy(40), epsilon=1, public_size=4000)


@pytest.mark.parametrize("nothing", [0, -1, float("nan")])
@pytest.mark.parametrize("option", ["epsilon", "epochs", "expected_batch", "clip_norm"])
def test_no_value_that_makes_no_sense_becomes_a_default(option, nothing):
    wanted = {"epsilon": 1, "public_size": 40, option: nothing}
    with pytest.raises(InvalidInput):
        train(nn.Linear(5, 3), ROWS, **wanted)


# The command line

TRAIN = ("train", "--data", "digits", "--model", "mlp", "--epsilon", 1)


@pytest.mark.keeps_out("An ε beside a plan, or an option of 0, silently ignored")
@pytest.mark.parametrize("model", ["mlp", "recipe"])
@pytest.mark.parametrize("value", [0, -1, "nan"])
@pytest.mark.parametrize(
    "option",
    [
        "--clip-norm",
        "--epochs",
        "--batch",
        "--learning-rate",
        "--train-size",
        "--audit",
        "--hold-out",
        "--delta",
    ],
)
def test_nothing_is_trained_with_a_default_that_was_overruled(command, book, tmp_path, option, value, model):
    path, spent = book
    words = ("train", "--data", "digits", "--model", model, "--epsilon", 1, "--ledger", path)
    code, _, error = command(*words, "--out", tmp_path / "run", option, value)
    assert code in (1, 2)  # 1: no noise has δ = 0
    assert error.startswith("sfumato: ") or option in error
    assert "Traceback" not in error
    assert spent() == 0


@pytest.mark.keeps_out("A finished run overwritten and paid again, or paid and thrown away")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*TRAIN, "--ledger", "BOOK"), "expected --out or --dry-run with --ledger"),
        ((*TRAIN, "--hold-out-epsilon", 0.2), "expected --hold-out with --hold-out-epsilon"),
        ((*TRAIN, "--canaries", "labels"), "expected --audit with --canaries"),
        ((*TRAIN, "--audit", 5), "expected --out with --audit"),
        ((*TRAIN, "--plain"), "expected --plain without --epsilon"),
        ((*TRAIN, "--public-size", 9), "with your own images only"),
        ((*TRAIN, "--batch", 10**6), "may not exceed"),
        ((*TRAIN, "--train-size", 10**6), "declared size"),
        *(
            (("train", "--data", "digits", "--plain", option, value), f"expected --plain without {option}")
            for option, value in (
                ("--ledger", "BOOK"),
                ("--delta", 1e-5),
                ("--clip-norm", 1),
                ("--hold-out", 0.1),
                ("--audit", 3),
            )
        ),
        (("tune", "--data", "digits", "--epsilon", 1, "--ledger", "BOOK"), "expected --out with --ledger"),
        (("pate", "--data", "digits", "--epsilon", 1, "--ledger", "BOOK"), "expected --out with --ledger"),
        (("pate", "--data", "digits", "--epsilon", 1, "--queries", 0), "queries"),
        (("trace", "--unprotected", "--epsilon", 1), "expected --unprotected without --epsilon"),
        (
            ("local", "release", "digits", "--epsilon", 1, "--delta", 1e-5, "--out", "OUT"),
            "expected --randomiser gaussian with --delta",
        ),
        (("local", "release", "digits", "--epsilon", 1, "--dimension", 0, "--out", "OUT"), "dimension"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_options_that_contradict_each_other_or_have_no_effect(command, book, tmp_path, words, sentence):
    path, spent = book
    places = {"BOOK": path, "OUT": tmp_path / "out.npz"}
    code, _, error = command(*(places.get(word, word) for word in words))
    assert code == 2
    assert sentence in " ".join(error.split())
    assert "Traceback" not in error
    assert spent() == 0


@pytest.mark.keeps_out("A finished run overwritten and paid again, or paid and thrown away")
def test_a_finished_run_is_neither_overwritten_nor_charged_again(command, book, tmp_path):
    path, spent = book
    words = (*TRAIN, "--epochs", 1, "--ledger", path, "--out", tmp_path / "run")
    assert command(*words)[0] == 0
    before, weights = spent(), (tmp_path / "run" / "release" / "model.safetensors").read_bytes()
    code, _, error = command(*words)
    assert code == 2
    assert "sfumato report" in error
    assert spent() == before
    assert (tmp_path / "run" / "release" / "model.safetensors").read_bytes() == weights
    for other in ("tune", "pate"):
        again = (other, "--data", "digits", "--epsilon", 1, "--ledger", path, "--out", tmp_path / "run")
        assert command(*again)[0] == 2
    assert spent() == before


def test_a_folder_is_finished_when_its_last_file_is_there(tmp_path):
    """Stopped at any write, a run is unfinished; when the certificate is there, all else is."""
    train(nn.Linear(5, 3), ROWS, PLAN, out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.finished
    with pytest.raises(InvalidInput, match="paid for"):
        train(nn.Linear(5, 3), ROWS, PLAN, out=tmp_path / "run")
    times = {path.name: path.stat().st_mtime_ns for path in folder.release.iterdir() if path.is_file()}
    assert max(times, key=times.get) == "certificate.json"


def test_a_dry_run_asks_the_ledger_and_spends_nothing(command, book):
    path, spent = book
    assert command(*TRAIN, "--epochs", 1, "--ledger", path, "--dry-run")[0] == 0
    dear = ("train", "--data", "digits", "--model", "mlp", "--epsilon", 20, "--epochs", 1)
    assert command(*dear, "--ledger", path, "--dry-run")[0] == 3
    assert spent() == 0


def test_plain_weights_go_to_the_private_half(command, tmp_path):
    out = tmp_path / "run"
    words = ("train", "--data", "digits", "--model", "mlp", "--plain", "--epochs", 1, "--out", out)
    assert command(*words)[0] == 0
    assert (out / "private" / "model.safetensors").exists()
    assert not [path for path in (out / "release").rglob("*") if path.is_file()]


# Protection that is none


@pytest.mark.keeps_out("An ε of a million that looks like any other")
@pytest.mark.parametrize(("epsilon", "delta"), [(1e6, 1e-5), (1.0, 0.5)])
def test_what_protects_nobody_is_said_in_a_sentence(command, tmp_path, epsilon, delta):
    wanted = {"epsilon": epsilon, "delta": delta, "public_size": 40, "epochs": 1}
    with pytest.warns(LittleProtection, match="practically no protection"):
        train(nn.Linear(5, 3), ROWS, **wanted)
    whole = ("train", "--data", "digits", "--model", "mlp", "--epochs", 1, "--batch", 1437)
    for words in (("ledger", "create", tmp_path / "l.db"), whole):
        code, out, error = command(*words, "--epsilon", epsilon, "--delta", delta, "--json")
        assert code == 0
        assert json.loads(out)
        assert error.count("\n") == 1
        assert "practically no protection" in error


def test_so_it_is_of_a_classifier_a_search_and_a_plan():
    y = np.array([0, 1] * 20)
    with pytest.warns(LittleProtection):
        sfumato.PrivateClassifier(delta=0.5, epochs=1).fit(y[:, None], y)
    with pytest.warns(LittleProtection):
        train(nn.Linear(5, 3), ROWS, replace(PLAN, sample_rate=1.0, noise_multiplier=1e-3))
    with pytest.warns(LittleProtection), pytest.raises(InvalidInput, match="declare its public size"):
        tuning.run(replace(toy(9), public_size=None), None, epsilon=1.0, delta=0.5)


@pytest.mark.parametrize(("delta", "size"), [(1e-2, 1000), (1e-4, 20_000)])
def test_so_it_is_of_a_plan_that_is_calibrated(delta, size):
    """By δ alone, and by δ and the declared number of people; once, as `train` calibrates in the same way."""
    terms = {"epsilon": 1, "delta": delta, "public_size": size, "expected_batch": 100}
    with pytest.warns(LittleProtection, match=f"delta={delta:g}"):
        TrainingPlan.calibrated(**terms, steps=2)
    with pytest.warns(LittleProtection) as told:
        train(nn.Linear(5, 3), ROWS, **terms, epochs=1)
    assert len([one for one in told if issubclass(one.category, LittleProtection)]) == 1


@pytest.mark.parametrize(("delta", "size"), [("0.01", ""), ("1e-4", "public_size = 20000")])
def test_so_it_is_of_a_policy(command, tmp_path, delta, size):
    (tmp_path / "p.csv").write_text("age\n40\n50\n")
    (tmp_path / "p.toml").write_text(
        f"""[table]
source = "p.csv"
{size}
[budget]
epsilon = 1
delta = {delta}
[columns.age]
type = "integer"
lower = 0
upper = 120
"""
    )
    code, out, error = command(
        "query", tmp_path / "p.toml", "SELECT COUNT(*) FROM p", "--epsilon", 0.5, "--json"
    )
    assert code == 0
    assert json.loads(out)
    assert error.count("\n") == 1
    assert "this budget promises practically no protection" in error


def test_what_protects_is_done_without_a_word(recwarn):
    train(nn.Linear(5, 3), ROWS, replace(PLAN, noise_multiplier=2.0))
    assert not [warning for warning in recwarn if issubclass(warning.category, LittleProtection)]


# Fewer records


def toy(count, *, unit="record", visibility="private"):
    return Dataset(
        inputs=np.arange(count, dtype=np.float32)[:, None],
        targets=np.zeros(count, dtype=np.int64),
        name="toy",
        visibility=visibility,
        public_size=max(1, count),
        classes=2,
        unit=unit,
    )


class OwnCoins:
    """A sampler whose coin of a record is the record's own, whoever else is there."""

    private = True

    def __init__(self, heads):
        self.heads = np.array(heads, dtype=np.bool_)

    def bernoulli(self, rate, size):
        assert 0 < rate < 1
        assert size == len(self.heads)
        return self.heads


@pytest.mark.keeps_out("A subset by place, or by a seeded coin, that lets another record in")
@given(heads=st.lists(st.booleans(), min_size=2, max_size=12), data=st.data())
def test_a_record_that_leaves_lets_no_other_in(heads, data):
    """By place, 5 of {0…9} and 5 of {1…9} differ in two records."""
    gone = data.draw(st.integers(0, len(heads) - 1))
    rest = heads[:gone] + heads[gone + 1 :]
    whole = toy(len(heads))
    less = replace(whole.select(np.arange(len(heads)) != gone), public_size=len(heads))
    ours = keep_some(whole, 1, sampler=OwnCoins(heads))
    theirs = keep_some(less, 1, sampler=OwnCoins(rest))
    assert set(ours.inputs[:, 0]) - set(theirs.inputs[:, 0]) <= {float(gone)}
    assert set(theirs.inputs[:, 0]) <= set(ours.inputs[:, 0])
    assert ours.public_size == theirs.public_size == 1


@pytest.mark.keeps_out("A subset by place, or by a seeded coin, that lets another record in")
def test_private_rows_are_not_taken_by_place():
    with pytest.raises(InvalidInput, match="keep_some"):
        toy(9).take(3)
    assert len(toy(9, visibility="public").take(3)) == 3


def test_coins_have_no_seed_and_a_folder_keeps_them(tmp_path):
    rows = toy(2000)
    first, second = (keep_some(rows, 1000).inputs[:, 0] for _ in range(2))
    assert not np.array_equal(first, second)
    assert 850 < len(first) < 1150  # 1000 ± 22: false alarms below 1e-10
    folder = RunFolder.make(tmp_path)
    first, second = (keep_some(rows, 1000, folder=folder).inputs[:, 0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    with pytest.raises(InvalidInput, match="another folder"):
        keep_some(rows, 900, folder=folder)


def test_train_size_goes_on_with_the_same_records(command, tmp_path, monkeypatch):
    """Interrupted after its first epoch, the command trains on the records that it began with."""
    seen = []

    def watched(model, data, *rest, **options):
        seen.append(np.asarray(data.inputs))
        if len(seen) == 1:
            raise InvalidInput("stopped")
        return train(model, data, *rest, **options)

    monkeypatch.setattr("sfumato.learn.classifier.train", watched)
    words = (*TRAIN, "--epochs", 1, "--train-size", 200, "--out", tmp_path / "run")
    assert command(*words)[0] == 2
    assert command(*words)[0] == 0
    np.testing.assert_array_equal(*seen)
