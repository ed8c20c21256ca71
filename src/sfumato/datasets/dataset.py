"""The data set that every loader returns: inputs, targets, and declared public facts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from sfumato import _validate
from sfumato.caveats import Code
from sfumato.errors import InvalidInput
from sfumato.randomness import OWN_NOISE, draws_by_own_code

if TYPE_CHECKING:
    import torch


SEEDED_CHOICE = Code.SEEDED_CHOICE()


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """By whose draws something was chosen; without any, and by secret ones, nothing is to be said.

    Args:
        private: False if a seeded stream drew. Coins that start anew at the first row give every row that of
            another once a record has left, and neighbours differ in many records.
        own_code: Whether a sampler of the user's own drew.

    >>> Chosen().joined(Chosen(private=False)).caveats == (SEEDED_CHOICE,)
    True
    """

    private: bool = True
    own_code: bool = False

    @classmethod
    def by(cls, sampler: Any) -> Chosen:
        """Describe a choice drawn by a sampler; None stands for a fresh secret stream."""
        if sampler is None:
            return cls()
        return cls(private=bool(sampler.private), own_code=draws_by_own_code(sampler))

    def joined(self, *others: Chosen) -> Chosen:
        """Combine several choices: private only if each is."""
        every = (self, *others)
        return Chosen(private=all(one.private for one in every), own_code=any(one.own_code for one in every))

    @property
    def caveats(self) -> tuple[str, ...]:
        """The caveats for the certificate of a release of such rows."""
        return (() if self.private else (SEEDED_CHOICE,)) + ((OWN_NOISE,) if self.own_code else ())

    def caveats_with(self, sampler: Any) -> tuple[str, ...]:
        """The same where the noise comes from this sampler; of a seeded one the certificate says so itself."""
        return self.joined(Chosen(own_code=draws_by_own_code(sampler))).caveats

    def private_with(self, sampler: Any) -> bool:
        """Return whether both the choice and the noise are unpredictable."""
        return self.private and bool(sampler.private)


AS_THEY_ARE = Chosen()


Inputs = npt.NDArray[np.float32]
Targets = npt.NDArray[np.int64]
Visibility = Literal["public", "private"]
VISIBILITIES = ("public", "private")


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Inputs and targets, row by row, with declared public facts.

    `public_size` and `classes` are declared, never read off the rows: sampling rates, expected batches and δ
    come from them. A printed data set shows only such facts.

    Args:
        inputs: (rows, …) float32.
        targets: (rows,), one target for each row: int64 for classes, float32 for numbers.
        name: Its name in errors, ledgers and reports.
        visibility: "private", or "public" where everybody may have the rows.
        unit: Whose one row is, such as "record" or "person".
        classes: The declared number of classes.
        public_size: The declared number of units.
        class_names: A name for each class.
        chosen: By whose draws the rows were chosen among others, if they were; certificates say so.

    >>> rows = np.zeros((4, 1, 2, 2), dtype=np.float32)
    >>> data = Dataset(inputs=rows, targets=np.arange(4), name="toy", visibility="private", public_size=5)
    >>> data
    Dataset(name='toy', visibility='private', unit='record', classes=None, public_size=5)
    >>> len(data.excerpt(3))
    3
    """

    inputs: Inputs = field(
        repr=False
    )  # (examples, …), float32; images (examples, channels, height, width) in [0, 1]
    targets: Targets = field(repr=False)  # (examples,), int64
    name: str
    visibility: Visibility
    unit: str = "record"  # whose contribution is protected: one row, unless said otherwise
    classes: int | None = None
    public_size: int | None = None
    class_names: tuple[str, ...] | None = field(default=None, repr=False)  # by target; None: their numbers
    chosen: Chosen = field(default=AS_THEY_ARE, repr=False)

    def __post_init__(self) -> None:
        _validate.one_of("visibility", self.visibility, VISIBILITIES)
        _require_array("inputs", self.inputs, np.float32)
        _require_array("targets", self.targets, np.int64)
        if self.inputs.ndim < 1 or self.targets.shape != self.inputs.shape[:1]:
            raise InvalidInput(
                f"expected one target for each input, got inputs of shape {self.inputs.shape} and targets of "
                f"shape {self.targets.shape}; targets are one whole number a row"
            )
        for fact in ("classes", "public_size"):
            if (value := getattr(self, fact)) is not None:
                _validate.integer(fact, value, least=1)
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise InvalidInput(
                f"expected a name for each of classes={self.classes}, got {len(self.class_names)} class_names"
            )

    @classmethod
    def public(
        cls,
        data: Any,
        *,
        name: str = "public rows",
        classes: int | None = None,
        class_names: tuple[str, ...] | None = None,
    ) -> Dataset:
        """Make a data set of your own public rows, to measure accuracy on. The caller declares them public.

        Args:
            data: (inputs, targets) as tensors or arrays, a map-style torch data set, or a DataLoader.
            name: Their name in errors and reports.
            classes: How many classes there are.
            class_names: A name for each class.

        Returns:
            The data set.

        >>> Dataset.public((np.zeros((4, 2)), np.arange(4)), name="holiday photos").visibility
        'public'
        """
        pair = data if _is_pair(data) else _read_items(data)
        facts = {"classes": classes, "class_names": class_names}
        return cls(**_columns(pair), name=name, visibility="public", **facts)  # type: ignore[arg-type]

    @classmethod
    def private(
        cls,
        data: tuple[Any, Any],
        *,
        public_size: int,
        name: str = "private rows",
        unit: str = "record",
        classes: int | None = None,
        class_names: tuple[str, ...] | None = None,
    ) -> Dataset:
        """Make a data set of your own private rows, with declared public facts.

        Args:
            data: (inputs, targets) as tensors or arrays.
            public_size: How many there are, as far as may be known; they are not counted.
            name: Their name in errors, ledgers and reports.
            unit: Whose one row is, such as "record" or "person".
            classes: How many classes there are.
            class_names: A name for each class.

        Returns:
            The data set.

        >>> Dataset.private((np.zeros((4, 2)), np.arange(4)), public_size=5)
        Dataset(name='private rows', visibility='private', unit='record', classes=None, public_size=5)
        """
        if not _is_pair(data):
            raise InvalidInput(
                f"expected (inputs, targets) as two tensors or arrays, got {type(data).__name__}; put the rows "
                "of a data set of items into two tensors first"
            )
        facts = {"unit": unit, "classes": classes, "public_size": public_size, "class_names": class_names}
        return cls(**_columns(data), name=name, visibility="private", **facts)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.inputs.shape[1:]

    def take(self, count: int, *, start: int = 0) -> Dataset:
        """The `count` rows from position `start` on, of public data only; `count` becomes the declared size.

        Of private rows, one that leaves would move all later ones up, and neighbours would differ in two.
        """
        if self.visibility != "public":
            raise InvalidInput(
                f"expected public rows to take by their place, got {self.name}, which is private; "
                "sfumato.training.keep_some(data, count) takes each record by a secret coin of its own"
            )
        return self.excerpt(count, start=start)

    def excerpt(self, count: int, *, start: int = 0) -> Dataset:
        """The `count` rows from `start` on, as views, in the role of a whole data set of that declared size.

        A guarantee is then about neighbours of the excerpt: right for "the first 10,000 images of MNIST", which
        is a publicly defined data set, and wrong for a part of rows that come and go. Where the declared
        size has fewer rows the request is refused; the rows themselves are not counted.
        """
        end = _validate.integer("start", start) + _validate.integer("count", count, least=1)
        if self.public_size is not None and end > self.public_size:
            raise InvalidInput(
                f"expected start + count <= {self.public_size}, the declared size of {self.name}, got "
                f"start={start}, count={count}"
            )
        return self._rows(slice(start, end), public_size=count)

    def select(self, rows: npt.NDArray[Any], *, public_size: int | None = None) -> Dataset:
        """The given rows (positions, or a mask), copied; say the size that may be known in public, if any."""
        return self._rows(rows, public_size=public_size)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets as torch tensors that share this data set's memory."""
        import torch

        return torch.from_numpy(self.inputs), torch.from_numpy(self.targets)

    def _rows(self, rows: slice | npt.NDArray[Any], *, public_size: int | None) -> Dataset:
        return replace(self, inputs=self.inputs[rows], targets=self.targets[rows], public_size=public_size)


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(one, "__array__") for one in data)


