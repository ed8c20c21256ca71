"""The declared id of a data set: ids that look alike are one data set, which has one budget."""

from __future__ import annotations

import re
import unicodedata

from sfumato import _validate
from sfumato.errors import InvalidInput

# What is not seen and is no format character: fillers, joiners of graphemes, variation selectors.
_IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def check_id(dataset: object) -> str:
    """An id as it may be declared for a new ledger: no blanks around it, nothing that cannot be seen."""
    text = _validate.text("dataset", dataset)
    if text != text.strip() or text != _seen(text):
        raise InvalidInput(
            "expected dataset without spaces around it and without invisible characters, got "
            f"dataset={text!r}; two ids that look the same would be two budgets"
        )
    return text


def known_as(dataset: str) -> str:
    """What ids of one data set have in common, whatever their case, their blanks and their encoding.

    >>> known_as("Caf\u00e9  2026") == known_as("cafe\u0301\u00a02026")
    True
    """
    folded = unicodedata.normalize("NFKC", _seen(dataset)).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def _seen(text: str) -> str:
    shown = (letter for letter in text if unicodedata.category(letter) != "Cf")
    return _IGNORED.sub("", "".join(shown))
