"""Each randomiser's worst likelihood ratio, exactly, and what it refuses."""

from __future__ import annotations

import importlib
import math
import pkgutil
from typing import Any

import numpy as np
import pytest
from scipy import integrate, special, stats

from sfumato import accounting, local
from sfumato.accounting import Relation
from sfumato.errors import InvalidInput
from sfumato.local import (
    GaussianSplit,
    GaussianVector,
    LabelledDirection,
    LaplaceVector,
)
from sfumato.mechanisms import KaryResponse, TwoCoinResponse
from sfumato.randomness import SecretStream

EPSILONS = [0.3, 1.0, 2.0, 4.0, 8.0, 12.0]


def unit(dimension, seed=0, count=1):
    rows = SecretStream(test_seed=seed).normal(count * dimension).reshape(count, dimension)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("classes", [1, 2, 10])
def test_the_densities_of_a_labelled_direction_are_in_the_ratio_of_epsilon(classes, epsilon):
    randomiser = LabelledDirection(classes=classes, dimension=5, epsilon=epsilon)
    inside, outside = (
        randomiser.inside / randomiser.measure,
        (1 - randomiser.inside) / (1 - randomiser.measure),
    )
    # The cap's measure by itself: one label of k, and a normal tail.
    assert randomiser.measure == pytest.approx(stats.norm.sf(randomiser.threshold) / classes, rel=1e-12)
    assert math.log(inside / outside) <= epsilon
    assert math.log(inside / outside) == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_slope_and_curvature_are_the_moments_of_the_reports(epsilon):
    # By integrating over ⟨z, u⟩ the two-valued density against the normal, in place of the closed forms.
    randomiser = LabelledDirection(classes=10, dimension=3, epsilon=epsilon)
    high, low = randomiser.inside / randomiser.measure, (1 - randomiser.inside) / (1 - randomiser.measure)

    def moment(power, shift):
        def part(t, level):
            return level / 10 * (t**power - shift) * stats.norm.pdf(t)

        above = integrate.quad(part, randomiser.threshold, 12, args=(high,))[0]
        return above + integrate.quad(part, -12, randomiser.threshold, args=(low,))[0]

    assert randomiser.keep == pytest.approx(moment(0, 0), rel=1e-7)
    assert randomiser.slope == pytest.approx(moment(1, 0), rel=1e-7)
    assert randomiser.curvature == pytest.approx(moment(2, 1), rel=1e-7)
    assert randomiser.keep + 9 * randomiser.lie == pytest.approx(1)


def test_one_coin_for_label_and_vector_beats_two():
    # Half of ε = 8 for each: the slope that a class mean's noise is divided by is smaller.
    apart = KaryResponse(classes=10, epsilon=4.0)
    gain = apart.keep_probability * LabelledDirection(classes=1, dimension=40, epsilon=4.0).slope
    assert LabelledDirection(classes=10, dimension=40, epsilon=8.0).slope > 1.3 * gain


def test_two_coins_cost_ln_3():
    assert math.exp(TwoCoinResponse().epsilon) == pytest.approx(3)


def test_gaussian_vectors_have_the_sensitivity_of_a_replaced_one():
    noise = GaussianVector.calibrated(dimension=784, epsilon=8.0, delta=1e-5)
    multiplier = noise.sigma / 2
    delta = special.ndtr(0.5 / multiplier - 8 * multiplier) - math.exp(8) * special.ndtr(
        -0.5 / multiplier - 8 * multiplier
    )
    assert 0.95e-5 < delta <= 1e-5
    reports = noise.release(np.zeros((3, 784)), SecretStream(test_seed=1))
    assert (np.mod(reports / noise.grid, 1) == 0).all()


def test_six_and_two_are_less_than_eight():
    # A Gaussian calibrated to 6 with a label's 2, composed exactly, is 7.754 (a published reference value).
    both = accounting.compose(
        GaussianVector.calibrated(dimension=40, epsilon=6, delta=1e-5).event(),
        KaryResponse(classes=10, epsilon=2.0).event(),
    )
    assert accounting.epsilon(both, 1e-5, relation=Relation.REPLACE_ONE) == pytest.approx(7.754, abs=2e-3)


def test_the_best_split_beats_near_by_ones_at_the_same_price():
    best = GaussianSplit.best(classes=10, dimension=40, epsilon=8.0, delta=1e-5)
    assert 7.98 < best.epsilon(1e-5) <= 8
    from sfumato.local.randomisers import _with_label_share

    share = best.label.epsilon / 8
    for other in (share - 0.1, share + 0.1):
        assert _with_label_share(10, 40, 8.0, 1e-5, other).class_mean_variance > best.class_mean_variance


@pytest.mark.parametrize("label", [-1, 10])
def test_labels_outside_the_domain_are_refused(label):
    with pytest.raises(InvalidInput, match="0 to 9"):
        LabelledDirection(classes=10, dimension=4, epsilon=1.0).release(np.array([label]), unit(4), Untouched())


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf])
def test_no_epsilon_no_report(epsilon):
    with pytest.raises(InvalidInput, match="epsilon"):
        LaplaceVector(dimension=3, epsilon=epsilon)
    with pytest.raises(InvalidInput, match="epsilon"):
        LabelledDirection(classes=2, dimension=3, epsilon=epsilon)


def test_reports_lie_on_a_grid_and_a_seeded_one_repeats():
    randomiser = LabelledDirection(classes=3, dimension=6, epsilon=2.0)
    one, other = (
        randomiser.release(np.array([2, 0]), unit(6, count=2), SecretStream(test_seed=5)) for _ in range(2)
    )
    assert (one[1] == other[1]).all()
    assert (np.mod(one[1] * 2**12, 1) == 0).all()


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
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e300, 2.0, "shape"])
def test_a_record_out_of_bounds_is_refused_before_any_noise(kind: type, bad: Any) -> None:
    randomiser, one, _, _ = EXAMPLES[kind]
    record = one[-1][:, :2] if bad == "shape" else np.full(one[-1].shape, bad)
    with pytest.raises(InvalidInput) as caught:
        randomiser.release(*one[:-1], record, Untouched())
    assert "nan" not in str(caught.value)
    assert "2.0" not in str(caught.value)
