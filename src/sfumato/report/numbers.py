"""Numbers as a reader wants them."""

from __future__ import annotations

import math

SMALLEST = 1e-290  # smaller values count as zero: their powers of ten leave the range of a float
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def percent(share: float, digits: int = 1) -> str:
    """
    >>> percent(0.98765), percent(1.0, 0)
    ('98.8%', '100%')
    """
    return f"{100 * share:.{digits}f}%"


def figure(value: float | None, digits: int = 2) -> str:
    """
    >>> figure(0.99918), figure(1e-5), figure(None), figure(12345.6, 0)
    ('1.00', '10⁻⁵', '–', '12,346')
    """
    if value is None:
        return "–"
    return f"{value:,.{digits}f}" if value == 0 or abs(value) >= 10**-digits else power(value)


def power(value: float) -> str:
    """A small number by its power of ten.

    >>> power(1e-5), power(2.5e-6), power(0.01), power(0.0)
    ('10⁻⁵', '2.5 · 10⁻⁶', '0.01', '0')
    """
    if abs(value) >= 0.01:
        return f"{value:g}"
    if abs(value) < SMALLEST:
        return "0"
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    lead = value / 10.0**exponent
    raised = "10" + str(exponent).translate(_RAISED)
    return raised if math.isclose(lead, 1) else f"{lead:.2g} · {raised}"
