"""Measure synthetic tables of public ones: accuracy of a classifier trained on them, and marginal errors.

The tables are public, so that everything here may be shown. Settings are the command line's defaults; no run is
left out, and nothing is chosen on the test rows.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import typer

from sfumato.cli import show
from sfumato.errors import MissingExtra
from sfumato.marginals import engine_marginals
from sfumato.policy import Policy, policy_from_dict
from sfumato.randomness import SecretStream, public_generator
from sfumato.synthesis import PaidTable, Request, Synthesizer
from sfumato_lab.reproduce.tables import Only, chosen, conclude, kept, print_table

DELTA = 1e-6
EPSILONS = (0.3, 1.0, 3.0)
RUNS = 5
MEASURES = ("accuracy", "auc", "distance_1", "distance_2", "distance_3")

CUTS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "randhie": {
        "mdvis": (1, 2, 3, 4, 5, 6, 8, 10, 15, 20),
        "lncoins": (1, 3.5, 4.2, 4.59),
        "idp": (0.5,),
        "lpi": (1, 2, 3, 4, 5, 6, 6.5),
        "fmde": (1, 2, 3, 4, 5, 6, 7),
        "disea": (3, 6, 9, 12, 15, 20, 25, 30),
        "hlthg": (0.5,),
        "hlthf": (0.5,),
        "hlthp": (0.5,),
        "physlm": (0.5,),
    },
    "fair": {
        "rate_marriage": (2, 3, 4, 5),
        "age": (20, 25, 30, 35, 40),
        "yrs_married": (1, 4, 8, 12, 15, 20),
        "children": (1, 2, 3, 4, 5),
        "religious": (2, 3, 4),
        "educ": (10, 13, 15, 16.5, 18),
        "occupation": (2, 3, 4, 5, 6),
        "occupation_husb": (2, 3, 4, 5, 6),
        "affairs": (1e-9,),
    },
}
"""Columns of statsmodels' tables become integers by cuts that their code books suggest."""

SAME: Mapping[str, Sequence[str]] = {"randhie": ("lpi", "disea", "hlthg", "hlthf", "hlthp", "physlm")}
"""Columns asked once of a person who has several rows: one row for each year of the experiment."""

TARGETS = {"randhie": "physlm", "fair": "affairs"}
TITLES = {"randhie": "RAND health insurance", "fair": "marriages (Fair 1978)"}


@dataclass(frozen=True)
class Split:
    """A public table of integers: rows to learn from, rows to test on, and how many values each column has."""

    train: pd.DataFrame
    test: pd.DataFrame
    sizes: Mapping[str, int]
    target: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """The runs on one table at one ε; ε is None for the real rows."""

    table: str
    epsilon: float | None
    records: tuple[dict[str, float], ...]

    @property
    def title(self) -> str:
        return f"{TITLES[self.table]}, {'real rows' if self.epsilon is None else f'ε = {self.epsilon:g}'}"

    def mean(self, measured: str) -> float:
        return statistics.fmean(record[measured] for record in self.records)

    def to_json(self) -> dict[str, Any]:
        return {"table": self.table, "epsilon": self.epsilon, "records": list(self.records)}


def run(
    out: Path,
    *,
    only: Sequence[str] = (),
    runs: int = RUNS,
    on_run: Callable[[str], None] = lambda name: None,
) -> tuple[Line, ...]:
    """Measure all tables, or those named, at every ε."""
    lines = []
    for name in chosen(only, CUTS):
        split = load(name)
        lines.append(Line(table=name, epsilon=None, records=(judged(split, split.train),)))
        for epsilon in EPSILONS:
            records = []
            for number in range(1, runs + 1):
                about = {"table": name, "epsilon": epsilon, "number": number}
                make = partial(_once, split, epsilon)
                records.append(kept(out / f"{name}-{epsilon:g}", f"run-{number}", about, make))
                on_run(f"{name} {epsilon:g}")
            lines.append(Line(table=name, epsilon=epsilon, records=tuple(records)))
    headline = {
        line.title: f"accuracy {line.mean('accuracy'):.3f} and AUC {line.mean('auc'):.3f} of a boosted "
        f"classifier, pairs {line.mean('distance_2'):.3f} from the real ones"
        for line in lines
    }
    conclude(out, "synthetic-tables", {"lines": [line.to_json() for line in lines], **headline}, {})
    return tuple(lines)


