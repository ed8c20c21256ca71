"""The default recipe: declared facts only, one charge, a release that answers on its own."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib import resources

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sfumato.accounting import Budget, Relation
from sfumato.datasets import Dataset, load
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.fitting import evaluate
from sfumato.learn import (
    CLOTHES,
    DESIGNED,
    DIGITS,
    SCENES,
    THINGS,
    Classifier,
    HoldOut,
    Recipe,
    Settings,
    features,
    tuning,
)
from sfumato.learn import plain as plain_recipe
from sfumato.ledger import Certificate, Ledger
from sfumato.runs import read_run
from sfumato_lab.drawings import strokes

QUICK = replace(DIGITS, drawn=400, directions=64, steps=20, sample_rate=0.5)


def drawn(count: int, seed: int, visibility: str = "private") -> Dataset:
    images, labels = strokes.draw(count, seed=seed)
    inputs = (images[:, np.newaxis] / 255).astype(np.float32)
    return Dataset(
        inputs=inputs, targets=labels, name="strokes", visibility=visibility, classes=10, public_size=count
    )


@pytest.fixture(scope="module", autouse=True)
def _features_once():
    """The same rows have the same features, which take most of a test's time."""
    compute, known = features.featured, {}

    def featured(model, given):
        key = (id(given.inputs), model.centre.numpy().tobytes())
        if key not in known:
            known[key] = compute(model, given).inputs
        return replace(given, inputs=known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "featured", featured)
        yield


@pytest.fixture(scope="module")
def rows():
    return drawn(1200, seed=11)


@pytest.fixture(scope="module")
def test():
    return drawn(400, seed=12, visibility="public")


def test_a_head_learns_is_charged_once_and_released_whole(rows, test, tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=8, delta=1e-5)) as ledger:
        ready = Classifier.prepare(rows, test, epsilon=8, recipe=QUICK)
        result = ready.train(ledger=ledger, out=tmp_path / "run")
        assert [charge.purpose for charge in ledger.charges()] == [
            "linear head on public features (strokes-wide, strokes-wild)"
        ]
        assert ledger.epsilon_spent == pytest.approx(result.epsilon)
    # A head that knows nothing is right one time in ten; on drawings the features tell nearly all apart.
    assert result.test_accuracy > 0.8
    again = features.build(QUICK, classes=10)
    again.load_state_dict(load_file(tmp_path / "run" / "release" / "model.safetensors"))
    assert evaluate(again, test).accuracy == pytest.approx(result.test_accuracy)
    stated = Certificate.read(tmp_path / "run" / "release" / "certificate.json")
    assert stated.verify().pld == pytest.approx(result.epsilon)
    assert any("public prior 'strokes-wide'" in caveat for caveat in stated.caveats)
    assert any("chosen on drawings" in caveat for caveat in stated.caveats)


def test_the_digits_certificate_says_that_the_prior_was_validated_on_them():
    assert any("flatters" in caveat for caveat in features.caveats(DIGITS, "digits"))
    assert not any("flatters" in caveat for caveat in features.caveats(DIGITS, "mnist"))


def test_what_does_not_fit_the_budget_is_refused(rows, tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1, delta=1e-5)) as ledger:
        with pytest.raises(BudgetExceeded):
            Classifier.prepare(rows, epsilon=2, recipe=QUICK).train(ledger=ledger)
        assert ledger.epsilon_spent == 0


@pytest.mark.keeps_out(
    "A second training that goes on from the weights of the first, or trains the caller's module"
)
def test_a_prepared_run_can_be_trained_again_from_the_start(rows, test):
    """Training in place would let the second run go on from the weights of the first."""
    ready = Classifier.prepare(rows, test, epsilon=8, recipe=QUICK)
    before = {name: value.clone() for name, value in ready.network.state_dict().items()}
    ready.train()
    assert all(value.equal(before[name]) for name, value in ready.network.state_dict().items())
    assert ready.at(2.0).plan.epsilon(1e-5) == pytest.approx(2.0, rel=0.01)
    assert ready.at(2.0).plan.epsilon(1e-5) <= 2.0


def test_what_is_kept_out_is_measured_under_the_relation_of_the_plan(rows, tmp_path):
    """Otherwise a ledger for it refuses the measurement when the training is paid for."""
    ready = Classifier.prepare(
        rows, epsilon=2, model="mlp", settings=Settings(noise="banded", epochs=1),
        hold_out=HoldOut(share=0.5, epsilon=1.0),
    )  # fmt: skip
    budget = Budget(epsilon=4, delta=1e-5, relation=Relation.ZERO_OUT)
    with Ledger.open(tmp_path / "l.db", budget=budget) as ledger:
        trained = ready.train(ledger=ledger, out=tmp_path / "run")
        assert [charge.relation for charge in ledger.charges()] == [Relation.ZERO_OUT] * 2
    assert trained.held_out.certificate.event.sensitivity == 2
    assert trained.held_out.certificate.verify().pld == pytest.approx(1.0, rel=1e-3)
    assert 2.0 < ready.epsilon_with_hold_out <= 3.0


