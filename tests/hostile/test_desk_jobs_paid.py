"""A job of the desk is paid by what its ledger knows, whatever became of the desk's database."""

import pytest

pytest.importorskip("fastapi", reason="needs the desk: pip install 'sfumato[desk]'")

from sfumato.accounting import Budget, Relation, pure
from sfumato.desk.runner import PaidOnce
from sfumato.ledger import Ledger

TERMS = {"purpose": "model", "relation": Relation.ADD_REMOVE, "unit": "record"}


@pytest.fixture
def place(tmp_path):
    Ledger.create(tmp_path / "book.db", Budget(epsilon=3, delta=1e-6)).close()
    return tmp_path / "book.db"


def test_a_desk_that_counts_its_jobs_anew_pays_again(place):
    """An older copy of desk.db is put back, and job 1 is asked for once more: its first answer is known."""
    for _ in range(2):
        with PaidOnce.open(place) as ledger:
            ledger.of_job(1, None).charge(pure(0.5), **TERMS)
            ledger.settle()  # before it is told how it ended
    with Ledger.open(place) as ledger:
        assert len(ledger.charges()) == 2
        assert ledger.epsilon_spent > 0.9
        ledger.verify()


def test_two_equal_releases_of_one_try_are_two_charges(place):
    for _ in range(2):  # the first try is interrupted
        with PaidOnce.open(place) as ledger:
            ledger.of_job(1, None)
            first, second = (ledger.charge(pure(0.5), **TERMS) for _ in range(2))
            assert first.head != second.head
    with Ledger.open(place) as ledger:
        assert len(ledger.charges()) == 2
        ledger.verify()


def test_the_certificate_of_a_job_agrees_with_its_ledger(place):
    with PaidOnce.open(place) as ledger:
        certificate = ledger.of_job(1, None).pay_for(pure(0.5), **TERMS)
        ledger.settle()
        ledger.verify(certificate=certificate)
        certificate.verify()
