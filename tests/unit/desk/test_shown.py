"""What the desk tells of single charges."""

from __future__ import annotations

from sfumato.accounting import GaussianEvent, Relation, epsilon, poisson_sampled, repeat
from sfumato.desk.desk import charge_in_words
from sfumato.ledger import Budget, Ledger


def test_a_stopped_run_is_not_shown_at_the_price_of_a_shorter_plan(tmp_path):
    step = poisson_sampled(0.02, GaussianEvent(1.5))
    terms = {"relation": Relation.ADD_REMOVE, "unit": "record"}
    with Ledger.create(tmp_path / "l.db", Budget(epsilon=3, delta=1e-5)) as ledger:
        ledger.reserve(repeat(step, 600), purpose="training", **terms).settle(repeat(step, 380))
        (charge,) = ledger.charges()
        shown = charge_in_words(ledger, charge)
        assert shown["stopped_early"] is True
        assert shown["epsilon"] == ledger.epsilon_spent > 1.2 * epsilon(repeat(step, 380), 1e-5)
