"""What is declared to hold for every row holds for every row, and costs nothing."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.errors import DataCorrupted, InvalidInput
from sfumato.policy import Policy, policy_from_dict
from sfumato.randomness import SecretStream
from sfumato.synthesis import CellColumn, Request, SyntheticModel
from sfumato.synthesis.cells import to_table
from sfumato.synthesis.rules import Rules

AGE = CellColumn(name="age", type="integer", lower=0, upper=119, width=2)
CITY = CellColumn(name="city", type="text", values=("Delft", "Utrecht"))
REGION = CellColumn(name="region", type="text", values=("south", "middle"))
MARRIED = CellColumn(name="married", type="boolean", values=(False, True))
COLUMNS = (AGE, CITY, REGION, MARRIED)
LOOKUP = {"given": "city", "values": {"Delft": "south", "Utrecht": "middle"}}
DECLARED = {
    "follows": {"region": LOOKUP},
    "impossible": [{"age": {"upper": 15}, "married": True}, {"region": "middle", "married": [False, True]}],
}


def policy(synthesis: dict[str, object]) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "people", "source": "people.csv"},
            "budget": {"epsilon": 1.0, "delta": 1e-6},
            "columns": {
                "age": {"type": "integer", "lower": 0, "upper": 119},
                "region": {"type": "text", "categories": ["south", "middle"]},
                "city": {"type": "text", "categories": ["Delft", "Utrecht"]},
                "married": {"type": "boolean"},
            },
            "synthesis": synthesis,
        }
    )


def model(rules: Rules) -> SyntheticModel:
    learned = (AGE, CITY, MARRIED)
    tables = {(column.name,): np.full(column.size, 1 / column.size) for column in learned}
    shares = {column.name: np.eye(column.size) for column in learned}
    made = SyntheticModel.of(learned, shares, tables, 100.0)
    return SyntheticModel(made.columns, made.shares, made.steps, made.total, rules)


def test_drawn_rows_obey_and_a_model_that_forgot_the_rules_would_not(tmp_path):
    obedient = model(Rules.of(DECLARED, COLUMNS))
    obedient.write(tmp_path / "m.npz")
    for each in (obedient, SyntheticModel.read(tmp_path / "m.npz")):
        cells = each.draw(2000)
        rows = to_table(COLUMNS, cells, SecretStream()).to_pandas()
        assert len(rows) == 2000
        assert not ((rows["age"] <= 15) & (rows["married"] == True)).any()  # noqa: E712  # it may be missing
        assert set(rows["city"].dropna()) == {"Delft"} | (
            {"Utrecht"} & set(rows["city"][rows["married"].isna()])
        )
        assert (rows["region"][rows["city"] == "Delft"] == "south").all()
        assert rows["region"][rows["city"].isna()].isna().all()
    forgetful = Rules.of(DECLARED, COLUMNS).complete(model(Rules()).draw(2000))
    assert not obedient.rules.possible(forgetful).all()


def test_a_model_of_impossible_rows_alone_draws_none():
    each = [{"city": city, "married": [False, True]} for city in ("Delft", "Utrecht")]
    sure = model(Rules.of({"impossible": each}, COLUMNS))
    sure.steps[1].chances[:] = [0.5, 0.5, 0.0]
    sure.steps[2].chances[:] = [0.5, 0.5, 0.0]
    assert len(sure.draw(50)["age"]) == 0


def test_what_follows_is_not_measured_and_stands_in_its_place():
    request = Request.of(policy(DECLARED), rows=10, epsilon=1.0)
    assert [column.name for column in request.columns] == ["age", "city", "married"]
    assert [column.name for column in request.drawn] == ["age", "region", "city", "married"]
    assert request.plan.columns == 3
    some = Request.of(policy(DECLARED), rows=10, epsilon=1.0, columns=["region", "married"])
    assert [column.name for column in some.columns] == ["region", "married"]  # learned, as city is not there
    assert some.rules == Rules((), (Rules.of(DECLARED, COLUMNS).impossible[1],))


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"follows": {"province": LOOKUP}}, "province"),
        ({"follows": {"region": {"given": "city"}}}, "given and values"),
        ({"follows": {"region": {**LOOKUP, "values": {"Delft": "south"}}}}, "Utrecht missing"),
        ({"follows": {"region": {**LOOKUP, "values": {"Delft": "south", "Utrecht": "east"}}}}, "east"),
        ({"follows": {"region": {**LOOKUP, "given": "age"}}}, "categories"),
        ({"follows": {"region": LOOKUP, "city": {"given": "region", "values": {}}}}, "one value of city"),
        ({"follows": "region"}, "table of names"),
        ({"impossible": [{"married": True}]}, "two columns"),
        ({"impossible": [{"married": True, "age": 7}]}, "a value of age"),
        ({"impossible": [{"married": True, "city": {"upper": 3}}]}, "lower and upper"),
        ({"impossible": ["married"]}, "table of names"),
        ({"forbidden": []}, "forbidden"),
    ],
)
def test_rules_that_say_nothing_sensible_get_a_sentence_before_anything_is_spent(declared, words):
    with pytest.raises(InvalidInput, match=words):
        Request.of(policy(declared), rows=10, epsilon=1.0)


def test_bounds_of_dates_and_reals():
    born = CellColumn(name="born", type="date", values=tuple(datetime.date(2000, 1, day) for day in (1, 2, 3)))
    weight = CellColumn(name="weight", type="real", lower=0.0, upper=4.0, width=1.0)
    declared = {"impossible": [{"born": {"lower": datetime.date(2000, 1, 2)}, "weight": {"upper": 2.0}}]}
    assert Rules.of(declared, (born, weight)).impossible == ({"born": (1, 2), "weight": (0, 1)},)


@pytest.mark.parametrize("fault", [("cells", [0, 9, 0]), ("given", "age"), ("cells", [0])])
def test_a_model_whose_rules_were_tampered_with_is_refused(fault, tmp_path, monkeypatch):
    data = Rules.of(DECLARED, COLUMNS).to_json()
    data["follows"][0][fault[0]] = fault[1]
    monkeypatch.setattr(Rules, "to_json", lambda self: data)
    model(Rules.of(DECLARED, COLUMNS)).write(tmp_path / "m.npz")
    with pytest.raises(DataCorrupted):
        SyntheticModel.read(tmp_path / "m.npz")


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=20))
@settings(max_examples=20, deadline=None)
def test_possible_says_what_a_loop_says(rows):
    rules = Rules.of(DECLARED, COLUMNS)
    cells = rules.complete(dict(zip(("age", "city", "married"), np.array(rows).T, strict=True)))
    slow = [
        not any(all(cells[name][at] in places for name, places in each.items()) for each in rules.impossible)
        for at in range(len(rows))
    ]
    assert rules.possible(cells).tolist() == slow