def test_what_is_kept_out_is_paid_for_and_must_fit_before_anything_is_spent(rows, tmp_path):
    ready = Classifier.prepare(rows, epsilon=2, recipe=QUICK, hold_out=HoldOut(share=0.5, epsilon=1.0))
    assert ready.plan.expected_batch == pytest.approx(0.5 * 600)
    assert 2.0 < ready.epsilon_with_hold_out <= 3.0
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=2.2, delta=1e-5)) as ledger:
        with pytest.raises(BudgetExceeded):
            ready.train(ledger=ledger, out=tmp_path / "run")
        assert ledger.epsilon_spent == 0
    with Ledger.open(tmp_path / "m.db", budget=Budget(epsilon=4, delta=1e-5)) as ledger:
        trained = ready.train(ledger=ledger, out=tmp_path / "run")
        assert [charge.purpose for charge in ledger.charges()] == [
            "linear head on public features (strokes-wide, strokes-wild)",
            "accuracy on records kept out",
        ]
    # 600 records, noise of a few: right nearly always on drawings that the features tell apart.
    assert trained.held_out.accuracy > 0.5
    assert (tmp_path / "run" / "release" / "hold_out.json").exists()


def test_size_and_classes_are_declared(rows):
    with pytest.raises(InvalidInput, match="public_size=None"):
        Classifier.prepare(replace(rows, public_size=None), epsilon=1, recipe=QUICK)


def test_images_of_any_size_and_colour_fit_and_tables_do_not():
    colour = Dataset(
        inputs=np.full((2, 3, 50, 40), 0.5, np.float32),
        targets=np.zeros(2, np.int64),
        name="c",
        visibility="private",
    )
    fitted = features.fitted(colour)
    assert fitted.shape == (1, 28, 28)
    assert np.allclose(fitted.inputs, 0.5, atol=1e-6)
    with pytest.raises(InvalidInput, match="--model mlp"):
        features.fitted(replace(colour, inputs=np.zeros((2, 7), np.float32)))


def test_few_rows_still_get_many_steps():
    """A thousand rows a step would leave four steps, and half of the test images wrong at ε = 3."""
    digits = load("digits", "train")
    few = Classifier.prepare(digits, epsilon=3, model="mlp", settings=Settings(epochs=3))
    assert (few.plan.steps, few.plan.expected_batch) == (100, 43)
    many = Classifier.prepare(replace(digits, public_size=60_000), epsilon=3, model="mlp")
    assert many.plan.expected_batch == 1024
    with pytest.raises(InvalidInput, match="batch"):
        Settings(batch=0)


def test_recipes_by_name():
    assert features.recipe_for("mnist") is DIGITS
    assert features.recipe_for("fashion-mnist") is CLOTHES
    assert features.recipe_for("photographs") is THINGS
    with pytest.raises(InvalidInput, match="to be one of strokes, shapes, "):
        Recipe(extractors=("photographs",))


def test_weights_are_one_for_each_extractor_and_survive_json():
    with pytest.raises(InvalidInput, match="one weight for each of 1 extractors, got 2"):
        Recipe(extractors=("strokes",), weights=(1.0, 2.0))
    assert Recipe.from_json(json.loads(json.dumps(asdict(SCENES)))) == SCENES


def test_scattering_needs_no_drawing():
    model = features.build(DESIGNED, classes=10)
    assert model.features(torch.rand(2, 1, 28, 28)).shape == (2, 81 * 7 * 7)
    assert not model.centre.any()
    assert DESIGNED.priors == ()


def test_networks_from_a_folder_take_the_place_of_those_that_ship(rows, tmp_path):
    """With the shipped weights of one net under the other's name, the features are those of that net."""
    recipe = replace(DIGITS, extractors=("strokes-wide",), drawn=200, directions=16)
    weights = resources.files("sfumato.models") / "weights"
    for ending in ("json", "safetensors"):
        (tmp_path / f"strokes-wide.{ending}").write_bytes((weights / f"strokes-wild.{ending}").read_bytes())
    network = features.build(recipe, classes=10, nets=tmp_path)
    other = features.build(replace(recipe, extractors=("strokes-wild",)), classes=10)
    images = rows.tensors()[0][:8]
    assert network.features(images).equal(other.features(images))
    assert not network.features(images).equal(features.build(recipe, classes=10).features(images))
    ready = Classifier.prepare(rows, epsilon=1, recipe=recipe, nets=tmp_path)
    assert torch.from_numpy(ready.rows.inputs[:8]).allclose(other.features(images), atol=1e-5)
    digest = json.loads((tmp_path / "strokes-wide.json").read_text())["sha256"]
    assert ready.card.priors == {"strokes-wide": digest}
    assert any(digest[:16] in caveat and "not the one that ships" in caveat for caveat in ready.caveats)
    assert not any("no person's image" in caveat for caveat in ready.caveats)  # nobody here knows that
    with pytest.raises(InvalidInput, match="neither ledger nor out"):
        ready.train(out=tmp_path / "out")


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
