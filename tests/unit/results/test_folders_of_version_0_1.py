"""A folder that version 0.1 wrote can be verified, drawn and, with its module, loaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import sfumato
from sfumato.cli.app import app
from sfumato.errors import InvalidInput

FORMAT_1 = Path(__file__).parent / "data" / "format-1"
TRAINED = ("train", "tune", "pate")


@pytest.fixture
def module():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.fixture
def folder(tmp_path, module):
    """Version 0.1 wrote weights without a word on what they are of."""
    place = tmp_path / "old"
    shutil.copytree(FORMAT_1 / "train", place)
    save_file(module.state_dict(), place / "release" / "model.safetensors")
    return place


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


def test_its_model_is_loaded_with_its_module(folder, module):
    rows = torch.rand(5, 1, 8, 8)
    found = sfumato.load(folder, model=module)
    assert found.certificate is not None
    assert list(found.predict(rows.numpy())) == module(rows).argmax(1).tolist()


def test_without_the_module_one_sentence_says_what_to_give(folder):
    with pytest.raises(InvalidInput, match=r"version 0\.1; sfumato\.load\(folder, model=module\)$"):
        sfumato.load(folder)
    result = CliRunner().invoke(app, ["predict", str(folder), "digits"])
    assert isinstance(result.exception, InvalidInput)
