"""`sfumato.load`: the model of a run, as an object that answers."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sfumato import _validate, local, models
from sfumato.array_files import damaged_unless_read
from sfumato.errors import DataCorrupted, DataUnavailable, InvalidInput
from sfumato.learn import features
from sfumato.learn.features import Recipe
from sfumato.learn.table.model import is_table_model, read_table_model
from sfumato.ledger import Certificate
from sfumato.models import PRIORS, JoinedPriors, PriorNet
from sfumato.models.prior import shipped_note
from sfumato.plugins import part
from sfumato.released import MODEL, OWN_MODULE, ModelCard, Predictor, Scores, module_scores, read_model
from sfumato.storage import CERTIFICATE, RunFolder

Tensors = Mapping[str, Tensor]
SYNTHETIC_IMAGES = "synthetic images"
_MOST_NETS = 16  # that a student stands on
_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MOST_PIXELS = 2**20  # of an image for a network of ours, all channels together
Built = TypeVar("Built")
Rebuild = Callable[[ModelCard, Tensors], Scores]


def load(folder: str | os.PathLike[str], *, model: nn.Module | None = None) -> Any:
    """The model that `train`, `tune`, `pate` or `local learn` left in `folder`, with its certificate.

    A module of your own cannot be built from a file: give one of the same layers as `model`.

    Args:
        folder: A run folder, or a copy of its `release` folder.
        model: A module of the same layers, for a run that trained your own. It is copied, and left as it
            is.

    Returns:
        An object with `predict`, `predict_proba` and `certificate`; of synthetic images, one that draws more.

    Raises:
        DataUnavailable: If there is no finished run.
        DataCorrupted: If the model is damaged, of another version, or stands on other public weights than
            those that are installed.

    ```python
    model = sfumato.load("out/mnist")
    model.predict(images)  # (images, 1, 28, 28), values from 0 to 1
    model.certificate.prices.pld  # the ε
    ```
    """
    place = _Place.of(Path(folder).expanduser())
    if is_table_model(place.half / MODEL):
        return replace(read_table_model(place.half / MODEL), certificate=place.certificate())
    card, tensors = read_model(place.half / MODEL)
    if card.architecture == SYNTHETIC_IMAGES:
        _check_priors(card)
        return replace(_rebuilt(card, tensors, part("images").sampler_from), certificate=place.certificate())
    if model is not None:
        scores = module_scores(_filled(copy.deepcopy(model), tensors))
    elif card.architecture in ARCHITECTURES:
        _check_priors(card)
        scores = _rebuilt(card, tensors, ARCHITECTURES[card.architecture])
    else:
        raise _unknown(card, place.half)
    return Predictor(card=card, scores=scores, certificate=place.certificate())


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a run's model is, and whether it may be published."""

    half: Path
    public: bool

    @classmethod
    def of(cls, folder: Path) -> _Place:
        for half, public in ((folder / "release", True), (folder, True), (folder / "private", False)):
            if (half / MODEL).is_file():
                return cls(half=half, public=public)
        interrupted = RunFolder(folder).in_words_if_interrupted()
        raise DataUnavailable(
            interrupted or f"expected a run with {MODEL} in {folder}, got none; give the --out of a run"
        )

    def certificate(self) -> Certificate | None:
        """Return the certificate; a model trained without privacy has none, an unfinished run is refused."""
        if not self.public:
            return None
        if not (self.half / CERTIFICATE).is_file():
            raise DataUnavailable(
                f"expected {self.half} to have a {CERTIFICATE}, got none; the run is not finished: give its "
                "command again"
            )
        return Certificate.read(self.half / CERTIFICATE)


def _unknown(card: ModelCard, place: Path) -> InvalidInput:
    if card.architecture == OWN_MODULE:
        return InvalidInput(
            f"expected model=... for {place}, which does not say how its model is built: it is a module of "
            "your own; sfumato.load(folder, model=module)"
        )
    known = ", ".join(sorted(ARCHITECTURES))
    return InvalidInput(
        f"expected an architecture among {known}, got {card.architecture[:40]!r} in {place}; "
        "give a module of its layers as model=..., or use a newer sfumato"
    )


def _rebuilt(card: ModelCard, tensors: Tensors, rebuild: Callable[[ModelCard, Tensors], Built]) -> Built:
    with damaged_unless_read(
        f"expected the weights of a model of architecture {card.architecture!r}, got others; "
        "the file is damaged or of another version"
    ):
        return rebuild(card, tensors)


def _filled(module: nn.Module, tensors: Tensors) -> nn.Module:
    """The module with these weights, each of its name and shape."""
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise DataCorrupted(
            "expected weights of the module's layers, got others; give the module that was trained"
        ) from error
    return module


def _check_priors(card: ModelCard) -> None:
    """The public weights that the model stands on must be those that are installed."""
    for name, digest in card.priors.items():
        if name not in PRIORS or shipped_note(name)["sha256"] != digest:
            raise DataCorrupted(
                f"expected the public prior {name[:40]!r} with sha256={digest[:16]}…, on which the model was "
                "trained, got another; install the version of sfumato that its certificate names"
            )


