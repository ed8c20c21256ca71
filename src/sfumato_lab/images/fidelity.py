"""What synthetic images are good for: computed from what was paid for, and from public images."""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato.datasets import Dataset
from sfumato.learn.features import fitted
from sfumato.models import load_prior
from sfumato_lab.images.measures import features_of, frechet
from sfumato_lab.images.sampler import Drawn, ImageSampler
from sfumato_lab.images.styles import to_inputs

_COMPARED = 5000  # images of either kind
_SEED = 12  # of drawings that were not used before
_NORMAL_95 = 1.96
GOOD_FOR = "training a classifier of the same classes, and showing what the images are like"
NOT_GOOD_FOR = "rare styles that few people have, fine texture, and anything that is not in the drawings"


def report(sampler: ImageSampler, drawn: Drawn, test: Dataset | None) -> dict[str, Any]:
    """Classes with intervals, how many images were left out, and distances to public images, if any."""
    found: dict[str, Any] = {
        "images": len(drawn),
        "left_out_as_unsure": round(drawn.unsure / drawn.tried, 4),
        "mean_confidence": round(float(drawn.sure.mean()), 4),
        "classes": _classes(sampler, drawn),
        "good_for": GOOD_FOR,
        "not_good_for": NOT_GOOD_FOR,
        "frechet_distance": None,
    }
    if test is not None:
        found["frechet_distance"] = _distances(sampler, drawn, test)
    return found


def _classes(sampler: ImageSampler, drawn: Drawn) -> list[dict[str, Any]]:
    """Images of each class beside the noisy count of private ones; the interval covers the noise alone."""
    made = np.bincount(drawn.labels, minlength=len(sampler.class_names))
    lines: list[dict[str, Any]] = [
        {"class": name, "images": int(count)} for name, count in zip(sampler.class_names, made, strict=True)
    ]
    if sampler.statistics is not None:
        reach = _NORMAL_95 * sampler.statistics.count_sigma
        for line, count in zip(lines, sampler.statistics.counts, strict=True):
            line["people"] = round(float(count))
            line["people_95"] = [round(float(count - reach)), round(float(count + reach))]
    return lines


def _distances(sampler: ImageSampler, drawn: Drawn, test: Dataset) -> dict[str, Any]:
    """In the features of the drawings' own net, of at most 5,000 images each."""
    settings = sampler.styles.settings
    name = settings.net
    features = load_prior(name).features
    real = features_of(fitted(test).tensors()[0][:_COMPARED], features)
    drawings, kinds = sampler.styles.draw(_COMPARED, seed=_SEED)
    if settings.matched:
        drawings = drawings[kinds < len(sampler.class_names)]
    return {
        "synthetic": round(frechet(features_of(to_inputs(drawn.images[:_COMPARED]), features), real), 4),
        "drawings": round(frechet(features_of(to_inputs(drawings), features), real), 4),
        "features": f"of the public prior {name!r}",
        "public_images": min(_COMPARED, len(test)),
    }


def in_words(found: dict[str, Any]) -> str:
    """The report as plain text."""
    lines = [
        f"{found['images']:,} synthetic images. Good for: {found['good_for']}.",
        f"Not good for: {found['not_good_for']}.",
        f"{found['left_out_as_unsure']:.1%} of the images that were drawn were left out: those whose label the "
        "head was least sure of, and those that it takes for something else than was drawn. The head gives the "
        f"labels of the others a probability of {found['mean_confidence']:.2f} on average; far below 1, it "
        "learned too little to rely on its labels.",
    ]
    for line in found["classes"]:
        people = ""
        if "people" in line:
            low, high = line["people_95"]
            people = f"; private images: about {line['people']:,} ({low:,} to {high:,} with 95%)"
        lines.append(f"class {line['class']}: {line['images']:,} images{people}")
    distance = found["frechet_distance"]
    if distance is None:
        lines.append("There are no public images to compare with, so that likeness was not measured.")
    else:
        lines.append(
            f"Fréchet distance to {distance['public_images']:,} public test images, in features "
            f"{distance['features']}: {distance['synthetic']}; plain drawings: {distance['drawings']}."
        )
    return "\n".join(lines) + "\n"
