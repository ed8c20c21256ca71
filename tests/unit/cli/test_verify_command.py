"""What `sfumato verify` says of certificates that are right, each by its kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sfumato.accounting import GaussianEvent, LaplaceEvent, poisson_sampled, repeat
from sfumato.cli import verify as command
from sfumato.errors import NotVerified
from sfumato.ledger import Certificate

STEP = poisson_sampled(0.02, GaussianEvent(1.5))


def verified(*words: object) -> str:
    app = typer.Typer()
    command.register(app)
    found = CliRunner().invoke(app, [str(word) for word in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return " ".join(found.stdout.split())


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    path = tmp_path / "stopped.json"
    made = Certificate.of(repeat(STEP, 380), purpose="training", delta=1e-5, planned=repeat(STEP, 600))
    assert made.prices.rdp < made.prices.pld  # the steps that ran, and the whole plan
    made.write(path)
    return path


def test_the_figures_of_a_stopped_run_are_named_for_what_they_are(stopped: Path) -> None:
    said = verified(stopped)
    assert "exact (PLD)" not in said
    assert "Rényi bound" not in said
    stated = Certificate.read(stopped).prices
    assert f"ε, whole plan (PLD) {stated.pld:.4f} ε, steps that ran (filter) {stated.rdp:.4f}" in said
    assert "quote the whole plan's ε" in said
    assert json.loads(verified(stopped, "--json"))["stopped_early"] is True


def test_a_whole_run_has_its_usual_figures(tmp_path: Path) -> None:
    Certificate.of(repeat(STEP, 10), purpose="training", delta=1e-5).write(tmp_path / "c.json")
    said = verified(tmp_path / "c.json")
    assert "ε, exact (PLD)" in said
    assert "ε, Rényi bound (RDP)" in said
    assert " quote " not in said


def test_events_without_a_plan_are_no_fault(tmp_path: Path) -> None:
    Certificate.of(LaplaceEvent(2.0), purpose="a count", delta=0).write(tmp_path / "c.json")
    assert "not needed: the events alone say what it costs" in verified(tmp_path / "c.json")


@pytest.mark.parametrize("place", command.PLACES)
def test_the_certificate_of_a_run_folder_is_found(tmp_path: Path, place: str) -> None:
    path = tmp_path / "run" / place
    path.parent.mkdir(parents=True)
    Certificate.of(LaplaceEvent(2.0), purpose="a count", delta=0).write(path)
    assert "a count" in verified(tmp_path / "run")


def test_a_folder_without_one_is_told_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NotVerified, match=r"release/certificate\.json"):
        verified(tmp_path)
