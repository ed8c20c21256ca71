"""What is answered, what is refused, and that a refusal says why and what to ask instead."""

from __future__ import annotations

import pytest

from sfumato.query import Policy, QueryRefused, parse_query, policy_from_dict
from sfumato.query.aggregates import measures_for
from sfumato.query.conditions import Comparison
from sfumato.query.expressions import ColumnValue
from sfumato.query.measures import BoundedSum, Moments, UnitCount
from sfumato.query.numbers import Number
from sfumato.query.plan import Aggregate, GroupKey


@pytest.fixture
def policy() -> Policy:
    return policy_from_dict(
        {
            "table": {"name": "people", "source": "people.csv"},
            "unit": {"column": "person", "rows": 2},
            "budget": {"epsilon": 1, "delta": 1e-6},
            "columns": {
                "age": {"type": "integer", "lower": 0, "upper": 120},
                "income": {"type": "real", "lower": 0, "upper": 1e6},
                "weight": {"type": "real"},
                "city": {"type": "text", "categories": ["Delft", "Utrecht"]},
                "name": {"type": "text"},
                "born": {"type": "date"},
                "smoker": {"type": "boolean"},
            },
        }
    )


ANSWERED = {
    "SELECT COUNT(*) FROM people": ("count", None),
    "select count(age) n from People p where p.age > 3": ("count", "age"),
    "SELECT COUNT(DISTINCT person) FROM people": ("count_units", None),
    "SELECT SUM(age) FROM people": ("sum", "age"),
    "SELECT AVG(income) FROM people": ("avg", "income"),
    "SELECT VARIANCE(age) FROM people": ("var", "age"),
    "SELECT VAR_POP(age) FROM people": ("var_pop", "age"),
    "SELECT STDDEV_SAMP(age) FROM people": ("stddev", "age"),
    "SELECT MEDIAN(age) FROM people": ("quantile", "age"),
    "SELECT PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY age) FROM people": ("quantile", "age"),
}


@pytest.mark.parametrize("sql", ANSWERED)
def test_aggregates_are_understood(policy: Policy, sql: str) -> None:
    function, column = ANSWERED[sql]
    (aggregate,) = parse_query(sql, policy).aggregates
    assert aggregate.function == function
    assert aggregate.of == (None if column is None else ColumnValue(column))


def test_levels_of_quantiles(policy: Policy) -> None:
    sql = (
        "SELECT QUANTILE(age, 0.9) a, PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY age DESC) b, MEDIAN(age) c "
        "FROM people"
    )
    assert [aggregate.level for aggregate in parse_query(sql, policy).aggregates] == [0.9, 0.75, 0.5]


def test_groups_order_and_limit(policy: Policy) -> None:
    query = parse_query(
        "SELECT city, BIN(age, 12) AS decade, AVG(income) AS mean FROM people WHERE age >= 18 "
        "GROUP BY 1, decade ORDER BY mean DESC LIMIT 3",
        policy,
    )
    assert query.keys == (GroupKey("city"), GroupKey("age", 12))
    assert query.where == Comparison(">=", ColumnValue("age"), Number(18.0))
    assert (query.order, query.limit) == (((2, True),), 3)


def test_a_histogram_is_a_count_by_bins(policy: Policy) -> None:
    query = parse_query("SELECT HISTOGRAM(age, 4) FROM people", policy)
    assert query.keys == (GroupKey("age", 4),)
    assert query.aggregates == (Aggregate("count"),)
    assert [output.name for output in query.outputs] == ["age", "count"]


def test_few_measures_answer_many_aggregates(policy: Policy) -> None:
    sql = "SELECT COUNT(*), AVG(age), STDDEV(age), SUM(age), SUM(income), COUNT(DISTINCT person) FROM people"
    kinds = [type(measure) for measure in measures_for(parse_query(sql, policy), policy)]
    assert kinds == [Moments, BoundedSum, UnitCount]


