"""A compact net whose features were learned from drawings, never from people's data.

Its weights ship with the package, made by `sfumato prior`, beside a note of how, and are checked against the
digest in that note before use.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from sfumato import _validate
from sfumato.errors import DataCorrupted, DataUnavailable

PRIORS = ("strokes", "shapes", "strokes-wide", "strokes-wild", "strokes-rare")
_TWO_BLOCKS, _THREE_BLOCKS = 8, 11  # layers of the body; the third block has no pool


class PriorNet(nn.Module):
    """GroupNorm convolutions for 28 × 28 grey images in [0, 1], 576 features, and two heads.

    `head` has a hidden layer, so that the features keep more than the differences between classes of drawings
    (features right under the last layer lose details that other data need). `linear` answers from the
    features alone: where a private linear head starts from.

    Args:
        classes: How many outputs each head has.

    >>> PriorNet().features(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 576])
    """

    architecture = "prior"
    feature_count = 576

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_block(1, 32, pooled=True),  # 14 × 14
            *_block(32, 64, pooled=True),  # 7 × 7
            *_block(64, 96, pooled=False),
            *_block(96, 64, pooled=True),  # 3 × 3
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(self.feature_count, 128), nn.ReLU(), nn.Linear(128, classes))
        self.linear = nn.Linear(self.feature_count, classes)

    def features(self, images: Tensor) -> Tensor:
        """(images, 576), each of L2 norm 1: the inputs of a private linear head."""
        return functional.normalize(self.body(images), dim=1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images))
        return logits

    def answering_by(self, head: str) -> nn.Module:
        """The net as one of its heads answers: "head" or "linear"."""
        _validate.one_of("head", head, ("head", "linear"))
        return self if head == "head" else _LinearAnswers(self)


class _LinearAnswers(nn.Module):
    def __init__(self, net: PriorNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net.linear(self.net.features(images))
        return logits


class PriorLevels(nn.Module):
    """The features of the last three depths: (images, 2016), 576 + 864 + 576, each part of unit length.

    The last features separate the classes of drawings; earlier blocks keep more other details, which other
    people's writing may need. Those are averaged over 2 × 2 positions, to 3 × 3.

    Args:
        net: The net whose features are taken.

    >>> PriorLevels(PriorNet())(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 2016])
    """

    def __init__(self, net: PriorNet) -> None:
        super().__init__()
        self.lower, self.middle = net.body[:_TWO_BLOCKS], net.body[_TWO_BLOCKS:_THREE_BLOCKS]
        self.upper = net.body[_THREE_BLOCKS:]

    def forward(self, images: Tensor) -> Tensor:
        low = self.lower(images)  # (images, 64, 7, 7)
        middle = self.middle(low)  # (images, 96, 7, 7)
        pooled = [functional.avg_pool2d(maps, 2).flatten(1) for maps in (middle, low)]
        return torch.cat([functional.normalize(part, dim=1) for part in (self.upper(middle), *pooled)], dim=1)


def _block(inputs: int, outputs: int, *, pooled: bool) -> list[nn.Module]:
    # Pooling comes first: normalisation and rectifier then touch a quarter of the values.
    pool = [nn.MaxPool2d(2)] if pooled else []
    return [nn.Conv2d(inputs, outputs, 3, padding=1), *pool, nn.GroupNorm(8, outputs), nn.ReLU()]


def prior_note(name: str = "strokes") -> dict[str, Any]:
    """How the weights were made: recipe, versions, digest, accuracy; for certificates.

    Args:
        name: A name of `PRIORS`.

    Returns:
        The note, as JSON has it.

    >>> "sha256" in str(prior_note("strokes"))
    True
    """
    _validate.one_of("name", name, PRIORS)
    return shipped_note(name)


def shipped_note(name: str, folder: Path | None = None) -> dict[str, Any]:
    """The note beside the weights of this name."""
    note: dict[str, Any] = json.loads(_weights_folder(folder).joinpath(f"{name}.json").read_text())
    return note


def load_prior(name: str = "strokes", *, folder: Path | None = None) -> PriorNet:
    """The net with the weights that ship with the package, in evaluation mode, laid out channels-last.

    Args:
        name: A name of `PRIORS`.
        folder: Where `sfumato prior` wrote other weights, if those that ship are not wanted.

    Returns:
        The net.

    >>> load_prior("strokes").linear.out_features
    10
    """
    weights = shipped_weights(_validate.one_of("name", name, PRIORS), folder)
    net = PriorNet(classes=len(weights["linear.bias"]))
    net.load_state_dict(weights)  # some ship in half precision; the net is in single
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    return net.eval()


def shipped_weights(name: str, folder: Path | None = None) -> dict[str, Tensor]:
    """Weights that come with the package, or lie in a folder, if they have the digest of their note."""
    try:
        expected = shipped_note(name, folder)["sha256"]
        content = _weights_folder(folder).joinpath(f"{name}.safetensors").read_bytes()
        found = hashlib.sha256(content).hexdigest()
        weights = safetensors.torch.load(content) if found == expected else {}
    except FileNotFoundError as error:
        raise DataUnavailable(
            f"expected {name}.safetensors and {name}.json in {folder}, got no such file; make them with: "
            f"sfumato prior {name} --out {folder}"
        ) from error
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise DataCorrupted(
            f"expected {name}.safetensors and {name}.json as sfumato prior writes them, got others; make them "
            f"anew with: sfumato prior {name}"
        ) from error
    if found != expected:
        raise DataCorrupted(
            f"expected the weights of prior {name!r} to have sha256={expected}, got {found}; "
            f"reinstall the package, or make them anew with: sfumato prior {name}"
        )
    if not all(bool(value.isfinite().all()) for value in weights.values()):
        raise DataCorrupted(f"expected numbers as weights of prior {name!r}, got NaN or infinities")
    return weights


def _weights_folder(folder: Path | None = None) -> Any:
    return resources.files("sfumato.models") / "weights" if folder is None else folder


class JoinedPriors(nn.Module):
    """Images → the features of all nets, of length 1 together → `linear`.

    Args:
        nets: The nets; they share nothing.
        classes: How many outputs there are.

    >>> joined = JoinedPriors([PriorNet(), PriorNet()], classes=10)
    >>> joined.features(torch.zeros(3, 1, 28, 28)).shape
    torch.Size([3, 1152])
    """

    architecture = "joined priors"

    def __init__(self, nets: Sequence[PriorNet], *, classes: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.linear = nn.Linear(PriorNet.feature_count * len(nets), classes)

    @classmethod
    def of(cls, nets: Sequence[PriorNet], *, classes: int) -> JoinedPriors:
        """The head is the mean of the nets' own linear ones, for their first `classes` outputs."""
        joined, scale = cls(nets, classes=classes), len(nets) ** -0.5
        with torch.no_grad():
            joined.linear.weight.copy_(scale * torch.cat([net.linear.weight[:classes] for net in nets], dim=1))
            joined.linear.bias.copy_(torch.stack([net.linear.bias[:classes] for net in nets]).mean(0))
        return joined

    def features(self, images: Tensor) -> Tensor:
        """(images, 576 of each net), each row of length 1."""
        parts = [cast(PriorNet, net).features(images) for net in self.nets]
        return len(parts) ** -0.5 * torch.cat(parts, dim=1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.features(images))
        return logits
