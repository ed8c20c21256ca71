"""Compute posterior means of noised values: post-processing, under public priors."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from sfumato_lab.tracing.contacts import Integers
from sfumato_lab.tracing.disease import Floats

_MOST = 4  # contacts of one kind who test positive on one day, beyond which nothing changes


def expected_count(noisy: Floats, noise: float, *, expected: Floats, size: float, spread: float) -> Floats:
    """E[K | y] for K ~ Poisson(`expected`) and y = Σ of K sizes of mean `size` and deviation `spread`, + noise.

    y | K ~ N(size·K, noise² + spread²·K), K ≤ 4. If `expected` is 0, so is the result. Without noise, y / size.
    The posterior mean is the estimate of least mean squared error; as it reads nothing but y and public
    numbers (one's number of contacts is one's own), it is post-processing.

    >>> one = np.array([1.0])
    >>> expected_count(14 * one, 3.0, expected=0.01 * one, size=14.0, spread=3.0).round(2).item()
    1.0
    >>> expected_count(4 * one, 3.0, expected=0.01 * one, size=14.0, spread=3.0).round(2).item()
    0.0
    """
    if noise == 0:
        return noisy / size
    mean = np.clip(expected, 1e-12, 1.0)
    count = np.arange(_MOST + 1)[:, None]
    variance = noise**2 + spread**2 * count
    weight = count * np.log(mean) - special.gammaln(count + 1) - np.log(variance) / 2
    # Below −size·noise²/spread² the wider normals of larger counts would win, and less would say more.
    least = -size * (noise / spread) ** 2 if spread else -math.inf
    weight = weight - (np.maximum(noisy, least) - size * count) ** 2 / (2 * variance)
    weight = np.exp(weight - weight.max(axis=0))  # (counts, people)
    return np.where(expected > 0, (count * weight).sum(axis=0) / weight.sum(axis=0), 0.0)


def expected_again(noisy: Floats, noise: float, *, before: Floats, expected: Floats, signal: Floats) -> Floats:
    """E[Kⱼ | y] of those first told of j days ago, from several days on which they were told of.

    yₐ = Σⱼ signal[j, a]·Kⱼ + N(0, noise²), a days ago, and Kⱼ ~ Poisson(`expected`), at most 4. One round of
    coordinate ascent (mean field) from `before`, the expectations until now, newest first: each Kⱼ given the
    expectations of the others. (Oldest first, today's news is often attributed to yesterday.) For a single j
    it is the posterior mean. Rows of `before` beyond the days of `noisy` stay as they are. Post-processing, as
    `expected_count` is.

    Args:
        noisy: (days, kinds, people), today first.
        noise: σ of each number; more than 0.
        before: (told, kinds, people), today first.
        expected: (kinds, people), on any day.
        signal: (told, days, kinds).

    Returns:
        (days, kinds, people), for the newest rows of `before`.
    """
    left = noisy - np.einsum("jak,jkp->akp", signal, before)
    count = np.arange(_MOST + 1)[:, None, None]
    mean = np.clip(expected, 1e-12, 1.0)
    prior = count * np.log(mean) - special.gammaln(count + 1)  # (counts, kinds, people)
    found = before[: len(noisy)].copy()
    for told in range(len(noisy)):
        power = (signal[told] ** 2).sum(axis=0)[:, None] / noise**2
        pull = np.einsum("ak,akp->kp", signal[told], left) / noise**2 + power * found[told]
        weight = prior + count * pull - count**2 * power / 2
        weight = np.exp(weight - weight.max(axis=0))
        now = np.where(expected > 0, (count * weight).sum(axis=0) / weight.sum(axis=0), 0.0)
        left -= signal[told][:, :, None] * (now - found[told])
        found[told] = now
    return found


def denoise(noisy: Floats, noise: float, contacts: Integers, *, slab: float) -> Floats:
    """E[x | x + N(0, noise²)] for x that is mostly 0, and else exponential with mean `slab`.

    The chance of the latter is proportional to one's number of contacts. Post-processing: its rate is estimated
    from the noised values themselves, and one's number of contacts is one's own. Without contacts the
    result is 0. The posterior mixes 0 with a normal cut off at 0, whose centre lies `centre` noises from there.
    """
    if noise == 0:
        return noisy
    share = float(noisy.sum()) / (slab * max(1, int(contacts.sum())))
    floor = 1e-3 / max(1.0, float(contacts.mean()))
    chance = np.minimum(max(share, floor) * contacts, 0.5)
    centre = np.clip(noisy / noise - noise / slab, -1e3, 35.0)
    tail = special.erfcx(-centre / math.sqrt(2))  # 2·Φ(centre)·exp(centre²/2), without underflow
    odds = chance / (1 - chance) * (noise / slab) * math.sqrt(math.pi / 2) * tail
    mean = noise * (centre + math.sqrt(2 / math.pi) / tail)
    return odds / (1 + odds) * np.maximum(mean, 0.0)