def _columns(pair: tuple[Any, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return both as arrays; a refusal depends on their types only, and quotes no value."""
    inputs, targets = (np.asarray(one.detach().cpu() if hasattr(one, "detach") else one) for one in pair)
    if inputs.dtype.kind not in "fiub" or targets.dtype.kind not in "iub":
        raise InvalidInput(
            f"expected inputs that are numbers and targets that are whole numbers, got {inputs.dtype} and "
            f"{targets.dtype}; number the classes from 0"
        )
    return {"inputs": inputs.astype(np.float32), "targets": targets.astype(np.int64)}


def _read_items(data: Any) -> tuple[Any, Any]:
    """All rows of a data set of items or of a loader; they are public."""
    import torch
    from torch.utils.data import DataLoader

    if (not hasattr(data, "__getitem__") and not isinstance(data, DataLoader)) or isinstance(data, str):
        raise InvalidInput(
            f"expected (inputs, targets), a map-style torch data set or a DataLoader, got {type(data).__name__}"
        )
    loader = data if isinstance(data, DataLoader) else DataLoader(data, batch_size=256)
    read = list(loader)
    if not read or not all(_is_pair(batch) for batch in read):
        raise InvalidInput("expected items of one input and one target, got others; hand over two tensors")
    inputs, targets = zip(*read, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def _require_array(name: str, value: object, dtype: type[np.generic]) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        found = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise InvalidInput(
            f"expected {name} to be a NumPy array of {dtype.__name__}, got {found}; convert it with "
            f"numpy.asarray({name}, dtype=numpy.{dtype.__name__})"
        )
