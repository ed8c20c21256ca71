"""The tasks of a study: a head on public features, a network on images, or a network on columns of a table.

A task follows from the study's file alone. It states the network, its loss and the settings of its training,
and how a holder's own rows are read once they are paid for.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy.typing as npt
import torch
from msgspec import Meta
from torch import nn

from sfumato import _validate, models
from sfumato.datasets import DATASETS, Dataset, load, read_images
from sfumato.errors import InvalidInput
from sfumato.fitting import evaluate
from sfumato.learn import Recipe
from sfumato.learn.features import bare, build, caveats, featured
from sfumato.learn.features import card as card_of
from sfumato.learn.features import head_only as recipe_for
from sfumato.learn.table import mlp
from sfumato.learn.table.encoding import Encoding, Source, Target, public_rows
from sfumato.learn.table.model import measure
from sfumato.learn.table.run import TableTraining
from sfumato.mechanisms.shares import MARGIN
from sfumato.models import prior_note
from sfumato.policy import Column, Policy, policy_from_dict
from sfumato.randomness import Sampler
from sfumato.released import ModelCard, Released
from sfumato.schema import Json, Model, Positive, Whole
from sfumato.training import LossFunction, Optimization, TrainingPlan, cross_entropy

TABLE = "table"
"""The value of `data` in a study of tables."""

_MOST_PARAMETERS = 2**28


@dataclass(frozen=True, kw_only=True)
class Material:
    """A holder's network and rows.

    `read` is called after the charge; it gives rows and, where the unit is a person, the person of each.
    `release` makes the file of the trained network, `measure` its figures on public rows, if there are any.
    """

    network: nn.Module  # the part that learns
    read: Callable[[Sampler], tuple[Any, npt.ArrayLike | None]]
    release: Callable[[], bytes]
    measure: Callable[[], dict[str, float | None]]
    caveats: tuple[str, ...] = ()


class Task(ABC):
    """The training of a study, the same for all holders."""

    margin: ClassVar[float] = MARGIN  # of the clipping norm, for rounding

    @abstractmethod
    def learner(self) -> nn.Module:
        """Return the network that every holder trains, as it is before the first step."""

    @abstractmethod
    def example(self) -> tuple[Any, Any]:
        """Return one public row and its target, as the learner takes them."""

    @abstractmethod
    def settings(self, *, public_size: int) -> dict[str, Any]:
        """Return the settings of the plan, without price and noise."""

    @abstractmethod
    def optimization(self, *, epsilon: float, public_size: int) -> Optimization: ...

    @property
    def dimension(self) -> int:
        return _parameters(self.learner())

    @property
    def loss(self) -> LossFunction:
        return cross_entropy

    def facts(self) -> dict[str, Any]:
        """Return facts that all holders must share and that neither the study's file nor its plan states."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Images(Task):
    """The default recipe: a linear head on public features."""

    data: str
    classes: int
    margin: ClassVar[float] = 2.0**-7  # a single layer rounds little

    @property
    def recipe(self) -> Recipe:
        return recipe_for(self.data)

    def learner(self) -> nn.Linear:
        return bare(self.recipe, classes=self.classes).head

    def example(self) -> tuple[Any, Any]:
        return torch.zeros(1, self.learner().in_features), torch.zeros(1, dtype=torch.long)

    def facts(self) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "recipe": asdict(recipe),
            "priors": {name: prior_note(name)["sha256"] for name in recipe.priors},
        }

    def settings(self, *, public_size: int) -> dict[str, Any]:
        return {
            "expected_batch": self.recipe.sample_rate * public_size,
            "steps": self.recipe.steps,
            "clip_norm": self.recipe.clip_norm,
            "average_decay": self.recipe.average_decay,
        }

    def optimization(self, *, epsilon: float, public_size: int) -> Optimization:
        return self.recipe.optimization(epsilon=epsilon, public_size=public_size)

    def material(self, rows: Callable[[], Dataset], test: Dataset | None) -> Material:
        """Prepare training on a holder's images, which `rows` loads, and public test images."""
        network = build(self.recipe, classes=self.classes)
        return _material_of_images(
            network,
            network.head,
            rows,
            test,
            seen=lambda images: featured(network, images),
            card=lambda images: card_of(self.recipe, images),
            caveats=caveats(self.recipe, self.data),
        )


