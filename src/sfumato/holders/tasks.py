"""What a study trains: a head on public features of images, or a small network on declared columns of a table.

A task follows from the study's file alone. It says how large the sums are, how they are sampled and clipped,
and which network all holders begin with; and how a holder's own rows are read, once they are paid for.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy.typing as npt
import torch
from torch import nn

from sfumato.datasets import DATASETS, Dataset, load, read_images
from sfumato.errors import InvalidInput
from sfumato.fitting import evaluate
from sfumato.holders.network import NetworkTerms
from sfumato.mechanisms.shares import MARGIN
from sfumato.models import prior_note
from sfumato.policy import Column, Policy, policy_from_dict
from sfumato.randomness import Sampler
from sfumato.recipes import Recipe
from sfumato.recipes.features import bare, build, caveats, featured
from sfumato.recipes.features import card as card_of
from sfumato.recipes.features import head_only as recipe_for
from sfumato.recipes.table import mlp
from sfumato.recipes.table.encoding import Encoding
from sfumato.recipes.table.evaluation import measure
from sfumato.recipes.table.reading import Source, public_rows
from sfumato.recipes.table.run import TableTraining
from sfumato.recipes.table.target import Target
from sfumato.released import ModelCard, Released
from sfumato.training import LossFunction, Optimization, TrainingPlan, cross_entropy

TABLE = "table"
"""What `data` of a study says if its rows are those of tables."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """What a holder's node trains on: `read` gives rows and, where there are persons, whose they are.

    It is called after the charge. `release` makes the file of the trained network, `measure` says how good it
    is on public rows: none, without any.
    """

    network: nn.Module  # the part that learns
    read: Callable[[Sampler], tuple[Any, npt.ArrayLike | None]]
    release: Callable[[], bytes]
    measure: Callable[[], dict[str, float | None]]
    caveats: tuple[str, ...] = ()


class Task(Protocol):
    """What is the same for all holders."""

    @property
    def dimension(self) -> int: ...

    @property
    def loss(self) -> LossFunction: ...

    @property
    def margin(self) -> float:
        """Of the clipping norm, for rounding."""
        ...

    def learner(self) -> nn.Module:
        """What every holder trains, as it is before the first step."""
        ...

    def example(self) -> tuple[Any, Any]:
        """One public row and its target, as the learner takes them."""
        ...

    def facts(self) -> dict[str, Any]:
        """What all holders must have alike, and neither the study's file nor its plan says."""
        ...

    def settings(self, *, public_size: int) -> dict[str, Any]:
        """Of the plan, but for price and noise."""
        ...

    def optimization(self, *, epsilon: float, public_size: int) -> Optimization: ...


