"""Images at the desk: a budget of their own, jobs planned without a private image, and nothing to ask."""

import asyncio

import pytest

from sfumato import datasets
from sfumato.desk import jobs
from sfumato.desk.accounts import add_person, by_token
from sfumato.desk.grants import Wanted
from sfumato.desk.jobs import Job
from sfumato.desk.runner import PaidOnce
from sfumato.errors import InvalidInput
from sfumato.pate import Voting
from sfumato.query import QueryRefused

IMAGES = '[images.scans]\nsource = "digits"\npublic_size = 1500\nepsilon = 3.0\ndelta = 1e-5\n'


@pytest.fixture
def pia(another, monkeypatch):
    served = another(settings=IMAGES)
    monkeypatch.setattr("sfumato.desk.jobs._loaded", _public_only)
    wanted = Wanted(team="pia", purpose="scans", epsilon=2.0)
    made = add_person(served.desk, "pia", role="analyst", wanted=wanted, table="scans")
    with served.desk.database.read() as connection:
        return served, by_token(connection, made.token), made.token


def _public_only(source, split):
    assert split == "test", "a plan must not load private images"
    return datasets.load(source, split, side=28)


def test_jobs_are_priced_without_a_private_image(pia):
    served, account, _ = pia
    dataset = served.desk.dataset("scans")
    for job in (Job(kind="pate", epsilon=1.0, teachers=50), Job(kind="images", epsilon=1.0, rows=50)):
        price = jobs.price(served.desk, account, dataset, job, None)
        assert 0.98 < price.epsilon <= 1.0
        assert price.fits
    assert not jobs.price(served.desk, account, dataset, Job(kind="pate", epsilon=2.5), None).fits
    with pytest.raises(InvalidInput, match="teachers"):
        jobs.price(served.desk, account, dataset, Job(kind="pate", epsilon=1.0, teachers=10**6), None)
    with pytest.raises(InvalidInput, match="kind"):
        jobs.price(served.desk, account, dataset, Job(kind="train", epsilon=1.0, target="label"), None)
    with pytest.raises(InvalidInput, match="kind"):
        jobs.price(served.desk, account, served.desk.dataset("people"), Job(kind="pate", epsilon=1.0), None)
    assert dataset.ledger.epsilon_spent == 0


@pytest.mark.parametrize("line", ['four_eyes = "yes"', "four_eyes = 1", "four_eye = true"])
def test_a_second_officer_is_not_left_out_by_a_slip_of_the_pen(another, line):
    with pytest.raises(InvalidInput, match="four_eye"):
        another(settings=f"{IMAGES}{line}\n")


def test_images_are_not_asked_in_sql(pia):
    served, account, token = pia
    body = {"sql": "SELECT AVG(label) FROM scans", "epsilon": 0.1}
    asked = served.send(
        "POST", "/api/v1/tables/scans/query", json=body, headers={"authorization": f"Bearer {token}"}
    )
    assert asked.status_code == 404
    from sfumato.desk import asking

    with pytest.raises(QueryRefused):
        asyncio.run(asking.expect(served.desk, account, served.desk.dataset("scans"), asking.Question(**body)))


@pytest.mark.keeps_out(
    "A job that fails before it touches a row, and leaves a reservation that nothing can settle"
)
def test_votes_of_an_interrupted_try_are_charged_once(pia):
    served, _, _ = pia
    dataset = served.desk.dataset("scans")
    from sfumato.desk.jobs import pate_settings

    plan = pate_settings(dataset.policy, teachers=50, epsilon=1.0).plan
    for _ in range(2):  # two tries of job 3, as by two processes
        with PaidOnce.open(dataset.ledger.place) as ledger:
            Voting(plan, ledger=ledger.of_job(3, "pia: scans"), unit="record")._reservation.begin()
    assert len(dataset.ledger.charges()) == 1
    spent = dataset.ledger.state.whole.tally
    with PaidOnce.open(dataset.ledger.place) as ledger:
        ledger.of_job(3, None).settle()
        assert dataset.ledger.state.whole.tally == spent
        assert dataset.ledger.epsilon_spent > 0.9
        Voting(plan, ledger=ledger.of_job(4, "pia: scans"), unit="record")  # fails before it votes
        ledger.settle()
        assert dataset.ledger.state.whole.tally == spent
        Voting(plan, ledger=ledger.of_job(3, None), unit="record")  # of an older desk, which counts anew
    assert len(dataset.ledger.charges()) == 3
    dataset.ledger.verify()
