"""The default recipe: declared facts only, one charge, a release that answers on its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sfumato.accounting import Budget
from sfumato.datasets import Dataset, strokes
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.fitting import evaluate
from sfumato.ledger import Certificate, Ledger
from sfumato.recipes import classifier as best_recipe
from sfumato.recipes import plain as plain_recipe
from sfumato.recipes import tuning
from sfumato.recipes.classifier import DIGITS, THINGS, Recipe
from sfumato.results import read_run

QUICK = replace(DIGITS, drawn=400, directions=64, steps=20, sample_rate=0.5)


def drawn(count: int, seed: int, visibility: str = "private") -> Dataset:
    images, labels = strokes.draw(count, seed=seed)
    inputs = (images[:, np.newaxis] / 255).astype(np.float32)
    return Dataset(
        inputs=inputs, targets=labels, name="strokes", visibility=visibility, classes=10, public_size=count
    )


@pytest.fixture(scope="module")
def rows():
    return drawn(1200, seed=11)


@pytest.fixture(scope="module")
def test():
    return drawn(400, seed=12, visibility="public")


def test_a_head_learns_is_charged_once_and_released_whole(rows, test, tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=8, delta=1e-5)) as ledger:
        result = best_recipe.run(rows, test, epsilon=8, recipe=QUICK, ledger=ledger, out=tmp_path / "run")
        assert [charge.purpose for charge in ledger.charges()] == ["linear head on public features (strokes)"]
        assert ledger.epsilon_spent == pytest.approx(result.epsilon)
    # A head that knows nothing is right one time in ten; on drawings the features tell nearly all apart.
    assert result.test_accuracy > 0.8
    again = best_recipe.build(QUICK, classes=10)
    again.load_state_dict(load_file(tmp_path / "run" / "release" / "model.safetensors"))
    assert evaluate(again, test).accuracy == pytest.approx(result.test_accuracy)
    stated = Certificate.read(tmp_path / "run" / "release" / "certificate.json")
    assert stated.verify().pld == pytest.approx(result.epsilon)
    assert any("public prior 'strokes'" in caveat for caveat in stated.caveats)
    assert any("chosen on drawings" in caveat for caveat in stated.caveats)


def test_the_digits_certificate_says_that_the_prior_was_validated_on_them():
    assert any("flatters" in caveat for caveat in best_recipe.caveats(DIGITS, "digits"))
    assert not any("flatters" in caveat for caveat in best_recipe.caveats(DIGITS, "mnist"))


def test_what_does_not_fit_the_budget_is_refused(rows, tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1, delta=1e-5)) as ledger:
        with pytest.raises(BudgetExceeded):
            best_recipe.run(rows, None, epsilon=2, recipe=QUICK, ledger=ledger)
        assert ledger.epsilon_spent == 0


def test_size_and_classes_are_declared(rows):
    with pytest.raises(InvalidInput, match="public_size=None"):
        best_recipe.run(replace(rows, public_size=None), None, epsilon=1, recipe=QUICK)


def test_images_of_any_size_and_colour_fit_and_tables_do_not():
    colour = Dataset(
        inputs=np.full((2, 3, 50, 40), 0.5, np.float32),
        targets=np.zeros(2, np.int64),
        name="c",
        visibility="private",
    )
    fitted = best_recipe.fitted(colour)
    assert fitted.shape == (1, 28, 28)
    assert np.allclose(fitted.inputs, 0.5, atol=1e-6)
    with pytest.raises(InvalidInput, match="--model mlp"):
        best_recipe.fitted(replace(colour, inputs=np.zeros((2, 7), np.float32)))


def test_recipes_by_name():
    assert best_recipe.recipe_for("mnist") is DIGITS
    assert best_recipe.recipe_for("fashion-mnist") is THINGS
    with pytest.raises(InvalidInput, match="to be one of strokes, shapes, scattering"):
        Recipe(extractors=("photographs",))


def test_scattering_needs_no_drawing():
    model = best_recipe.build(best_recipe.DESIGNED, classes=10)
    assert model.features(torch.rand(2, 1, 28, 28)).shape == (2, 81 * 7 * 7)
    assert not model.centre.any()
    assert best_recipe.DESIGNED.priors == ()


def test_plain_training_learns_too(rows, test):
    net = plain_recipe.run(rows, epochs=4)
    assert evaluate(net, plain_recipe.seen(test)).accuracy > 0.8


def test_tuning_is_charged_in_full_before_a_trial_and_keeps_the_number_to_itself(
    rows, test, tmp_path, monkeypatch
):
    trained = []
    take = tuning._trial
    monkeypatch.setattr(tuning, "_trial", lambda *words: trained.append(1) or take(*words))
    out, place = tmp_path / "run", tmp_path / "l.db"
    with Ledger.open(place, budget=Budget(epsilon=8, delta=1e-5)) as ledger:
        found = tuning.run(rows, test, epsilon=8, recipe=QUICK, ledger=ledger, out=out)
        (charge,) = ledger.charges()
    assert found.epsilon <= 8
    assert len(trained) >= 1
    assert found.test_accuracy > 0.5
    assert found.recipe.learning_rate in tuning.Tuning().learning_rates
    assert charge.event.mean == 5
    stated = Certificate.read(out / "release" / "certificate.json")
    assert stated.verify().rdp == pytest.approx(found.epsilon)
    released = {path.name for path in (out / "release").iterdir()}
    assert released == {
        "certificate.json",
        "figures",
        "model.safetensors",
        "plan.json",
        "recipe.json",
        "result.json",
    }
    result = read_run(out).result
    assert (result.epsilon, result.test_accuracy) == (found.epsilon, found.test_accuracy)
    assert (result.learning_rate, result.clip_norm) == (found.recipe.learning_rate, found.recipe.clip_norm)


def test_a_search_that_does_not_fit_trains_nothing(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "_trial", lambda *words: pytest.fail("trained before it was charged"))
    with (
        Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1, delta=1e-5)) as ledger,
        pytest.raises(BudgetExceeded),
    ):
        tuning.run(rows, None, epsilon=4, recipe=QUICK, ledger=ledger)


def test_a_senseless_search_is_refused():
    with pytest.raises(InvalidInput, match="clip_norms"):
        tuning.Tuning(clip_norms=())
    with pytest.raises(InvalidInput, match="mean_trials"):
        tuning.Tuning(mean_trials=1.0)


def test_trials_have_one_price_and_the_settings_of_the_list():
    from sfumato.randomness import SecretStream

    search, stream = tuning.Tuning(learning_rates=(1.0, 2.0), clip_norms=(0.5,)), SecretStream()
    drawn_rates = {search.draw(QUICK, stream).learning_rate for _ in range(64)}
    assert drawn_rates == {1.0, 2.0}  # one of them missing has chance 2⁻⁶³
