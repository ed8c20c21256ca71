"""The scattering transform: features of images that are designed, not learned, so that they cost no privacy.

Bruna & Mallat, *Invariant Scattering Convolution Networks* (2013): moduli of wavelet coefficients, averaged,
and moduli of wavelet coefficients of those moduli, averaged. Two scales (J = 2) and eight orientations, as in
Tramèr & Boneh, *Differentially Private Learning Needs Better Features* (2021): 81 channels, a sixteenth of the
positions.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato import _validate
from sfumato.errors import InvalidInput

SCALES = 2
ORIENTATIONS = 8
CHANNELS = 1 + SCALES * ORIENTATIONS + ORIENTATIONS**2  # orders 0, 1 and 2 (finer scale, then coarser): 81
STRIDE = 2**SCALES
_BATCH = 16  # channels of images transformed at a time: their maps stay in the cache


@final
class Scattering(nn.Module):
    """(images, channels, side, side) → (images, 81·channels, side/4, side/4); no parameters, linear in scale.

    S₀ = x∗φ, S₁ = |x∗ψ₁|∗φ, S₂ = ||x∗ψ₁|∗ψ₂|∗φ with ψ₂ of a coarser scale than ψ₁, φ sampled at every fourth
    pixel. Convolutions are products of Fourier transforms, on images reflected at their edges.

    Args:
        side: Height and width of the images, a multiple of 4.
        centred: Whether averages stand in the middle of their squares of 4 × 4 pixels, so that those of a
            mirrored image are mirrored too, and not at the first pixel.

    >>> Scattering()(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 81, 7, 7])
    """

    wavelets0: Tensor  # (8, padded, padded), Fourier transforms, which are real
    wavelets1: Tensor
    smooth: Tensor
    smooth_coarse: Tensor

    def __init__(self, *, side: int = 28, centred: bool = False) -> None:
        super().__init__()
        _validate.integer("side", side, least=2 * STRIDE, remedy="resize the images")
        _validate.one_of("side % 4", side % STRIDE, (0,), remedy="resize the images to a multiple of 4")
        padded = side + 2 * STRIDE
        for scale in range(SCALES):
            filters = torch.stack([_morlet(padded, scale, turn) for turn in range(ORIENTATIONS)])
            self.register_buffer(f"wavelets{scale}", torch.fft.fft2(filters).real)
        self.register_buffer("smooth", _smoothing(side, padded, spacing=1, centred=centred))
        self.register_buffer("smooth_coarse", _smoothing(side, padded, spacing=2, centred=centred))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        if not len(images):  # which the Fourier transform refuses
            _, channels, height, width = images.shape
            return images.new_zeros(0, CHANNELS * channels, height // STRIDE, width // STRIDE)
        return torch.cat(
            [self._transform(batch) for batch in torch.split(images, max(1, _BATCH // images.shape[1]))]
        )

    def _transform(self, images: Tensor) -> Tensor:
        count, channels, side, _ = images.shape
        flat = images.reshape(count * channels, 1, side, side)
        x = F.pad(flat, (STRIDE,) * 4, mode="reflect")
        spectrum = torch.fft.fft2(x)
        fine = torch.fft.ifft2(spectrum * self.wavelets0).abs()  # (images, 8, padded, padded)
        coarse = self._coarse(spectrum)  # (images, 8, padded/2, padded/2)
        second = self._coarse(torch.fft.fft2(fine).unsqueeze(2)).flatten(1, 2)  # (images, 64, …/2, …/2)
        orders = (
            self.smooth @ x @ self.smooth.T,
            self.smooth @ fine @ self.smooth.T,
            self.smooth_coarse @ coarse @ self.smooth_coarse.T,
            self.smooth_coarse @ second @ self.smooth_coarse.T,
        )
        found = torch.cat(orders, dim=1)
        return found.reshape(count, channels * CHANNELS, *found.shape[2:])

    def _coarse(self, spectrum: Tensor) -> Tensor:
        """|·∗ψ| at the coarser scale and every second pixel: dropping pixels folds the spectrum."""
        parts = [self._part(spectrum, place) * self._part(self.wavelets1, place) for place in range(4)]
        return torch.fft.ifft2((parts[0] + parts[1]).add_(parts[2]).add_(parts[3])).abs().mul_(0.25)

    @staticmethod
    def _part(spectrum: Tensor, place: int) -> Tensor:
        half = spectrum.shape[-1] // 2
        rows, columns = half * (place // 2), half * (place % 2)
        return spectrum[..., rows : rows + half, columns : columns + half]


@final
class ScatteringCodes(nn.Module):
    """(images, channels, side, side) → (images, 81·channels·(side/8)²): roots of scattering, left as right.

    Scattering is averaged over squares of 8 × 8 pixels, and over the image and its mirror image, whose waves
    have the mirrored orientations. Square roots of averages are given, which are more even than averages. An
    image and its mirror image have the same codes but for the pixels that coarser waves drop.

    Args:
        side: Height and width of the images, a multiple of 8.

    >>> ScatteringCodes(side=16)(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 972])
    """

    mirrored: Tensor  # the channel of each channel's mirrored orientation

    def __init__(self, *, side: int) -> None:
        super().__init__()
        _validate.one_of("side % 8", side % (2 * STRIDE), (0,), remedy="resize the images to a multiple of 8")
        self.transform = Scattering(side=side, centred=True)
        turned = (-torch.arange(ORIENTATIONS)) % ORIENTATIONS
        pairs = (turned[:, None] * ORIENTATIONS + turned).flatten()
        starts = (1, 1 + ORIENTATIONS, 1 + SCALES * ORIENTATIONS)
        parts = [start + part for start, part in zip(starts, (turned, turned, pairs), strict=True)]
        self.register_buffer("mirrored", torch.cat([torch.zeros(1, dtype=torch.long), *parts]))

    @torch.no_grad()
    def averages(self, images: Tensor) -> Tensor:
        """(images, channels, 81, side/8, side/8): scattering averaged over squares and both ways round."""
        maps = F.avg_pool2d(self.transform(images), 2)
        maps = maps.reshape(len(images), images.shape[1], CHANNELS, *maps.shape[2:])
        return 0.5 * (maps + maps[:, :, self.mirrored].flip(-1))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return self.averages(images).clamp_min_(0.0).add_(1e-3).sqrt_().flatten(1)


def _morlet(size: int, scale: int, turn: int) -> Tensor:
    """ψ(u) = G(u)·(e^{iξ·u} − β), a wave of mean zero under a Gaussian twice as long as it is wide."""
    width, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / ORIENTATIONS
    angle = math.pi * turn / ORIENTATIONS
    # The grid is periodic: images of the filter from the neighbouring periods are added.
    steps = torch.arange(-2 * size, 3 * size, dtype=torch.float64)
    rows, columns = torch.meshgrid(steps, steps, indexing="ij")
    along = math.cos(angle) * rows + math.sin(angle) * columns
    across = -math.sin(angle) * rows + math.cos(angle) * columns
    envelope = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
    wave = envelope * torch.exp(1j * frequency * along)
    norm = 2 * math.pi * width**2 / slant
    wave, envelope = (_periodic(part, size) / norm for part in (wave, envelope))
    return (wave - wave.sum() / envelope.sum() * envelope).to(torch.complex64)


def _periodic(values: Tensor, size: int) -> Tensor:
    return values.reshape(5, size, 5, size).sum((0, 2))


def _smoothing(side: int, padded: int, *, spacing: int, centred: bool) -> Tensor:
    """(side/4, padded/spacing): Gaussian averages about every fourth pixel of the image inside its padding."""
    width = 0.8 * 2 ** (SCALES - 1)
    places = torch.arange(0, padded, spacing, dtype=torch.float64)
    centres = STRIDE + torch.arange(0, side, STRIDE, dtype=torch.float64) + (STRIDE - 1) / 2 * centred
    distances = (places[None] - centres[:, None] + padded / 2) % padded - padded / 2
    weights = torch.exp(-(distances**2) / (2 * width**2))
    return (weights / weights.sum(1, keepdim=True)).to(torch.float32)


_CHROMA = 3.0  # differences of colours are as much weaker than brightness
_OPPONENTS = ((1 / 3, 1 / 3, 1 / 3), (_CHROMA / 2, -_CHROMA / 2, 0.0), (_CHROMA / 4, _CHROMA / 4, -_CHROMA / 2))
_FIRST = SCALES * ORIENTATIONS  # channels of order 1, after the one of order 0
_BRIGHT, _WEAK, _FLAT = 1e-3, 1e-4, 1e-3  # added to averages of order 0, to waves, and to divisors
_ROOTS, _RELATIVE = "roots", "relative"
KINDS = (_ROOTS, _RELATIVE)


@final
class OpponentScattering(nn.Module):
    """(images, 3, side, side) → codes of the scattering of opponent colours, left as right.

    "roots" are √(S + 10⁻⁴) of orders 1 and 2, and √(S₀ + 10⁻³) of red, green and blue. "relative" codes say how
    waves are shared out, at any contrast: √ of S₁ over the mean of all S₁ of its place, of brightness and
    of its own colour, and √ of S₂ over the S₁ that it comes from; 10⁻³ is added to divisors, and
    3·10⁻⁴ to dividends.

    Args:
        side: Height and width of the images, a multiple of 8.
        kind: "roots" or "relative".

    >>> OpponentScattering(side=16, kind="relative")(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 960])
    """

    opponents: Tensor  # (3, 3)
    colours: Tensor  # its inverse

    def __init__(self, *, side: int, kind: str) -> None:
        super().__init__()
        if kind not in KINDS:
            raise InvalidInput(f"expected kind to be one of {', '.join(KINDS)}, got kind={kind!r}")
        self.kind = kind
        self.codes = ScatteringCodes(side=side)
        opponents = torch.tensor(_OPPONENTS)
        self.register_buffer("opponents", opponents)
        self.register_buffer("colours", torch.linalg.inv(opponents))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        found = self.codes.averages(
            _mixed(self.opponents, images).contiguous(memory_format=torch.channels_last)
        )
        waves = found[:, :, 1:].clamp_min(0.0)
        if self.kind == _RELATIVE:
            return _relative(waves)
        bright = _mixed(self.colours, found[:, :, 0]).clamp_min_(0.0).add_(_BRIGHT).sqrt_()
        return torch.cat([bright.flatten(1), waves.add_(_WEAK).sqrt_().flatten(1)], dim=1)


def _mixed(matrix: Tensor, images: Tensor) -> Tensor:
    """Each pixel's three values times a matrix; products one by one, whose bits hang on no other pixel."""
    first, second, third = (images[:, None, place] * matrix[:, place, None, None] for place in range(3))
    return first + second + third


def _relative(waves: Tensor) -> Tensor:
    """Shares of order 1 and of order 2, from (images, colours, orders 1 and 2, squares, squares)."""
    first, second = waves[:, :, :_FIRST], waves[:, :, _FIRST:]
    fine = first[:, :, :ORIENTATIONS].unsqueeze(3)  # the source of waves of order 2
    mean = first.mean(2, keepdim=True)
    shares = (first + 0.3 * _FLAT) / (mean + mean[:, :1] + _FLAT)
    within = (second.unflatten(2, (ORIENTATIONS, ORIENTATIONS)) + 0.3 * _FLAT) / (fine + _FLAT)  # type: ignore[no-untyped-call]
    return torch.cat([shares.sqrt_().flatten(1), within.sqrt_().flatten(1)], dim=1)
