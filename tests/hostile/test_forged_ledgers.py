"""Whoever can write the file can also hash: what a ledger says must follow from its events all the same."""

import hashlib
import json
import math

import pytest

from sfumato.accounting import (
    ApproximateEvent,
    Budget,
    GaussianEvent,
    LaplaceEvent,
    NoEvent,
    PrivacyFilter,
    Relation,
    pure,
    repeat,
)
from sfumato.accounting import event_to_json as plain
from sfumato.errors import BudgetExceeded, LedgerTampered
from sfumato.ledger import ChargeRequest, Ledger
from sfumato.ledger.chain import canonical, seal, unseal

TERMS = {"relation": Relation.ADD_REMOVE, "unit": "record"}
COUNT = GaussianEvent(10.0)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "book.db", Budget(epsilon=3, delta=1e-6)) as found:
        yield found


def forged(ledger, number, change):
    """The ledger with one entry written anew, and the chain after it sealed again."""
    rows, last = [], None
    for row in ledger._store.rows():
        body = {
            key: value for key, value in json.loads(row.text).items() if key not in ("sequence", "previous")
        }
        if row.sequence == number:
            change(body)
        entry, sealed = seal(body, after=last)
        rows.append(sealed)
        last = entry.head
    ledger._store.rows = lambda: iter(rows)
    return ledger


def test_a_release_that_counts_as_a_cheaper_one_is_found(ledger):
    ledger.charge(COUNT, purpose="counts", **TERMS)
    ledger.verify()
    with pytest.raises(LedgerTampered, match="entry 1"):
        forged(ledger, 1, lambda body: body.update(event=plain(GaussianEvent(0.01)))).verify()


def test_a_drawn_release_that_counts_as_another_is_found(ledger):
    ledger.prepay("year", repeat(COUNT, 2), purpose="a year", **TERMS)
    ledger.charge(COUNT, purpose="January", allocation="year", **TERMS)
    ledger.verify()
    with pytest.raises(LedgerTampered, match="entry 2"):
        forged(ledger, 2, lambda body: body.update(counted=plain(GaussianEvent(100.0)))).verify()


def test_a_conversion_that_was_made_cheaper_is_found(tmp_path):
    budget = Budget(epsilon=3, delta=1e-6, relation=Relation.REPLACE_ONE)
    with Ledger.create(tmp_path / "replaced.db", budget) as ledger:
        ledger.charge(COUNT, purpose="counts", **TERMS)
        ledger.verify()
        with pytest.raises(LedgerTampered, match="entry 1"):
            forged(ledger, 1, lambda body: body.update(event=plain(GaussianEvent(9.0)))).verify()


def test_a_settled_conversion_still_verifies(tmp_path):
    budget = Budget(epsilon=3, delta=1e-6, relation=Relation.REPLACE_ONE)
    with Ledger.create(tmp_path / "replaced.db", budget) as ledger:
        held = ledger.reserve(repeat(COUNT, 4), purpose="a run", **TERMS)
        held.settle(repeat(COUNT, 2))
        ledger.give_back(ledger.reserve(COUNT, purpose="never begun", begun=False, **TERMS).head.sequence)
        ledger.verify()


def test_a_share_that_was_spent_beyond_its_size_is_found(ledger):
    """The share is made smaller afterwards, in every sum: the whole still keeps to the budget."""
    ledger.allocate("team", 2.0)
    ledger.charge(pure(1.5), purpose="a question", allocation="team", **TERMS)
    small = Ledger.create(ledger.place + ".small", ledger.budget)
    small.allocate("team", 1.0)
    with pytest.raises(BudgetExceeded):
        small.charge(pure(1.5), purpose="a question", allocation="team", **TERMS)
    rule, account = small.state._part("team")
    over = small.state._with(
        small.state.of_whole.admit(small.state.whole, pure(1.5)), rule.take(account, pure(1.5)), "team"
    )
    prices = {name: tally.to_json() for name, tally in small.state.price(pure(1.5), "team").items()}
    request = ChargeRequest(event=pure(1.5), purpose="a question", allocations=("team",), **TERMS)
    body = small._body("charge", request, pure(1.5), "team")
    small._log.append({**body, "price": prices}, over, unseal(small._store.last()))
    with pytest.raises(LedgerTampered, match="entry 2"):
        small.verify()


def _given_to_another(body):
    body["state"]["shares"]["team"]["origin"] = "desk:2:y"


@pytest.mark.parametrize(
    ("entry", "change"), [(1, lambda body: body.update(origin="desk:2:y")), (2, _given_to_another)]
)
def test_a_share_that_is_given_to_another_origin_is_found(ledger, entry, change):
    ledger.allocate_all({"team": 2.0}, origins={"team": "desk:1:x"})
    ledger.charge(pure(0.5), purpose="a question", allocation="team", **TERMS)
    ledger.verify()
    with pytest.raises(LedgerTampered, match=f"entry {entry}"):
        forged(ledger, entry, change).verify()


