"""A synthetic table under attack: neighbours, tampered papers, crashes, rules that say nothing."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sfumato.audit import one_run
from sfumato.cli.verify import check_plan
from sfumato.errors import InvalidInput, NotVerified
from sfumato.ledger import Certificate, Ledger
from sfumato.policy import Policy, policy_from_dict
from sfumato.query.engines import open_engine
from sfumato.query.expressions import column_name
from sfumato.query.measures import UNIT
from sfumato.randomness import SecretStream
from sfumato.synthesis import (
    CellColumn,
    EngineMarginals,
    PaidTable,
    Request,
    SynthesisPlan,
    Synthesizer,
    SyntheticModel,
    WithCanaries,
    draw_canaries,
    membership_scores,
    release,
)
from sfumato.synthesis import synthesizer as synthesizing
from sfumato.synthesis.inference import Fitted, Measurement

COLUMNS: dict[str, dict[str, Any]] = {
    "age": {"type": "integer", "lower": 0, "upper": 200},
    "city": {"type": "text", "categories": ["Delft", "Gouda"]},
    "income": {"type": "real", "lower": -1, "upper": 1},
    "married": {"type": "boolean"},
    "born": {"type": "date", "lower": datetime.date(1900, 1, 1), "upper": datetime.date(2029, 12, 31)},
}


def declared(columns: Mapping[str, Any] = COLUMNS, **more: Any) -> Policy:
    table = {"name": "people", "source": "people.csv", **more.pop("table", {})}
    budget = {"epsilon": 10, "delta": 1e-6}
    return policy_from_dict({"table": table, "budget": budget, "columns": dict(columns), **more})


def counted(request: Request, rows: list[tuple[Any, ...]]) -> EngineMarginals:
    policy = request.policy
    frame = pd.DataFrame(rows, columns=["person", *COLUMNS]).astype(
        {"person": "string", "age": "Int64", "city": "string", "income": "float64", "married": "boolean"}
    )
    frame["born"] = pd.array(frame["born"].tolist(), dtype="date32[pyarrow]")
    engine = open_engine(policy, data=frame)
    return EngineMarginals(
        engine.declared(policy),
        request.columns,
        names={name: column_name(name, policy) for name in COLUMNS},
        unit=UNIT,
        rows=policy.unit.rows,
        salt="salt",
        prepare=engine.prepare,
        fetch=engine.fetch,
        keep=True,
    )


class Taped(PaidTable):
    """Writes down every question, what it was asked with, the counts behind it and the answer."""

    def __init__(self, plan: SynthesisPlan, table: Any, answers: list[Any] | None = None) -> None:
        super().__init__(plan, table, SecretStream(test_seed=5))
        self.asked: list[Any] = []
        self.counts: dict[tuple[str, ...], np.ndarray] = {}
        self.answers: list[Any] = []
        self._replayed = None if answers is None else iter(answers)

    def _noted(self, question: tuple[Any, ...], answer: Any) -> Any:
        self.asked.append(question)
        found = answer if self._replayed is None else next(self._replayed)
        self.answers.append(found)
        return found

    def single(self, name: str) -> Any:
        self.counts[(name,)] = self._table.marginal((name,))
        return self._noted(("single", name), super().single(name))

    def choose(self, expected: Any, buckets: Any, penalty: float) -> Any:
        question = ("choose", {clique: table.tolist() for clique, table in expected.items()}, penalty)
        return self._noted(question, super().choose(expected, buckets, penalty))

    def joint(self, clique: Any, buckets: Any) -> Any:
        answer = super().joint(clique, buckets)
        self.counts[clique] = self._exact(clique, buckets)
        return self._noted(("joint", clique, [buckets[name].place.tolist() for name in clique]), answer)


def _kept(measurements: list[Measurement], *, total: float, start: Fitted, blocks: int, **_: object) -> Fitted:
    """A fit in no time; the real one sees the same noisy measurements and nothing else."""
    del measurements, total, blocks
    return start


PEOPLE = [
    (
        f"p{at // 2}",
        20 + at % 70,
        "Delft" if at % 3 else "Gouda",
        at % 7 / 7,
        at % 2 == 0,
        datetime.date(1990, 1, 1),
    )
    for at in range(400)
]
ODD = (None, None, None, None, None, None)
NEIGHBOURS: dict[str, list[tuple[Any, ...]]] = {
    "one row": [("eve", 44, "Delft", 0.5, True, datetime.date(1970, 5, 5))],
    "more rows than count": [("eve", age, "Delft", 0.5, True, None) for age in range(30)],
    "equal rows": [("eve", 44, "Delft", 0.5, True, None)] * 9,
    "nothing but missing values": [("eve", *ODD[1:])],
    "no person": [ODD],
    "outside of everything": [("eve", 10**9, "Urk", float("inf"), None, datetime.date(9999, 1, 1))],
    "not a number": [("eve", -5, "", float("nan"), False, datetime.date(1, 1, 1))],
    "a name like a separator": [("p0|1|0", 44, "Delft", -0.0, True, None)],
}


@pytest.mark.parametrize("who", NEIGHBOURS)
def test_with_the_answers_fixed_one_person_changes_nothing_that_is_asked_or_drawn(who, monkeypatch):
    """Neighbour replay: questions, buckets and model are equal; counts differ by a person's rows."""
    monkeypatch.setattr(synthesizing, "fit", _kept)
    request = Request.of(declared(unit={"column": "person", "rows": 3}), rows=10, epsilon=4.0)
    before = Taped(request.plan, counted(request, PEOPLE))
    after = Taped(request.plan, counted(request, [*PEOPLE, *NEIGHBOURS[who]]), None)
    first = Synthesizer(before, request.columns, request.candidates).run()
    after._replayed = iter(before.answers)
    second = Synthesizer(after, request.columns, request.candidates).run()
    assert before.asked == after.asked
    assert len(before.asked) > len(COLUMNS)  # choices and joint measurements too
    for clique, counts in before.counts.items():
        assert np.abs(after.counts[clique] - counts).sum() <= 3
    drawn = [found.model.draw(50, sampler=SecretStream(test_seed=1)) for found in (first, second)]
    assert all((drawn[0][name] == drawn[1][name]).all() for name in COLUMNS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One column of a fifth, so that no fit is needed."""
    folder = tmp_path_factory.mktemp("made")
    _release(folder / "s.csv", folder / "l.db")
    return folder


def _release(out: Path, ledger: Path) -> None:
    request = Request.of(declared({"city": COLUMNS["city"]}), rows=20, epsilon=2.0)
    with Ledger.open(ledger, budget=request.policy.budget) as opened:
        release(request, OneCity(), ledger=opened, out=out, sampler=SecretStream())


class OneCity:
    rows = 1

    def prepare(self) -> None:
        pass

    def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
        return np.array([300, 100, 0])


def _certificate(made: Path, **plan: Any) -> Certificate:
    data = json.loads((made / "s.certificate.json").read_text())
    data["plan"] |= plan
    place = made / "forged.json"
    place.write_text(json.dumps(data))
    return Certificate.read(place)


def test_a_certificate_states_the_plan_that_its_events_come_from(made):
    assert check_plan(_certificate(made))


@pytest.mark.keeps_out("A certificate of a synthetic table whose plan nobody compares with its events")
@pytest.mark.parametrize(
    "forged",
    [
        {"rows": 2},
        {"columns": 2},
        {"single_sigma": 1000.0},
        {"picks": [3]},
        {"fixed": 1},
        {"single_sigma": -1.0},
        {"picks": "many"},
        {"columns": None},
    ],
    ids=str,
)
def test_a_certificate_with_another_plan_is_not_verified(made, forged):
    """More noise, more people or other rounds than were charged."""
    with pytest.raises(NotVerified):
        check_plan(_certificate(made, **forged))


def test_a_crash_while_writing_leaves_the_charge_the_model_and_the_certificate(tmp_path, monkeypatch):
    """What was paid for is on disk before the table that can be drawn again."""

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(sys.modules["sfumato.synthesis.release"], "write_table", full)
    with pytest.raises(OSError, match="space"):
        _release(tmp_path / "s.csv", tmp_path / "l.db")
    assert not (tmp_path / "s.csv").exists()
    assert len(SyntheticModel.read(tmp_path / "s.model.npz").draw(7)["city"]) == 7
    certificate = Certificate.read(tmp_path / "s.certificate.json")
    with Ledger.open(tmp_path / "l.db") as ledger:
        ledger.verify(certificate=certificate)
    with pytest.raises(InvalidInput, match="made once"):  # and it is not made a second time over the first
        _release(tmp_path / "s.csv", tmp_path / "l.db")


def test_an_interrupt_after_the_charge_is_paid_and_leaves_no_exact_count(tmp_path, monkeypatch):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Synthesizer, "_measure_single", stopped)
    with pytest.raises(KeyboardInterrupt):
        _release(tmp_path / "s.csv", tmp_path / "l.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l.db"]
    with Ledger.open(tmp_path / "l.db") as ledger:
        assert ledger.epsilon_spent > 1.9


RULES = [
    ({"impossible": [{"married": [True, False], "city": ["Delft", "Gouda"]}]}, "no row is possible"),
    ({"impossible": [{"age": {"upper": 1}, "married": True}]}, "wholly"),
    ({"impossible": [{"age": {"upper": float("nan")}, "married": True}]}, "a finite number"),
    ({"impossible": [{"age": [], "married": True}]}, "got none"),
    ({"impossible": [{"age": {"upper": datetime.date(2000, 1, 1)}, "married": True}]}, "a number"),
    ({"impossible": [{"born": {"upper": 7}, "married": True}]}, "a day"),
    ({"impossible": [{"married": {"upper": 1}, "city": "Delft"}]}, "married"),
    ({"impossible": [{"married": 1, "city": "Delft"}]}, "a value of married"),
    ({"impossible": [{"married": [[True]], "city": "Delft"}]}, "a value of married"),
    ({"follows": {"city": {"given": ["married"], "values": {}}}}, "synthesis.follows.city"),
    ({"imposible": []}, "imposible"),
]


@pytest.mark.parametrize(("rules", "words"), RULES, ids=lambda value: str(value)[:40])
def test_rules_that_say_nothing_or_nonsense_get_a_sentence(rules, words):
    with pytest.raises(InvalidInput, match=words):
        Request.of(declared(synthesis=rules), rows=5, epsilon=1.0)


MANY = {f"c{at}": {"type": "boolean"} for at in range(500)}
WIDE = {name: {"type": "integer", "categories": list(range(100))} for name in "abc"}


def test_five_hundred_columns_get_a_sentence_whose_remedy_works():
    with pytest.raises(InvalidInput, match="--columns"):
        Request.of(declared(MANY), rows=5, epsilon=1.0)
    assert len(Request.of(declared(MANY), rows=5, epsilon=1.0, columns=["c1", "c7"]).columns) == 2
    large = {**MANY, "id": {"type": "integer", "categories": list(range(5000))}}
    with pytest.raises(InvalidInput, match="at most 4096 categories of id"):
        Request.of(declared(large), rows=5, epsilon=1.0, columns=["c1", "id"])


def test_a_workload_is_never_left_out_in_silence():
    with pytest.raises(InvalidInput, match="cells"):
        Request.of(declared(WIDE), rows=5, epsilon=1.0, marginals=[["a", "b", "c"]])
    with pytest.raises(InvalidInput, match="got none"):
        Request.of(declared(WIDE), rows=5, epsilon=1.0, marginals=[])


def test_too_small_an_epsilon_is_said_before_the_charge_where_the_size_is_declared():
    small = declared(table={"public_size": 100})
    assert "public_size=100" in str(Request.of(small, rows=5, epsilon=0.01).forecast)
    assert Request.of(small, rows=5, epsilon=4.0).forecast is None
    assert Request.of(declared(), rows=5, epsilon=0.01).forecast is None  # nobody knows the size


CANARIES, CELLS = 200, 40
TINY = 1e-10  # a δ far below α: the bound for one run adds 2·CANARIES·δ to its p-value
PAIR = [CellColumn(name=name, type="integer", values=tuple(range(CELLS))) for name in "ab"]


class Flat:
    rows = 1

    def prepare(self) -> None:
        pass

    def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
        counts = np.full([CELLS + 1] * len(clique), 6 * CELLS if len(clique) == 1 else 6)
        for axis in range(len(clique)):
            np.moveaxis(counts, axis, 0)[-1] = 0
        return counts


def _audited(plan: SynthesisPlan) -> float:
    """The ε that canaries prove of a whole run, at α = 1e-6."""
    sampler = SecretStream(test_seed=11)
    included = one_run.toss(CANARIES, sampler)
    canaries = draw_canaries(PAIR, CANARIES, sampler)
    paid = PaidTable(plan, WithCanaries(Flat(), canaries, included), sampler)
    found = Synthesizer(paid, PAIR, [("a", "b")]).run()
    guesses = one_run.Guesses.of_scores(
        membership_scores(found.model, canaries), included, guesses=CANARIES // 2
    )
    return one_run.epsilon_bound(guesses, delta=TINY, alpha=1e-6)


def test_canaries_through_a_whole_run_refute_too_little_noise_and_not_the_real_one():
    pytest.importorskip("mbi")
    plan = SynthesisPlan.calibrated(epsilon=0.5, delta=TINY, columns=2, picks=(1,))
    assert _audited(plan) <= 0.5
    assert _audited(replace(plan, joint_sigma=0.3)) > 0.5