REFUSED = {
    "SELECT * FROM people": "single rows",
    "SELECT people.* FROM people": "single rows",
    "SELECT age FROM people": "AVG(age)",
    "SELECT name, COUNT(*) FROM people GROUP BY city": "GROUP BY name",
    "SELECT city FROM people GROUP BY city": "aggregate",
    "SELECT COUNT(*) FROM people JOIN other ON true": "joins",
    "SELECT COUNT(*) FROM people, other": "joins",
    "SELECT COUNT(*) FROM (SELECT * FROM people)": "one row of each person",
    "SELECT COUNT(*) FROM people WHERE age > (SELECT AVG(age) FROM people)": "sub-queries",
    "SELECT COUNT(*) FROM people WHERE EXISTS (SELECT 1 FROM people)": "sub-queries",
    "SELECT COUNT(*) FROM people WHERE age IN (SELECT age FROM people)": "sub-queries",
    "WITH p AS (SELECT * FROM people) SELECT COUNT(*) FROM p": "one row of each person",
    "SELECT COUNT(*) FROM people UNION SELECT COUNT(*) FROM people": "only SELECT",
    "SELECT DISTINCT city, COUNT(*) FROM people GROUP BY city": "DISTINCT",
    "SELECT COUNT(*) FROM people; DROP TABLE people": "one statement",
    "DROP TABLE people": "only SELECT",
    "INSERT INTO people VALUES (1)": "only SELECT",
    "COPY people TO '/tmp/x'": "only SELECT",
    "ATTACH 'x.db'": "only SELECT",
    "PRAGMA database_list": "only SELECT",
    "SELECT COUNT(*) FROM read_csv('/etc/passwd')": "only the table",
    "SELECT COUNT(*) FROM '/etc/passwd'": "only the table",
    "SELECT COUNT(*) FROM secret.people": "only the table",
    "SELECT COUNT(*) FROM other": "only the table",
    "SELECT COUNT(*)": "only the table",
    "SELECT COUNT(*) FROM people TABLESAMPLE 10%": "only the table",
    "SELECT my_udf(age) FROM people": "my_udf",
    "SELECT AVG(my_udf(age)) FROM people": "my_udf",
    "SELECT COUNT(*) FROM people WHERE my_udf(age) > 1": "my_udf",
    "SELECT COUNT(*) FROM people WHERE pg_sleep(10) IS NULL": "no such function",
    "SELECT SUM(age) OVER () FROM people": "single rows",
    "SELECT ROW_NUMBER() OVER (ORDER BY age) FROM people": "single rows",
    "SELECT MAX(age) FROM people": "QUANTILE(age, 0.99)",
    "SELECT MIN(age) FROM people": "QUANTILE(age, 0.01)",
    "SELECT QUANTILE(age, 1) FROM people": "between 0 and 1",
    "SELECT STRING_AGG(name, ',') FROM people": "not answered",
    "SELECT ARRAY_AGG(age) FROM people": "not answered",
    "SELECT AVG(DISTINCT age) FROM people": "DISTINCT",
    "SELECT AVG(weight) FROM people": "bounds",
    "SELECT SUM(age * weight) FROM people": "bounds",
    "SELECT AVG(name) FROM people": "not a number",
    "SELECT AVG(age / income) FROM people": "GREATEST(divisor, 1)",
    "SELECT AVG(age / 0) FROM people": "divides by 0",
    "SELECT COUNT(*) FROM people WHERE 1 / income > 2": "divisor",
    "SELECT COUNT(*) FROM people WHERE CAST(name AS INTEGER) = 3": "not answered",
    "SELECT COUNT(*) FROM people WHERE name < 'M'": "sort",
    "SELECT COUNT(*) FROM people WHERE name LIKE '%a%b%c%d%e%f%g%h%i%j%'": "LIKE",
    "SELECT COUNT(*) FROM people WHERE name SIMILAR TO '(a+)+'": "not answered",
    "SELECT COUNT(*) FROM people WHERE person = 7": "COUNT(DISTINCT person)",
    "SELECT person, COUNT(*) FROM people GROUP BY person": "COUNT(DISTINCT person)",
    "SELECT income, COUNT(*) FROM people GROUP BY income": "BIN(income, 10)",
    "SELECT nothing FROM people": "no column nothing",
    "SELECT COUNT(*) FROM people GROUP BY ROLLUP (city)": "ROLLUP",
    "SELECT COUNT(*) FROM people GROUP BY 7 + 1": "GROUP BY",
    "SELECT COUNT(*) FROM people GROUP BY income / 2": "real number",
    "SELECT COUNT(*) FROM people ORDER BY age": "single rows",
    "SELECT COUNT(*) FROM people LIMIT age": "LIMIT",
    "SELECT COUNT(*) FROM people WHERE born < '2020-13-40'": "day",
    "SELECT COUNT(*) FROM people WHERE age > 1e300": "2**52",
    "SELECT SUM(income * income * income * income) FROM people": "2**52",
    "SELECT COUNT(*), COUNT(*) FROM people": "same name",
    "SELECT BIN(age, 100000000), COUNT(*) FROM people GROUP BY 1": "bins",
    "SELECT BIN(age, 10000), BIN(income, 10000), COUNT(*) FROM people GROUP BY 1, 2": "groups",
    "SELEC COUNT(*) FROM people": "not SQL",
    "SELECT COUNT(* FROM people": "not SQL",
    "": "one statement",
}


