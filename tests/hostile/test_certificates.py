"""Certificates, keys and witnesses from somebody who wants to be believed."""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import stat
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from sfumato.accounting import (
    GaussianEvent,
    LaplaceEvent,
    MixtureOfGaussiansEvent,
    NonPrivateEvent,
    PoissonSampledEvent,
    RandomizedResponseEvent,
    Relation,
    RepeatAndSelectEvent,
    RepeatedEvent,
    event_to_json,
)
from sfumato.cli import main
from sfumato.errors import NotVerified
from sfumato.ledger import Budget, Certificate, KeyStatement, Ledger, PrivateKey, PublicKey, trusted_keys
from sfumato.ledger.signing import revocation, rotation
from sfumato.training import TrainingPlan

DELTA = 1e-5
PLAN = TrainingPlan(sample_rate=0.01, expected_batch=10, steps=50, noise_multiplier=1.0)


def run(*words: object) -> tuple[bool, str]:
    """Whether a command succeeded, and what it said; a failure is one sentence, and no traceback."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["sfumato", *map(str, words)])
        patch.setenv("COLUMNS", "400")
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    if code == 0:
        return True, out.getvalue()
    assert err.getvalue().startswith("sfumato: ")
    assert err.getvalue().count("\n") == 1
    assert code == 1 or words[0] != "verify"
    return False, err.getvalue().removeprefix("sfumato: ").strip()


def good() -> dict:
    """A certificate of a training run, as it is written."""
    certificate = Certificate.of(PLAN.event(), purpose="a model", delta=DELTA, plan=PLAN.to_json())
    return json.loads(json.dumps(certificate.to_json()))


def verify(data: object, folder: Path, *options: object) -> tuple[bool, str]:
    path = folder / "certificate.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return run("verify", path, *options)


def refused(data: object, folder: Path, *options: object) -> str:
    passed, said = verify(data, folder, *options)
    assert not passed
    assert len(said) > 20
    return said


def test_the_good_one_passes(tmp_path):
    assert verify(good(), tmp_path)[0]


# No ε at all


@pytest.mark.keeps_out("A certificate that passes because nothing equals nothing")
@pytest.mark.parametrize(
    "event",
    [
        NonPrivateEvent(),
        GaussianEvent(0.0),
        PoissonSampledEvent(0.5, LaplaceEvent(0.0)),
        RandomizedResponseEvent(0.5, 10),  # has no ε under add-remove
        RepeatedEvent(NonPrivateEvent(), 3),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_has_no_finite_epsilon_fails(event, tmp_path):
    """None equalled None: every accountant was silent, and so was the certificate."""
    data = {**good(), "event": event_to_json(event), "plan": {}}
    data["epsilon"] = {"pld": None, "rdp": None, "ledger": None}
    assert "finite epsilon" in refused(data, tmp_path)


@pytest.mark.keeps_out("ε of a million, or δ of a half, in a certificate that looks like others")
def test_a_price_that_protects_nobody_is_said_loudly(tmp_path):
    for event, delta in ((GaussianEvent(1e-3), DELTA), (GaussianEvent(5.0), 0.5), (GaussianEvent(5.0), 1e-3)):
        certificate = Certificate.of(event, purpose="a model", delta=delta)
        assert any("practically no protection" in caveat for caveat in certificate.caveats)
        quiet = {**certificate.to_json(), "caveats": []}
        passed, said = verify(quiet, tmp_path)
        assert passed
        assert "practically no protection" in " ".join(said.split())


# Plans and ledgers that say something else


@pytest.mark.keeps_out("A certificate whose plan contradicts its events")
@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 4.0},
        {"steps": 10},
        {"sample_rate": 0.5},
        {"relation": "zero-out"},
        {"unit": "person"},
        {"steps": "many"},
        {"noise_phases": 7},
        {"steps": 10**400},
        {"surprise": 1},
    ],
    ids=lambda change: "-".join(change),
)
def test_a_plan_that_contradicts_its_events_fails(change, tmp_path):
    data = good()
    data["plan"].update(change)
    assert "plan" in refused(data, tmp_path)


def test_a_plan_that_lost_a_field_fails(tmp_path):
    data = good()
    del data["plan"]["sample_rate"]
    assert "plan" in refused(data, tmp_path)


def test_a_run_that_was_stopped_passes(tmp_path):
    stated = {"purpose": "a model", "delta": DELTA, "plan": PLAN.to_json()}
    assert verify(Certificate.of(PLAN.event(20), planned=PLAN.event(), **stated).to_json(), tmp_path)[0]
    assert "not of one run" in refused(Certificate.of(PLAN.event(20), **stated).to_json(), tmp_path)


@pytest.fixture
def charged(tmp_path):
    """A ledger of two charges, and the certificate of the first."""
    place = tmp_path / "people.db"
    budget = Budget(epsilon=3, delta=DELTA, unit="person")
    with Ledger.open(place, budget=budget) as ledger:
        first = ledger.charge(
            GaussianEvent(20.0), purpose="a mean", relation=Relation.ADD_REMOVE, unit="person"
        )
        data = json.loads(json.dumps(ledger.certificate(first).to_json()))
        ledger.charge(GaussianEvent(30.0), purpose="more", relation=Relation.ADD_REMOVE, unit="person")
    return place, data


@pytest.mark.keeps_out(
    "A certificate that differs from its ledger's entry in δ, unit, purpose or the ledger's ε"
)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delta", 1e-9),
        ("unit", "record"),
        ("purpose", "nothing much"),
        ("time", "2020-01-01T00:00:00+00:00"),
        ("private", False),
        ("relation", "zero-out"),
        ("event", event_to_json(GaussianEvent(21.0))),
    ],
)
def test_every_field_is_compared_with_the_ledgers_entry(field, value, charged, tmp_path):
    place, data = charged
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(data))
    assert run("ledger", "verify", place, "--certificate", path)[0]
    path.write_text(json.dumps({**data, field: value}))
    passed, said = run("ledger", "verify", place, "--certificate", path)
    assert not passed
    assert field in said


@pytest.mark.keeps_out(
    "A certificate that differs from its ledger's entry in δ, unit, purpose or the ledger's ε"
)
def test_a_false_ledger_epsilon_is_found(charged, tmp_path):
    place, data = charged
    data["epsilon"]["ledger"] *= 0.5
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(data))
    assert "ledger epsilon" in run("ledger", "verify", place, "--certificate", path)[1]
    assert "ledger epsilon" in refused(data, tmp_path)  # and by itself: less than the release alone costs


# Files that are not certificates


@pytest.mark.keeps_out("A mixture whose chances do not add up, priced too low")
@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("chances that do not add up", MixtureOfGaussiansEvent(1.0, [0.0, 1.0], [0.5, 0.1])),
        ("a negative chance", MixtureOfGaussiansEvent(1.0, [0.0, 1.0, 2.0], [0.9, 0.2, -0.1])),
        ("lists of two lengths", MixtureOfGaussiansEvent(1.0, [0.0, 1.0], [1.0])),
        ("no sensitivity", MixtureOfGaussiansEvent(1.0, [], [])),
        ("a negative sensitivity", MixtureOfGaussiansEvent(1.0, [-1.0, 1.0], [0.5, 0.5])),
        ("less than one trial", RepeatAndSelectEvent(GaussianEvent(5.0), 0.5, 0.0)),
        ("a negative shape", RepeatAndSelectEvent(GaussianEvent(5.0), 5.0, -1.0)),
        ("a trial without noise", RepeatAndSelectEvent(GaussianEvent(0.0), 5.0, 0.0)),
        ("a sampled nothing", PoissonSampledEvent(2.0, GaussianEvent(1.0))),
        ("minus one release", RepeatedEvent(GaussianEvent(1.0), -1)),
        ("more releases than atoms", RepeatedEvent(LaplaceEvent(1e9), 10**30)),
        ("a mixture far wider than its noise", MixtureOfGaussiansEvent(1e-9, [0.0, 1.0], [0.5, 0.5])),
    ],
)
def test_malformed_events_fail_in_a_sentence(name, event, tmp_path):
    data = {**good(), "event": event_to_json(event), "plan": {}}
    refused(data, tmp_path)


@pytest.mark.parametrize(
    ("field", "junk"),
    [
        ("format", True),
        ("purpose", "[/red]\x1b[2J"),
        ("purpose", "\ud800"),
        ("unit", ["record"]),
        ("delta", "1e-5"),
        ("delta", True),
        ("private", "yes"),
        ("event", [1, 2]),
        ("event", {"kind": ["gaussian"]}),
        ("epsilon", {"pld": "0.1", "rdp": 0.1, "ledger": None}),
        ("epsilon", {"pld": -1, "rdp": 0.1, "ledger": None}),
        ("epsilon_means", {"pld": "no risk at all", "rdp": "", "ledger": ""}),
        ("caveats", {"none": "at all"}),
        ("versions", None),
        ("ledger", {"sequence": "1", "hash": "00"}),
        ("eta", "small"),
        ("time", 7),
        ("signature", {}),
        ("signature", {"key": "0" * 64, "public": "0" * 64, "value": "0" * 128}),
    ],
)
def test_a_field_of_the_wrong_type_fails_in_a_sentence(field, junk, tmp_path):
    refused({**good(), field: junk}, tmp_path)


def test_brackets_are_shown_and_not_obeyed(tmp_path):
    passed, said = verify({**good(), "purpose": "[/bold] a [red]model"}, tmp_path)
    assert passed
    assert "[/bold] a [red]model" in said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[" * 100_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        json.dumps(good()).replace('"delta": 1e-05', '"delta": NaN'),
        json.dumps(good()).replace('"delta": 1e-05', '"delta": 1e-05, "delta": 0.5'),
        json.dumps(good()).replace('"delta": 1e-05', '"delta": 1e999'),
        json.dumps(good()).replace('"delta": 1e-05', f'"delta": {"9" * 5000}'),
    ],
    ids=["empty", "null", "brackets", "deep", "nan", "twice", "infinite", "digits"],
)
def test_text_that_is_no_certificate_fails_in_a_sentence(text, tmp_path):
    refused(text, tmp_path)


def test_bytes_and_sizes_that_are_no_certificate(tmp_path):
    path = tmp_path / "certificate.json"
    path.write_bytes(b'\xff\xfe{"format": 1}')
    assert not run("verify", path)[0]
    with path.open("wb") as file:
        file.truncate(2**33)  # a hole of 8 GB
    passed, said = run("verify", path)
    assert not passed
    assert "bytes" in said


def test_events_nested_without_end(tmp_path):
    event = event_to_json(GaussianEvent(3.0))
    for _ in range(50):
        event = {"kind": "repeated", "count": 1, "event": event}
    assert "deep" in refused({**good(), "event": event}, tmp_path)


# Signatures


@pytest.fixture
def keys(tmp_path):
    """Paths of three private keys; the public ones are beside them."""
    for name in ("holder", "other", "next"):
        PrivateKey.create(tmp_path / name)
    return tmp_path / "holder", tmp_path / "other", tmp_path / "next"


def public(path: Path) -> Path:
    return Path(f"{path}.pub")


def signed_by(path: Path) -> dict:
    return Certificate.from_json(good()).signed(PrivateKey.read(path)).to_json()


def test_a_key_is_private_and_never_overwritten(tmp_path):
    assert run("key", "create", tmp_path / "k")[0]
    before = (tmp_path / "k").read_bytes()
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600
    assert b"PRIVATE" not in public(tmp_path / "k").read_bytes()
    assert "never overwritten" in run("key", "create", tmp_path / "k")[1]
    assert (tmp_path / "k").read_bytes() == before


@pytest.mark.keeps_out("A certificate that anybody could have written or changed")
def test_only_the_holders_signature_counts(keys, tmp_path):
    holder, other, _ = keys
    assert "nobody" in verify(good(), tmp_path)[1]
    assert "got none" in refused(good(), tmp_path, "--key", public(holder))
    assert verify(signed_by(holder), tmp_path, "--key", public(holder))[0]
    assert "another" in refused(signed_by(other), tmp_path, "--key", public(holder))
    refused(signed_by(holder), tmp_path, "--key", tmp_path / "certificate.json")  # which is no key


@pytest.mark.keeps_out("A certificate that anybody could have written or changed")
@pytest.mark.parametrize("field", [name for name in good() if name not in ("format", "epsilon_means")])
def test_a_signature_covers_every_field(field, keys, tmp_path):
    """A change that leaves a well-formed certificate is found by the signature, without any key given."""
    data = signed_by(keys[0])
    changed = {
        "purpose": "another",
        "unit": "person",
        "relation": "zero-out",
        "delta": 2e-5,
        "epsilon": {**data["epsilon"], "rdp": data["epsilon"]["rdp"] * 1.01},
        "private": False,
        "event": event_to_json(GaussianEvent(9.0)),
        "plan": {},
        "planned": data["event"],
        "dataset": "another",
        "eta": 0.5,
        "caveats": [],
        "versions": {"sfumato": "9"},
        "ledger": {"sequence": 1, "hash": "0" * 64},
        "time": "2020-01-01T00:00:00+00:00",
    }
    assert "was changed" in refused({**data, field: changed[field]}, tmp_path)


def test_a_signature_of_one_kind_is_none_of_another(keys):
    key = PrivateKey.read(keys[0])
    data = key.sign("witness", good())
    with pytest.raises(NotVerified, match="was changed"):
        Certificate.from_json(data)


def test_a_signature_cannot_be_given_another_owner(keys, tmp_path):
    data, other = signed_by(keys[0]), PublicKey.read(public(keys[1]))
    data["signature"] = {**data["signature"], "key": other.id, "public": other.raw.hex()}
    assert "was changed" in refused(data, tmp_path)
    data["signature"]["key"] = "0" * 64
    assert "SHA-256" in refused(data, tmp_path)


def test_certificates_are_signed_where_the_environment_names_a_key(keys, monkeypatch):
    monkeypatch.setenv("SFUMATO_KEY", os.fspath(keys[0]))
    made = Certificate.of(LaplaceEvent(2.0), purpose="a mean", delta=0)
    assert made.signer == PublicKey.read(public(keys[0]))
    monkeypatch.setenv("SFUMATO_KEY", os.fspath(public(keys[0])))  # no private key
    unsigned = Certificate.of(LaplaceEvent(2.0), purpose="a mean", delta=0)
    assert unsigned.signer is None
    assert any(caveat.startswith("not signed") for caveat in unsigned.caveats)


def test_nothing_false_gets_signed(keys, tmp_path):
    path = tmp_path / "false.json"
    data = good()
    data["epsilon"]["pld"] = 0.001
    path.write_text(json.dumps(data))
    assert not run("key", "sign", path, "--key", keys[0])[0]
    assert "signature" not in json.loads(path.read_text())


# Keys that took the place of others


def test_a_rotation_is_followed_and_a_revoked_key_is_refused(keys, tmp_path):
    old, _, new = keys
    rotated, revoked = tmp_path / "rotation.json", tmp_path / "revocation.json"
    assert run("key", "rotate", old, public(new), "--out", rotated)[0]
    assert run("key", "revoke", old, "--successor", public(new), "--out", revoked)[0]
    follow = ("--key", public(old), "--trust", rotated)
    assert verify(signed_by(new), tmp_path, *follow)[0]
    assert verify(signed_by(old), tmp_path, *follow)[0]
    assert verify(signed_by(new), tmp_path, *follow, "--trust", revoked)[0]
    assert "revoked" in refused(signed_by(old), tmp_path, *follow, "--trust", revoked)


@pytest.mark.keeps_out("A stolen key that names its own successor")
def test_a_thief_cannot_name_a_successor(keys):
    old, thief, new = (PrivateKey.read(path) for path in keys)
    honest, stolen = (KeyStatement.from_json(rotation(old, key.public)) for key in (new, thief))
    with pytest.raises(NotVerified, match="one successor"):
        trusted_keys(old.public, [honest, stolen])
    gone = KeyStatement.from_json(revocation(old))
    assert trusted_keys(old.public, [gone, stolen]) == frozenset()
    named = KeyStatement.from_json(revocation(old, new.public))
    assert trusted_keys(old.public, [named]) == {new.public.id}
    with pytest.raises(NotVerified, match="one successor"):
        trusted_keys(old.public, [named, stolen])


def test_only_a_key_speaks_about_itself(keys):
    """A rotation by another key leads nowhere, and one that was changed is no statement."""
    old, thief, new = (PrivateKey.read(path) for path in keys)
    foreign = KeyStatement.from_json(rotation(thief, new.public))
    assert trusted_keys(old.public, [foreign]) == {old.public.id}
    forged = {**rotation(old, new.public), "successor": thief.public.raw.hex()}
    with pytest.raises(NotVerified):
        KeyStatement.from_json(forged)
    with pytest.raises(NotVerified):  # a rotation is not a revocation
        KeyStatement.from_json({**rotation(old, new.public), "purpose": "key revocation"})


def test_rotations_in_a_circle_end(keys):
    one, other, _ = (PrivateKey.read(path) for path in keys)
    circle = [rotation(one, other.public), rotation(other, one.public)]
    gone = [revocation(one, other.public), revocation(other, one.public)]
    assert trusted_keys(one.public, map(KeyStatement.from_json, circle)) == {one.public.id, other.public.id}
    assert trusted_keys(one.public, map(KeyStatement.from_json, gone)) == frozenset()


# Witnesses


@pytest.mark.keeps_out("An older copy of the ledger, put back")
def test_a_witness_finds_an_older_copy_and_another_ledger(keys, tmp_path):
    place, copy_of_it, seen = tmp_path / "people.db", tmp_path / "backup.db", tmp_path / "head.json"
    terms = {"relation": Relation.ADD_REMOVE, "unit": "record"}
    with Ledger.open(place, budget=Budget(epsilon=3, delta=DELTA)) as ledger:
        ledger.charge(GaussianEvent(20.0), purpose="a mean", **terms)
    shutil.copy(place, copy_of_it)
    with Ledger.open(place) as ledger:
        ledger.charge(GaussianEvent(20.0), purpose="another", **terms)
    assert run("ledger", "head", place, "--sign", keys[0], "--out", seen)[0]
    options = ("--witness", seen, "--key", public(keys[0]))
    assert run("ledger", "verify", place, *options)[0]
    assert run("ledger", "verify", copy_of_it)[0]  # valid in itself
    assert "older copy" in run("ledger", "verify", copy_of_it, *options)[1]
    Ledger.create(tmp_path / "new.db", Budget(epsilon=3, delta=DELTA)).close()
    assert "not the one of the witness" in run("ledger", "verify", tmp_path / "new.db", *options)[1]


def test_a_witness_that_was_changed_or_signed_by_another_is_refused(keys, tmp_path):
    place, seen = tmp_path / "people.db", tmp_path / "head.json"
    Ledger.create(place, Budget(epsilon=3)).close()
    assert run("ledger", "head", place, "--sign", keys[1], "--out", seen)[0]
    assert not run("ledger", "verify", place, "--witness", seen, "--key", public(keys[0]))[0]
    data = json.loads(seen.read_text())
    for change in ({"sequence": -1}, {"hash": 5}, {"time": "2020"}, {"name": []}, {"more": 1}):
        seen.write_text(json.dumps({**copy.deepcopy(data), **change}))
        assert not run("ledger", "verify", place, "--witness", seen)[0]
