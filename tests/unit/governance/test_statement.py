"""Statements: drawn from the ledger, signed, and honest about what no ledger knows."""

from __future__ import annotations

import json
import math
import warnings

import pytest
import typer
from typer.testing import CliRunner

from sfumato.accounting import (
    Budget,
    GaussianEvent,
    LaplaceEvent,
    Relation,
    attacker_true_positive_rate,
    poisson_sampled,
    repeat,
)
from sfumato.caveats import Code
from sfumato.cli import statement as command
from sfumato.errors import InvalidInput, NotVerified
from sfumato.governance import Statement, checklist, pages, registry_entry, write_statement
from sfumato.governance.statement import ASK
from sfumato.ledger import Ledger, PrivateKey, PublicKey, Unrecorded
from sfumato.ledger.signing import revocation, rotation


@pytest.fixture
def ledger(tmp_path):
    budget = Budget(epsilon=2, delta=1e-6, unit="person")
    with Ledger.open(tmp_path / "people.db", budget=budget, dataset="clinic-2026") as book:
        for number in range(3):
            book.charge(
                LaplaceEvent(10.0),
                purpose=f"<b>count</b> {number}",
                relation=Relation.ADD_REMOVE,
                unit="person",
            )
        yield book


@pytest.fixture
def key(tmp_path):
    return PrivateKey.create(tmp_path / "holder")


def test_figures_are_the_ledgers(ledger):
    book = Statement.of(ledger, holder="City clinic").data
    assert book["epsilon_spent"] == pytest.approx(0.3)
    assert [line["entry"] for line in book["charges"]] == [1, 2, 3]
    assert book["warnings"] == []
    assert "finds at most" in book["meaning"]


@pytest.mark.keeps_out("Spent and left of a budget, shown without what is set aside between them")
def test_what_is_set_aside_is_shown_on_every_page(ledger, tmp_path):
    ledger.allocate("team", 0.9)
    statement = Statement.of(ledger)
    said = "Spent 0.3, set aside 0.9, left 0.8: ε = 2 in all."
    write_statement(statement, tmp_path / "s.html")
    assert said in (tmp_path / "s.html").read_text()
    assert said in [text for text, _, _ in pages._lines(statement, [])]  # of the PDF
    parts = ("epsilon_spent", "epsilon_set_aside", "epsilon_left", "epsilon_surcharge")
    assert statement.data["balance"] == said
    assert sum(statement.data[name] for name in parts) == pytest.approx(2)


def test_the_attacker_is_told_by_now_and_for_the_whole_budget(ledger):
    """0.3 is spent, in three charges: e^0.3 · 1%. The budget of 2 allows e^2 · 1%."""
    meaning = Statement.of(ledger).data["meaning"]
    assert meaning.startswith("From what has been released so far, an attacker")
    assert "finds at most 1.3% of those who did" in meaning
    assert meaning.endswith("Once the whole budget is spent, at most 7.4%.")


def test_a_fresh_ledger_is_not_said_to_protect_by_what_it_has_not_spent(tmp_path):
    with Ledger.create(tmp_path / "loud.db", Budget(epsilon=49, delta=1e-5)) as book:
        data = Statement.of(book).data
    assert data["meaning"].startswith("Nothing has been released so far.")
    assert "at most 100.0%" in data["meaning"]
    assert any("epsilon <= 10" in text for text in data["warnings"])


@pytest.mark.parametrize(("epsilon", "warned"), [(10.0, False), (10.5, True)])
def test_statement_and_checklist_warn_from_the_same_epsilon_on(tmp_path, epsilon, warned):
    with Ledger.create(tmp_path / "l.db", Budget(epsilon=epsilon, delta=1e-5)) as book:
        statement = Statement.of(book)
    assert bool(statement.data["warnings"]) is warned
    assert (checklist(statement)[0].status == "problem") is warned


def test_the_attacker_on_a_stopped_run_is_that_of_the_whole_plan(tmp_path):
    step = poisson_sampled(0.02, GaussianEvent(1.5))
    terms = {"relation": Relation.ADD_REMOVE, "unit": "record"}
    with Ledger.create(tmp_path / "l.db", Budget(epsilon=3, delta=1e-5)) as book:
        book.reserve(repeat(step, 600), purpose="training", **terms).settle(repeat(step, 380))
        meaning = Statement.of(book).data["meaning"]
    whole, shorter = (attacker_true_positive_rate(repeat(step, steps)) for steps in (600, 380))
    assert f"{whole:.1%}" != f"{shorter:.1%}"
    assert f"finds at most {whole:.1%} of those who did" in meaning