# Architectures


def _network(card: ModelCard, tensors: Tensors) -> Scores:
    """A network of `sfumato.models`; nothing is allocated before names and shapes are seen to fit."""
    shape = card.shape or ()
    if len(shape) != 3 or shape[1] != shape[2] or math.prod(shape) > _MOST_PIXELS:
        raise ValueError("expected square images")
    task = models.Task(classes=len(card.classes), in_channels=shape[0], side=shape[-1])
    with torch.device("meta"):
        network = models.MODELS[card.architecture](task)
    network.load_state_dict(_single(tensors), assign=True)
    return module_scores(network.float())


def _on_features(card: ModelCard, tensors: Tensors) -> Scores:
    recipe = Recipe.from_json(card.settings["recipe"])
    _expect_shape(card, recipe.shape)
    _check_sizes(recipe, len(card.classes), tensors)
    network = features.bare(recipe, classes=len(card.classes))
    _check_extractors(network, recipe, tensors)
    network.load_state_dict(tensors)
    return module_scores(network)


def _check_sizes(recipe: Recipe, classes: int, tensors: Tensors) -> None:
    """The file must hold all that the recipe and the classes would have us allocate."""
    size = len(features.bare(replace(recipe, directions=None, statistic=None, products=0), classes=1).centre)
    width = size if recipe.directions is None else recipe.directions
    expected = {
        "centre": (size,),
        "head.weight": (classes, width + recipe.products * (recipe.products + 1) // 2),
    }
    expected |= {"head.bias": (classes,)} if recipe.bias else {}
    expected |= {} if recipe.directions is None else {"directions": (size, width)}
    if recipe.statistic is not None:
        expected |= {"basis": (width, width)} if recipe.statistic == "moment" else {"shift": (width,)}
        expected |= {"leading": (width, recipe.products)} if recipe.products else {}
    if any(tuple(tensors[name].shape) != shape for name, shape in expected.items()):
        raise ValueError("expected a head of the declared classes and directions")


def _expect_shape(card: ModelCard, shape: tuple[int, int, int] = features.SHAPE) -> None:
    if card.shape != shape:
        raise ValueError(f"expected images of shape {shape}")


def _check_extractors(network: nn.Module, recipe: Recipe, tensors: Tensors) -> None:
    """The file's own copy of a prior must be the prior; designed transforms may differ in their last bits."""
    priors = [number for number, name in enumerate(recipe.extractors) if name in recipe.priors]
    for name, value in network.state_dict().items():
        if any(name.startswith(f"extractors.{number}.") for number in priors) and not value.equal(
            tensors[name]
        ):
            raise DataCorrupted(
                f"expected the weights of the public priors {', '.join(recipe.priors)}, got others; the file "
                "was changed, or another version made it"
            )


def _student(card: ModelCard, tensors: Tensors) -> Scores:
    """A prior's net after training on labels: it answers by its linear head, or by the one with a layer."""
    _expect_shape(card)
    with torch.device("meta"):  # nothing is allocated before names and shapes are seen to fit
        net = PriorNet(classes=len(tensors["head.2.bias"]))
        net.linear = nn.Linear(net.feature_count, len(tensors["linear.bias"]))
    net.load_state_dict(_single(tensors), assign=True)
    return module_scores(net.answering_by(card.settings["answers"]))


def _joined_student(card: ModelCard, tensors: Tensors) -> Scores:
    """Several priors' nets after training on labels, under one head."""
    _expect_shape(card)
    count = _validate.integer("nets", card.settings["nets"], least=1)
    if count > _MOST_NETS or not card.classes:
        raise ValueError(f"expected at most {_MOST_NETS} nets, and classes")
    heads = [tensors[f"nets.{number}.head.2.bias"] for number in range(count)]
    with torch.device("meta"):
        nets = JoinedPriors([PriorNet(classes=len(bias)) for bias in heads], classes=len(card.classes))
    nets.load_state_dict(_single(tensors), assign=True)
    return module_scores(nets)


def _single(tensors: Tensors) -> dict[str, Tensor]:
    """Weights as the nets compute with them; numbers of another kind are none."""
    if not all(tensor.dtype in _REAL for tensor in tensors.values()):
        raise ValueError("expected real weights")
    return {name: tensor.float() for name, tensor in tensors.items()}


def _from_reports(card: ModelCard, tensors: Tensors) -> Scores:
    _expect_shape(card)
    found = local.LearntClassifier.from_tensors(
        card.settings, {name: value.numpy() for name, value in tensors.items()}
    )
    return lambda rows: found.scores(rows[:, 0])


ARCHITECTURES: dict[str, Rebuild] = {
    **dict.fromkeys(models.MODELS, _network),
    features.ARCHITECTURE: _on_features,
    PriorNet.architecture: _student,
    JoinedPriors.architecture: _joined_student,
    local.LearntClassifier.architecture: _from_reports,
}
"""How each architecture is built from its card and tensors; any error in it means that they do not fit."""