@dataclass(frozen=True, kw_only=True)
class Images:
    """The default recipe: a linear head on public features."""

    data: str
    classes: int

    @property
    def recipe(self) -> Recipe:
        return recipe_for(self.data)

    @property
    def dimension(self) -> int:
        return _parameters(self.learner())

    margin: ClassVar[float] = 2.0**-7  # a single layer rounds little

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

    @property
    def loss(self) -> LossFunction:
        return cross_entropy

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
        """Of a holder's images, which are loaded when they are paid for, and public ones to measure on."""
        network = build(self.recipe, classes=self.classes)
        loaded: list[Dataset] = []

        def read(sampler: Sampler) -> tuple[Any, None]:
            loaded.append(rows())
            return featured(network, loaded[0]), None

        def measure() -> dict[str, float | None]:
            if test is None:
                return {}
            return {"test_accuracy": evaluate(network.head, featured(network, test)).accuracy}

        return Material(
            network=network.head,
            read=read,
            release=lambda: Released(module=network, card=card_of(self.recipe, loaded[0])).to_bytes(),
            measure=measure,
            caveats=caveats(self.recipe, self.data),
        )


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network of the registry on images, from random weights."""

    terms: NetworkTerms
    classes: int

    @property
    def dimension(self) -> int:
        return self.terms.parameters(self.classes)

    @property
    def loss(self) -> LossFunction:
        return cross_entropy

    margin: ClassVar[float] = MARGIN

    def learner(self) -> nn.Module:
        return self.terms.build(self.classes)

    def example(self) -> tuple[Any, Any]:
        return torch.zeros(1, *self.terms.shape), torch.zeros(1, dtype=torch.long)

    def facts(self) -> dict[str, Any]:
        return {}

    def settings(self, *, public_size: int) -> dict[str, Any]:
        return self.terms.training()

    def optimization(self, *, epsilon: float, public_size: int) -> Optimization:
        return self.terms.optimization()

    def material(self, rows: Callable[[], Dataset], test: Dataset | None) -> Material:
        """Of a holder's images, which are loaded when they are paid for, and public ones to measure on."""
        network = self.learner()

        def release() -> bytes:
            names = tuple(str(number) for number in range(self.classes))
            card = ModelCard(architecture=self.terms.model, classes=names, shape=self.terms.shape)
            return Released(module=network, card=card).to_bytes()

        def measure() -> dict[str, float | None]:
            return {} if test is None else {"test_accuracy": evaluate(network, test).accuracy}

        return Material(network=network, read=lambda _: (rows(), None), release=release, measure=measure)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A network with one hidden layer on the declared columns of tables; `from_dict` makes one.

    `policy` is what the study declares, as a holder of a table would; it has no source.
    """

    target: str
    policy: Policy

    @classmethod
    def from_dict(cls, section: Any, *, unit: str) -> Table:
        """Of the section `table`: the target, how many rows of one unit count, and all columns.

        Raises:
            InvalidInput: If the target cannot be learned, or there is no column to learn from.
        """
        if not isinstance(section, Mapping) or set(section) != {"target", "rows", "columns"}:
            raise InvalidInput("expected in section table exactly columns, rows and target, got others")
        if not isinstance(section["columns"], Mapping):
            raise InvalidInput("expected a section table.columns, got another value")
        kept = {"rows": section["rows"], "column": None if unit == "record" else unit}
        budget = {"epsilon": 1.0, "unit": unit}
        policy = policy_from_dict(
            {"columns": section["columns"], "unit": kept, "budget": budget}, source="study"
        )
        return cls(target=Target.of(policy, section["target"]).name, policy=policy)

    def to_dict(self) -> dict[str, Any]:
        """As the file has it, with days as texts."""
        columns = {name: _declared(column) for name, column in self.policy.columns.items()}
        return {"target": self.target, "rows": self.policy.unit.rows, "columns": columns}

    @property
    def classes(self) -> int | None:
        found = self._target.classes
        return None if found is None else len(found)

    @property
    def dimension(self) -> int:
        return _parameters(self.learner())

    margin: ClassVar[float] = MARGIN

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
        """Raise unless a holder declares of its own table what the study does."""
        for name, column in self.policy.columns.items():
            if policy.columns.get(name) != column:
                raise InvalidInput(
                    f"expected columns.{name} in the policy as in the study, got another or none; agree on its "
                    "type, bounds and categories"
                )
        ours, theirs = self.policy, policy
        if (ours.unit.column, ours.unit.rows) != (theirs.unit.column, theirs.unit.rows):
            raise InvalidInput(
                f"expected unit.column={ours.unit.column} and unit.rows={ours.unit.rows} in the policy, as in "
                "the study, got others"
            )

    def material(
        self, policy: Policy, plan: TrainingPlan, *, delta: float, test: Path | None = None
    ) -> Material:
        """Of a holder's table, of which no row is read before it is paid for; `test` holds public rows."""
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
    """How a holder's images are loaded, once they are paid for; and public ones to measure on, if any.

    A data set by its name is for trying things out; `part`, such as "2/3", takes some of its rows.
    """
    place, of = _part(part)
    if data in DATASETS:
        return lambda: dealt(load(data, "train"), place, of), load(data, "test")
    if part is not None:
        raise InvalidInput("expected --part with a data set by its name, got it with your own; leave it out")
    names = [str(number) for number in range(classes)]
    return lambda: read_images(data, classes=names, public_size=None), None


def _part(part: str | None) -> tuple[int, int]:
    if part is None:
        return 1, 1
    place, _, of = part.partition("/")
    if not (place.isdigit() and of.isdigit() and 1 <= int(place) <= int(of)):
        raise InvalidInput(f"expected a part such as 2/3, got {part}")
    return int(place), int(of)


def dealt(rows: Dataset, place: int, of: int) -> Dataset:
    """Every row that falls to the holder at `place`, from 1, if rows are dealt out one by one."""
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
