"""Which public features the default classifier looks at, and how its private head is trained on them.

Features cost nothing: a net that learned from drawings alone, or a designed transform, sees each image by
itself. All of the budget goes into a linear head on them, trained with large batches: the noise of a step's
mean gradient is then about √T·s·C/n for T steps, s the noise of one release of the whole, as good as without
sampling, at a fifth of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato import _validate, accounting
from sfumato.accounting import Budget
from sfumato.caveats import Code
from sfumato.datasets import Dataset, draw
from sfumato.datasets.images import to_shape
from sfumato.errors import InvalidInput
from sfumato.learn.kept_fit import kept_fit
from sfumato.learn.statistic import KINDS, LEADING, MEAN, MOMENT, StatisticPlan
from sfumato.models import (
    PRIORS,
    FeatureClassifier,
    OpponentScattering,
    PatchCodes,
    PriorLevels,
    Scattering,
    Whitened,
    load_prior,
    prior_note,
)
from sfumato.models.prior import shipped_note
from sfumato.models.rows_apart import rows_apart
from sfumato.models.scattering import CHANNELS as SCATTERING_CHANNELS
from sfumato.released import ModelCard, class_names
from sfumato.training import Optimization, TrainingPlan

SIDE = 28  # pixels the extractors look at
SHAPE = (1, SIDE, SIDE)
COLOUR_SIDE = 32
COLOUR = (3, COLOUR_SIDE, COLOUR_SIDE)
ARCHITECTURE = "public features"
_DRAWINGS_SEED = 7
_FULL_SIZE, _WEAK = 60_000, 0.5
_SCATTERING_GROUPS = 27  # of three channels
_FIRST = 200  # values of a part among which leading directions are looked for
_ADAPTS = {None: None, MEAN: "shift", MOMENT: "basis", LEADING: "products"}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Which features, and how the head is trained on them.

    The values were chosen by cross-validation on scikit-learn's digits, scans of other writers, with the noise
    of 60,000 rows, and on digits drawn by another hand. One setting before these (100 steps, no directions) was
    measured on MNIST's test images; that it gave the same accuracy at every ε led to a further search, on the
    drawings. docs/design/accuracy.md tells the whole story.

    >>> recipe_for("mnist").steps
    200
    """

    extractors: tuple[str, ...]  # names of the networks whose features are joined
    drawings: str | None = "strokes"  # from which centre and directions come; None: neither
    drawn: int = 10_000
    directions: int | None = 512  # principal ones that are kept; None: all features
    steps: int = 200
    sample_rate: float = 0.2
    clip_norm: float = 0.2
    learning_rate: float = 32.0  # at ε = 1 and 60,000 records; it follows both
    momentum: float = 0.9
    average_decay: float = 0.95  # of the average of weights that is released
    shape: tuple[int, int, int] = SHAPE  # of the images that the networks look at
    statistic: str | None = None  # of the private features, released first: "mean", "moment", "leading"
    statistic_share: float = 0.0  # of the budget, in 1/σ²
    weights: tuple[float, ...] = ()  # the length of each network's part of the features; none: 1 for all
    bias: bool = False  # a constant 1 beside unit features is half of a gradient's squared norm
    products: int = 0  # leading directions of the private features whose products are joined to them

    def __post_init__(self) -> None:
        for name in self.extractors:
            _validate.one_of("extractor", name, EXTRACTORS)
        if len(set(self.extractors)) < len(self.extractors):
            raise InvalidInput("expected extractors that differ, got one twice; name each once")
        if len(self.weights) not in (0, len(self.extractors)):
            raise InvalidInput(
                f"expected one weight for each of {len(self.extractors)} extractors, got {len(self.weights)}"
            )
        if self.directions is not None:
            _validate.integer("directions", self.directions, least=1)
        if self.drawings is not None:
            _validate.one_of("drawings", self.drawings, _DRAWN)
        _validate.integer("steps", self.steps, least=1)
        _validate.integer("products", self.products, least=0)
        if (self.products > 0) != (self.statistic == LEADING):
            raise InvalidInput(
                f"expected products where statistic={LEADING!r}, got products={self.products}, "
                f"statistic={self.statistic!r}"
            )
        if self.products and self.directions is not None:
            raise InvalidInput(
                f"expected directions=None beside products, got directions={self.directions}; "
                "leading values are looked for in each network's part"
            )
        if self.statistic is not None:
            _validate.one_of("statistic", self.statistic, KINDS)
            if not 0 < self.statistic_share < 1:
                raise InvalidInput(
                    f"expected statistic_share between 0 and 1, got statistic_share={self.statistic_share}"
                )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """Read the output of `asdict`; other fields are refused."""
        strangers = set(data) - {field.name for field in fields(cls)}
        if strangers:
            raise InvalidInput(f"expected the fields of a recipe, got {', '.join(sorted(strangers))} as well")
        return cls(**{**data, **{name: tuple(data[name]) for name in ("extractors", "shape", "weights")}})

    def plan(self, *, epsilon: float, delta: float, public_size: int, **choices: Any) -> TrainingPlan:
        """The head's plan at ε, if nothing is measured before; `choices` are further fields of it, by name."""
        return TrainingPlan.calibrated(
            epsilon=epsilon,
            delta=delta,
            public_size=public_size,
            expected_batch=self.sample_rate * public_size,
            steps=self.steps,
            clip_norm=self.clip_norm,
            average_decay=self.average_decay,
            **choices,
        )

    def plans(
        self, *, epsilon: float, delta: float, public_size: int, sizes: Sequence[int], **choices: Any
    ) -> tuple[StatisticPlan | None, TrainingPlan]:
        """Return the statistic's plan and the head's, which together cost at most (ε, δ), exactly composed.

        One Gaussian release of the whole budget would have noise σ; the statistic has σ/√share, and the head
        the least noise with which both fit. `sizes` are the widths of the parts that features consist of.
        """
        head = self.plan(epsilon=epsilon, delta=delta, public_size=public_size, **choices)
        if self.statistic is None:
            return None, head
        whole = accounting.gaussian_noise_multiplier(epsilon, delta)
        first = StatisticPlan(
            kind=self.statistic,
            width=sum(sizes),
            noise_multiplier=whole * self.statistic_share**-0.5,
            places=_leading(sizes) if self.statistic == LEADING else (),
            directions=self.products,
        )
        noise = accounting.calibrate(
            lambda value: accounting.compose(first.event(), replace(head, noise_multiplier=value).event()),
            Budget(epsilon=epsilon, delta=delta, relation=head.relation),
            guess=head.noise_multiplier,
        )
        return first, replace(head, noise_multiplier=noise)

    def optimization(self, *, epsilon: float, public_size: int) -> Optimization:
        """Steps as long as the noise allows: with s = ε·n/60,000 they grow as √s, and below ½ as s."""
        signal = epsilon * public_size / _FULL_SIZE
        factor = signal**0.5 if signal >= _WEAK else _WEAK**0.5 * signal / _WEAK
        return Optimization(learning_rate=self.learning_rate * factor, momentum=self.momentum)

    @property
    def priors(self) -> tuple[str, ...]:
        return tuple(name for name in self.extractors if name in PRIORS)


