"""Studies that somebody else wrote: hostile fields, another version's plan, a ledger from a backup."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato import datasets
from sfumato.accounting import Budget
from sfumato.errors import BudgetExceeded, InvalidInput, LedgerTampered, Refused
from sfumato.holders import Node, Opened, Parties, Study, simulation, tasks
from sfumato.learn import Recipe, features
from sfumato.ledger import Ledger
from sfumato.ledger.signing import PrivateKey

SMALL = Recipe(extractors=("strokes",), drawn=100, directions=8, steps=4)
STUDY = {
    "name": '"x"',
    "data": '"digits"',
    "classes": "10",
    "public_size": "1400",
    "largest_share": "0.4",
    "unit": '"record"',
    "epsilon": "1.0",
    "delta": "1e-5",
    "dropped": "0",
    "colluding": "0",
    "spare": "0",
}
NETWORK = {
    "model": '"mlp"',
    "shape": "[1, 8, 8]",
    "steps": "10",
    "expected_batch": "10",
    "clip_norm": "1.0",
    "learning_rate": "0.1",
}
TABLE = 'target = "ill"\nrows = {}\ncolumns = {}\n'
AGE = '{{ age = {{ type = "integer", lower = {}, upper = {} }}, ill = {{ type = "boolean" }} }}'


def written(path, *, network=None, table=None, holders=None, **changes):
    keys = [PrivateKey.create(path / f"{number}.key").public for number in range(3)]
    lines = [(path / f"{number}.key.pub").read_text().splitlines()[1] for number in range(len(keys))]
    sections = {"study": "\n".join(f"{name} = {value}" for name, value in {**STUDY, **changes}.items())}
    if network is not None:
        sections["network"] = "\n".join(f"{name} = {value}" for name, value in {**NETWORK, **network}.items())
    if table is not None:
        sections["table"] = table
    named = "\n".join(f'h{number} = "{line}"' for number, line in enumerate(lines))
    sections["holders"] = named if holders is None else holders
    text = "\n".join(f"[{name}]\n{body}" for name, body in sections.items())
    (path / "study.toml").write_text(text)
    return path / "study.toml"


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": "1000000000"},
        {"classes": "[1]"},
        {"epsilon": "inf"},
        {"epsilon": "true"},
        {"epsilon": '"1"'},
        {"delta": "0.0"},
        {"delta": "nan"},
        {"largest_share": "nan"},
        {"public_size": "1" + "0" * 30},
        {"spare": "-1"},
        {"dropped": '"a"'},
        {"unit": "5"},
        {"name": "[]"},
        {"network": {"shape": "[1, 100000, 100000]"}},
        {"network": {"shape": "5"}},
        {"network": {"shape": '"abc"'}},
        {"network": {"model": '["mlp"]'}},
        {"network": {"model": '"../../mlp"'}},
        {"network": {"seed": "9" * 30}},
        {"network": {"seed": '"a"'}},
        {"network": {"clip_norm": "1e-320"}},
        {"network": {"expected_batch": "1e300"}},
        {"data": '"table"', "classes": "2", "table": TABLE.format(1, 5)},
        {"data": '"table"', "classes": "2", "table": TABLE.format(10**15, AGE.format(0, 9))},
        {"data": '"table"', "classes": "2", "table": TABLE.format(1, AGE.format(9, 0))},
        {"holders": "a = 1\nb = 2\nc = 3"},
        {"holders": "a = []\nb = {}\nc = 1.5"},
        {"holders": "x = " + "[" * 5000 + "]" * 5000},
    ],
    ids=str,
)
def test_hostile_fields_are_refused_in_words(tmp_path, changes):
    path = written(tmp_path, **changes)
    with pytest.raises(InvalidInput):
        _ = Study.read(path).digest  # what a command would ask for next


def test_a_file_that_is_too_large_is_not_cut_off(tmp_path):
    path = written(tmp_path)
    path.write_text(path.read_text() + "\n#" + "x" * 2**20)
    with pytest.raises(InvalidInput, match="bytes"):
        Study.read(path)


def test_a_name_of_data_is_no_path(tmp_path):
    """Its recipe is that of things; nothing is opened."""
    study = Study.read(written(tmp_path, data='"../../../etc/passwd"'))
    assert study.task.recipe == features.THINGS


# Another version of the code


@pytest.mark.keeps_out("Holders that sign the same words and run other versions, whose noise is narrower")
@pytest.mark.parametrize(
    "change", [{"clip_norm": 0.4}, {"steps": 5}, {"sample_rate": 0.1}, {"learning_rate": 1.0}]
)
def test_holders_whose_code_would_do_otherwise_have_no_study_together(tmp_path, monkeypatch, change):
    """Signatures are under what follows from the file, such as the width of the noise, not its words alone."""
    path = written(tmp_path)
    monkeypatch.setattr(tasks, "recipe_for", lambda name: SMALL)
    here = Study.read(path)
    digest, round_ = here.digest, here.terms(1).id
    monkeypatch.setattr(tasks, "recipe_for", lambda name: replace(SMALL, **change))
    there = Study.read(path)
    assert here.to_dict() == there.to_dict()
    assert digest != there.digest
    assert round_ != there.terms(1).id


def test_the_noise_is_a_number_of_few_digits_and_never_less(tmp_path):
    plan = Study.read(written(tmp_path)).plan
    assert plan.epsilon(1e-5) <= 1.0
    assert float(f"{plan.noise_multiplier:.6g}") == plan.noise_multiplier


# Ledgers


class Killed(SystemExit):
    """As by kill -9."""


class Channel:
    """Opens every round to zeros, and notes whose input left; dies after that of round `dies`."""

    def __init__(self, dies=None):
        self.dies, self.left = dies, []

    def exchange(self, terms, place, contribution):
        try:
            contribution()
            self.left.append(terms.number)
        except Refused:
            pass
        if terms.number == self.dies:
            raise Killed
        return Opened(np.zeros(terms.dimension, dtype=np.int64), 4)


@pytest.fixture
def keys(tmp_path):
    return {place: PrivateKey.create(tmp_path / f"{place}.key") for place in range(1, 5)}


@pytest.fixture
def take_part(keys, monkeypatch):
    monkeypatch.setattr(tasks, "recipe_for", lambda name: SMALL)
    rows = datasets.load("digits", "train").excerpt(100)
    study = simulation._study(rows, Parties(holders=4), keys, epsilon=1.0, delta=1e-5, spare=0)
    signatures = [study.signed(key) for key in keys.values()]

    def go(channel, ledger, witness=None):
        head = torch.nn.Linear(8, 10, bias=False)
        torch.nn.init.zeros_(head.weight)
        node = Node(study, keys[1], signatures, channel, ledger=ledger, witness=witness)
        seen = replace(rows, inputs=np.zeros((100, 8), dtype=np.float32))
        return node.train(head, seen)

    go.study = study
    return go


@pytest.mark.keeps_out("A ledger from a backup, with which rounds are answered again")
@pytest.mark.parametrize("kept", [True, False])
def test_a_ledger_put_back_from_a_backup_is_noticed(take_part, tmp_path, kept):
    """Without the witness rounds 2 and 3 would be answered again: that is what it is for."""
    place, witness = tmp_path / "mine.db", (tmp_path / "ledger.json" if kept else None)
    with Ledger.open(place, Budget(epsilon=1, delta=1e-5)) as ledger, pytest.raises(SystemExit):
        take_part(Channel(dies=1), ledger, witness)
    shutil.copy(place, tmp_path / "backup.db")
    with Ledger.open(place) as ledger, pytest.raises(SystemExit):
        take_part(Channel(dies=3), ledger, witness)
    shutil.copy(tmp_path / "backup.db", place)
    again = Channel()
    with Ledger.open(place) as ledger:
        if kept:
            with pytest.raises(LedgerTampered):
                take_part(again, ledger, witness)
            assert again.left == []
        else:
            take_part(again, ledger)
            assert again.left == [2, 3, 4]


@pytest.mark.keeps_out("A study that runs under the cheaper reservation of another, found by its name")
def test_a_cheaper_reservation_of_the_same_name_is_not_taken_up(take_part, tmp_path):
    """As of another study whose digest begins alike: the price is compared, not only the name."""
    study = take_part.study
    with Ledger.open(tmp_path / "mine.db", Budget(epsilon=1, delta=1e-5)) as ledger:
        ledger.reserve(
            study.plan.event(1),
            purpose=f"study {study.name} {study.digest}",
            relation=study.plan.relation,
            unit=study.plan.unit,
        )
        channel = Channel()
        with pytest.raises(BudgetExceeded):
            take_part(channel, ledger)
        assert channel.left == []


@pytest.mark.keeps_out("Rounding beyond what the noise covers, found after the charge")
def test_rounding_above_the_margin_is_found_before_the_charge(take_part, tmp_path, monkeypatch):
    monkeypatch.setattr("sfumato.training.engine.Engine.rounding_bound", lambda *engine, **options: 0.02)
    with Ledger.open(tmp_path / "mine.db", Budget(epsilon=1, delta=1e-5)) as ledger:
        with pytest.raises(InvalidInput, match="margin"):
            take_part(Channel(), ledger)
        assert ledger.charges() == []


@pytest.mark.parametrize("total", [2**62, -(2**62), 2**51])
def test_no_sum_makes_a_node_send_more_than_its_clipped_rows(take_part, total):
    """A coordinator may hand out any numbers: weights become infinite, and inputs stay bounded."""

    class Lies(Channel):
        def exchange(self, terms, place, contribution):
            self.left.append(np.abs(contribution()).max())
            return Opened(np.full(terms.dimension, total, dtype=np.int64), 4)

    channel = Lies()
    take_part(channel, None)
    noise = take_part.study.noise
    most = 100 * noise.clip_norm * (1 + noise.margin) / noise.grid + 12 * noise.share_sigma
    assert len(channel.left) == 4
    assert all(found < most for found in channel.left)
