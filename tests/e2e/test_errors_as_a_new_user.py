"""Errors that a user will meet: one sentence with the remedy, no traceback, the right exit code."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
NO_NETWORK = {
    **dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"), "http://127.0.0.1:9"),
    "PATH": "/nowhere",  # no npm either
}


def shell(*words, **more):
    """The real command in a process of its own, as if typed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(
        [sys.executable, "-m", "sfumato", *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def test_no_data(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, error = shell(
        "data", "mnist", SFUMATO_DATA=str(empty), SFUMATO_CACHE=str(tmp_path / "cache"), **NO_NETWORK
    )
    assert (code, out) == (1, "")
    assert f"{empty} has no such files" in error
    assert "To hand them over" in error
    assert "SFUMATO_DATA" in error


def test_a_corrupt_cache(tmp_path):
    folder = tmp_path / "cache" / "mnist"
    folder.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte").write_text("junk")
    code, _, error = shell(
        "data", "mnist", SFUMATO_DATA="", SFUMATO_CACHE=str(tmp_path / "cache"), **NO_NETWORK
    )
    assert code == 1
    assert str(folder) in error
    assert "delete it" in error
    assert error.count("\n") == 1


def test_ctrl_c(tmp_path):
    """Interrupted while it trains: a sentence, exit code 130, and the same command goes on."""
    ledger = tmp_path / "l.db"
    shell("ledger", "create", ledger, "--epsilon", 3, "--delta", 1e-5)
    words = ("train", "--data", "digits", "--model", "mlp", "--epsilon", 1, "--epochs", 4000, "--batch", 256)
    command = [sys.executable, "-m", "sfumato", *map(str, words), "--ledger", str(ledger), "--out"]
    started = subprocess.Popen(
        [*command, str(tmp_path / "run")],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background shells have it ignored
    )
    checkpoint = tmp_path / "run" / "private" / "checkpoint.safetensors"
    deadline = time.monotonic() + 240
    while not checkpoint.exists() and started.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    _, error = started.communicate(timeout=240)
    assert started.returncode == 130
    assert "Traceback" not in error
    assert "interrupted" in error
    assert "the same command goes on" in error


OWN = ("--data", "own.npz", "--classes", "2", "--model", "mlp")  # 400 images


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("sigma", "--epsilon", "0", "--delta", "1e-5"), 2, "expected epsilon > 0, got epsilon=0.0"),
        (("sigma", "--epsilon", "nan", "--delta", "1e-5"), 2, "finite number"),
        (("sigma", "--epsilon", "abc", "--delta", "1e-5"), 2, "--epsilon"),
        (("report", "/nowhere"), 2, "runs are made with --out"),
        (("report", "."), 2, "runs are made with --out"),
        (("verify", "."), 1, "name the file"),
        (("verify", "/nowhere/certificate.json"), 1, "check the path"),
        (("ledger", "create", "/nowhere/l.db", "--epsilon", "1"), 1, "folder that exists"),
        (("ledger", "show", "file"), 1, "is not a ledger"),
        (("demo", "--out", "file"), 2, "choose another --out"),
        (
            ("train", "--data", "digits", "--model", "mlp", "--epsilon", "1", "--out", "file/run"),
            2,
            "choose another --out",
        ),
        (("query", "/nowhere/p.toml", "SELECT COUNT(*) FROM t", "--epsilon", "1"), 2, "/nowhere/p.toml"),
        (("query", "init", "/nowhere.csv"), 1, "give a CSV or Parquet file"),
        (("data", "mnst"), 2, "mnist, fashion-mnist"),
        (
            ("train", "--data", "mine.npz", "--epsilon", "1"),
            2,
            "an .npz file or a folder of images that is there",
        ),
        (("train", *OWN, "--epsilon", "1"), 2, "--public-size and --classes with your own images"),
        (
            ("train", *OWN, "--public-size", "0", "--epsilon", "1"),
            2,
            "expected public_size to be a whole number >= 1",
        ),
        (("train", *OWN, "--public-size", "1.5", "--epsilon", "1"), 2, "--public-size"),
        (
            ("train", *OWN, "--public-size", "9", "--epsilon", "1"),
            1,
            "many more than were declared as public_size",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_one_sentence_with_the_remedy(sfumato, tmp_path, monkeypatch, words, code, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way, and no ledger: " + "x" * 100)
    if "own.npz" in words:
        np.savez("own.npz", images=np.zeros((400, 8, 8), np.float32), labels=np.arange(400) % 2)
    found, out, error = sfumato(*words)
    assert found == code
    assert sentence in " ".join(error.split())
    assert "Traceback" not in out + error


def test_the_budget_is_spent(sfumato, sfumato_json, tmp_path):
    ledger = tmp_path / "l.db"
    sfumato_json("ledger", "create", ledger, "--epsilon", 0.1, "--delta", 1e-5)
    words = ("train", "--data", "digits", "--model", "mlp", "--epsilon", 1, "--epochs", 1, "--ledger", ledger)
    code, out, error = sfumato(*words, "--out", tmp_path / "run")
    assert (code, out) == (3, "")
    assert "add noise, or ask for fewer releases" in error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_the_disk_says_no(sfumato, monkeypatch, tmp_path, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number), str(tmp_path))

    monkeypatch.setattr("sfumato.ledger.Certificate.read", refuse)
    code, _, error = sfumato("verify", tmp_path / "certificate.json")
    assert code == 1
    assert os.strerror(number) in error
    assert "; " in error
    assert error.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a disk of 64 kB")
def test_no_room_on_the_disk(sfumato, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        words = ("train", "--data", "digits", "--model", "mlp", "--epsilon", 1, "--epochs", 1)
        code, _, error = sfumato(*words, "--out", disk / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert code == 1
    assert "No space left on device" in error
    assert "make room" in error
    assert "Traceback" not in error


def test_without_a_terminal_there_is_no_bar_and_json_is_alone(tmp_path):
    code, out, error = shell("data", "digits", "--json")
    assert code == 0
    assert json.loads(out)["classes"] == 10
    assert error == ""


def test_python_is_too_old(tmp_path):
    old = tmp_path / "python-of-old"
    old.write_text("#!/bin/sh\nexit 1\n")  # says no when asked whether it is new enough
    old.chmod(0o755)
    makefile = (ROOT / "Makefile").read_text()
    (tmp_path / "Makefile").write_text(makefile)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    done = subprocess.run(
        ["make", f"PYTHON={old}", "demo"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert (
        "Sfumato needs Python 3.11 or newer; name one with: make PYTHON=python3.11" in done.stdout + done.stderr
    )
    assert not (tmp_path / ".venv").exists()
