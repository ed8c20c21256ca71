"""What every local randomiser must do. They are found by walking the package: one without an example fails."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest

from sfumato import accounting, local
from sfumato.accounting import Relation
from sfumato.errors import InvalidInput
from sfumato.local import (
    GaussianVector,
    LabelledDirection,
    LaplaceVector,
)
from sfumato.randomness import SecretStream

EPSILON, DELTA = 1.5, 1e-6
ONE, OTHER = np.array([[1.0, 0.0, 0.0]]), np.array([[0.0, -1.0, 0.0]])
# Each: the randomiser, two people's records, and its δ.
EXAMPLES: dict[type, tuple[Any, tuple[Any, ...], tuple[Any, ...], float]] = {
    GaussianVector: (
        GaussianVector.calibrated(dimension=3, norm_bound=1.0, epsilon=EPSILON, delta=DELTA),
        (ONE,),
        (OTHER,),
        DELTA,
    ),
    LaplaceVector: (LaplaceVector(dimension=3, epsilon=EPSILON, lower=-1.0, upper=1.0), (ONE,), (OTHER,), 0.0),
    LabelledDirection: (
        LabelledDirection(classes=4, dimension=3, epsilon=EPSILON),
        (np.array([0]), ONE),
        (np.array([3]), OTHER),
        0.0,
    ),
}


def randomisers() -> set[type]:
    """Every class of the package that has both `event` and `release`."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(local.__path__, f"{local.__name__}.")
    ]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    return {kind for kind in classes if hasattr(kind, "event") and hasattr(kind, "release")}


class Untouched:
    """A source of noise that nobody may draw from."""

    private = True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"drew {name} before the records were checked")


def test_every_randomiser_has_an_example() -> None:
    assert randomisers() == set(EXAMPLES)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_the_price_is_the_declared_one_for_any_two_records(kind: type) -> None:
    randomiser, _, _, delta = EXAMPLES[kind]
    price = accounting.epsilon(randomiser.event(), delta, relation=Relation.REPLACE_ONE)
    assert 0.97 * EPSILON <= price <= EPSILON * (1 + 1e-9)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_the_form_of_a_report_says_nothing_about_the_record(kind: type) -> None:
    randomiser, one, other, _ = EXAMPLES[kind]
    reports = [randomiser.release(*record, SecretStream(test_seed=3)) for record in (one, other)]
    parts = [report if isinstance(report, tuple) else (report,) for report in reports]
    assert [[(part.shape, part.dtype) for part in report] for report in parts] == [
        [(part.shape, part.dtype) for part in parts[0]]
    ] * 2
    assert all(np.isfinite(part).all() for report in parts for part in report)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_noise_comes_from_the_sampler_and_from_nowhere_else(kind: type) -> None:
    randomiser, one, _, _ = EXAMPLES[kind]
    many = tuple(np.repeat(part, 50, axis=0) for part in one)

    def drawn(seed: int) -> list[bytes]:
        report = randomiser.release(*many, SecretStream(test_seed=seed))
        return [np.asarray(part).tobytes() for part in (report if isinstance(report, tuple) else (report,))]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e300, 1e300])
def test_a_record_out_of_bounds_is_refused_before_any_noise(kind: type, bad: float) -> None:
    randomiser, one, _, _ = EXAMPLES[kind]
    broken = (*one[:-1], np.full(one[-1].shape, bad))
    with pytest.raises(InvalidInput):
        randomiser.release(*broken, Untouched())