def test_what_is_owed_cannot_be_made_smaller(ledger):
    assert ledger.record(GaussianEvent(0.1), purpose="a report", **TERMS) is None
    ledger.verify()
    with pytest.raises(LedgerTampered, match="entry 1"):
        forged(ledger, 1, lambda body: body.update(owed=0.1)).verify()


def test_a_release_outside_closes_the_ledger_only_where_the_whole_budget_is_broken(ledger):
    """Shares that claim everything are promises to teams; the guarantee is the whole's."""
    ledger.allocate("team", 3.0)
    assert ledger.record(LaplaceEvent(10.0), purpose="a small count", **TERMS) is not None
    assert ledger.exceeded is None
    assert ledger.epsilon_spent == pytest.approx(0.1, rel=1e-3)
    ledger.charge(pure(0.5), purpose="a question", allocation="team", **TERMS)
    with pytest.raises(BudgetExceeded):
        ledger.charge(pure(0.01), purpose="from what nobody claims", **TERMS)
    with pytest.raises(BudgetExceeded):  # the whole is over before the share is
        ledger.charge(pure(2.45), purpose="a question", allocation="team", **TERMS)
    ledger.verify()
    assert ledger.record(pure(3.0), purpose="a large one", **TERMS) is None
    assert ledger.exceeded.owed >= 3.0
    assert math.isfinite(ledger.exceeded.owed)
    ledger.verify()


def test_no_plan_pays_for_a_release_outside(ledger):
    ledger.prepay("year", repeat(COUNT, 2), purpose="a year", **TERMS)
    spent = ledger.epsilon_spent
    ledger.spend_under("year")
    assert not ledger.record(COUNT, purpose="as the plan has it", **TERMS).drawn
    assert ledger.record(ApproximateEvent(0.01, 1e-9), purpose="another", **TERMS) is not None
    assert ledger.exceeded is None
    assert ledger.epsilon_spent > spent
    ledger.verify()


@pytest.mark.keeps_out(
    "A plan of releases that is given back and still drawn from; chances of failure that are never "
    "added up when a ledger is verified"
)
def test_a_plan_that_is_given_back_and_still_drawn_from_is_found(ledger, monkeypatch):
    """Written as a reservation, it could be settled to nothing and leave its releases for nothing."""
    plain_body = ledger._body
    monkeypatch.setattr(ledger, "_body", lambda *args: {**plain_body(*args), "plan": "year"})
    ledger.reserve(repeat(COUNT, 2), purpose="a year", **TERMS).settle(NoEvent())
    monkeypatch.undo()
    ledger.charge(COUNT, purpose="January", allocation="year", **TERMS)
    assert ledger.epsilon_spent == 0
    with pytest.raises(LedgerTampered, match="entry 1"):
        ledger.verify()


@pytest.mark.keeps_out(
    "A plan of releases that is given back and still drawn from; chances of failure that are never "
    "added up when a ledger is verified"
)
def test_failure_probabilities_beyond_their_share_of_delta_are_found(ledger, monkeypatch):
    """ε alone would still fit: fifty charges that each fail with a chance of 1 in 1,000."""
    with monkeypatch.context() as lenient:
        lenient.setattr(PrivacyFilter, "fits", lambda self, spending: self.epsilon(spending) <= self.limit)
        for _ in range(50):
            ledger.charge(ApproximateEvent(0.01, 1e-3), purpose="a question", **TERMS)
    with pytest.raises(LedgerTampered, match="entry 1"):
        ledger.verify()


def rewritten(ledger, change):
    """The ledger with other bytes in its last entry, and the hash that goes with them."""
    *rows, last = ledger._store.rows()
    text = change(last.text)
    rows.append(last._replace(text=text, digest=hashlib.sha256(text).digest()))
    ledger._store.rows = lambda: iter(rows)
    return ledger


def without(key):
    return lambda text: canonical({name: value for name, value in json.loads(text).items() if name != key})


STRANGE = {
    "nothing": lambda text: b"",
    "a line break after it": lambda text: text + b"\n",
    "a space": lambda text: text.replace(b'":', b'": ', 1),
    "a list": lambda text: b"[1]",
    "a number": lambda text: b"5",
    "other bytes": lambda text: b"\xff" + text,
    "NaN": lambda text: text.replace(b'"private":true', b'"private":NaN'),
    "a word for a truth": lambda text: text.replace(b'"private":true', b'"private":"no"'),
    "a number for words": lambda text: text.replace(b'"purpose":"counts"', b'"purpose":5'),
    "too deep": lambda text: text[:-1] + b',"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "many digits": lambda text: text.replace(b'"sequence":1', b'"sequence":' + b"9" * 5000),
    "a key twice": lambda text: text[:-1] + b',"kind":"note"}',
    "the beginning alone": lambda text: text[:50],
    **{f"no {key}": without(key) for key in ("kind", "previous", "sequence", "purpose", "private", "event")},
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
def test_an_entry_that_no_ledger_would_write_is_found(ledger, change):
    ledger.charge(COUNT, purpose="counts", **TERMS)
    ledger.verify()
    with pytest.raises(LedgerTampered, match="entry 1"):
        rewritten(ledger, change).verify()