def test_several_charges_are_not_told_by_an_exact_price_of_all(tmp_path):
    """Each may have been chosen on the answers before it: what the ledger has spent is what holds."""
    terms = {"relation": Relation.ADD_REMOVE, "unit": "record"}
    with Ledger.create(tmp_path / "l.db", Budget(epsilon=3, delta=1e-5)) as book:
        for number in range(20):
            book.charge(GaussianEvent(20.0), purpose=f"sum {number}", **terms)
        meaning, spent = Statement.of(book).data["meaning"], book.epsilon_spent
    assert attacker_true_positive_rate(repeat(GaussianEvent(20.0), 20)) < 0.02
    assert f"finds at most {0.01 * math.exp(spent) + 1e-5:.1%} of those who did" in meaning


def test_a_signature_covers_every_word(ledger, key, tmp_path):
    statement = Statement.of(ledger, key=key)
    public = PublicKey.read(tmp_path / "holder.pub")
    statement.check(public)
    for name in statement.data:
        if name != "signature":
            with pytest.raises(NotVerified):
                Statement({**statement.data, name: "another"}).check(public)
    with pytest.raises(NotVerified):
        Statement.of(ledger).check(public)


def checked(folder, *words):
    app = typer.Typer()
    command.register(app)
    return CliRunner().invoke(app, ["statement", "check", str(folder / "s.json"), *words, "--json"])


@pytest.mark.keeps_out("A statement by a revoked key that still passes")
def test_a_statement_by_a_revoked_key_is_not_valid_and_one_by_its_successor_is(ledger, key, tmp_path):
    after = PrivateKey.create(tmp_path / "next")
    for name, said in (("rotation", rotation(key, after.public)), ("revoked", revocation(key, after.public))):
        (tmp_path / f"{name}.json").write_text(json.dumps(said))
    held, trust = ("--key", str(tmp_path / "holder.pub")), ("--trust", str(tmp_path / "revoked.json"))
    write_statement(Statement.of(ledger, key=key), tmp_path / "s.json")
    assert checked(tmp_path, *held).exit_code == 0
    assert checked(tmp_path, *held, "--trust", str(tmp_path / "rotation.json")).exit_code == 0
    assert "was revoked" in str(checked(tmp_path, *held, *trust).exception)
    assert "--key with --trust" in str(checked(tmp_path, *trust).exception)
    write_statement(Statement.of(ledger, key=after), tmp_path / "s.json")
    assert "another or was revoked" in str(checked(tmp_path, *held).exception)
    assert json.loads(checked(tmp_path, *held, *trust).stdout)["signer"] == after.public.id
    write_statement(Statement.of(ledger), tmp_path / "s.json")
    assert "got none" in str(checked(tmp_path, *held).exception)
    assert "without a signature" in str(checked(tmp_path).exception)


