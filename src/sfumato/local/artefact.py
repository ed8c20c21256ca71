"""A noised data set as one file that others can learn from: reports, the public view, and what made them.

No hash of the private data is in it, and no size but the number of reports, which is public: each person sends
one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sfumato.errors import DataUnavailable, InvalidInput
from sfumato.local.class_moments import ClassMoments
from sfumato.local.plan import ReportPlan
from sfumato.local.views import View

FORMAT = 1
_ARRAYS = ("labels", "vectors", "centre", "matrix")
_PUBLIC = ("shares", "means", "covariances")


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisedData:
    """Reports (labels and vectors), and how they were made.

    Attributes:
        labels: The reported labels.
        vectors: (people, dimension), the reported vectors.
        plan: How reports were made.
        view: How images became vectors.
        name: The name of the data set.
        facts: What else the file says, all of it public.
    """

    labels: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.float32]  # (people, dimension)
    plan: ReportPlan
    view: View
    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def to_bytes(self) -> bytes:
        """A NumPy archive, without anything that could run code."""
        content = {
            "labels": self.labels,
            "vectors": self.vectors,
            "centre": self.view.centre,
            "matrix": self.view.matrix,
            "about": np.array(json.dumps(self._about(), ensure_ascii=False)),
        }
        if self.view.public is not None:
            content |= {f"public_{part}": getattr(self.view.public, part) for part in _PUBLIC}
        buffer = io.BytesIO()
        np.savez(buffer, **content)  # type: ignore[arg-type]  # stubs take the names for options
        return buffer.getvalue()

    def _about(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "name": self.name,
            "view": self.view.kind,
            "plan": self.plan.to_json(),
            "facts": dict(self.facts),
        }


def read_noised(path: str | Path) -> NoisedData:
    """Read a noised data set, and check it.

    Args:
        path: The .npz file.

    Returns:
        The reports.

    Raises:
        DataCorrupted: If it is something else.

    ```python
    reports = read_noised("noised.npz")
    ```
    """
    place = Path(path)
    if not place.is_file():
        raise DataUnavailable(f"there is no file {place}; make one with: sfumato local release")
    try:
        with np.load(place, allow_pickle=False) as archive:
            content = {name: archive[name] for name in archive.files}
        about = json.loads(str(content["about"]))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInput(
            f"expected {place} to be a noised data set, got something else; sfumato local release makes one"
        ) from error
    if about.get("format") != FORMAT or any(name not in content for name in _ARRAYS):
        raise InvalidInput(f"expected a noised data set of format {FORMAT}, got {about.get('format')!r}")
    public = None
    if all(f"public_{part}" in content for part in _PUBLIC):
        public = ClassMoments(**{part: content[f"public_{part}"] for part in _PUBLIC})
    view = View(kind=about["view"], centre=content["centre"], matrix=content["matrix"], public=public)
    return NoisedData(
        labels=content["labels"],
        vectors=content["vectors"],
        plan=ReportPlan.from_json(about["plan"]),
        view=view,
        name=about["name"],
        facts=about["facts"],
    )
