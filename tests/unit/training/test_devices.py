"""Training on another device, in a process of its own: torch counts devices once, before a backward pass."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).with_name("stand_in_device.py")


def test_training_on_a_stand_in_device():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TESTS.parents[3])
    assert done.returncode == 0, done.stdout[-4000:]