@pytest.mark.keeps_out("A refusal that suggests what is refused, too")
@pytest.mark.parametrize("sql", REFUSED)
def test_a_refusal_says_why_and_suggests_a_query_that_is_answered(policy: Policy, sql: str) -> None:
    with pytest.raises(QueryRefused) as refusal:
        parse_query(sql, policy)
    assert REFUSED[sql].lower() in str(refusal.value).lower()
    assert parse_query(refusal.value.nearest, policy).aggregates


NEAREST = {
    "SELECT WIDTH_BUCKET(age, 0, 100, 10) AS b, COUNT(*) FROM people WHERE smoker GROUP BY b": (
        "SELECT BIN(age, 10), COUNT(*) FROM people WHERE smoker GROUP BY BIN(age, 10)"
    ),
    "SELECT age FROM people WHERE city = 'Delft'": "SELECT AVG(age) FROM people WHERE city = 'Delft'",
    "SELECT city, MAX(age), AVG(income) FROM people WHERE age > 18 GROUP BY city ORDER BY 1": (
        "SELECT city, QUANTILE(age, 0.99), AVG(income) FROM people WHERE age > 18 GROUP BY city ORDER BY 1"
    ),
    "SELECT income, COUNT(*) FROM people WHERE smoker GROUP BY income": (
        "SELECT BIN(income, 10), COUNT(*) FROM people WHERE smoker GROUP BY BIN(income, 10)"
    ),
    "SELECT AVG(age) FROM people WHERE city = 'Paris' AND smoker": "SELECT AVG(age) FROM people WHERE smoker",
    "SELECT AVG(age), AVG(weight) FROM people GROUP BY smoker": (
        "SELECT AVG(age), COUNT(*) FROM people GROUP BY smoker"
    ),
    "SELECT * FROM people WHERE age > 80": "SELECT COUNT(*) FROM people WHERE age > 80",
    "SELECT AVG(age) FROM people JOIN other ON TRUE WHERE age > 3": "SELECT AVG(age) FROM people WHERE age > 3",
    "SELECT COUNT(*) FROM people WHERE person = 7 AND age > 3": (
        "SELECT COUNT(DISTINCT person) FROM people WHERE age > 3"
    ),
}


@pytest.mark.parametrize("sql", NEAREST)
def test_a_suggestion_is_near_to_what_was_asked(policy: Policy, sql: str) -> None:
    with pytest.raises(QueryRefused) as refusal:
        parse_query(sql, policy)
    assert refusal.value.nearest == NEAREST[sql]


@pytest.mark.parametrize(
    "text",
    [
        "'; DROP TABLE people; --",
        "x' OR '1'='1",
        "東京",
        "a\nb",
        "%s",
        "{}",
        '"quoted"',
        "$1",
        ":name",
        "/* */",
    ],
)
def test_texts_stay_texts(policy: Policy, text: str) -> None:
    """A constant can hold anything but what engines read differently; it never becomes SQL."""
    literal = text.replace("'", "''")
    query = parse_query(f"SELECT COUNT(*) FROM people WHERE name = '{literal}'", policy)
    assert query.where is not None
    assert query.where.constants == (text,)  # type: ignore[union-attr]


