"""The published wheel and source archive work in an environment that has the base install only."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
POLICY = """
[table]
source = "people.csv"

[columns.age]
type = "integer"
lower = 0
upper = 100

[budget]
epsilon = 2.0
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder with both archives; the wheel is built from the source archive, as installers do."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def base(dist, tmp_path_factory):
    """A virtual environment with the wheel and the distributions that it requires without any extra."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (wheel,) = dist.glob("*.whl")
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    done = subprocess.run([*command, "--no-deps", str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        required = re.findall(r"^Requires-Dist: (.+)$", archive.read(metadata).decode(), re.MULTILINE)
    for name in closure(required):
        for file in importlib.metadata.files(name) or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(importlib.metadata.distribution(name).locate_file(top))
    return folder / "bin"


def closure(required):
    """The distributions that requirements ask for without extras of ours, and those that these ask for."""
    found, waiting = set(), [(Requirement(text), "") for text in required]
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        for name in {(wanted.name, ""), *((wanted.name, each) for each in wanted.extras)} - found:
            found.add(name)
            further = importlib.metadata.requires(wanted.name) or []
            waiting += [(Requirement(text), name[1]) for text in further]
    return {name for name, _ in found}


def test_the_source_archive_holds_the_licence_and_no_tests_data(dist):
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/sfumato/py.typed"} <= names
    assert not [name for name in names if name.startswith(("out/", ".venv"))]


def test_the_base_install_answers_and_verifies_without_torch(base, tmp_path):
    (tmp_path / "people.csv").write_text("age\n" + "\n".join(str(20 + place) for place in range(50)) + "\n")
    (tmp_path / "people.toml").write_text(POLICY)
    assert run(base, tmp_path, "python", "-c", "import torch").returncode != 0
    asked = (
        "query",
        "people.toml",
        "SELECT COUNT(*) AS n FROM people",
        "--epsilon",
        "1",
        "--certificate",
        "c.json",
    )
    for words in (asked, ("verify", "c.json"), ("ledger", "show", "people.ledger.db"), ("epsilon", *PLAN)):
        done = run(base, tmp_path, "sfumato", *words, "--json")
        assert done.returncode == 0, done.stderr
        assert isinstance(json.loads(done.stdout), dict)


def test_what_needs_an_extra_names_it(base, tmp_path):
    done = run(base, tmp_path, "sfumato", "train", "--data", "digits", "--epsilon", "1")
    assert done.returncode == 1
    assert "pip install 'sfumato[train]'" in done.stderr
    done = run(base, tmp_path, "python", "-c", "from sfumato import PrivateTrainer")
    assert "pip install 'sfumato[train]'" in done.stderr


PLAN = ("--noise-multiplier", "1.1", "--sample-rate", "0.01", "--steps", "100", "--delta", "1e-5")


def run(base, folder, program, *words):
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    command = [str(base / program), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
