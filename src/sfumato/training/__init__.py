"""DP-SGD for any PyTorch module."""

from sfumato.training.clipping import Automatic, Clipping, Flat, PerLayer
from sfumato.training.gradient import (
    ChunkResult,
    chunk_rows,
    clip_chunk,
    clipped_gradient_sum,
    rounding_bound,
)
from sfumato.training.probe import Survey, survey

__all__ = [
    "Automatic",
    "ChunkResult",
    "Clipping",
    "Flat",
    "PerLayer",
    "Survey",
    "chunk_rows",
    "clip_chunk",
    "clipped_gradient_sum",
    "rounding_bound",
    "survey",
]
