"""Noise: each mechanism is a frozen value that knows its own event.

A mechanism states its cost (`event()`) before it touches data, and draws from the `Sampler` that it is
handed. Wrong values are refused before any noise is drawn.

Terms:
    values: Finite numbers.
    whole: Whole grid steps.
    grid: The step, a power of two.
    sampler: The secret stream behind all draws.
"""

from sfumato.mechanisms.correlated import CorrelatedNoise, correlated_noise
from sfumato.mechanisms.factorisation import Banded, Independent, LambdaCGD
from sfumato.mechanisms.gaussian import DiscreteGaussian, Gaussian
from sfumato.mechanisms.grid import add_to_grid, from_grid, to_grid, vector_grid
from sfumato.mechanisms.laplace import DiscreteLaplace, Laplace
from sfumato.mechanisms.noisy_max import NoisyMax
from sfumato.mechanisms.response import KaryResponse, Proportion, TwoCoinResponse
from sfumato.mechanisms.shares import GaussianShares
from sfumato.mechanisms.vector import GridGaussian

__all__ = [
    "Banded",
    "CorrelatedNoise",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Gaussian",
    "GaussianShares",
    "GridGaussian",
    "Independent",
    "KaryResponse",
    "LambdaCGD",
    "Laplace",
    "NoisyMax",
    "Proportion",
    "TwoCoinResponse",
    "add_to_grid",
    "correlated_noise",
    "from_grid",
    "to_grid",
    "vector_grid",
]
