"""Correlated noise: the noise of a step from independent draws, and the sensitivity to one unit.

The sums of n steps are the rows of x. Released is x + C⁻¹z, with z independent Gaussian draws and C a
lower-triangular Toeplitz matrix with ones on its diagonal: z is partly taken back by later steps, so that the
noise of the *weights*, which add the steps up, stays small. It equals C⁻¹(Cx + z): post-processing of one
Gaussian release of Cx, also where later sums depend on earlier releases (Denisov et al. 2022, theorem 2.1).

*Sensitivity.* One unit takes part in steps j, j+p, j+2p, … for a fixed p, the steps of a pass, and changes
each of these sums by a vector of norm at most Δ. Let c be the first column of C, with no negative entry, and
v_t = c_t + v_{t−p}: the sum of unit vectors at steps 0, p, 2p, … in row t of Cx. Then the release moves by
at most Δ·‖v‖, and in rows kp to (k+1)p − 1, pass k, by at most Δ·‖v of that pass‖. *Proof*: no entry of C is
negative, so vectors that all point the same way are the worst, and taking part less often is no worse. With
j = 0 they add up to v. With another j they add up to v shifted by j rows: each pass has rows of the same pass,
and j rows of the one before, which are no larger since v_t ≥ v_{t−p}. ∎ For at most p bands this is the known
√k·‖c‖ of k passes (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", theorem 2; Kalinin &
Lampert 2024, theorem 2); here it is exact for any number of bands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from sfumato import _validate
from sfumato.errors import InvalidInput
from sfumato.schema import Model, read

Floats = npt.NDArray[np.float64]

COEFFICIENT_BITS = 12
"""Coefficients of banded noise are whole multiples of 2⁻¹², so that whole numbers suffice to apply them."""

_BelowOne = Annotated[float, Meta(ge=0, lt=1)]
_CHOICE_OF_BANDS = (1, 2, 4, 8, 16, 32)  # tried where a plan names none
_CHOICE_OF_SHARES = (0.0, 0.5, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)


class _Kind(Model):
    @property
    def kind(self) -> str:
        return str(type(self).__struct_config__.tag)


class Independent(_Kind, tag="independent", tag_field="kind"):
    """Fresh noise in each step: C is the identity. The default of a plan.

    >>> Independent().column(100).tolist()
    [1.0]
    """

    def column(self, steps: int) -> Floats:
        """Return the first column of C."""
        return np.ones(1)

    def inverse(self, steps: int) -> Floats:
        """Return the first column of C⁻¹: the noise of step t is Σᵢ inverse[i]·z_{t−i}."""
        return np.ones(1)


class Banded(_Kind, tag="banded", tag_field="kind"):
    """C has `bands` bands: those of the square root of the optimizer's linear map of the gradients.

    The generating function is ((1 − decay·x)(1 − momentum·x))^−½, cut off after `bands` terms (Kalinin &
    Lampert 2024, "Banded square root matrix factorization", theorem 1). The last bands − 1 noise vectors are
    kept in memory, eight bytes a parameter each.

    Attributes:
        bands: How many diagonals of C are not zero, from 1 to 256; with 1 the noise is independent.
        momentum: The momentum of the optimizer, in [0, 1); 0 for none.
        decay: The factor by which the weights are multiplied in each step, in (0, 1]; 1 without weight decay.

    >>> Banded(bands=3).column(100).tolist()
    [1.0, 0.5, 0.375]
    """

    bands: Annotated[int, Meta(ge=1, le=256)]  # each keeps one more noise vector
    momentum: _BelowOne = 0.0
    decay: Annotated[float, Meta(gt=0, le=1)] = 1.0

    def column(self, steps: int) -> Floats:
        places = np.arange(min(self.bands, max(1, steps)))
        root = np.cumprod(np.concatenate([[1.0], (2 * places[1:] - 1) / (2 * places[1:])]))
        exact = np.convolve(root * self.decay**places, root * self.momentum**places)[: places.size]
        return np.asarray(np.rint(exact * 2**COEFFICIENT_BITS) / 2**COEFFICIENT_BITS)

    def inverse(self, steps: int) -> Floats:
        from scipy import signal  # takes two seconds, which most users need not wait for

        impulse = np.zeros(steps)
        impulse[:1] = 1.0
        return np.asarray(signal.lfilter([1.0], self.column(steps), impulse))


class LambdaCGD(_Kind, tag="lambda-cgd", tag_field="kind"):
    """Each step takes back the share `cancelled` (λ) of the noise drawn in the step before: z_t − λ·z_{t−1}.

    C has λⁱ in its i-th band. z_{t−1} is drawn again from its key, so that no vector is kept in memory
    (Kalinin, McKenna, Pagh & Lampert 2026, "DP-λCGD: Efficient noise correlation").

    Attributes:
        cancelled: λ, in [0, 1); 0 is independent noise.

    >>> LambdaCGD(cancelled=0.5).column(3).tolist()
    [1.0, 0.5, 0.25]
    """

    cancelled: _BelowOne

    def column(self, steps: int) -> Floats:
        return np.asarray(self.cancelled ** np.arange(steps, dtype=np.float64))

    def inverse(self, steps: int) -> Floats:
        return np.array([1.0, -self.cancelled][:steps])


Noise = Independent | Banded | LambdaCGD
INDEPENDENT = Independent()
NOISES = ("independent", "banded", "lambda-cgd")


@lru_cache(maxsize=256)
def pass_norms(noise: Noise, *, steps: int, steps_a_pass: int) -> tuple[float, ...]:
    """Return the norm that one unit, which moves each step's sum by at most 1, moves in Cx in each pass.

    Never smaller than in the pass before.

    >>> pass_norms(LambdaCGD(cancelled=0.5), steps=4, steps_a_pass=2)  # v = 1, 1/2, 5/4, 5/8
    (1.118033988749895, 1.3975424859373686)
    """
    passes = math.ceil(steps / _validate.integer("steps_a_pass", steps_a_pass, least=1))
    column = noise.column(steps)[:steps]
    if (column < 0).any():
        raise InvalidInput(
            "expected a factorisation without negative coefficients; its sensitivity is not known"
        )
    moved = np.zeros(passes * steps_a_pass)
    moved[: column.size] = column
    moved = moved.reshape(passes, steps_a_pass).cumsum(axis=0)
    return tuple(np.linalg.norm(moved, axis=1).tolist())


def sensitivity(noise: Noise, *, steps: int, steps_a_pass: int) -> float:
    """Return the norm that one unit moves in all of Cx, in clipping norms.

    >>> round(sensitivity(Banded(bands=3), steps=12, steps_a_pass=4) ** 2, 6) == 3 * (1 + 0.5**2 + 0.375**2)
    True
    """
    return math.hypot(*pass_norms(noise, steps=steps, steps_a_pass=steps_a_pass))


def prefix_error(noise: Noise, *, steps: int, steps_a_pass: int) -> float:
    """Return the root mean square error of the sums up to each step, at noise that costs as much as σ = Δ once.

    >>> plan = {"steps": 400, "steps_a_pass": 100}
    >>> prefix_error(Banded(bands=16), **plan) < 0.5 * prefix_error(INDEPENDENT, **plan)
    True
    """
    drawn = np.zeros(steps)
    inverse = noise.inverse(steps)
    drawn[: inverse.size] = inverse
    variance = np.cumsum(np.cumsum(drawn) ** 2)  # of each prefix sum
    return sensitivity(noise, steps=steps, steps_a_pass=steps_a_pass) * math.sqrt(variance.mean())


def chosen_noise(kind: str, *, steps: int, steps_a_pass: int) -> Noise:
    """Return the noise of one kind whose prefix sums err least, of a short list; from public figures alone.

    >>> chosen_noise("lambda-cgd", steps=1, steps_a_pass=1)
    LambdaCGD(cancelled=0.0)
    """
    _validate.one_of("noise", kind, NOISES)
    of_kind: Mapping[str, list[Noise]] = {
        "independent": [INDEPENDENT],
        "banded": [Banded(bands=bands) for bands in _CHOICE_OF_BANDS],
        "lambda-cgd": [LambdaCGD(cancelled=share) for share in _CHOICE_OF_SHARES],
    }
    return min(
        of_kind[kind], key=lambda noise: prefix_error(noise, steps=max(1, steps), steps_a_pass=steps_a_pass)
    )


def noise_from_json(data: Any) -> Noise:
    """Return the noise that a dictionary of `to_json` describes.

    >>> noise_from_json(Banded(bands=4).to_json()) == Banded(bands=4)
    True
    """
    noise: Noise = read(Noise, data, name="noise")
    return noise
