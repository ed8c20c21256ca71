"""Digits that are noised before they leave the person, at many ε, and how many of them can still be read.

The digits are public test images, each scaled to length 1: any two differ by at most 2, the sensitivity
of the Gaussian mechanism (δ = 1e-5). Both readers learned from drawings only; the second knows the noise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sfumato import models
from sfumato.accounting import gaussian_noise_multiplier
from sfumato.randomness import Sampler, SecretStream
from sfumato.runs import EpidemicCurve, NoisedDigits, NoiseLevel, Tracing
from sfumato_lab.demo.context import DELTA, StageContext, save_grey
from sfumato_lab.drawings import strokes
from sfumato_lab.reproduce.tracing import DELTA as TRACING_DELTA
from sfumato_lab.tracing import UNIT, Campaign, Release, run
from sfumato_lab.tracing.settings import SETTINGS

Floats = npt.NDArray[np.float64]
EPSILONS = (
    *(0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0, 30.0, 60.0, 100.0, 200.0, 300.0, 500.0),
    *(1e3, 2e3, 3e3, 5e3, 1e4, 3e4, 1e5),
)


def dissolving_digits(context: StageContext) -> NoisedDigits:
    """One picture, a row for each ε and a column for each digit, and the share that readers get right."""
    test = context.test()
    images = test.inputs[:, 0].reshape(len(test), -1).astype(np.float64)
    shown = images[[int(np.flatnonzero(test.targets == digit)[0]) for digit in range(10)]]
    some, labels = images[: context.size.readers_test], test.targets[: context.size.readers_test]
    reader, sampler = Reader(context.size.readers_drawings), SecretStream()
    rows, right = [_as_shown(shown, 0.0)], [reader.share_right(some, labels, 0.0)]
    for number, epsilon in enumerate(reversed(EPSILONS)):
        sigma = 2 * gaussian_noise_multiplier(epsilon, DELTA)
        rows.append(_as_shown(noised(shown, sigma, sampler), sigma * reader.length))
        seen = noised(some, sigma, sampler)
        right.append(reader.share_right(seen, labels, sigma * reader.length))
        context.progress((number + 1) / len(EPSILONS))
    save_grey(np.concatenate(rows), context.folder.figures / "digits.png")
    levels = [
        NoiseLevel(epsilon=epsilon, readable=share)
        for epsilon, share in zip((None, *reversed(EPSILONS)), right, strict=True)
    ]
    return NoisedDigits(delta=DELTA, sheet="digits.png", digits=10, levels=tuple(levels))


def noised(images: Floats, sigma: float, sampler: Sampler) -> Floats:
    """Each image at length 1 plus noise of standard deviation σ a pixel, back at the usual brightness."""
    lengths = np.linalg.norm(images, axis=1, keepdims=True)
    noise = sampler.normal(images.size).reshape(images.shape)
    return (images / lengths + sigma * noise) * Reader.length


def _as_shown(images: Floats, spread: float) -> Floats:
    """(28, 280): the digits side by side, squeezed so that most of the noise stays between black and white."""
    side_by_side = np.concatenate(list(images.reshape(-1, 28, 28)), axis=1)
    return np.clip((side_by_side + spread) / (1 + 2 * spread), 0, 1)


class Reader:
    """The better of a network made on drawings, and a linear rule that is right for the noise."""

    length = 9.2  # of a usual image of a digit, 28 × 28 in [0, 1]

    def __init__(self, drawings: int) -> None:
        drawn, labels = strokes.draw(drawings, seed=11)
        flat = drawn.reshape(len(drawn), -1) / 255.0
        self._means = np.stack([flat[labels == digit].mean(axis=0) for digit in range(10)])
        self._spread = np.cov(flat - self._means[labels], rowvar=False)
        self._net = models.load_prior("strokes")

    def share_right(self, images: Floats, labels: npt.NDArray[np.int64], noise: float) -> float:
        answers = (self._by_network(images), self._by_rule(images, noise))
        return max(float(np.mean(answer == labels)) for answer in answers)

    def _by_network(self, images: Floats) -> npt.NDArray[np.int64]:
        pictures = torch.from_numpy(images.clip(0, 1).astype(np.float32)).reshape(-1, 1, 28, 28)
        with torch.inference_mode():
            parts = torch.split(pictures, 100)  # whose maps stay in the cache
            return np.concatenate([self._net(part).argmax(1).numpy() for part in parts])

    def _by_rule(self, images: Floats, noise: float) -> npt.NDArray[np.int64]:
        """Linear discriminant with the covariance of drawings plus that of the noise."""
        covariance = self._spread + (noise**2 + 1e-2) * np.eye(len(self._spread))
        weights = np.linalg.solve(covariance, self._means.T)  # (784, 10)
        scores = images @ weights - 0.5 * np.einsum("kd,dk->k", self._means, weights)
        return scores.argmax(axis=1)


_SIMULATOR, _SEED, _EPSILON = "seir", 1, 1.0
_CASES: tuple[tuple[str, float | None], ...] = (
    ("none", None),
    ("traditional", _EPSILON),
    ("dpfn", None),
    ("dpfn", _EPSILON),
)


def epidemic(context: StageContext) -> Tracing:
    """Prevalence by day without tests, with traditional tracing, and with scores, exact and private."""
    curves = []
    for number, (method, epsilon) in enumerate(_CASES, start=1):
        curves.append(_campaign(context, method, epsilon))
        context.progress(number / len(_CASES))
    return Tracing(
        people=context.size.town, days=context.size.days, delta=TRACING_DELTA, unit=UNIT, curves=tuple(curves)
    )


def _campaign(context: StageContext, method: str, epsilon: float | None) -> EpidemicCurve:
    """One town's epidemic; an ε is for a message's whole life; a person's is stated beside it."""
    setting = SETTINGS[_SIMULATOR]
    release = Release(method=method)
    if epsilon is not None:
        release = Release.calibrated(
            method=method, epsilon=epsilon, delta=TRACING_DELTA, disease=setting.disease, span="lifetime"
        )
    plan = Campaign(
        release=release, disease=setting.disease, days=context.size.days, test_fraction=setting.test_fraction
    )
    town = setting.make(context.size.town, context.size.days, _SEED)
    outcome = run(plan, town, SecretStream(), seed=_SEED)
    return outcome.curve(release, setting.disease, epsilon=epsilon, delta=TRACING_DELTA)