EXTRACTORS: Mapping[str, Callable[[], nn.Module]] = {
    **{name: partial(lambda name: PriorLevels(load_prior(name)), name) for name in PRIORS},
    "scattering": lambda: _NormalisedScattering(),
    "patches": lambda: Whitened(PatchCodes(), shape=COLOUR, directions=1500),
    "wide-patches": lambda: Whitened(PatchCodes(shrink=2), shape=COLOUR, directions=1000),
    "opponent-scattering": lambda: _opponent("roots"),
    "relative-scattering": lambda: _opponent("relative"),
}
_DRAWN = ("strokes", "shapes", "landscapes")


def _leading(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The first values of each part: along them drawn scenes differ the most."""
    starts = accumulate(sizes, initial=0)
    return tuple((start, start + min(size, _FIRST)) for start, size in zip(starts, sizes, strict=False))


def _opponent(kind: str) -> Whitened:
    return Whitened(OpponentScattering(side=COLOUR_SIDE, kind=kind), shape=COLOUR, directions=1000)


class _NormalisedScattering(nn.Module):
    """Scattering whose channels are normalised in groups, each image by itself (Tramèr & Boneh 2021, §3.2)."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = Scattering(side=SIDE)
        self.norm = nn.GroupNorm(_SCATTERING_GROUPS, SCATTERING_CHANNELS, affine=False)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.norm(self.transform(images))
        return maps


DIGITS = Recipe(extractors=("strokes-wide", "strokes-wild"), directions=768)
THINGS = Recipe(extractors=("shapes", "scattering"), drawings="shapes", drawn=3000, directions=1024)
# Second moments of the clothes themselves, at a fifth of the budget, say in which basis to learn.
CLOTHES = replace(THINGS, learning_rate=110 / 3**0.5, statistic="moment", statistic_share=0.2)
# Every step on all rows: with 120 of them subsampling would save little.
SCENES = Recipe(
    extractors=("patches", "wide-patches", "opponent-scattering", "relative-scattering"),
    weights=(1.0, 0.7, 0.8, 0.8),
    drawings="landscapes",
    drawn=10_000,
    directions=None,
    steps=120,
    sample_rate=1.0,
    clip_norm=0.15,
    learning_rate=100.0,
    average_decay=0.9,
    shape=COLOUR,
    statistic="leading",
    statistic_share=0.11,  # a hundredth for the mean, a tenth for the directions
    products=45,
)
# No prior at all. Settings as Tramèr & Boneh publish them (batch 4096, 40 epochs, clip 0.1, rate 8 at ε = 3),
# where each of 3,969 features has variance 1: unit length asks for 1/63 of the norm and 63² of the rate.
DESIGNED = Recipe(
    extractors=("scattering",),
    drawings=None,
    directions=None,
    steps=586,
    sample_rate=4096 / 60_000,
    clip_norm=0.1 / 63,
    learning_rate=8 * 63**2 / 3**0.5,
    bias=True,
)
RECIPES: Mapping[str, Recipe] = {
    "mnist": DIGITS,
    "digits": DIGITS,
    "strokes": DIGITS,
    "fashion-mnist": CLOTHES,
    "cifar10": SCENES,
}


def recipe_for(data: str) -> Recipe:
    """Choose the recipe for a data set; unknown ones get the recipe for photographs of things.

    Args:
        data: The name of the data set.

    Returns:
        The recipe.

    >>> recipe_for("mnist").directions
    768
    """
    return RECIPES.get(data, THINGS)


def head_only(data: str) -> Recipe:
    """The recipe for a data set where all that may be released is a head: nothing is measured before it."""
    found = recipe_for(data)
    return found if found.statistic is None else THINGS


def build(recipe: Recipe, *, classes: int, nets: Path | None = None) -> FeatureClassifier:
    """Return the classifier before it has seen any private row.

    Args:
        recipe: The features.
        classes: How many outputs there are.
        nets: A folder of networks that `sfumato prior` wrote, in place of those that ship.

    Returns:
        The classifier, its centre and directions fitted to drawings.
    """
    model = bare(recipe, classes=classes)
    if nets is None:
        model.load_state_dict(_fitted_to_drawings(recipe), strict=False)
        return model
    for place, name in enumerate(recipe.extractors):
        if name in PRIORS:
            model.extractors[place] = PriorLevels(load_prior(name, folder=nets)).requires_grad_(False)
    if recipe.drawings is not None:
        model.fit_to(_drawings(recipe))
    return model


@lru_cache(maxsize=8)
def _fitted_to_drawings(recipe: Recipe) -> Mapping[str, Tensor]:
    """Centre and directions, which are public and always the same, by their names in the classifier."""
    seen = (recipe.extractors, recipe.weights, recipe.drawings, recipe.drawn, recipe.directions, recipe.shape)
    settings = f"{seen} {_DRAWINGS_SEED} {recipe.statistic}"
    if recipe.drawings is None:
        return {}
    return kept_fit(settings, lambda: _fit_to_drawings(recipe), fits=lambda kept: _fits(kept, recipe))


def _fits(kept: Mapping[str, Tensor], recipe: Recipe) -> bool:
    """Whether these can be centre and directions of the classifier, and nothing that has weights."""
    model = bare(recipe, classes=1)
    places = dict(model.named_buffers())
    wanted = {"centre"} | ({"directions"} if recipe.directions else set())
    return wanted <= kept.keys() <= places.keys() and all(
        value.shape == places[name].shape and value.dtype == places[name].dtype and bool(value.isfinite().all())
        for name, value in kept.items()
    )


def _fit_to_drawings(recipe: Recipe) -> Mapping[str, Tensor]:
    model = bare(recipe, classes=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.fit_to(_drawings(recipe))
    return {name: value for name, value in model.state_dict().items() if not value.equal(before[name])}


def _drawings(recipe: Recipe) -> Tensor:
    assert recipe.drawings is not None
    drawn = torch.from_numpy(draw(recipe.drawings, recipe.drawn, seed=_DRAWINGS_SEED)[0])
    return drawn if drawn.ndim == 4 else drawn.unsqueeze(1)


def bare(recipe: Recipe, *, classes: int) -> FeatureClassifier:
    """The classifier's parts, with the weights of the public priors; centre and directions are not fitted."""
    extractors = [EXTRACTORS[name]() for name in recipe.extractors]
    model = FeatureClassifier(
        extractors,
        classes=classes,
        directions=recipe.directions,
        shape=recipe.shape,
        adapts=_ADAPTS[recipe.statistic],
        products=recipe.products,
        weights=recipe.weights,
        bias=recipe.bias,
    )
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    return model


def part_sizes(network: FeatureClassifier) -> tuple[int, ...]:
    """The widths of the parts that features consist of; directions make one part of all."""
    return network.sizes if network.directions is None else (network.width,)


def card(recipe: Recipe, rows: Dataset, *, nets: Path | None = None) -> ModelCard:
    """Return the description from which the released classifier is built again."""
    return ModelCard(
        architecture=ARCHITECTURE,
        classes=class_names(rows),
        shape=recipe.shape,
        settings={"recipe": asdict(recipe)},
        priors={name: shipped_note(name, nets)["sha256"] for name in recipe.priors},
    )


def fitted(rows: Dataset, shape: tuple[int, int, int] = SHAPE) -> Dataset:
    """Images of the extractors' size, each made by itself: channels averaged where grey is wanted, resized."""
    if len(rows.shape) != 3:
        raise InvalidInput(
            f"expected images (channels, height, width), got rows of shape {rows.shape}; "
            "for tables choose --model mlp"
        )
    return replace(rows, inputs=to_shape(rows.inputs, shape))


def featured(model: FeatureClassifier, rows: Dataset) -> Dataset:
    """The same rows as features, each computed by itself to the last bit, with the same declarations."""
    return replace(rows, inputs=rows_apart(model.features, fitted(rows, model.shape).tensors()[0]).numpy())


def adapted(model: FeatureClassifier, rows: Dataset) -> Dataset:
    """Rows of features as the head gets them, each computed by itself to the last bit."""
    return replace(rows, inputs=rows_apart(model.adapted, rows.tensors()[0]).numpy())


def declared(rows: Dataset) -> tuple[int, int]:
    """Size and classes that may be known in public."""
    if rows.public_size is None or rows.classes is None:
        raise InvalidInput(
            f"expected {rows.name} to declare its public size and classes, got "
            f"public_size={rows.public_size}, classes={rows.classes}; the rows are not counted"
        )
    return rows.public_size, rows.classes


_CHOSEN = Code.SETTINGS_UNCHARGED(
    rows="drawings and on scikit-learn's digits, uncharged; one setting before these had been measured on "
    "MNIST's public test images"
)
_CHOSEN_ON_TRAINING_ROWS = Code.SETTINGS_ON_THESE_ROWS()
_CHOSEN_ON = dict.fromkeys(("mnist", "fashion-mnist", "cifar10"), _CHOSEN_ON_TRAINING_ROWS)


def caveats(recipe: Recipe, data: str, *, nets: Path | None = None) -> tuple[str, ...]:
    """Return the caveats on the origin of features and settings."""
    return (
        *features_from(recipe, data, nets=nets),
        _CHOSEN_ON.get(data, _CHOSEN),
    )


def features_from(recipe: Recipe, data: str, *, nets: Path | None = None) -> tuple[str, ...]:
    """Return a caveat for each prior, with its origin."""
    if nets is not None:
        digests = {name: shipped_note(name, nets)["sha256"] for name in recipe.priors}
        return tuple(Code.PRIOR_OWN(name=repr(name), digest=digest[:16]) for name, digest in digests.items())
    notes = {name: prior_note(name) for name in recipe.priors}
    found = [
        Code.PRIOR_PUBLIC(name=repr(name), digest=note["sha256"][:16], data=str(note["data"]))
        for name, note in notes.items()
    ]
    if data == "digits" and recipe.priors:
        found.append(Code.PRIOR_VALIDATED())
    return tuple(found)
