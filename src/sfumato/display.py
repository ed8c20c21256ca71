"""The one place where names from files are made fit to be seen: on a terminal, in JSON, in a spreadsheet.

Names of classes, categories, columns and files come from their authors. A control character in one can
rewrite the lines of a terminal, a line's end can add a line, and a cell that begins with "=" is a formula.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

# Controls, marks that turn the direction of writing, ends of lines and paragraphs, halves of characters, tags.
# Joiners are not among them, which some scripts are written with, and neither are blanks of other widths.
HIDDEN = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f"
)
"""The inside of a set of characters in a regular expression."""
_HIDDEN = re.compile(f"[{HIDDEN}]")
_FORMULA = tuple("=+-@\t\r")


def visible(text: str, *, keep: str = "") -> str:
    r"""Return the text with every character that is not seen, but those of `keep`, as an escape.

    >>> visible("red\x1b[2J")
    'red\\x1b[2J'
    """
    return _HIDDEN.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def visible_json(text: str) -> str:
    r"""Return the same JSON with the characters that it lets through, and terminals do not, as its own escapes.

    >>> visible_json('{"class": "red\x9b"}')
    '{"class": "red\\u009b"}'
    """
    return _HIDDEN.sub(lambda found: found[0] if found[0] in "\n\t\r" else _json_escape(found[0]), text)


def csv_bytes(rows: Iterable[Iterable[Any]]) -> bytes:
    """Return a CSV file for people: a text that a spreadsheet takes for a formula gets a quote before it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_cell(value) for value in row] for row in rows])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    seen = visible(value)
    return f"'{seen}" if value.startswith(_FORMULA) and not _is_number(value) else seen


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 2**16 else f"\\U{number:08x}"


def _json_escape(character: str) -> str:
    pairs = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{pairs[start : start + 4]}" for start in range(0, len(pairs), 4))
