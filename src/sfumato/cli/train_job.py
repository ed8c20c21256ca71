"""What `sfumato train` is about to do: the data, the network, the plan, from what was said and what was not."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato import _validate

if TYPE_CHECKING:
    from sfumato.accounting import DpEvent
    from sfumato.datasets import Dataset
    from sfumato.fitting import FitConfig
    from sfumato.recipes.classifier import Prepared, Recipe
    from sfumato.training import HeldOut, Optimization, TrainingPlan

RECIPE = "recipe"
_RATE = 0.5  # of private steps, whose gradients are clipped


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user said about training; None: nothing."""

    epochs: float | None
    batch: int | None
    learning_rate: float | None
    clip_norm: float | None
    seed: int

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate", "clip_norm"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        if self.batch is not None:
            _validate.integer("batch", self.batch, least=1)

    def said(self, *names: str) -> dict[str, Any]:
        """Those of the names of which something was said."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True, kw_only=True)
class Held:
    """Records kept out of training, and what measuring on them may cost."""

    rows: HeldOut
    epsilon: float

    @property
    def event(self) -> DpEvent:
        from sfumato.training.hold_out import price

        return price(self.epsilon)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A private training run, priced and ready to be charged."""

    network: Any
    rows: Dataset
    test: Dataset | None
    plan: TrainingPlan
    optimization: Optimization
    prepared: Prepared | None = None


def read_data(
    data: str, model: str, public_size: int | None, classes: str | None, test_data: str | None
) -> tuple[Dataset, Dataset | None]:
    """A known data set by name, or the user's own images; and public images to measure on, if there are any."""
    from sfumato import datasets
    from sfumato.errors import InvalidInput

    if data in datasets.DATASETS or not Path(data).expanduser().exists():
        side = 28 if data == "digits" and model not in ("mlp", RECIPE) else None
        rows = datasets.load(data, "train", side=side)
        if (public_size, classes, test_data) != (None, None, None):
            raise InvalidInput(
                f"expected --public-size, --classes and --test-data with your own images only, got one of them "
                f"with {data}, which declares its own; leave them out"
            )
        return rows, datasets.load(data, "test", side=side)
    if public_size is None or classes is None:
        raise InvalidInput(
            "expected --public-size and --classes with your own images; they are declared, not counted"
        )
    names = [str(number) for number in range(int(classes))] if classes.isdigit() else classes.split(",")
    rows = datasets.read_images(data, classes=names, public_size=public_size)
    if test_data is None:
        return rows, None
    return rows, datasets.read_images(test_data, classes=names, public_size=None, visibility="public")


def take_some(rows: Dataset, count: int | None, out: Path | None) -> Dataset:
    """As many records as were asked for, each by its own coin; the folder keeps the coins."""
    from sfumato.storage import RunFolder
    from sfumato.training import keep_some

    if count is None:
        return rows
    return keep_some(rows, count, folder=None if out is None else RunFolder.make(out))


def hold_some_out(rows: Dataset, share: float, epsilon: float, out: Path | None) -> tuple[Dataset, Held]:
    from sfumato.storage import RunFolder
    from sfumato.training import keep_out

    epsilon = _validate.positive("hold_out_epsilon", epsilon)
    rows, kept = keep_out(rows, share, folder=None if out is None else RunFolder.make(out))
    return rows, Held(rows=kept, epsilon=epsilon)


def prepare(
    model: str,
    rows: Dataset,
    test: Dataset | None,
    given: Given,
    epsilon: float,
    delta: float,
    *,
    canaries: int,
) -> Job:
    from sfumato.recipes import classifier as best_recipe
    from sfumato.training import Optimization

    if model == RECIPE:
        recipe = _adjusted(best_recipe.recipe_for(rows.name), given, best_recipe.declared(rows)[0])
        ready = best_recipe.prepare(rows, test, epsilon=epsilon, delta=delta, recipe=recipe, canaries=canaries)
        return Job(
            network=ready.model.head,
            rows=ready.rows,
            test=ready.test,
            plan=ready.plan,
            optimization=_rated(ready.optimization(epsilon), given),
            prepared=ready,
        )
    return Job(
        network=_network(model, rows, given.seed),
        rows=rows,
        test=test,
        plan=_plan(rows, given, epsilon, delta, canaries=canaries),
        optimization=_rated(Optimization(learning_rate=_RATE), given),
    )


def train_plainly(
    model: str, rows: Dataset, test: Dataset | None, given: Given, out: Path | None
) -> dict[str, Any]:
    """Train without privacy; what comes out is as private as the rows, and goes to that half of a folder."""
    from sfumato.fitting import evaluate, fit
    from sfumato.recipes import plain as plain_recipe

    started = time.perf_counter()
    if model == RECIPE:
        chosen = given.said("epochs", "batch", "learning_rate")
        network, test = plain_recipe.run(rows, seed=given.seed, **chosen), plain_recipe.seen(test)
    else:
        network = _network(model, rows, given.seed)
        fit(network, rows, _plain_settings(given))
    measured = None if test is None else evaluate(network, test)
    answer = {
        "test_accuracy": None if measured is None else measured.accuracy,
        "test_loss": None if measured is None else measured.loss,
        "epsilon": float("inf"),
        "delta": 0.0,
        "seconds": time.perf_counter() - started,
    }
    return answer if out is None else {**answer, "out": str(_keep(network, answer, out))}


def _plain_settings(given: Given) -> FitConfig:
    from sfumato.fitting import FitConfig

    said = given.said("learning_rate")
    if given.epochs is not None:
        said["epochs"] = max(1, round(given.epochs))
    if given.batch is not None:
        said["batch_size"] = given.batch
    return FitConfig(seed=given.seed, **said)


def _keep(network: Any, answer: dict[str, Any], out: Path) -> Path:
    from safetensors.torch import save

    from sfumato.results import MODEL, RESULT, PlainTraining
    from sfumato.storage import RunFolder

    folder = RunFolder.make(out)
    state = {name: value.detach().clone().contiguous() for name, value in network.state_dict().items()}
    folder.write(MODEL, save(state), private=True)
    result = PlainTraining(test_accuracy=answer["test_accuracy"], test_loss=answer["test_loss"])
    folder.write_json(RESULT, result.to_json(), private=True)
    return out


def _network(model: str, rows: Dataset, seed: int) -> Any:
    from sfumato import models

    return models.build(
        model, classes=rows.classes or 2, in_channels=rows.shape[0], side=rows.shape[-1], seed=seed
    )


def _adjusted(recipe: Recipe, given: Given, size: int) -> Recipe:
    rate = (
        recipe.sample_rate if given.batch is None else _validate.probability("batch / size", given.batch / size)
    )
    steps = recipe.steps if given.epochs is None else max(1, round(given.epochs / rate))
    return replace(recipe, sample_rate=rate, steps=steps, **given.said("clip_norm"))


def _rated(optimization: Optimization, given: Given) -> Optimization:
    """With the learning rate that was asked for, if one was."""
    return replace(optimization, **given.said("learning_rate"))


def _plan(rows: Dataset, given: Given, epsilon: float, delta: float, *, canaries: int) -> TrainingPlan:
    from sfumato.recipes.classifier import declared
    from sfumato.training.wanted import Wanted

    wanted = Wanted(
        epsilon=epsilon,
        public_size=declared(rows)[0] + canaries,
        epochs=given.epochs,
        expected_batch=given.batch,
        clip_norm=given.clip_norm,
        unit=rows.unit,
        rows_per_unit=None,
    )
    return wanted.calibrated(None, None, delta)
