"""What is computed from a noisy answer cannot fail once the answer is paid for."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pandas as pd
import pytest

from sfumato.accounting import gaussian_noise_multiplier
from sfumato.errors import BudgetExceeded, InvalidInput
from sfumato.ledger import Ledger
from sfumato.query import QueryRefused, Table, policy_from_dict
from sfumato.query.table import RELATION

POLICY = policy_from_dict(
    {
        "table": {"name": "t", "source": "t.csv"},
        "columns": {
            "age": {"type": "integer", "lower": 0, "upper": 120},
            "ward": {"type": "text", "categories": ["heart", "lung"]},
            "town": {"type": "text"},
        },
        "budget": {"epsilon": 50, "delta": 1e-6},
    }
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    place = tmp_path_factory.mktemp("ledger") / "l.db"
    with Ledger.create(place, POLICY.budget) as ledger:
        rows = pd.DataFrame({"age": [20, 70] * 200, "ward": ["heart", "lung"] * 200, "town": "Delft"})
        yield Table(POLICY, ledger, data=rows)


@pytest.mark.keeps_out("An answer that is paid for and then lost to an error in what is computed from it")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ward, NTILE(0) OVER (ORDER BY COUNT(*)) AS n FROM t GROUP BY ward",
        "SELECT ward, CASE WHEN COUNT(*) > 0 THEN 'a' ELSE 1 END AS n FROM t GROUP BY ward",
        "SELECT town, COUNT(*) AS n FROM t GROUP BY town HAVING town = 1",
    ],
)
def test_what_would_fail_on_the_answer_is_refused_for_nothing(table, sql):
    before = table.ledger.epsilon_spent
    with pytest.raises(QueryRefused, match="cannot be computed"):
        table.ask(sql, epsilon=1.0)
    assert table.ledger.epsilon_spent == before


def test_what_the_bounds_allow_is_computed(table):
    found = table.ask("SELECT age, age * age * age AS cube, COUNT(*) AS n FROM t GROUP BY age", epsilon=1.0)
    assert found.rows[-1][:2] == (120, 120**3)


@pytest.mark.keeps_out("An ε so large that the search for its noise never ends")
def test_the_noise_of_a_huge_epsilon_is_found_at_once(table):
    """Nobody is protected by it, and it is refused: but it must not keep a server busy."""
    assert gaussian_noise_multiplier(1e15, 1e-6) == gaussian_noise_multiplier(1e300, 1e-6)
    with pytest.raises((InvalidInput, BudgetExceeded)):
        table.ask("SELECT ward, COUNT(*) AS n FROM t GROUP BY ward", epsilon=1e15)


COUNT = "SELECT COUNT(*) AS n FROM t"


@pytest.mark.keeps_out("One charge, answered as often as one likes, or under another ledger")
def test_one_charge_pays_for_one_answer(table, tmp_path):
    planned = table.plan(COUNT, epsilon=0.1)
    ready, terms = table.ready(planned), {"relation": RELATION, "unit": "record", "purpose": "a count"}
    paid = table.ledger.charge(planned.price.event(), **terms)
    assert table.answer(ready, paid, ledger=table.ledger).entry == paid.head
    with Ledger.create(tmp_path / "l.db", POLICY.budget) as other:
        strange = other.charge(planned.price.event(), **terms)
        others = [paid, replace(paid, purpose="another"), strange, *table.ledger.charges()]
        for charge in others:
            with pytest.raises(InvalidInput, match="charge"):
                table.answer(ready, charge, ledger=table.ledger)
    assert len([one for one in table.ledger.charges() if one.head == paid.head]) == 1


@pytest.mark.keeps_out("One charge, answered as often as one likes, or under another ledger")
def test_a_charge_that_was_read_from_the_ledger_pays_for_nothing(tmp_path):
    """Another process may have answered under it."""
    rows = pd.DataFrame({"age": [20, 70] * 200, "ward": ["heart", "lung"] * 200, "town": "Delft"})
    with Ledger.create(tmp_path / "l.db", POLICY.budget) as first, Ledger.open(tmp_path / "l.db") as second:
        table = Table(POLICY, second, data=rows)
        planned = table.plan(COUNT, epsilon=0.1)
        paid = first.charge(planned.price.event(), relation=RELATION, unit="record", purpose="a count")
        for charge in (paid, *second.charges()):
            with pytest.raises(InvalidInput, match="one charge pays for one release"):
                table.answer(table.ready(planned), charge, ledger=second)


def test_of_many_threads_one_gets_the_answer(table):
    planned = table.plan(COUNT, epsilon=0.1)
    terms = {"relation": RELATION, "unit": "record", "purpose": "a count"}
    paid = table.ledger.charge(planned.price.event(), **terms)

    def took(_):
        try:
            return table.ledger.use(paid) is None
        except InvalidInput:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(took, range(200))) == 1
