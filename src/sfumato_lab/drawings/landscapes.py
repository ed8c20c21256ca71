"""Scenes of nothing, in colour: a sky, a ground and a few rough leaves on them, under one light.

They are dead leaves (`leaves.py`) with more properties of photographs. There are few leaves or many. Surfaces
are rough at every scale: their power falls with frequency (Field, *Relations between the statistics of natural
images and the response properties of cortical cells*, 1987). Light falls from one side. Scenes differ in
contrast. There is hardly any noise of single pixels: flat leaves with noise made a dictionary of patches that
shows noise. No photograph went into them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sfumato_lab.drawings.leaves import SIDE, Floats, blurred, colour, gradient_and_grating, leaf, painted

_FEWEST, _MOST = 2, 36  # leaves of a scene
_SLOPES = (0.5, 1.0, 1.5)  # of roughness: amplitudes fall as frequency to this power
_ROUGHEST = 0.3  # deviation of a surface, in shares of white; most are far smoother
_LIGHT = 0.12  # deviation of the change in brightness from one side to the other
_CONTRAST = 0.3  # deviation of the logarithm
_NOISE = 0.003  # less than a level of 255
_ACROSS = ((np.arange(SIDE) + 0.5) / SIDE - 0.5).astype(np.float32)


def draw(count: int, *, seed: int) -> npt.NDArray[np.uint8]:
    """`count` scenes (count, 3, 32, 32).

    >>> draw(3, seed=1).shape
    (3, 3, 32, 32)
    """
    return painted(count, _paint, seed=seed)


def _paint(count: int, generator: np.random.Generator) -> npt.NDArray[np.uint8]:
    surfaces = [_rough(count, slope, generator) for slope in _SLOPES]
    scenes = _sky_and_ground(count, generator)
    scenes += _strength(count, generator) * _rough(count, 1.0, generator)[:, None]
    palette = colour(count, generator)  # leaves of a scene are under one light
    leaves = generator.integers(_FEWEST, _MOST + 1, (count, 1, 1))
    for number in range(_MOST):
        inside, axes = leaf(count, generator)
        tint = 0.5 * palette + 0.5 * colour(count, generator)
        down, right, which = generator.integers((SIDE, SIDE, len(surfaces)))
        surface = np.roll(surfaces[which], (down, right), axis=(1, 2))[:, None]
        shade = gradient_and_grating(axes, generator)[:, None] + _strength(count, generator) * surface
        covers = (inside * (number < leaves))[:, None]
        scenes += covers * (tint[:, :, None, None] + shade - scenes)
    soft = blurred(_lit(scenes, generator), generator.random((count, 1, 1, 1), dtype=np.float32))
    noisy = soft + _NOISE * generator.standard_normal(soft.shape, dtype=np.float32)
    return np.rint(255 * np.clip(noisy, 0.0, 1.0)).astype(np.uint8)


def _sky_and_ground(count: int, generator: np.random.Generator) -> Floats:
    """Two colours, one above the other; between them an edge or a slow change, somewhere about the middle."""
    above, below = (colour(count, generator)[:, :, None, None] for _ in range(2))
    steepness = np.exp(generator.uniform(1.0, 4.0, (count, 1, 1, 1)))
    horizon = 0.25 * generator.standard_normal((count, 1, 1, 1))
    share = 1.0 / (1.0 + np.exp(-steepness * (_ACROSS[:, None] - horizon)))  # (scenes, 1, 32, 1)
    found: Floats = np.repeat(above + share * (below - above), SIDE, axis=3).astype(np.float32)
    return found


def _rough(count: int, slope: float, generator: np.random.Generator) -> Floats:
    """Random surfaces (scenes, 32, 32) of deviation 1: amplitudes fall as frequency to the power of slope."""
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE))
    frequency[0, 0] = np.inf  # the mean goes
    waves = np.fft.rfft2(generator.standard_normal((count, SIDE, SIDE))) * frequency**-slope
    surfaces = np.fft.irfft2(waves, s=(SIDE, SIDE))
    found: Floats = (surfaces / surfaces.std((1, 2), keepdims=True)).astype(np.float32)
    return found


def _strength(count: int, generator: np.random.Generator) -> Floats:
    """(scenes, 1, 1, 1): how rough something is, mostly little."""
    found: Floats = _ROUGHEST * generator.random((count, 1, 1, 1), dtype=np.float32) ** 2
    return found


def _lit(scenes: Floats, generator: np.random.Generator) -> Floats:
    """The same scenes with light from a side of its own, and a contrast of its own, each."""
    down, right, contrast = generator.standard_normal((3, len(scenes), 1, 1, 1), dtype=np.float32)
    lit = scenes + _LIGHT * (down * _ACROSS[:, None] + right * _ACROSS)
    middle = lit.mean((1, 2, 3), keepdims=True)
    found: Floats = middle + np.exp(_CONTRAST * contrast) * (lit - middle)
    return found
