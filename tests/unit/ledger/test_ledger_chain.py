from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting import Relation, compose, event_to_json, pure, repeat
from sfumato.errors import InvalidInput, LedgerError, LedgerTampered
from sfumato.ledger import Budget, Ledger
from sfumato.ledger.chain import ORIGIN, Row, canonical, linked, seal, unseal
from sfumato.ledger.charge import charges_of

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}

TENTH = int(0.1 * 2**100)  # ε = 0.1 in the ledger's units


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.open(tmp_path / "ledger.db", budget=Budget(epsilon=1))
    reservation = ledger.reserve([pure(0.1), pure(0.1)], purpose="two", **TERMS)
    ledger.charge(pure(0.1), purpose="one", **TERMS)
    reservation.settle(pure(0.1))
    return ledger


def test_each_hash_covers_the_entry_and_the_hash_before(ledger: Ledger) -> None:
    before = ORIGIN
    for entry in ledger.export()["entries"]:
        stated = entry.pop("hash")
        assert entry["previous"] == before
        text = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
        assert hashlib.sha256(text).hexdigest() == stated
        before = stated


def test_a_flipped_bit_at_any_byte_of_any_entry_is_found(ledger: Ledger) -> None:
    for row in list(ledger._store.rows()):
        for field in ("text", "digest"):
            data = getattr(row, field)
            for position in range(len(data)):
                changed = bytearray(data)
                changed[position] ^= 1 << (position % 8)
                with pytest.raises(LedgerTampered):
                    unseal(row._replace(**{field: bytes(changed)}))


def test_a_flipped_bit_in_the_file_is_found_or_changes_nothing(ledger: Ledger, tmp_path: Path) -> None:
    """Every fifth byte of the file in turn; some bytes of a page hold nothing."""
    ledger._store._connect().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    expected, head = ledger.export(), ledger.head
    whole = (tmp_path / "ledger.db").read_bytes()
    text = ledger._store.find("sequence", 2).text
    inside = range(whole.index(text), whole.index(text) + len(text))
    found = 0
    for position in sorted({*range(0, len(whole), 101), *inside[::5]}):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        copy = tmp_path / "damaged.db"
        copy.write_bytes(damaged)
        found += damage_shows(copy, expected, head)
        assert position not in inside or damage_shows(copy, expected, head)
        for leftover in tmp_path.glob("damaged.db*"):
            leftover.unlink()
    assert found >= len(inside[::5])


def damage_shows(path: Path, expected: dict, head: object) -> bool:
    try:
        with Ledger.open(path) as copy:
            copy.verify(head=head)
            assert copy.export() == expected
    except LedgerError:
        return True
    return False


