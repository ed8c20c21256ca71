"""Synthetic images of no real person: drawings moved to where private images lie, labelled by a private head.

```python
request = ImageRequest.of(rows, images=60_000, epsilon=1)
made = release_images(request, rows, ledger=ledger, out=Path("digits.npz"), sampler=SecretStream())
made.sampler.draw(1000, seed=1).images
```
"""

from sfumato_lab.images.plan import ImagePlan, Layout, Statistics, StatisticsPlan
from sfumato_lab.images.release import (
    ImagePlaces,
    ImageRequest,
    ReleasedImages,
    learn_sampler,
    release_images,
)
from sfumato_lab.images.sampler import ARCHITECTURE, Drawn, ImageSampler, sampler_from
from sfumato_lab.images.styles import PublicSet, Styles, StyleSettings

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
