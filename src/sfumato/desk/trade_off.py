"""What an attacker could gain, as a picture: false against true accusations, both on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 560, 300, 60, 36, 40
_LEAST = 1e-3


def trade_off(points: Mapping[float, float]) -> Markup:
    """The curve of the plan above the line of pure guessing.

    Args:
        points: Rate of false accusations → the most true ones that any attacker can have.

    Returns:
        The picture.
    """
    curve = " ".join(_place(x, y) for x, y in sorted(points.items()))
    guess = f"{_place(_LEAST, _LEAST)} {_place(1, 1)}"
    lines = [
        Markup('<path class="limit" d="M{}L{}"/>').format(guess.split()[0], guess.split()[1]),
        Markup('<polyline class="line" points="{}"/>').format(curve),
    ]
    for tick in (0.001, 0.01, 0.1, 1):
        across, up = _x(tick), _y(tick)
        lines.append(
            Markup('<text x="{:.0f}" y="{}" text-anchor="middle">{}</text>').format(
                across, _HEIGHT - _BOTTOM + 18, f"{tick:.1%}" if tick < 0.01 else f"{tick:.0%}"
            )
        )
        lines.append(
            Markup('<text x="{}" y="{:.0f}" text-anchor="end">{}</text>').format(
                _LEFT - 6, up + 4, f"{tick:.1%}" if tick < 0.01 else f"{tick:.0%}"
            )
        )
    lines.append(
        Markup('<text x="{}" y="{}" text-anchor="middle">wrongly accused</text>').format(
            (_LEFT + _WIDTH) / 2, _HEIGHT - 4
        )
    )
    lines.append(Markup('<text x="{}" y="12">rightly accused, at most</text>').format(_LEFT - 40))
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="The share of members that an attacker '
        'can find, against the share of others who are accused; dashed: guessing">{}</svg>'
    ).format(_WIDTH, _HEIGHT, Markup("").join(lines))


def _x(rate: float) -> float:
    return _LEFT + (1 - math.log10(max(rate, _LEAST)) / math.log10(_LEAST)) * (_WIDTH - _LEFT - 20)


def _y(rate: float) -> float:
    return _TOP + math.log10(max(rate, _LEAST)) / math.log10(_LEAST) * (_HEIGHT - _BOTTOM - _TOP)


def _place(x: float, y: float) -> str:
    return f"{_x(x):.1f},{_y(y):.1f}"
