"""A synthetic table from a policy to its files, on DuckDB."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sfumato.accounting import Relation
from sfumato.errors import BudgetExceeded, InvalidInput, LittleProtection
from sfumato.ledger import Budget, Certificate, Ledger
from sfumato.policy import Policy, policy_from_dict
from sfumato.query.engines import open_engine
from sfumato.query.expressions import column_name
from sfumato.query.measures import UNIT
from sfumato.randomness import SecretStream, public_generator
from sfumato.synthesis import EngineMarginals, Places, Request, SyntheticModel, release, workload
from sfumato.synthesis.synthesizer import TOO_LITTLE

PEOPLE = 4000


def request_of(rules: Policy, **terms: object) -> Request:
    return Request.of(rules, leave_out=[name for name in rules.columns if name == "note"], **terms)


def policy(**unit: object) -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "people", "source": "people.csv"},
            "unit": unit,
            "budget": {"epsilon": 10, "delta": 1e-6},
            "columns": {
                "age": {"type": "integer", "lower": 0, "upper": 120},
                "city": {"type": "text", "categories": ["Delft", "Gouda", "Urk"]},
                "ill": {"type": "boolean"},
                "born": {
                    "type": "date",
                    "lower": datetime.date(1900, 1, 1),
                    "upper": datetime.date(2029, 12, 31),
                },
                "note": {"type": "text"},
            },
        }
    )


def people(size: int = PEOPLE) -> pd.DataFrame:
    """Age decides illness; one in five has no city; nobody lives in Urk."""
    draw = public_generator(7)
    age = draw.integers(20, 80, size)
    city = draw.choice(np.array(["Delft", "Gouda", None], dtype=object), size, p=[0.5, 0.3, 0.2])
    born = [datetime.date(2026 - int(year), 6, 1) for year in age]
    frame = pd.DataFrame({"age": age, "city": city, "ill": age >= 50, "born": born, "note": "x"})
    return frame.astype({"city": "string"})


def counted(request: Request, data: pd.DataFrame) -> EngineMarginals:
    rules = request.policy
    engine = open_engine(rules, data=data)
    return EngineMarginals(
        engine.declared(rules),
        request.columns,
        names={column.name: column_name(column.name, rules) for column in request.columns},
        unit=None if rules.unit.column is None else UNIT,
        rows=rules.unit.rows,
        salt="salt",
        prepare=engine.prepare,
        fetch=engine.fetch,
        keep=True,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mbi")
    folder = tmp_path_factory.mktemp("made")
    request = request_of(policy(), rows=3000, epsilon=4.0)
    with Ledger.open(folder / "l.db", budget=request.policy.budget) as ledger:
        release(
            request,
            counted(request, people()),
            ledger=ledger,
            out=folder / "s.parquet",
            sampler=SecretStream(test_seed=3),
        )
    return folder


def test_types_and_ranges_are_the_declared_ones(made):
    table = pd.read_parquet(made / "s.parquet", dtype_backend="pyarrow")
    assert len(table) == 3000
    assert list(table) == ["age", "city", "ill", "born"]
    assert [str(kind) for kind in table.dtypes] == [
        "int64[pyarrow]",
        "string[pyarrow]",
        "bool[pyarrow]",
        "date32[day][pyarrow]",
    ]
    assert table["age"].between(0, 120).all()
    assert set(table["city"].dropna()) <= {"Delft", "Gouda", "Urk"}


def test_what_the_crowd_has_in_common_is_kept(made):
    """Tolerances are five times the noise of a marginal at this plan, and far below the effects."""
    table = pd.read_parquet(made / "s.parquet")
    assert table["city"].isna().mean() == pytest.approx(0.2, abs=0.05)
    assert not table["ill"].isna().any()  # a column without missing values gets none
    old = table["age"] >= 52
    assert table["ill"][old].astype(float).mean() > 0.8 > 0.2 > table["ill"][~old].astype(float).mean()


def test_the_certificate_verifies_and_the_ledger_holds_it(made):
    certificate = Certificate.read(made / "s.certificate.json")
    assert certificate.verify().pld <= 4.0
    assert certificate.relation is Relation.ADD_REMOVE
    assert any("note" in caveat for caveat in certificate.caveats)
    assert not certificate.private  # its noise was seeded
    with Ledger.open(made / "l.db") as ledger:
        ledger.verify(certificate=certificate)


def test_more_rows_can_be_drawn_from_the_model(made):
    model = SyntheticModel.read(made / "s.model.npz")
    assert len(model.draw(10)["age"]) == 10
    assert model.marginal(("ill",)).sum() == pytest.approx(1)


def test_more_rows_have_values_as_the_released_table_has_them(made):
    released = pd.read_parquet(made / "s.parquet")
    more = SyntheticModel.read(made / "s.model.npz").table(500)
    assert (list(released), more.num_rows) == (more.column_names, 500)
    found = more.to_pandas()
    assert [str(kind) for kind in found.dtypes] == [str(kind) for kind in released.dtypes]
    assert set(found["city"].dropna()) <= {"Delft", "Gouda", "Urk"}
    assert found["ill"][found["age"] >= 52].astype(float).mean() > 0.8


def test_progress_is_told_as_often_as_foretold_at_most(tmp_path):
    pytest.importorskip("mbi")
    request = request_of(policy(), rows=50, epsilon=4.0, target="ill", columns=["ill", "city"])
    told: list[str] = []
    with Ledger.open(tmp_path / "l.db", budget=request.policy.budget) as ledger:
        release(
            request,
            counted(request, people()),
            ledger=ledger,
            out=tmp_path / "s.csv",
            sampler=SecretStream(test_seed=3),
            progress=told.append,
        )
    assert told[0] == "single columns"
    assert any(words.startswith("columns with the target: fitting") for words in told)
    assert len(told) == request.stages


def test_the_report_says_what_was_measured_and_what_was_not(made):
    report = json.loads((made / "s.fidelity.json").read_text())
    pairs = {tuple(item["columns"]) for item in report["measured"]}
    rest = {tuple(item) for item in report["not_measured"]}
    request = request_of(policy(), rows=1, epsilon=4.0)
    assert pairs | rest == set(request.candidates)
    assert pairs
    ill = next(item for item in report["columns"] if item["column"] == "ill")
    assert all(low <= high for low, high in zip(ill["low"], ill["high"], strict=True))
    assert "Not good for" in (made / "s.fidelity.txt").read_text()
    page = (made / "s.fidelity.html").read_text()
    assert all(f"<h3>{name}</h3>" in page for name in ("age", "city", "ill"))
    shown = next(item for item in report["measured"] if "shape" in item)
    assert len(shown["synthetic"]) == len(shown["measured"]) == shown["cells"]
    assert sum(shown["synthetic"]) == pytest.approx(1, abs=1e-3)


def test_distances_to_the_real_table_are_private(made):
    assert (made / "private").stat().st_mode & 0o077 == 0
    found = json.loads((made / "private" / "s.distances.json").read_text())
    assert max(found["distances"].values()) < 0.5


def test_files_are_not_overwritten(made):
    with pytest.raises(InvalidInput, match="made once"):
        Places(made / "s.parquet")


def test_too_little_epsilon_gives_independent_columns_and_says_so(tmp_path):
    request = request_of(policy(), rows=50, epsilon=0.01)
    with Ledger.open(tmp_path / "l.db", budget=request.policy.budget) as ledger:
        done = release(
            request,
            counted(request, people(1)),  # a table of one row
            ledger=ledger,
            out=tmp_path / "s.csv",
            sampler=SecretStream(),
        )
    assert TOO_LITTLE in done.notes
    assert len(pd.read_csv(tmp_path / "s.csv")) == 50


def test_what_does_not_fit_the_budget_is_refused_before_a_row_is_read(tmp_path):
    request = request_of(policy(), rows=10, epsilon=3.0)

    class Untouchable:
        rows = 1

        def prepare(self) -> None:
            pass

        def marginal(self, clique: tuple[str, ...]) -> np.ndarray:
            raise AssertionError("the table was read")

    with (
        Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1, delta=1e-6)) as ledger,
        pytest.raises(BudgetExceeded),
    ):
        release(request, Untouchable(), ledger=ledger, out=tmp_path / "s.csv", sampler=SecretStream())
    assert not (tmp_path / "s.csv").exists()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"target": "nonsense"}, "target"),
        ({"marginals": [["age", "nonsense"]]}, "nonsense"),
        ({"marginals": [["age"]]}, "two or three"),
        ({"marginals": [["age", "age"]]}, "two or three"),
        ({"columns": ["nonsense"]}, "nonsense"),
        ({"rows": 0}, "rows"),
        ({"rows": 10**9}, "rows"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.0}, "delta > 0"),
    ],
)
def test_bad_requests_get_a_sentence(wrong, words):
    with pytest.raises(InvalidInput, match=words):
        request_of(policy(), **{"rows": 10, "epsilon": 1.0, **wrong})


def test_an_epsilon_that_protects_nobody_is_said():
    with pytest.warns(LittleProtection, match="this table"):
        request_of(policy(), rows=10, epsilon=60.0)


def test_one_column_of_one_value_is_a_table_too(tmp_path):
    rules = policy_from_dict(
        {
            "table": {"name": "t", "source": "t.csv"},
            "budget": {"epsilon": 10, "delta": 1e-6},
            "columns": {"c": {"type": "text", "categories": ["only"]}},
        }
    )
    request = request_of(rules, rows=5, epsilon=1.0)
    with Ledger.open(tmp_path / "l.db", budget=rules.budget) as ledger:
        release(
            request,
            counted(request, pd.DataFrame({"c": pd.array(["only"] * 500, dtype="string")})),
            ledger=ledger,
            out=tmp_path / "s.csv",
            sampler=SecretStream(),
        )
    assert pd.read_csv(tmp_path / "s.csv")["c"].tolist() == ["only"] * 5


def test_with_a_target_every_column_is_measured_together_with_it():
    request = request_of(policy(), rows=1, epsilon=1.0, target="ILL")
    assert request.plan.target == "ill"
    assert request.fixed == (("age", "ill"), ("city", "ill"), ("ill", "born"))
    assert not set(request.fixed) & set(request.candidates)
    assert request.plan.fixed == 3


def test_a_workload_of_ones_own():
    found = request_of(
        policy(), rows=1, epsilon=1.0, marginals=[["ill", "age"], ["age", "ill"], ["city", "age"]]
    )
    assert found.candidates == (("age", "ill"), ("age", "city"))
    assert sum(found.plan.picks) == 2
    assert workload(found.columns, named=[["born", "age", "ill"]]) == (("age", "ill", "born"),)