class NetworkTerms(Model):
    """The section `network` of a study: a network with random initial weights, and how it is trained.

    Attributes:
        model: A name of `sfumato.models.MODELS`.
        shape: Channels, height and width of an image.
        steps: Number of steps.
        expected_batch: Number of units in all holders' batches together, on average.
        clip_norm: The bound of one unit's gradient.
        learning_rate: The step size of SGD.
        seed: Fixes the first weights, which are public and the same at every holder.

    Raises:
        InvalidInput: If a field is outside its range.

    >>> network = NetworkTerms(
    ...     model="mlp", shape=(1, 8, 8), steps=100, expected_batch=256, clip_norm=1.0, learning_rate=0.5
    ... )
    >>> type(network.build(10)).__name__
    'MLP'
    """

    model: str
    shape: tuple[Whole, Whole, Whole]
    steps: Whole
    expected_batch: Positive
    clip_norm: Positive
    learning_rate: Positive
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.one_of("model", self.model, models.MODELS)
        if self.shape[1] != self.shape[2]:
            raise InvalidInput(f"expected shape = [channels, side, side], got shape={self.shape}")

    def build(self, classes: int) -> nn.Module:
        return models.build(
            self.model, classes=classes, in_channels=self.shape[0], side=self.shape[1], seed=self.seed
        )


@dataclass(frozen=True, kw_only=True)
class Network(Task):
    """A network of the registry on images, with random initial weights."""

    terms: NetworkTerms
    classes: int

    @property
    def dimension(self) -> int:
        """The number of parameters; no memory is taken for them."""
        with torch.device("meta"):
            count = _parameters(self.learner())
        if count > _MOST_PARAMETERS:
            raise InvalidInput(f"expected a network of at most {_MOST_PARAMETERS} parameters, got {count}")
        return count

    def learner(self) -> nn.Module:
        return self.terms.build(self.classes)

    def example(self) -> tuple[Any, Any]:
        return torch.zeros(1, *self.terms.shape), torch.zeros(1, dtype=torch.long)

    def settings(self, *, public_size: int) -> dict[str, Any]:
        return {name: getattr(self.terms, name) for name in ("expected_batch", "steps", "clip_norm")}

    def optimization(self, *, epsilon: float, public_size: int) -> Optimization:
        return Optimization(learning_rate=self.terms.learning_rate)

    def material(self, rows: Callable[[], Dataset], test: Dataset | None) -> Material:
        """Prepare training on a holder's images, which `rows` loads, and public test images."""
        network, names = self.learner(), tuple(str(number) for number in range(self.classes))
        card = ModelCard(architecture=self.terms.model, classes=names, shape=self.terms.shape)
        return _material_of_images(
            network, network, rows, test, seen=lambda images: images, card=lambda images: card
        )


def _material_of_images(
    network: nn.Module,
    learner: nn.Module,
    rows: Callable[[], Dataset],
    test: Dataset | None,
    *,
    seen: Callable[[Dataset], Dataset],
    card: Callable[[Dataset], ModelCard],
    caveats: tuple[str, ...] = (),
) -> Material:
    loaded: list[Dataset] = []

    def read(sampler: Sampler) -> tuple[Any, None]:
        loaded.append(rows())
        return seen(loaded[0]), None

    return Material(
        network=learner,
        read=read,
        release=lambda: Released(module=network, card=card(loaded[0])).to_bytes(),
        measure=lambda: {} if test is None else {"test_accuracy": evaluate(learner, seen(test)).accuracy},
        caveats=caveats,
    )


class TableTerms(Model):
    """The section `table` of a study: the target, the rows of one unit that count, and all columns."""

    target: str
    rows: Whole
    columns: dict[str, Json]