@pytest.mark.keeps_out("A δ that is called small enough without the number of people")
@pytest.mark.parametrize(
    ("delta", "people", "status"),
    [(1e-6, None, "please answer"), (1e-6, 20_000, "handled"), (1e-5, 20_000, "please answer"),
     (1e-4, 20_000, "problem"), (0.0, 20_000, "handled")],
)  # fmt: skip
def test_the_checklist_compares_delta_with_the_number_of_people(tmp_path, delta, people, status):
    """A tenth of 1 / 20,000 = 5e-5 is far below it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Ledger.create(tmp_path / "l.db", Budget(epsilon=1, delta=delta), people=people).close()
    with Ledger.open(tmp_path / "l.db") as book:
        statement = Statement.of(book)
    (found,) = [one for one in checklist(statement) if one.hazard.startswith("δ is not far below")]
    assert found.status == status
    assert ("20,000" in found.answer) is (people is not None and delta > 0)
    assert any("expected delta < 1 / 20000" in text for text in statement.data["warnings"]) is (
        status == "problem"
    )


@pytest.mark.parametrize("ending", ["html", "pdf", "json"])
def test_pages_hold_the_figures_and_obey_nothing(ledger, tmp_path, ending):
    statement = Statement.of(ledger, holder="<script>alert(1)</script>")
    place = tmp_path / f"statement.{ending}"
    write_statement(statement, place, checklist(statement))
    content = place.read_bytes()
    if ending == "html":
        assert b"<script>" not in content
        assert b"<b>count" not in content
        assert b"0.3" in content
        assert b"NIST" in content
    elif ending == "pdf":
        assert content.startswith(b"%PDF")
        assert len(content) > 5000
    else:
        assert json.loads(content) == dict(statement.data)


def test_other_endings_are_refused(ledger, tmp_path):
    with pytest.raises(InvalidInput, match="html"):
        write_statement(Statement.of(ledger), tmp_path / "statement.doc")


def test_a_broken_budget_is_said_everywhere(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Budget(epsilon=1, delta=1e-5)) as book:
        model = repeat(GaussianEvent(1.0), 100)
        book.record(model, purpose="a model", relation=Relation.ADD_REMOVE, unit="record")
        statement = Statement.of(book)
    assert any("exceeded" in text for text in statement.data["warnings"])
    assert any(item.status == "problem" and "added up" in item.hazard for item in checklist(statement))


def test_the_checklist_asks_what_it_cannot_know(ledger):
    hazards = checklist(Statement.of(ledger))
    statuses = {item.hazard: item.status for item in hazards}
    assert statuses["losses of many releases are not added up"] == "handled"
    assert statuses["people did not agree to it"] == "please answer"
    assert "problem" not in statuses.values()


@pytest.fixture
def certificates(ledger):
    """Of all charges: two with a caveat that speaks of a hazard, one without any."""
    said = ([Code.SHAPE_READ()], [Code.IDEAL_SAMPLER(), "another"], [])
    return [
        ledger.certificate(charge, caveats=each) for charge, each in zip(ledger.charges(), said, strict=True)
    ]


def test_caveats_stand_in_the_checklist_and_are_counted(ledger, certificates):
    statement = Statement.of(ledger)
    found = {item.hazard: item for item in checklist(statement, certificates)}
    read, floating = (
        found["bounds, categories or sizes are read off the data"],
        found["noise in floating point betrays low bits"],
    )
    for item in (read, floating):
        assert (item.status, item.caveats) == ("please answer", 1)
        assert "1 caveat stands on a certificate." in item.answer
    in_all = found["certificates carry caveats that nobody has weighed"]
    assert (in_all.status, in_all.caveats) == ("please answer", 3)
    assert in_all.answer == "3 caveats stand on certificates. Did who signs read each?"


def test_certificates_that_are_not_at_hand_are_asked_for(ledger, certificates):
    statement = Statement.of(ledger)
    for given, missing in (([], 3), (certificates[2:], 2)):
        found = {item.hazard: item for item in checklist(statement, given)}
        in_all = found["certificates carry caveats that nobody has weighed"]
        assert in_all.status == "please answer"
        assert in_all.answer == f"Certificates of {missing} of 3 charges are not at hand."
        assert found["bounds, categories or sizes are read off the data"].status == "please answer"


def test_a_certificate_that_says_not_private_is_a_problem(ledger, certificates):
    [first, *_] = ledger.charges()
    seeded = ledger.certificate(first, caveats=[Code.READ_FROM_DATA(facts="public_size")])
    found = {item.hazard: item for item in checklist(Statement.of(ledger), [seeded, *certificates[1:]])}
    assert found["certificates carry caveats that nobody has weighed"].status == "problem"


def test_a_ledger_whose_certificates_carry_none_is_handled(ledger):
    plain = [ledger.certificate(charge) for charge in ledger.charges()]
    found = {item.hazard: item for item in checklist(Statement.of(ledger), plain)}
    assert found["certificates carry caveats that nobody has weighed"].status == "handled"
    assert found["bounds, categories or sizes are read off the data"].status == "handled"


def test_the_command_counts_caveats_of_this_ledgers_certificates_only(ledger, certificates, tmp_path):
    app = typer.Typer()
    command.register(app)
    for number, each in enumerate(certificates):
        each.write(tmp_path / f"{number}.json")
    words = [part for number in range(3) for part in ("--certificate", str(tmp_path / f"{number}.json"))]
    told = CliRunner().invoke(app, ["statement", "checklist", str(tmp_path / "people.db"), *words, "--json"])
    counts = {item["hazard"]: item["caveats"] for item in json.loads(told.stdout)["hazards"]}
    assert counts["certificates carry caveats that nobody has weighed"] == 3
    Unrecorded(delta=1e-6).pay_for(
        LaplaceEvent(10.0), purpose="x", relation=Relation.ADD_REMOVE, unit="person"
    ).write(tmp_path / "other.json")
    told = CliRunner().invoke(
        app,
        ["statement", "checklist", str(tmp_path / "people.db"), "--certificate", str(tmp_path / "other.json")],
    )
    assert "which names no ledger" in str(told.exception)


def test_the_registry_entry_has_the_levels_of_its_template(ledger):
    entry = registry_entry(Statement.of(ledger, holder="City clinic"))
    deployment = entry["deployment"]
    assert set(deployment) == {
        "basic", "dp_variant", "privacy_loss", "deployment_model", "implementation", "administrative"
    }  # fmt: skip
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": 2, "delta": 1e-6}
    assert deployment["basic"]["data_curators"][0]["data_curator_name"] == "City clinic"
    assert deployment["basic"]["intended_use"].startswith(ASK)