def load(name: str, *, seed: int = 0) -> Split:
    """One of statsmodels' tables as integers; a fifth of the people, with all their rows, are for the test."""
    try:
        import statsmodels.api as sm
    except ImportError as error:
        raise MissingExtra(package="statsmodels", extra="lab") from error
    raw, cuts = getattr(sm.datasets, name).load_pandas().data, CUTS[name]
    table = pd.DataFrame({column: np.digitize(raw[column], at) for column, at in cuts.items()})
    people = people_of(raw, SAME.get(name, ()))
    order = public_generator(seed).permutation(people.max() + 1)
    learned = np.isin(people, order[: int(0.8 * len(order))])
    sizes = {column: len(at) + 1 for column, at in cuts.items()}
    return Split(table[learned], table[~learned], sizes, TARGETS[name])


def people_of(raw: pd.DataFrame, same: Sequence[str]) -> npt.NDArray[np.int64]:
    """The person of each row: rows beside each other that agree in `same` are one person's, if any are named.

    A classifier that has seen other rows of a person in the test knows the person, not the rule.

    >>> people_of(pd.DataFrame({"born": [1970, 1970, 1981]}), ["born"]).tolist()
    [0, 0, 1]
    """
    if not same:
        return np.arange(len(raw))
    values = raw[list(same)].to_numpy()
    return np.append(0, np.cumsum((values[1:] != values[:-1]).any(axis=1)))


def _once(split: Split, epsilon: float) -> dict[str, float]:
    started = time.process_time()
    request = Request.of(_policy(split), rows=len(split.train), epsilon=epsilon)
    marginals = engine_marginals(request, request.policy, data=split.train)
    sampler = SecretStream()
    found = Synthesizer(PaidTable(request.plan, marginals, sampler), request.columns, request.candidates).run()
    cells = found.model.draw(request.rows, sampler=sampler)
    # No value is missing, and hardly ever does the noise say otherwise: then it counts as the last value.
    made = pd.DataFrame({name: np.minimum(cells[name], size - 1) for name, size in split.sizes.items()})
    used = time.process_time() - started
    return {"epsilon": request.plan.epsilon(DELTA), "cpu_seconds": used, **judged(split, made)}


def _policy(split: Split) -> Policy:
    columns = {name: {"type": "integer", "categories": list(range(size))} for name, size in split.sizes.items()}
    table = {"name": "public", "source": "public.csv", "public_size": len(split.train)}
    budget = {"epsilon": max(EPSILONS), "delta": DELTA}
    return policy_from_dict({"table": table, "budget": budget, "columns": columns})


def judged(split: Split, made: pd.DataFrame) -> dict[str, float]:
    """Accuracy and AUC of a boosted classifier, and half the L1 distances of marginals to the training rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    target, test = split.target, split.test
    model = HistGradientBoostingClassifier(max_iter=150, random_state=0)
    model.fit(made.drop(columns=target), made[target])
    chances = model.predict_proba(test.drop(columns=target))[:, list(model.classes_).index(1)]
    right = model.predict(test.drop(columns=target)) == test[target]
    return {
        "accuracy": float(right.mean()),
        "auc": float(roc_auc_score(test[target] == 1, chances)),
        **{f"distance_{count}": distance(split, made, count) for count in (1, 2, 3)},
    }


def distance(split: Split, made: pd.DataFrame, count: int) -> float:
    cliques = itertools.combinations(split.sizes, count)
    apart = [np.abs(_shares(split, split.train, one) - _shares(split, made, one)).sum() / 2 for one in cliques]
    return float(np.mean(apart))


def _shares(split: Split, table: pd.DataFrame, clique: tuple[str, ...]) -> npt.NDArray[np.float64]:
    shape = [split.sizes[name] for name in clique]
    index = np.ravel_multi_index([table[name].to_numpy() for name in clique], shape)
    return np.bincount(index, minlength=int(np.prod(shape))) / len(table)


def synthetic_tables(
    out: show.Out = Path("out/synthetic-tables"),
    only: Only = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs at each ε.")] = RUNS,
    json: show.Json = False,
) -> None:
    """Draw synthetic copies of public tables at several ε, and measure them. An interrupted table is resumed.

    Example: sfumato reproduce synthetic-tables --only fair --runs 1
    """
    with show.progress() as bar:
        task = bar.add_task("drawing", total=len(only or CUTS) * len(EPSILONS) * runs, note="")
        lines = run(out, only=only or (), runs=runs, on_run=lambda name: bar.update(task, advance=1, note=name))
    if json:
        show.emit_json({"lines": [line.to_json() for line in lines], "out": str(out)})
        return
    print_table(
        "A classifier trained on synthetic rows and tested on real ones; mean distance of marginals; δ = 1e-6",
        ("table", "accuracy", "AUC", "1-way", "2-way", "3-way"),
        [(line.title, *(f"{line.mean(name):.4f}" for name in MEASURES)) for line in lines],
    )
    show.console.print(f"Numbers: {out}")
