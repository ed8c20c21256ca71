"""One synthetic table by another package, for bench/synthesis.py, which calls this with that package's Python.

    PYTHON synthesis_peers.py dpmm|opendp TRAIN.csv SIZES EPSILON DELTA ROWS OUT.csv

SIZES is JSON: how many values, from 0 on, each column has. Both packages run their MST with defaults, on
integers whose domain is given, so that neither spends anything on finding it out. OpenDP is given the ρ of
zero-concentrated DP that (ε, δ) allows, as its Gaussian noise is then smaller than Laplace noise at ε.
"""

from __future__ import annotations

import json
import math
import sys
import warnings


def main() -> None:
    name, train, sizes, epsilon, delta, rows, out = sys.argv[1:]
    warnings.simplefilter("ignore")
    {"dpmm": by_dpmm, "opendp": by_opendp}[name](
        train, json.loads(sizes), float(epsilon), float(delta), int(rows), out
    )


def by_dpmm(train: str, sizes: dict[str, int], epsilon: float, delta: float, rows: int, out: str) -> None:
    import numpy as np
    import pandas as pd
    from dpmm.models.mst import MSTGM

    model = MSTGM(epsilon=epsilon, delta=delta, n_jobs=1)
    model.set_domain(sizes)
    model.set_random_state(np.random.RandomState())
    model.fit(pd.read_csv(train)[list(sizes)])
    model.generate(n_records=rows).to_csv(out, index=False)


def by_opendp(train: str, sizes: dict[str, int], epsilon: float, delta: float, rows: int, out: str) -> None:
    import opendp.extras.mbi._mst as mst
    import opendp.prelude as dp
    import polars as pl

    # It gives each choice an equal share, adds the shares up with rounding upward, and stops where the sum is
    # more than the whole by a rounding error. So each share is a little less than the next smaller float.
    mst.prior = lambda value: value * (1 - 1e-12)

    dp.enable_features("contrib")
    loss = {"rho": concentrated(epsilon, delta), "delta": 0.0}
    context = dp.Context.compositor(
        data=pl.scan_csv(train), privacy_unit=dp.unit_of(contributions=1), privacy_loss=dp.loss_of(**loss)
    )
    keys = {name: list(range(size)) for name, size in sizes.items()}
    table = context.query(**loss).select(*sizes).contingency_table(keys=keys, algorithm=dp.mbi.MST()).release()
    made = table.synthesize(rows=rows)
    made.with_columns(pl.col(name).fill_null(0) for name in made.columns).write_csv(out)


def concentrated(epsilon: float, delta: float) -> float:
    """The largest ρ that costs at most (ε, δ): Canonne, Kamath & Steinke 2020, proposition 7."""

    def cost(rho: float) -> float:
        orders = [1 + 1.01**power / 100 for power in range(1400)]
        return min(
            math.exp(min(50.0, (a - 1) * (a * rho - epsilon) + a * math.log1p(-1 / a))) / (a - 1)
            for a in orders
        )

    low, high = 0.0, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= delta else (low, middle)
    return low


if __name__ == "__main__":
    main()
