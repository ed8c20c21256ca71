"""A list of all charges, read from the text of entries by one pattern.

Price and state are most of an entry's text and take long to read as numbers. A list of charges does not need
them, but must not pass over a forged entry. The pattern accepts only what `canonical` writes: the keys of a
charge in their order, once each, with whole values. Every other entry is read in full. No part of the pattern
gives back what it took, so that the time is that of one look at the text, whatever a file holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from sfumato.accounting import DpEvent, Relation, event_from_json
from sfumato.ledger.chain import ORIGIN, Head, Row, canonical, check_follows, check_hash, check_place, unseal
from sfumato.ledger.charge import Charge, add_charges, settle
from sfumato.ledger.kinds import EVERY, KINDS, PAID, is_plain

_INTEGER = "(?:0|[1-9][0-9]{0,600}+)"  # longer ones may be more than Python reads
_INTEGERS = rf"\[(?:{_INTEGER}(?:,{_INTEGER})*+)?+\]"
_NUMBER = "[0-9.e+-]++"
_STRING = r'"[ !#-\[\]-~]*+(?:\\.[ !#-\[\]-~]*+)*+"'
_DEEPEST = 8  # objects in one another; an event that goes deeper is read in full


def _objects() -> str:
    """Objects in one another whose texts have no braces, as those of events have none."""
    pattern = r"\{[^{}]*+\}"
    for _ in range(_DEEPEST):
        pattern = rf"\{{(?:[^{{}}]++|{pattern})*+\}}"
    return pattern


_OBJECT = _objects()
_TALLY = rf'\{{"infinite":{_INTEGERS},"units":{_INTEGERS}\}}'
_ACCOUNT = (
    rf'\{{"exact":(?P<exact>null|{_NUMBER}),"infinite":{_INTEGERS},"plans":{_INTEGER},'
    rf'"taken":(?P<taken>{_NUMBER}),"units":{_INTEGERS}\}}'
)
_CHARGE = re.compile(
    rf'\{{"allocation":(?P<allocation>null|{_STRING}),'
    rf'"counted":(?P<counted>{_OBJECT}),'
    r'(?P<drawn>"drawn":true,)?'
    rf'"epsilon_spent":(?P<spent>{_NUMBER}),'
    rf'"event":(?P<event>{_OBJECT}),'
    r'"kind":"(?P<kind>charge|reserve|settle)",'
    rf'(?P<more>(?:(?!"previous")"[a-z_]++":(?:null|true|false|{_NUMBER}|{_STRING}|{_OBJECT}),)*+)'
    r'"previous":"(?P<previous>[0-9a-f]{64})",'
    rf'"price":\{{"part":(?P<tally>{_TALLY}),"whole":(?P=tally)\}},'
    r'"private":(?P<private>true|false),'
    rf'"purpose":(?P<purpose>{_STRING}),'
    rf'"relation":(?P<relation>{_STRING}),'
    rf'"sequence":(?P<sequence>{_INTEGER}),'
    rf'(?:"settles":(?P<settles>{_INTEGER}),)?'
    rf'"state":\{{"rest":(?P<account>{_ACCOUNT}),"shares":\{{\}},"whole":(?P=account)\}},'
    rf'"time":(?P<time>{_STRING})\}}',
    re.ASCII,
)


def charges_in(rows: Iterable[Row], *, unit: str) -> list[Charge]:
    """The charges of all entries, each checked against its hash and the one before.

    *Guarantees*: the same charges, and the same refusals, as `charges_of(linked(rows))`.
    """
    found: dict[int, Charge] = {}
    last, before = -1, ORIGIN
    for row in rows:
        check_hash(row)
        brief = _brief(row, unit)
        if brief is None:
            entry = unseal(row)
            head = entry.head
            check_follows(entry.sequence, entry.body["previous"], last, before)
            add_charges(found, [entry], unit=unit)
        else:
            charge, previous = brief
            head = charge.head
            check_follows(row.sequence, previous, last, before)
            if row.settles is None:
                found[row.sequence] = charge
            else:
                settle(found, row.settles, charge)
        last, before = head.sequence, head.hash
    return list(found.values())


def _brief(row: Row, unit: str) -> tuple[Charge, str] | None:
    """A charge and the hash before it, if the whole text is that of a charge; None to read it in full."""
    found = _CHARGE.fullmatch(row.text.decode("ascii", "replace"))
    if found is None:
        return None
    try:
        return _charge(found, row, unit)
    except (KeyError, ValueError, RecursionError):  # whoever reads it in full says why
        return None


def _charge(found: re.Match[str], row: Row, unit: str) -> tuple[Charge, str]:
    fields = found.groups()
    allocation, counted, drawn, spent, event, kind, more, previous, _ = fields[:9]
    private, purpose, relation, sequence, settles, _, exact, taken, time = fields[9:]
    check_place(row, int(sequence), None if settles is None else int(settles), None)
    if (kind == "settle") == (settles is None):
        raise ValueError
    if exact != "null":
        _float(exact)
    if taken != "0.0":
        _float(taken)
    released = _event(event)
    charge = Charge(
        head=Head(sequence=row.sequence, hash=row.digest.hex()),
        time=_text(time),
        purpose=_text(purpose),
        event=released,
        counted=released if counted == event else _event(counted),
        relation=_RELATIONS[relation],
        unit=unit,
        allocation=None if allocation == "null" else _text(allocation),
        private=private == "true",
        settled=kind != "reserve",
        epsilon_spent=_float(spent),
        planned=_planned(kind, more) if more else None,
        drawn=drawn is not None,
    )
    return charge, previous


_RELATIONS = {f'"{relation}"': relation for relation in Relation}


def _text(written: str) -> str:
    if "\\" not in written:  # what is hidden is written by its number
        return written[1:-1]
    text = str(_value(written))
    if not is_plain(text):
        raise ValueError
    return text


def _float(written: str) -> float:
    value = float(written)
    if repr(value) != written:
        raise ValueError
    return value


def _value(written: str) -> Any:
    """One whole value, written as `canonical` writes it."""
    value = json.loads(written)
    if canonical(value) != written.encode():
        raise ValueError
    return value


@lru_cache(maxsize=4096)
def _event(written: str) -> DpEvent:
    """Many charges are alike, and then have one event."""
    return event_from_json(_value(written))


@lru_cache(maxsize=4096)
def _planned(kind: str, written: str) -> DpEvent | None:
    """The whole plan, among the keys of some charges that stand between `kind` and `previous`."""
    found: dict[str, Any] = _value(f"{{{written[:-1]}}}")
    if not all("kind" < key < "previous" for key in found):
        raise ValueError
    settles = {"settles"} if kind == "settle" else set()
    if not KINDS[kind].allows(EVERY | PAID | settles | found.keys()):
        raise ValueError
    if not all(is_plain(value) for value in found.values() if isinstance(value, str)):
        raise ValueError
    return event_from_json(found["planned"]) if found.get("planned") else None
