"""A study of three holders on this machine: a coordinator and three holders over HTTPS, each its own process.

    python bench/holders_here.py [--data mnist] [--spare 5] [--folder DIR]

Everything is done with the commands that partners on different machines would use, and talks to 127.0.0.1 only.
The clock starts when the four processes do; each holder then computes the features of its own rows, and trains.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("delft", "utrecht", "leiden")
SIZES = {"mnist": 60000, "fashion-mnist": 60000, "digits": 1400}


def sfumato(*words: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "sfumato", "holders", *words, "--json"]


def prepare(folder: Path, data: str, spare: int) -> None:
    """Keys, study, signatures, ledgers and a certificate, as the partners would make them."""
    from sfumato import Budget, Ledger
    from sfumato.holders import Study, write_signature
    from sfumato.holders.https import write_certificate
    from sfumato.ledger.signing import PrivateKey

    keys = {name: PrivateKey.create(folder / f"{name}.key") for name in NAMES}
    lines = {name: (folder / f"{name}.key.pub").read_text().splitlines()[1] for name in NAMES}
    (folder / "study.toml").write_text(
        f"""[study]
name = "{data} of three holders"
data = "{data}"
classes = 10
public_size = {SIZES[data]}
largest_share = 0.34
unit = "record"
epsilon = 1.0
delta = 1e-5
dropped = 0
colluding = 1
spare = {spare}

[holders]
"""
        + "\n".join(f'{name} = "{line}"' for name, line in lines.items())
    )
    study = Study.read(folder / "study.toml")
    study.task.material(list, None)  # features of drawings, which are public, are made once on a machine
    for name, key in keys.items():
        write_signature(folder / f"{name}.json", study.signed(key))
        Ledger.create(folder / f"{name}.db", Budget(epsilon=1.0, delta=1e-5)).close()
    write_certificate(folder / "coordinator.pem", folder / "coordinator.pem.key", host="127.0.0.1")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def run(folder: Path, data: str) -> dict[str, dict[str, object]]:
    """All four processes to their end; what each of them printed."""
    address = f"127.0.0.1:{free_port()}"
    signatures = [word for name in NAMES for word in ("--signatures", f"{name}.json")]
    common = [*signatures, "--certificate", "coordinator.pem"]
    commands = {"coordinator": ["coordinate", "study.toml", *common, "--out", "rounds", "--address", address]}
    for place, name in enumerate(NAMES, 1):
        own = ["--key", f"{name}.key", "--ledger", f"{name}.db", "--out", f"out-{name}"]
        what = ["--data", data, "--part", f"{place}/{len(NAMES)}", "--coordinator", address]
        commands[name] = ["join", "study.toml", *common, *own, *what]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    processes = {
        name: subprocess.Popen(
            sfumato(*words, folder=folder), cwd=folder, stdout=subprocess.PIPE, text=True, env=environment
        )
        for name, words in commands.items()
    }
    answers = {}
    try:
        for name, process in processes.items():
            said, _ = process.communicate()
            if process.returncode:
                raise SystemExit(f"{name} failed with exit code {process.returncode}")
            answers[name] = json.loads(said)
    finally:
        for process in processes.values():
            process.kill()
    return answers


def main() -> None:
    options = argparse.ArgumentParser(description="Three holders and a coordinator on this machine.")
    options.add_argument("--data", default="mnist", choices=SIZES)
    options.add_argument("--spare", type=int, default=5)
    options.add_argument("--folder", type=Path)
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process is left behind
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="sfumato-holders-"))
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, chosen.data, chosen.spare)
    started = time.perf_counter()
    answers = run(folder, chosen.data)
    whole = time.perf_counter() - started
    rounds, holder = answers["coordinator"], answers[NAMES[0]]
    print(f"test accuracy of the model that all holders have: {holder['test_accuracy']:.4f}")
    print(f"ε: {holder['epsilon']}")
    print(f"{rounds['rounds']} rounds, {rounds['abandoned']} abandoned, {rounds['seconds']:.1f} s;", end=" ")
    print(f"{whole:.1f} s with the start of all processes; folder: {folder}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{used.ru_utime + used.ru_stime:.0f} s of CPU in four processes; load of the machine: {load}")


if __name__ == "__main__":
    main()
