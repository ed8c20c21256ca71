"""What goes over the network in a study: letters of the coordinator, and the holders' answers, as bytes.

A letter is a JSON object, preceded by its length, and after it numbers as they lie in memory. Whatever cannot
be read as one is refused; nothing in it can run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from sfumato.errors import InvalidInput
from sfumato.holders.messages import Envelope, Masked, Opening, Signed
from sfumato.holders.node import Opened

_P = ParamSpec("_P")
_R = TypeVar("_R")
_LENGTH = 4
_LARGEST_TEXT = 2**28
_WORDS = {4: "<u4", 8: "<u8"}


class Kind(Enum):
    """What a letter asks for; its answer has the same kind, or is a refusal."""

    KEYS = "keys"  # adverts for some rounds, in advance
    SHARES = "shares"  # the envelopes for them
    INPUT = "input"  # the masked input of one round
    AGREE = "agree"  # a signature under its survivors
    OPEN = "open"  # shares that open it
    END = "end"  # nothing more
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Letter:
    """One message. `number` is a round; `words` are numbers as they lie in memory, little end first."""

    kind: Kind
    study: str
    number: int = 0
    said: Mapping[str, Any] = field(default_factory=dict)
    words: bytes = b""

    def to_bytes(self) -> bytes:
        head = {"kind": self.kind.value, "study": self.study, "number": self.number, "said": self.said}
        text = json.dumps(head, separators=(",", ":")).encode()
        return len(text).to_bytes(_LENGTH, "big") + text + self.words

    @classmethod
    def from_bytes(cls, content: bytes) -> Letter:
        length = int.from_bytes(content[:_LENGTH], "big")
        if len(content) < _LENGTH + length or length > _LARGEST_TEXT:
            raise _unreadable()
        try:
            head = json.loads(content[_LENGTH : _LENGTH + length])
            kind, study, number, said = (head[name] for name in ("kind", "study", "number", "said"))
            kind = Kind(kind)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _unreadable() from error
        if not isinstance(study, str) or type(number) is not int or not isinstance(said, dict):
            raise _unreadable()
        return cls(kind=kind, study=study, number=number, said=said, words=content[_LENGTH + length :])


def _unreadable() -> InvalidInput:
    return InvalidInput("expected a letter of a study, got what cannot be read as one; nothing was answered")


# What letters say. Writers and readers in pairs; a reader raises InvalidInput on anything else.


def readable(reader: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a reader of what others wrote raise nothing but InvalidInput."""

    @wraps(reader)
    def read(*arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            return reader(*arguments, **options)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _unreadable() from error

    return read


def write_rounds(parts: Mapping[int, Any]) -> dict[str, Any]:
    """Of several rounds, by their numbers."""
    return {"rounds": {str(number): part for number, part in parts.items()}}


@readable
def read_rounds(said: Mapping[str, Any]) -> dict[int, Any]:
    return {int(number): part for number, part in dict(said["rounds"]).items()}


@readable
def read_adverts(said: Mapping[str, Any]) -> dict[int, list[Signed]]:
    return {number: [dict(one) for one in list(all_)] for number, all_ in read_rounds(said).items()}


def write_envelopes(envelopes: Iterable[Envelope]) -> list[list[Any]]:
    return [[one.sender, one.receiver, one.sealed.hex()] for one in envelopes]


@readable
def read_envelopes(written: Any) -> list[Envelope]:
    return [
        Envelope(_place(sender), _place(receiver), bytes.fromhex(sealed))
        for sender, receiver, sealed in written
    ]


@readable
def read_masked(letter: Letter, place: int, *, bits: int, dimension: int) -> Masked:
    words = np.frombuffer(letter.words, dtype=_WORDS[bits // 8])
    if words.shape != (dimension,):
        raise ValueError("another number of words")
    return Masked(place, words.astype(f"u{bits // 8}"))


def write_masked(masked: Masked) -> bytes:
    return masked.words.astype(masked.words.dtype.newbyteorder("<")).tobytes()


def write_opening(opening: Opening) -> dict[str, Any]:
    return {
        name: {str(place): share.hex() for place, share in shares.items()}
        for name, shares in (("own_masks", opening.own_masks), ("keys", opening.keys))
    }


@readable
def read_opening(said: Mapping[str, Any], place: int) -> Opening:
    own, keys = (
        {int(other): bytes.fromhex(share) for other, share in dict(said[name]).items()}
        for name in ("own_masks", "keys")
    )
    return Opening(place, own, keys)


@readable
def read_signed(value: Any) -> Signed:
    return dict(value)


@readable
def read_places(values: Any) -> list[int]:
    return [_place(value) for value in list(values)]


@readable
def read_agreements(said: Mapping[str, Any]) -> dict[int, Signed]:
    return {int(place): dict(one) for place, one in dict(said["agreements"]).items()}


def write_outcomes(outcomes: Mapping[int, Opened | None]) -> tuple[list[list[int]], bytes]:
    """How many holders' inputs are in each round's sum, 0 in that of an abandoned one; and the sums."""
    listed = [[number, 0 if one is None else one.holders] for number, one in outcomes.items()]
    sums = [one.total.astype("<i8").tobytes() for one in outcomes.values() if one is not None]
    return listed, b"".join(sums)


@readable
def read_outcomes(letter: Letter, *, dimension: int, holders: range) -> dict[int, Opened | None]:
    found: dict[int, Opened | None] = {}
    sums = np.frombuffer(letter.words, dtype="<i8").reshape(-1, dimension)
    taken = 0
    for number, count in letter.said["outcomes"]:
        found[_place(number)] = None
        if count != 0:
            if count not in holders:
                raise ValueError("fewer holders than are needed")
            found[number] = Opened(sums[taken].astype(np.int64), count)
            taken += 1
    return found


def _place(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("expected a whole number from 1")
    return value
