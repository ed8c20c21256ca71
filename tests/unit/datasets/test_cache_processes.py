"""Two processes write one cache file over and over while a third reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SIZE = 1 << 20
ROUNDS = 40
WRITER = """
import sys
from pathlib import Path
from sfumato.datasets import archive as cache
for _ in range(int(sys.argv[3])):
    cache.write(Path(sys.argv[1]), sys.argv[2].encode() * int(sys.argv[4]))
"""


def test_readers_see_one_writers_whole_file_or_the_others(tmp_path):
    path = tmp_path / "cache" / "file"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), letter, str(ROUNDS), str(SIZE)])
        for letter in "ab"
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(path.read_bytes())
    seen.add(path.read_bytes())
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {b"a" * SIZE, b"b" * SIZE}
    assert _names(path.parent) == ["file"]


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]
