"""Synthetic images of nobody: drawings moved to where private images lie, labelled by a private head.

```python
request = ImageRequest.of(rows, images=60_000, epsilon=1)
made = release_images(request, rows, ledger=ledger, out=Path("digits.npz"), sampler=SecretStream())
made.sampler.draw(1000, seed=1).images
```
"""

from sfumato.learn.images.plan import ImagePlan
from sfumato.learn.images.release import (
    ImagePlaces,
    ImageRequest,
    ReleasedImages,
    learn_sampler,
    release_images,
)
from sfumato.learn.images.sampler import Drawn, ImageSampler
from sfumato.learn.images.sampler_file import ARCHITECTURE, sampler_from
from sfumato.learn.images.statistics import Layout, Statistics, StatisticsPlan
from sfumato.learn.images.styles import PublicSet, Styles, StyleSettings

__all__ = [
    "ARCHITECTURE",
    "Drawn",
    "ImagePlaces",
    "ImagePlan",
    "ImageRequest",
    "ImageSampler",
    "Layout",
    "PublicSet",
    "ReleasedImages",
    "Statistics",
    "StatisticsPlan",
    "StyleSettings",
    "Styles",
    "learn_sampler",
    "release_images",
    "sampler_from",
]
