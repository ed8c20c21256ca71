"""What newcomers hand over: taken where that is sound and private, or one sentence before any charge."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato import Budget, Ledger
from sfumato.datasets import Dataset
from sfumato.errors import InvalidInput, SettingsChanged
from sfumato.learn import Classifier
from sfumato.training import Optimization, PrivateTrainer, TrainingPlan, keep_out, train

ROWS = torch.rand(40, 5), torch.zeros(40, dtype=torch.long)
PLAN = TrainingPlan(sample_rate=0.5, expected_batch=20, steps=2, noise_multiplier=4.0)


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, place):
        return ROWS[0][place], ROWS[1][place]


def wrong():
    return {
        "test": [
            ({"test": ROWS}, "Dataset.public"),
            ({"test": DataLoader(TensorDataset(*ROWS))}, "Dataset.public"),
        ],
        "ledger": [({"ledger": "people.db"}, r"Ledger.open\('people.db'\)")],
        "optimization": [
            (
                {"optimization": torch.optim.Adam(nn.Linear(1, 1).parameters(), lr=0.3)},
                "an optimizer of torch",
            ),
            ({"optimization": 0.1}, "Optimization"),
            ({"optimization": Optimization(), "learning_rate": 0.1}, "got both"),
        ],
    }


@pytest.mark.parametrize(("said", "sentence"), [case for cases in wrong().values() for case in cases])
def test_what_is_not_expected_gets_a_sentence_and_costs_nothing(said, sentence, tmp_path):
    with Ledger.open(tmp_path / "ledger.db", budget=Budget(epsilon=10, delta=1e-5)) as ledger:
        with pytest.raises(InvalidInput, match=sentence):
            train(nn.Linear(5, 3), ROWS, PLAN, **{"ledger": ledger, **said})
        assert ledger.epsilon_spent == 0


def test_targets_in_the_place_of_the_plan_get_a_sentence():
    with pytest.raises(InvalidInput, match=r"train\(model, \(inputs, targets\)"):
        train(nn.Linear(5, 3), *ROWS, epsilon=1, public_size=40)


def test_a_trainer_wants_a_torch_optimizer():
    with pytest.raises(InvalidInput, match=r"torch\.optim\.SGD"):
        PrivateTrainer(nn.Linear(5, 3), Optimization(), PLAN)


def test_a_prepared_run_wants_an_open_ledger_and_public_test_rows():
    rows = Dataset.private((np.zeros((40, 1, 8, 8)), np.zeros(40, int)), public_size=40, classes=2)
    with pytest.raises(InvalidInput, match=r"Dataset\.public"):
        Classifier.prepare(rows, ROWS, epsilon=1, model="mlp")
    with pytest.raises(InvalidInput, match=r"Ledger.open\('people.db'\)"):
        Classifier.prepare(rows, epsilon=1, model="mlp").train(ledger="people.db")


def test_a_learning_rate_may_be_said_by_itself():
    rates = []
    train(
        nn.Linear(5, 3),
        ROWS,
        PLAN,
        learning_rate=0.125,
        on_step=lambda trainer: rates.append(trainer.optimizer.param_groups[0]["lr"]),
    )
    assert rates == [0.125] * 2


@pytest.mark.parametrize(
    "data",
    [ROWS, tuple(column.numpy() for column in ROWS), Items(), DataLoader(Items(), batch_size=7)],
    ids=["tensors", "arrays", "items", "loader"],
)
def test_public_rows_come_in_every_form(data):
    rows = Dataset.public(data)
    assert rows.visibility == "public"
    assert np.array_equal(rows.inputs, ROWS[0].numpy())
    assert train(nn.Linear(5, 3), ROWS, PLAN, test=rows).test_accuracy is not None


def test_other_public_rows_get_a_sentence():
    for data in ("rows.csv", 3, (np.zeros(2), np.array(["cat", "dog"]))):
        with pytest.raises(InvalidInput, match="expected"):
            Dataset.public(data)


@pytest.mark.parametrize("wrap", [tuple, lambda pair: TensorDataset(*pair)], ids=["pair", "data set"])
@pytest.mark.parametrize("load", [lambda data: data, lambda data: DataLoader(data, batch_size=7)])
def test_pairs_and_loaders_can_be_kept_out_of(wrap, load):
    data = load(wrap(ROWS)) if wrap is not tuple else ROWS
    rows, held = keep_out(data, 0.25, public_size=40)
    assert rows.public_size == 30
    assert rows.visibility == held.rows.visibility == "private"
    assert len(rows) + len(held.rows) == 40
    both = np.concatenate([rows.inputs, held.rows.inputs])
    assert np.array_equal(np.sort(both, axis=0), np.sort(ROWS[0].numpy(), axis=0))


def test_a_pair_that_is_kept_out_of_declares_its_size():
    with pytest.raises(InvalidInput, match="public_size"):
        keep_out(ROWS, 0.2)
    with pytest.raises(InvalidInput, match="one declared size"):
        keep_out(Dataset.private(ROWS, public_size=40), 0.2, public_size=50)


def test_rows_that_code_of_the_users_makes_are_not_kept_out_of():
    """The certificates of what is learned from them would not say so."""
    for data in (Items(), DataLoader(Items())):
        with pytest.raises(InvalidInput, match="two tensors"):
            keep_out(data, 0.2, public_size=40)


def test_a_loaders_batch_size_is_not_passed_over_in_silence():
    loader = DataLoader(TensorDataset(*ROWS), batch_size=8)
    with pytest.warns(SettingsChanged, match="batch_size=8 is not used.* 40 on average.*expected_batch=8"):
        train(nn.Linear(5, 3), loader, epsilon=3, epochs=1, public_size=40)


def test_a_batch_size_that_was_said_needs_no_word(recwarn):
    loader = DataLoader(TensorDataset(*ROWS), batch_size=8)
    train(nn.Linear(5, 3), loader, epsilon=3, epochs=1, public_size=40, expected_batch=10)
    train(nn.Linear(5, 3), DataLoader(TensorDataset(*ROWS)), epsilon=3, epochs=1, public_size=40)
    assert not [warning for warning in recwarn if issubclass(warning.category, SettingsChanged)]


@pytest.mark.parametrize(("epochs", "batch"), [(60, 128), (40, 400), (1, 1437), (7, 1000), (3, 1436)])
def test_the_last_epoch_has_the_number_that_was_asked_for(epochs, batch):
    plan = TrainingPlan(
        sample_rate=batch / 1437, expected_batch=batch, steps=round(epochs * 1437 / batch), noise_multiplier=1.0
    )
    numbers = [plan.epochs_at(step) for step in range(plan.steps + 1)]
    assert numbers[0] == 0
    assert numbers[-1] == epochs
    assert {after - before for before, after in pairwise(numbers)} <= {0, 1}


def test_a_broken_epoch_is_counted_at_the_end():
    plan = TrainingPlan(sample_rate=0.1, expected_batch=10, steps=25, noise_multiplier=1.0)
    assert [plan.epochs_at(step) for step in (9, 10, 20, 24, 25)] == [0, 1, 2, 2, 3]


def test_a_result_is_a_few_lines_that_line_up():
    result = train(nn.Linear(5, 3), ROWS, PLAN, test=Dataset.public(ROWS))
    title, *lines = str(result).splitlines()
    assert title == "TrainingResult"
    assert len(lines) == 5
    assert {line.index("  ", 2) <= 15 and line[17] != " " and line[16] == " " for line in lines} == {True}
    assert f"{result.epsilon:.4f} at delta 1e-05" in str(result)