def test_a_rewritten_chain_with_cheaper_prices_is_found(ledger: Ledger) -> None:
    """Whoever can write the file can also hash: but the prices must follow from the events."""
    rows, last = [], None
    for entry in ledger.entries():
        body = json.loads(json.dumps(entry.body).replace(str(TENTH), str(TENTH // 2)))
        sealed, row = seal({k: v for k, v in body.items() if k not in ("sequence", "previous")}, after=last)
        rows.append(row)
        last = sealed.head
    assert len(list(linked(rows))) == 4  # as a chain it is sound
    ledger._store.rows = lambda: iter(rows)
    with pytest.raises(LedgerTampered, match="does not follow"):
        ledger.verify()


def test_a_lowered_sum_is_found(ledger: Ledger) -> None:
    rows = list(ledger._store.rows())
    body = json.loads(rows[-1].text)
    body["state"]["whole"]["units"][0] //= 2
    _, rows[-1] = seal(
        {k: v for k, v in body.items() if k not in ("sequence", "previous")}, after=unseal(rows[-2]).head
    )
    ledger._store.rows = lambda: iter(rows)
    with pytest.raises(LedgerTampered, match="entry 3"):
        ledger.verify()


def test_an_entry_that_makes_no_sense_is_found(ledger: Ledger) -> None:
    rows = list(ledger._store.rows())
    _, row = seal({"kind": "charge", "state": json.loads(rows[-1].text)["state"]}, after=ledger.head)
    ledger._store.rows = lambda: iter([*rows, row])
    with pytest.raises(LedgerTampered, match="says more or less than an entry of kind 'charge' says"):
        ledger.verify()


def test_a_copy_put_back_is_refused_with_the_newest_certificate(ledger: Ledger, tmp_path: Path) -> None:
    ledger._store._connect().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(tmp_path / "ledger.db", tmp_path / "backup.db")
    certificate = ledger.certificate(ledger.charge(pure(0.3), purpose="after the backup", **TERMS))
    Ledger.open(tmp_path / "ledger.db", certificate=certificate)
    with pytest.raises(LedgerTampered, match="older copy"):
        Ledger.open(tmp_path / "backup.db", certificate=certificate)


def test_a_gap_and_a_stranger_are_found(ledger: Ledger) -> None:
    rows = list(ledger._store.rows())
    with pytest.raises(LedgerTampered, match="entry 1 is missing"):
        list(linked([rows[0], rows[2]]))
    stranger = seal({"kind": "charge"}, after=unseal(rows[1]).head)[1]
    wrong = seal({"kind": "charge"}, after=None)[1]
    assert isinstance(stranger, Row)
    with pytest.raises(LedgerTampered, match="entry 1"):
        list(linked([wrong, rows[1]]))


def test_what_is_no_ledger_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a data base " * 100)
    with pytest.raises(LedgerTampered, match="not a ledger"):
        Ledger.open(path)
    with pytest.raises(LedgerTampered, match="not a ledger"):
        Ledger.open(path, budget=Budget(epsilon=1))
    empty = tmp_path / "copied-badly.db"
    empty.touch()
    for budget in (None, Budget(epsilon=1)):
        with pytest.raises(LedgerError, match="without entries"):
            Ledger.open(empty, budget=budget)
    with pytest.raises(LedgerError, match="cannot be made"):
        Ledger.open(tmp_path / "no" / "such" / "folder.db", budget=Budget(epsilon=1))


NAMES = st.sampled_from(["price", "state", "time", "purpose", 'a","price":{', "}", "{", "\\", 'é"}', "[", ":,"])
LEAVES = NAMES | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.booleans()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
INTEGERS = st.lists(st.integers(0, 2**110))
TALLY = st.fixed_dictionaries({"units": INTEGERS, "infinite": st.just([0, 1])})
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ACCOUNT = st.fixed_dictionaries(
    {
        "exact": st.none() | FLOATS,
        "infinite": INTEGERS,
        "plans": st.integers(0),
        "taken": FLOATS,
        "units": INTEGERS,
    }
)
EVENTS = st.sampled_from([event_to_json(pure(0.5)), event_to_json(repeat(compose(pure(0.5), pure(0.1)), 3))])
CHARGES = st.fixed_dictionaries(
    {
        "allocation": st.none() | NAMES,
        "counted": EVENTS | VALUES,
        "epsilon_spent": FLOATS,
        "event": EVENTS,
        "kind": st.sampled_from(["charge", "reserve", "settle", "note"]),
        "price": st.builds(lambda tally: {"part": tally, "whole": tally}, TALLY) | VALUES,
        "private": st.booleans(),
        "purpose": st.text() | NAMES | VALUES,
        "relation": st.sampled_from(["add-remove", "replace-one", "another"]),
        "state": st.builds(lambda account: {"rest": account, "shares": {}, "whole": account}, ACCOUNT) | VALUES,
        "time": st.just("2026-11-18T03:07:04+00:00") | NAMES,
    },
    optional={
        "drawn": st.just(True),
        "planned": st.none() | EVENTS,
        "lease": VALUES,
        "plan": NAMES,
        "settles": st.integers(0, 3),
    },
)


def charges_in(rows):
    return charges_of(linked(rows), unit="record")


@given(CHARGES, st.dictionaries(NAMES, VALUES, max_size=2), st.integers(0, 2**32))
def test_an_entry_is_read_as_a_ledger_writes_it_or_refused(body, more, shuffle) -> None:
    """Its keys may stand in any order, or twice, under a hash that fits."""
    entry, row = seal({**body, **more}, after=None)
    if shuffle % 2:
        pairs = [f"{json.dumps(name)}:{canonical(value).decode()}" for name, value in entry.body.items()]
        order = random.Random(shuffle)
        text = (
            "{" + ",".join(order.sample([*pairs, *pairs[: shuffle % 3]], len(pairs) + shuffle % 3)) + "}"
        ).encode()
        row = Row(0, hashlib.sha256(text).digest(), text, entry.body.get("settles"))
    try:
        found = charges_in([row])
    except (LedgerTampered, InvalidInput):
        return
    assert row.text == canonical(entry.body)
    assert [charge.purpose for charge in found] == [entry.body["purpose"]] * (entry.kind != "note")


WRITTEN_OTHERWISE = {
    "a key that stands twice": ('"purpose":', '"purpose":"nothing","purpose":'),
    "a purpose before the price": ('"price":', '"purpose":"nothing","price":'),
    "a space": ('"purpose":', '"purpose": '),
    "a letter by its number": ('"purpose":"', '"purpose":"\\u0061'),
    "a longer fraction": ('"epsilon_spent":0.2', '"epsilon_spent":0.20'),
    "a longer fraction in a sum": ('"taken":0.0', '"taken":0.00'),
    "a number that begins with 0": ('"units":[', '"units":[0'),
    "a list without a number": ('"units":[', '"units":[,'),
    "an event with a space": ('"event":{', '"event":{ '),
    "a key that does not belong there": ('"previous":', '"pa":1,"a":2,"previous":'),
}


@pytest.mark.parametrize(("old", "new"), WRITTEN_OTHERWISE.values(), ids=WRITTEN_OTHERWISE)
def test_a_statement_finds_an_entry_that_no_ledger_wrote(ledger: Ledger, old: str, new: str) -> None:
    """Behind a hash that fits."""
    row = ledger._store.find("sequence", 1)
    text = row.text.replace(old.encode(), new.encode(), 1)
    assert text != row.text
    rows = [
        Row(row.sequence, hashlib.sha256(text).digest(), text, row.settles, row.about) if each == row else each
        for each in ledger._store.rows()
    ]
    with pytest.raises(LedgerTampered, match="not written as a ledger writes"):
        charges_in(rows)


def test_a_statement_finds_what_was_changed(ledger: Ledger) -> None:
    rows = list(ledger._store.rows())
    changed = rows[1].text.replace(b'"units":[', b'"units":[1', 1)
    with pytest.raises(LedgerTampered):
        charges_in([rows[0], rows[1]._replace(text=changed)])
    for some in ([rows[0], rows[2]], [rows[1]], [rows[0], rows[2]._replace(sequence=1), rows[1]]):
        with pytest.raises(LedgerTampered):
            charges_in(some)


NOTE = {
    "kind": "note", "text": "a note", "sequence": 2, "previous": "0" * 64, "time": "now", "epsilon_spent": 0.2,
    "state": {},
}  # fmt: skip
FORGED = {
    "no price": (2, lambda body: body.pop("price")),
    "a price in words": (2, lambda body: body.update(price="free")),
    "a time that is a number": (2, lambda body: body.update(time=5)),
    "a share that is no name": (2, lambda body: body.update(allocation={"a": 1})),
    "an ε in words": (2, lambda body: body.update(epsilon_spent="x")),
    "a kind that is none": (2, lambda body: body.update(kind="gift")),
    "a settlement of nothing": (3, lambda body: body.update(settles=0)),
    "a settlement of a charge": (3, lambda body: body.update(settles=2)),
    "a unit that clears a terminal": (0, lambda body: body["budget"].update(unit="record\x1b[2J")),
    "a whole plan of a charge": (2, lambda body: body.update(planned=body["event"])),
    "more than a charge says": (2, lambda body: body.update(more=1)),
    "a lease of a charge": (2, lambda body: body.update(lease={"private": True})),
    "drawn, and then not": (2, lambda body: body.update(drawn=False)),
    "a purpose that clears a terminal": (2, lambda body: body.update(purpose="mean \x1b[2J")),
    "a purpose with a bell after 0x80": (2, lambda body: body.update(purpose="mean \x9b")),
    "a purpose with an end of line": (2, lambda body: body.update(purpose="mean\nspent 0")),
    "a purpose written from right to left": (2, lambda body: body.update(purpose="mean \u202e")),
    "a time that deletes": (2, lambda body: body.update(time="2026-11-18T03:07:04+00:00\x7f")),
    "a plan that clears a terminal": (2, lambda body: body.update(plan="year\x1b[2J")),
    "a settlement that only says what was planned": (3, lambda body: body.pop("lease")),
    "a note with more": (2, lambda body: (body.clear(), body.update(NOTE, more=1))),
    "a lease of nothing": (2, lambda body: body.update(kind="begin", about=77, lease={"private": False})),
    "a lease that is a number": (2, lambda body: body.update(kind="begin", about=1, lease=2)),
}


@pytest.mark.parametrize(("which", "change"), FORGED.values(), ids=FORGED)
def test_a_list_of_charges_refuses_what_no_ledger_would_say(ledger: Ledger, which: int, change) -> None:
    """Written as a ledger writes, and every hash fits."""
    rows, before = [], ORIGIN
    for row in ledger._store.rows():
        body = {**json.loads(row.text), "previous": before}
        if row.sequence == which:
            change(body)
        text = canonical(body)
        digest = hashlib.sha256(text).digest()
        rows.append(Row(row.sequence, digest, text, body.get("settles"), body.get("about")))
        before = digest.hex()
    with pytest.raises(LedgerTampered):
        charges_in(rows)
