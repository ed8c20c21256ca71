"""A folder that version 0.1 wrote can be verified, drawn and, with its module, loaded."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sfumato.cli.app import app

FORMAT_1 = Path(__file__).parent / "data" / "format-1"
TRAINED = ("train", "tune", "pate")


@pytest.mark.parametrize("name", TRAINED)
def test_its_certificate_is_verified(name):
    certificate = FORMAT_1 / name / "release" / "certificate.json"
    result = CliRunner().invoke(app, ["verify", str(certificate), "--json"])
    assert result.exit_code == 0
    stated = json.loads(certificate.read_text(encoding="utf-8"))["epsilon"]["rdp"]
    assert 0.999 * stated <= json.loads(result.stdout)["rdp"] <= stated * (1 + 1e-9)  # it erred upward then


def test_its_page_is_drawn(tmp_path):
    out = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(FORMAT_1), "--out", str(out), "--json"])
    answer = json.loads(result.stdout)
    assert {"learning", "votes", "certificates"} <= set(answer["sections"])
    assert not answer["failures"]
    assert out.stat().st_size > 10_000
