"""A round that was answered is never answered again: killed nodes, second nodes, finished studies."""

import numpy as np
import pytest
import torch

from sfumato import datasets
from sfumato.accounting import Budget
from sfumato.errors import BudgetExceeded, LedgerError, Refused
from sfumato.holders import Node, Opened, Parties, simulation, tasks
from sfumato.learn import Recipe, features
from sfumato.ledger import Ledger

SMALL = Recipe(extractors=("strokes",), drawn=100, directions=8, steps=4)


class Killed(SystemExit):
    """As by kill -9: nothing is cleaned up."""


class Channel:
    """Opens every round to zeros; `dies` says in which round, before or after the input has left."""

    def __init__(self, ledger=None, dies=None, asked=()):
        self.ledger, self.dies, self.asked = ledger, dies, asked
        self.left, self.marks, self.refused = [], [], []

    def exchange(self, terms, place, contribution):
        if self.dies == ("before", terms.number):
            raise Killed
        if terms.number in self.asked or not self.asked:
            try:
                self.left.append((terms.number, contribution().tobytes()))
            except Refused:
                self.refused.append(terms.number)
            if self.ledger is not None:
                head = self.ledger.charges()[-1].head
                self.marks.append(self.ledger.lease(head).steps)
        if self.dies == ("after", terms.number):
            raise Killed
        return Opened(np.zeros(terms.dimension, dtype=np.int64), 4)


@pytest.fixture(scope="module")
def rows():
    return datasets.load("digits", "train").excerpt(100)


@pytest.fixture
def agreed(rows, signing_key, monkeypatch):
    monkeypatch.setattr(tasks, "recipe_for", lambda name: SMALL)
    keys = {place: signing_key(place) for place in range(1, 5)}
    study = simulation._study(rows, Parties(holders=4), keys, epsilon=1.0, delta=1e-5, spare=0)
    return study, [study.signed(key) for key in keys.values()]


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "mine.db", Budget(epsilon=1, delta=1e-5)) as opened:
        yield opened


@pytest.fixture
def run(agreed, signing_key, rows, ledger):
    network = features.build(SMALL, classes=10)

    def read(sampler):
        assert ledger.epsilon_spent > 0.9  # paid before a row is read
        return features.featured(network, rows), None

    def go(channel, read=read):
        head = torch.nn.Linear(8, 10, bias=False)
        torch.nn.init.zeros_(head.weight)
        node = Node(agreed[0], signing_key(1), agreed[1], channel, ledger=ledger)
        return node.train(head, read)

    return go


def test_a_round_is_in_the_ledger_before_its_input_leaves(run, ledger):
    channel = Channel(ledger)
    certificate = run(channel)
    assert channel.marks == [1, 2, 3, 4]
    assert certificate.verify() == certificate.prices
    assert ledger.verify()


@pytest.mark.parametrize(("when", "again"), [("before", [2, 3, 4]), ("after", [3, 4])])
def test_a_killed_node_goes_on_and_answers_no_round_twice(run, ledger, when, again):
    first = Channel(dies=(when, 2))
    with pytest.raises(SystemExit):
        run(first)
    spent = ledger.epsilon_spent
    second = Channel()
    run(second)
    assert [number for number, _ in second.left] == again
    assert second.refused == [number for number in (1, 2) if number not in again]
    assert len({content for _, content in first.left + second.left}) == len(first.left + second.left)
    assert ledger.epsilon_spent == pytest.approx(spent)  # one charge for all of it
    assert len(ledger.charges()) == 1


def test_a_finished_study_is_not_answered_again(run):
    run(Channel())
    with pytest.raises(Refused, match="answered once"):
        run(Channel())


def test_a_second_node_with_the_same_ledger_ends_the_first(run, ledger):
    """The first is about to send when the second takes its reservation; it sends nothing more."""

    class Overtaken(Channel):
        def exchange(self, terms, place, contribution):
            if terms.number == 2:
                ledger.reservation(ledger.charges()[-1].head)
            return super().exchange(terms, place, contribution)

    first = Overtaken()
    with pytest.raises(LedgerError, match="another process"):
        run(first)
    assert [number for number, _ in first.left] == [1]


def test_who_cannot_pay_reads_nothing(run, ledger, agreed):
    ledger.charge(
        agreed[0].plan.event(), purpose="another", relation=agreed[0].plan.relation, unit=agreed[0].plan.unit
    )

    def never(sampler):
        raise AssertionError("a row was read")

    with pytest.raises(BudgetExceeded):
        run(Channel(), never)
