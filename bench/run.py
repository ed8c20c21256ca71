"""All benchmarks one after another: `make bench`. Each prints ratios measured side by side in its own run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ("step.py", "noise.py", "ledger.py", "query.py", "pate.py", "local.py")


def main() -> None:
    for script in SCRIPTS:
        print(f"\n== bench/{script}", flush=True)
        subprocess.run([sys.executable, HERE / script], check=True)


if __name__ == "__main__":
    main()
