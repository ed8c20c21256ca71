"""Plans, statements and opinions on the desk."""

from __future__ import annotations

import html
import json
import re
from urllib.parse import urlencode

import pytest
import yaml

COUNTS = "SELECT city, COUNT(*) FROM people GROUP BY city"
PLAN = "/plan?" + urlencode(
    {"dataset": "people", "plan": "year", "name": "counts", "kind": "query", "epsilon": "0.05", "times": "12"}
    | {"details": COUNTS}
)


def test_a_plan_is_priced_from_its_address(ann):
    page = ann.page(PLAN)
    assert page.status_code == 200
    assert "less than one after another" in page.text
    assert "Charge it as one" not in page.text  # an analyst plans, an officer charges


@pytest.mark.keeps_out("A plan that prices another release than the question that is asked")
@pytest.mark.parametrize("button", ["counts", "average", "query"])
def test_a_line_to_begin_with_is_priced_as_its_question(another, button):
    """The error that the plan states is that of the dry run, for people of five rows each; it can be asked."""
    served = another(more='[unit]\ncolumn = "secret_number"\nrows = 5\ngroups = 2')
    ann = served.person("ann", "analyst", allocation=5.0)
    page = ann.page(f"/plan?dataset=people&plan=year&add={button}")
    sql = html.unescape(re.search('name="details" value="([^"]+)"', page.text)[1])
    epsilon = float(re.search('name="epsilon"[^>]* value="([^"]+)"', page.text)[1])
    told = ann.api("POST", "/api/v1/tables/people/expect", json={"sql": sql, "epsilon": epsilon}).json()
    for error in told["expected_errors"]:
        assert html.escape(f"{error['column']} ± {error['half_width']:.4g}") in page.text
    dry = served.desk.dataset("people").table.dry_run(sql, epsilon=epsilon)
    assert [one.half_width for one in dry] == [error["half_width"] for error in told["expected_errors"]]
    assert ann.ask(sql, epsilon).status_code == 200


def test_a_plan_of_the_desk_prices_no_count_without_its_policy(ann):
    assert "question in SQL" in ann.page("/plan?name=x&kind=counts&epsilon=0.1&times=1&details=").text


def test_an_officer_charges_a_plan_once(another):
    desk = another()
    olga = desk.person("olga", "officer")
    page = olga.page(PLAN)
    lines = html.unescape(re.search('name="lines" value="([^"]+)"', page.text)[1])
    before = desk.ledger.epsilon_spent
    assert olga.post("/plan/charge", lines=lines, dataset="people", plan="year").status_code == 303
    assert before < desk.ledger.epsilon_spent < 0.6  # as one plan: added up it is 0.6
    again = olga.post("/plan/charge", lines=lines, dataset="people", plan="year")
    assert again.status_code == 422  # the name is taken
    desk.ledger.verify()


def test_one_officer_is_not_four_eyes(another):
    desk = another(more="four_eyes = true")
    olga, otto = desk.person("olga", "officer"), desk.person("otto", "officer")
    lines = html.unescape(re.search('name="lines" value="([^"]+)"', olga.page(PLAN).text)[1])
    plan = {"lines": lines, "dataset": "people", "plan": "year"}
    assert olga.post("/plan/charge", **plan).headers["location"] == "/requests#proposals"
    assert olga.post("/plan/charge", **plan).status_code == 409
    assert desk.ledger.epsilon_spent == 0
    assert otto.post("/plan/charge", **plan).headers["location"] == "/ledger"  # the same act confirms it
    assert desk.ledger.epsilon_spent > 0


@pytest.mark.parametrize(
    "query",
    [
        "name=x&kind=query&epsilon=0.1&times=1&details=SELECT+*+FROM+people",
        "name=x&kind=nonsense&epsilon=0.1&times=1&details=",
        "name=x&kind=counts&epsilon=nan&times=1&details=",
        "name=x&kind=counts&epsilon=0.1&times=99999999&details=",
        "name=x&kind=model&epsilon=0.1&times=1&details=size%3D9+batch%3D99+epochs%3D1e9",
        "name=%3Cscript%3E&kind=counts&epsilon=0.1&times=1&details=junk",
        "dataset=elsewhere&name=x&kind=counts&epsilon=0.1&times=1&details=",
    ],
)
def test_a_plan_that_makes_no_sense_is_one_sentence(ann, query):
    page = ann.page(f"/plan?{query}")
    assert page.status_code in (200, 422)
    assert "<script>" not in page.text.replace('<script src="/static/desk.js" defer></script>', "")


@pytest.mark.parametrize("lines", ["", "[", "{}", "[1]", '[{"name": 1}]', "[" * 5000])
def test_a_forged_plan_is_refused(olga, lines):
    assert olga.post("/plan/charge", lines=lines, dataset="people", plan="year").status_code == 422


def test_statements_for_officers_and_readers(olga, rita, ann):
    assert "NIST" in olga.page("/statements").text
    assert rita.page("/statements/people.pdf").content.startswith(b"%PDF")
    assert yaml.safe_load(rita.page("/statements/people.yaml").text)["deployment"]
    assert json.loads(rita.page("/statements/people.json").text)["epsilon"] == 8
    assert "people.csv" not in rita.page("/statements/people.html").text
    assert ann.page("/statements").status_code == 403
    assert olga.page("/statements/people.exe").status_code in (404, 422)
    assert olga.page("/statements/..%2Fpeople.html").status_code in (404, 422)


def test_the_pages_of_a_ledger_show_parts_that_add_up(another):
    desk = another()
    desk.person("ann", "analyst", allocation=3.0).ask(epsilon=0.5)
    olga = desk.person("olga", "officer")
    said = "Spent 0.5, set aside 2.5, left 5: ε = 8 in all."
    assert said in olga.page("/statements").text
    text = olga.page("/ledger").text
    for part in ("<b>0.5</b> ε spent", "<b>2.5</b> ε set aside", "<b>5</b> ε left", "<b>8</b> ε in all"):
        assert part in text
    assert re.findall(r'<td class="figure">([\d.]+)</td>', text)[:8] == [
        "3",
        "0.5",
        "2.5",
        "0",
        "5",
        "0",
        "5",
        "0",
    ]


def test_an_opinion_is_priced_and_recorded(another):
    desk = another()
    olga = desk.person("olga", "officer")
    settings = 'noise_multiplier = 4.0\nsample_rate = 0.01\nsteps = 100\nsampling = "poisson"\ndelta = 1e-6\n'
    fields = {"settings": settings, "form": "toml", "dataset": "people", "purpose": "a model elsewhere"}
    page = olga.post("/opinion", action="price", **fields)
    assert "ε that holds" in page.text
    assert desk.ledger.epsilon_spent == 0
    assert olga.post("/opinion", action="record", **fields).status_code == 303
    assert desk.ledger.epsilon_spent > 0
    broken = {**fields, "settings": settings.replace("4.0", "0.1").replace("0.01", "1")}
    assert olga.post("/opinion", action="record", **broken).status_code == 303
    assert desk.ledger.exceeded is not None
    assert "nonsense" not in olga.post("/opinion", action="price", **{**fields, "settings": "]["}).text
