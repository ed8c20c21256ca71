"""Opening a ledger, verifying and asking a table need no torch: the commands run where importing it fails."""

import json
import subprocess
import sys

import pytest

from sfumato.accounting import GaussianEvent, poisson_sampled, repeat
from sfumato.ledger import Budget, Ledger

WITHOUT = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "safetensors", "sklearn"}:
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, NoTorch())
from sfumato.cli import main
main()
"""
POLICY = """
[table]
source = "people.csv"
name = "people"
public_size = 8

[columns.age]
type = "integer"
lower = 0
upper = 100

[budget]
epsilon = 2.0
ledger = "people.db"
"""
TERMS = {"relation": "add-remove", "unit": "record"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "people.csv").write_text("age\n" + "\n".join(str(20 + place) for place in range(8)) + "\n")
    (tmp_path / "people.toml").write_text(POLICY)
    plan = repeat(poisson_sampled(0.1, GaussianEvent(4.0)), 10)
    with Ledger.create(tmp_path / "trained.db", Budget(epsilon=1, delta=1e-5)) as ledger:
        ledger.pay_for(plan, purpose="a training", **TERMS).write(tmp_path / "certificate.json")
    return tmp_path


def run(folder, *words):
    command = [sys.executable, "-c", WITHOUT, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ("ledger", "show", "trained.db", "--json"),
        ("ledger", "verify", "trained.db", "--certificate", "certificate.json", "--json"),
        ("verify", "certificate.json", "--json"),
        ("query", "people.toml", "SELECT COUNT(*), AVG(age) FROM people", "--epsilon", "1", "--json"),
    ],
)
def test_a_command_runs_where_torch_cannot_be_imported(folder, words):
    done = run(folder, *words)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)


def test_the_guard_sees_torch(folder):
    assert run(folder, "train", "--data", "digits", "--epsilon", "1", "--out", "run").returncode != 0


def test_a_ledger_is_shown_without_the_libraries_that_take_seconds(folder):
    """Also one that holds a training: the price of its only plan stands in it."""
    code = (
        "import sys; sys.argv = ['sfumato', 'ledger', 'show', 'trained.db']\n"
        "from sfumato.cli import app\n"
        "try: app.main()\n"
        "finally: assert not {'torch', 'scipy', 'pandas', 'ibis', 'dp_accounting'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "a training" in done.stdout
