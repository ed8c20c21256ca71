"""Random modules against the training compiler, by the thousand; what was done is kept, and gone on with.

    python bench/random_modules.py [--modules 20000] [--first 0] [--kept out/random_modules.jsonl]

Each line of the file is a seed and its outcome: "exact", a refusal, or a property that does not hold. At the
end the outcomes are counted, refusals by their reason; the exit code is 1 if a property did not hold.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import generated_modules as generated


def outcome(seed: int) -> str:
    try:
        return generated.outcome(generated.module(seed))
    except Exception as error:
        return f"BROKEN {type(error).__name__}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kept", type=Path, default=Path("out/random_modules.jsonl"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    asked.kept.parent.mkdir(parents=True, exist_ok=True)
    lines = asked.kept.read_text().splitlines() if asked.kept.exists() else []
    known = {line["seed"]: line["outcome"] for line in map(json.loads, lines)}
    with asked.kept.open("a") as kept:
        for seed in range(asked.first, asked.first + asked.modules):
            if seed not in known:
                known[seed] = outcome(seed)
                print(json.dumps({"seed": seed, "outcome": known[seed]}), file=kept, flush=True)
    tally = collections.Counter(re.sub(r" at \S+;| by \S+ or \S+;", ";", found) for found in known.values())
    for found, count in tally.most_common():
        print(f"{count:6d}  {found[:160]}")
    sys.exit(any(found.startswith("BROKEN") for found in tally))


if __name__ == "__main__":
    main()