@dataclass(frozen=True, kw_only=True)
class Table(Task):
    """A network with one hidden layer on the declared columns of tables; `of` makes one.

    `policy` declares the columns, as each holder's own policy must; it has no source.
    """

    target: str
    policy: Policy

    @classmethod
    def of(cls, terms: TableTerms, *, unit: str) -> Table:
        """Make the task; InvalidInput if the target cannot be learned, or there is no column to learn from."""
        kept = {"rows": terms.rows, "column": None if unit == "record" else unit}
        said = {"columns": terms.columns, "unit": kept, "budget": {"epsilon": 1.0, "unit": unit}}
        policy = policy_from_dict(said, source="study")
        return cls(target=Target.of(policy, terms.target).name, policy=policy)

    def to_json(self) -> dict[str, Any]:
        """Return the section `table`, with days as texts."""
        columns = {name: _declared(column) for name, column in self.policy.columns.items()}
        return {"target": self.target, "rows": self.policy.unit.rows, "columns": columns}

    @property
    def classes(self) -> int | None:
        found = self._target.classes
        return None if found is None else len(found)

    def learner(self) -> nn.Module:
        return mlp.build(self._encoding.encoders, classes=self.classes).module

    def example(self) -> tuple[Any, Any]:
        kind = torch.float32 if self.classes is None else torch.long
        return torch.zeros(1, mlp.input_count(self._encoding.encoders)), torch.zeros(1, dtype=kind)

    def facts(self) -> dict[str, Any]:
        return {"hidden": mlp.HIDDEN}

    @property
    def loss(self) -> LossFunction:
        return mlp.square_loss if self.classes is None else cross_entropy

    def settings(self, *, public_size: int) -> dict[str, Any]:
        """`public_size` counts units."""
        several = self.policy.unit.column is not None
        batch = mlp.batch_of(public_size)
        return {
            "expected_batch": batch,
            "steps": max(1, round(mlp.EPOCHS * public_size / batch)),
            "average_decay": mlp.AVERAGE_DECAY,
            "rows_per_unit": self.policy.unit.rows if several else None,
        }

    def optimization(self, *, epsilon: float, public_size: int) -> Optimization:
        return mlp.OPTIMIZATION

    def check_policy(self, policy: Policy) -> None:
        """Raise unless a holder's policy declares the study's columns and unit."""
        for name, column in self.policy.columns.items():
            if policy.columns.get(name) != column:
                raise InvalidInput(
                    f"expected columns.{name} in the policy as in the study, got another or none; agree on its "
                    "type, bounds and categories"
                )
        ours, theirs = self.policy.unit, policy.unit
        if (ours.column, ours.rows) != (theirs.column, theirs.rows):
            raise InvalidInput(
                f"expected unit.column={ours.column} and unit.rows={ours.rows} in the policy, as in the study, "
                "got others"
            )

    def material(
        self, policy: Policy, plan: TrainingPlan, *, delta: float, test: Path | None = None
    ) -> Material:
        """Prepare training on a holder's table; `test` holds public rows."""
        self.check_policy(policy)
        training = TableTraining(
            policy=policy, encoding=self._encoding, target=self._target, plan=plan, delta=delta
        )
        columns = [*self._encoding.names, self.target]
        shown = None if test is None else public_rows(policy, test, columns)
        source = Source.open(policy, columns)
        network = mlp.build(self._encoding.encoders, classes=self.classes)

        def read(sampler: Sampler) -> tuple[Any, npt.ArrayLike | None]:
            rows, units = training.rows(source, sampler)
            return training.tensors(rows), units

        return Material(
            network=network.module,
            read=read,
            release=lambda: training.released(network).to_bytes(),
            measure=lambda: {} if shown is None else measure(training.released(network), shown),
            caveats=training.caveats,
        )

    @property
    def _target(self) -> Target:
        return Target.of(self.policy, self.target)

    @property
    def _encoding(self) -> Encoding:
        return Encoding.of(self.policy, self.target)


def images_of(data: str, *, classes: int, part: str | None) -> tuple[Callable[[], Dataset], Dataset | None]:
    """Return a function that loads a holder's images, and public images to measure on, if there are any.

    A data set by its name is for rehearsals; `part`, such as "2/3", takes some of its rows.
    """
    if data in DATASETS:
        place, _, of = (part or "1/1").partition("/")
        if not (place.isdigit() and of.isdigit() and 1 <= int(place) <= int(of)):
            raise InvalidInput(f"expected a part such as 2/3, got {part}")
        return lambda: dealt(load(data, "train"), int(place), int(of)), load(data, "test")
    if part is not None:
        raise InvalidInput("expected --part with a data set by its name, got it with your own; leave it out")
    names = [str(number) for number in range(classes)]
    return lambda: read_images(data, classes=names, public_size=None), None


def dealt(rows: Dataset, place: int, of: int) -> Dataset:
    """Return the rows of the holder at `place`, from 1, if rows are dealt out one by one."""
    return replace(
        rows, inputs=rows.inputs[place - 1 :: of].copy(), targets=rows.targets[place - 1 :: of].copy()
    )


def _declared(column: Column) -> dict[str, Any]:
    written = {
        "type": column.type,
        "lower": column.lower,
        "upper": column.upper,
        "categories": None if column.categories is None else list(column.categories),
    }
    days = {name: value.isoformat() for name, value in written.items() if isinstance(value, datetime.date)}
    return {name: value for name, value in {**written, **days}.items() if value is not None}


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
