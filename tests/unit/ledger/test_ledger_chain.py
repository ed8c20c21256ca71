from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.accounting import Relation, pure
from sfumato.errors import LedgerError, LedgerTampered
from sfumato.ledger import Budget, Ledger
from sfumato.ledger.chain import ORIGIN, Entry, Row, canonical, linked, seal, unseal

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
    text = ledger._store.row(2).text
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
    with pytest.raises(LedgerTampered, match="does not tell what a charge tells"):
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
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger.open(tmp_path / "no" / "such" / "folder.db", budget=Budget(epsilon=1))


NAMES = st.sampled_from(["price", "state", "time", "purpose", 'a","price":{', "}", "{", "\\", 'é"}', "[", ":,"])
LEAVES = NAMES | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.booleans()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
TALLY = st.fixed_dictionaries({"units": st.lists(st.integers(0, 2**110)), "infinite": st.just([0, 1])})
SUMS = st.dictionaries(NAMES, TALLY | VALUES, max_size=3)


@given(st.dictionaries(NAMES, VALUES, max_size=4), SUMS, SUMS, st.booleans())
def test_a_brief_entry_is_the_entry_without_its_sums(body, price, state, sorted_keys) -> None:
    full = {"kind": "charge", **body, "price": price, "private": True, **body, "state": state, "time": "now"}
    _, row = seal(full, after=None)
    if not sorted_keys:  # as somebody else may have written it
        text = json.dumps({**full, "sequence": 0, "previous": ORIGIN}, separators=(",", ":")).encode()
        row = Row(0, hashlib.sha256(text).digest(), text, None)
    brief, whole = unseal(row, brief=True), json.loads(row.text)
    without = {name: value for name, value in whole.items() if name not in ("price", "state")}
    assert brief.body in (whole, without)
    if canonical(whole) == row.text:
        assert unseal(row) == Entry(sequence=0, hash=brief.hash, body=whole)
    else:
        with pytest.raises(LedgerTampered, match="not written as a ledger writes"):
            unseal(row)


def test_most_of_an_entry_is_not_read_for_a_list_of_charges(ledger: Ledger) -> None:
    charges = list(linked(ledger._store.rows(), brief=True))[1:]
    assert not any(
        "state" in entry.body or "price" in entry.body for entry in charges if entry.kind == "charge"
    )
    assert any(entry.kind == "charge" for entry in charges)


def test_a_statement_finds_what_was_changed(ledger: Ledger) -> None:
    row = list(ledger._store.rows())[1]
    changed = row.text.replace(b'"units":[', b'"units":[1', 1)
    with pytest.raises(LedgerTampered):
        unseal(row._replace(text=changed), brief=True)
