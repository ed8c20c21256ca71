"""The process beside the server that runs jobs, each in a process of its own.

It ends when its standard input does, which is when whoever started it has ended, however that came about. A
runner ends with its keeper in the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from sfumato.desk import jobs
from sfumato.desk.config import load_settings
from sfumato.desk.database import Database

PAUSE = 0.5


def end_with_input() -> None:
    """End this process as soon as its standard input does."""

    def watch() -> None:
        while os.read(0, 4096):  # not through sys.stdin, whose lock would be held while Python shuts down
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def keep(place: Path) -> None:
    """Run jobs one after another, for ever."""
    settings = load_settings(place)
    database = Database(settings.database)
    jobs.put_back(database)
    while True:
        job = jobs.take(database)
        if job is None:
            time.sleep(PAUSE)
        else:
            _run(database, place, job)


def _run(database: Database, place: Path, job: Any) -> None:
    words = [sys.executable, "-m", "sfumato.desk.runner", str(place), str(job.id), str(job.tries)]
    quiet = subprocess.DEVNULL  # what a library prints may quote rows
    runner = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
    while runner.poll() is None:
        if jobs.state_of(database, job.id) == jobs.CANCELLING:
            runner.kill()
            runner.wait()
        time.sleep(PAUSE)
    if runner.stdin is not None:
        runner.stdin.close()
    jobs.put_back_one(database, job.id, job.tries)


if __name__ == "__main__":
    end_with_input()
    keep(Path(sys.argv[1]))