@pytest.fixture
def clinic() -> Policy:
    return policy_from_dict(
        {
            "tables": {
                "Patients": {
                    "source": "patients.csv",
                    "unit": "PatientID",
                    "rows": 1,
                    "columns": {
                        "Age (years)": {"type": "integer", "lower": 0, "upper": 120},
                        "Department": {"type": "text", "categories": ["heart", "lung"]},
                        "Income": {"type": "real", "lower": 0, "upper": 1e5},
                        "Admitted": {"type": "date"},
                    },
                },
                "visits": {
                    "source": "visits.csv",
                    "columns": {
                        "days": {"type": "integer", "lower": 0, "upper": 30},
                        "Income": {"type": "real", "lower": 0, "upper": 1e5},
                    },
                },
            },
            "unit": {"column": "patient", "rows": 2},
            "budget": {"epsilon": 1, "delta": 1e-6},
        }
    )


@pytest.mark.parametrize(
    ("sql", "nearest"),
    [
        ("SELECT AVG(Age (years)) FROM Patients", 'SELECT AVG("Age (years)") FROM Patients'),
        ("SELECT avg(age (YEARS)) FROM Patients", 'SELECT avg("Age (years)") FROM Patients'),
        (
            "SELECT COUNT(*) FROM Patients WHERE Age (years) > 3",
            'SELECT COUNT(*) FROM Patients WHERE "Age (years)" > 3',
        ),
        ("SELECT QUANTILE(Income, 25) FROM Patients", "SELECT QUANTILE(Income, 0.25) FROM Patients"),
        (
            "SELECT COUNT(*) FROM Patients AS p LEFT JOIN visits AS v ON p.PatientID = v.patient "
            "WHERE v.patient IS NULL AND p.Income > 3",
            "SELECT COUNT(*) FROM Patients AS p LEFT JOIN visits AS v ON p.PatientID = v.patient "
            "WHERE v.days IS NULL AND p.Income > 3",
        ),
    ],
)
def test_what_was_meant_is_suggested(clinic: Policy, sql: str, nearest: str) -> None:
    with pytest.raises(QueryRefused) as refused:
        parse_query(sql, clinic)
    assert refused.value.nearest == nearest
    parse_query(refused.value.nearest, clinic)


def test_the_first_text_of_a_person_has_a_remedy(clinic: Policy) -> None:
    sql = "SELECT d, COUNT(*) FROM (SELECT PatientID, {} AS d FROM Patients GROUP BY PatientID) GROUP BY d"
    for function in ("MIN", "MAX"):
        with pytest.raises(QueryRefused, match=rf"ARG_{function}\(Department, Admitted\)"):
            parse_query(sql.format(f"{function}(Department)"), clinic)
    parse_query(sql.format("ARG_MIN(Department, Admitted)"), clinic)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        (
            "SELECT department, COUNT(*), AVG(INCOME) FROM patients GROUP BY 1",
            ["Department", "count(*)", "avg(Income)"],
        ),
        ("SELECT DEPARTMENT AS Ward, COUNT(*) AS N FROM patients GROUP BY Ward", ["Ward", "N"]),
        ('SELECT AVG("age (years)") FROM patients ORDER BY avg("Age (YEARS)")', ["avg(Age (years))"]),
        (
            "SELECT p.department, AVG(P.income), AVG(v.INCOME) FROM patients p JOIN visits v "
            "ON p.PatientID = v.patient GROUP BY p.Department",
            ["Department", "avg(p.Income)", "avg(v.Income)"],
        ),
        ("SELECT SUM(income) / COUNT(*) FROM patients", ["sum(Income) / count(*)"]),
        ("SELECT department FROM (SELECT Department, COUNT(*) AS n FROM patients GROUP BY 1)", ["Department"]),
    ],
)
def test_columns_of_an_answer_are_spelled_as_the_policy_does(
    clinic: Policy, sql: str, names: list[str]
) -> None:
    found = parse_query(sql, clinic)
    shown = found.post.names if found.post is not None else [output.name for output in found.outputs]
    assert list(shown) == names
