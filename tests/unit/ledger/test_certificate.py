from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sfumato.accounting import GaussianEvent, LaplaceEvent, Relation, compose, poisson_sampled, pure, repeat
from sfumato.errors import InvalidInput, NotPrivate
from sfumato.ledger import Budget, Certificate, Head, Ledger, Prices


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    with Ledger.open(tmp_path / "ledger.db", budget=Budget(epsilon=3, delta=1e-5, unit="person")) as ledger:
        event = compose(repeat(GaussianEvent(20.0), 7), LaplaceEvent(9.0))
        charge = ledger.charge(event, purpose="a model", relation=Relation.ADD_REMOVE, unit="person")
        return ledger.certificate(charge, plan={"steps": 7}, eta=2**-10, caveats=["tuned on public data"])


def test_a_certificate_comes_back_from_its_file(certificate: Certificate, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    certificate.write(path)
    certificate.write(path)  # over itself
    assert Certificate.read(path) == certificate
    assert [file.name for file in tmp_path.glob("*certificate*")] == ["certificate.json"]


def test_it_states_what_anyone_needs(certificate: Certificate) -> None:
    data = json.loads(json.dumps(certificate.to_json()))
    assert (data["unit"], data["relation"], data["delta"]) == ("person", "add-remove", 1e-5)
    assert data["plan"] == {"steps": 7}
    assert data["eta"] == 2**-10
    assert data["caveats"] == [{"code": "other", "text": "tuned on public data"}]
    assert data["ledger"]["sequence"] == 1
    assert len(data["ledger"]["hash"]) == 64
    assert {"python", "dp-accounting", "numpy"} <= set(data["versions"])
    assert data["epsilon"]["pld"] <= data["epsilon"]["rdp"]
    assert data["epsilon"]["ledger"] == pytest.approx(data["epsilon"]["pld"])


def test_prices_are_the_published_ones() -> None:
    # Gaussian σ = 4.530877 at δ = 1e-6: RDP 1.0, exact .92739. Poisson q = .05, σ = 3, 100 steps: .75788.
    gaussian = Certificate.of(GaussianEvent(4.530877), purpose="one release", delta=1e-6)
    assert gaussian.prices.pld == pytest.approx(0.92739, abs=1e-4)
    assert gaussian.prices.rdp == pytest.approx(1.0, abs=1e-3)
    steps = repeat(poisson_sampled(0.05, GaussianEvent(3.0)), 100)
    assert Certificate.of(steps, purpose="training", delta=1e-6).prices.pld == pytest.approx(0.75788, abs=1e-4)


def test_stated_prices_are_not_believed(certificate: Certificate) -> None:
    assert certificate.verify() == certificate.recompute()
    for prices in (Prices(pld=0.1, rdp=certificate.prices.rdp), Prices(pld=certificate.prices.pld, rdp=None)):
        with pytest.raises(NotPrivate, match="as its events cost"):
            replace(certificate, prices=prices).verify()


def test_a_seeded_run_says_so_and_must() -> None:
    certificate = Certificate.of(pure(1.0), purpose="test", delta=0, private=False)
    certificate.verify()
    assert "not private" in certificate.caveats[0]
    with pytest.raises(NotPrivate, match="say so"):
        replace(certificate, caveats=()).verify()


def test_without_a_ledger_it_says_so() -> None:
    assert any("ledger" in caveat for caveat in Certificate.of(pure(1.0), purpose="x", delta=0).caveats)
    head = Head(sequence=1, hash="ab" * 32)
    assert Certificate.of(pure(1.0), purpose="x", delta=0, head=head).caveats == ()


def test_a_conversion_is_stated(tmp_path: Path) -> None:
    budget = Budget(epsilon=3, delta=1e-5, relation=Relation.REPLACE_ONE)
    with Ledger.open(tmp_path / "ledger.db", budget=budget) as ledger:
        charge = ledger.charge(pure(0.5), purpose="x", relation=Relation.ADD_REMOVE, unit="record")
        certificate = ledger.certificate(charge)
        assert certificate.relation is Relation.ADD_REMOVE
        assert "replace-one" in certificate.caveats[0]
        ledger.verify(certificate=certificate)


@pytest.mark.parametrize(
    "change", [{"format": 9}, {"event": {"kind": "magic"}}, {"epsilon": {}}, {"delta": 2.0}]
)
def test_what_is_no_certificate_is_refused(certificate: Certificate, tmp_path: Path, change: dict) -> None:
    with pytest.raises(InvalidInput):
        Certificate.from_json({**certificate.to_json(), **change})
    for text in ("no json", "[]"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InvalidInput, match=r"bad\.json"):
            Certificate.read(tmp_path / "bad.json")


@pytest.mark.parametrize(("factor", "passes"), [(0.99, False), (1.0, True), (1.05, True), (1.5, False)])
def test_a_coarser_accountant_may_state_a_little_more_and_none_less(factor: float, passes: bool) -> None:
    certificate = Certificate.of(
        repeat(poisson_sampled(0.1, GaussianEvent(100.0)), 10), purpose="old", delta=1e-5
    )
    assert certificate.prices.pld is not None
    old = replace(certificate, prices=replace(certificate.prices, pld=certificate.prices.pld * factor))
    if passes:
        assert old.verify() == certificate.prices
    else:
        with pytest.raises(NotPrivate, match="as its events cost"):
            old.verify()
