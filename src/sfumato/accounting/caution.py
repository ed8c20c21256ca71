"""Tell whoever asks for an (ε, δ) that protects nobody, before it is spent."""

from __future__ import annotations

import warnings

from sfumato.accounting.meaning import protection_warning
from sfumato.errors import LittleProtection


def warn_of_little_protection(what: str, epsilon: float, delta: float, *, people: float | None = None) -> None:
    """Warn, in one sentence about `what`, where (ε, δ) promises practically no protection.

    Args:
        what: The subject of the sentence, such as "this training".
        epsilon: The ε.
        delta: The δ.
        people: How many there are, wherever that was declared; None where nobody said.

    >>> warn_of_little_protection("this training", 1.0, 1e-5)  # ε = 1 protects: no warning
    """
    sentence = protection_warning(epsilon, delta, people)
    if sentence is not None:
        warnings.warn(f"{what} {sentence}", LittleProtection, stacklevel=3)
