"""The first thing a newcomer runs: one network on MNIST, plain and private, under one kept budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sfumato import datasets, models
from sfumato.accounting import Budget, attacker_true_positive_rate
from sfumato.datasets import Dataset
from sfumato.errors import BudgetExceeded
from sfumato.fitting import FitConfig, fit
from sfumato.ledger import Ledger
from sfumato.training import Optimization, TrainingPlan, train

DELTA = 1e-5
BUDGET = Budget(epsilon=3.0, delta=DELTA)
SPENT = (0.5, 1.5)  # ε of the private runs; what is left does not pay for a third
STAGES = 4


@dataclass(frozen=True, kw_only=True)
class Run:
    name: str
    epsilon: float | None
    test_accuracy: float
    seconds: float
    curve: tuple[float, ...]  # test accuracy after each epoch


@dataclass(frozen=True, kw_only=True)
class FirstLook:
    runs: tuple[Run, ...]
    attacker_true_positive_rate: float
    refusal: str
    ledger: Path
    figure: Path
    certificates: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), **{name: str(getattr(self, name)) for name in ("ledger", "figure")}} | {
            "certificates": [str(path) for path in self.certificates]
        }


def run(
    out: Path, *, quick: bool = False, on_stage: Callable[[str, int], None] = lambda name, done: None
) -> FirstLook:
    """Plain and private training, the ledger being spent, a refusal, a figure; everything under `out`."""
    out.mkdir(parents=True, exist_ok=True)
    size, epochs = (6000, 5) if quick else (60_000, 8)
    data, test = datasets.load("mnist", "train").take(size), datasets.load("mnist", "test")
    ledger_path = out / "ledger.db"
    ledger_path.unlink(missing_ok=True)
    on_stage("training plainly", 0)
    runs = [_plain(data, test, epochs)]
    with Ledger.open(ledger_path, budget=BUDGET) as ledger:
        for stage, epsilon in enumerate(SPENT, start=1):
            on_stage(f"training at ε = {epsilon:g}", stage)
            runs.append(_private(data, test, epsilon, epochs, ledger, out / f"epsilon-{epsilon:g}"))
        on_stage("asking for more than is left", STAGES - 1)
        refusal = _ask_for_more(data, ledger)
    figure = _draw(runs, out / "accuracy.png")
    return FirstLook(
        runs=tuple(runs),
        attacker_true_positive_rate=attacker_true_positive_rate(_plan(size, SPENT[0], epochs).event()),
        refusal=refusal,
        ledger=ledger_path,
        figure=figure,
        certificates=tuple(out / f"epsilon-{epsilon:g}" / "release" / "certificate.json" for epsilon in SPENT),
    )


def _plan(size: int, epsilon: float, epochs: int) -> TrainingPlan:
    return TrainingPlan.calibrated(
        epsilon=epsilon,
        delta=DELTA,
        public_size=size,
        expected_batch=size // 60,
        epochs=epochs,
        clip_norm=1.0,
        average_decay=0.95,
    )


def _declared(data: Dataset) -> int:
    """The size that may be known; the rows are not counted."""
    assert data.public_size is not None
    return data.public_size


def _plain(data: Dataset, test: Dataset, epochs: int) -> Run:
    started = time.perf_counter()
    history = fit(models.build("cnn"), data, FitConfig(epochs=epochs), evaluate_on=test)
    curve = tuple(epoch.evaluation.accuracy for epoch in history if epoch.evaluation is not None)
    seconds = time.perf_counter() - started
    return Run(name="plain", epsilon=None, test_accuracy=curve[-1], seconds=seconds, curve=curve)


def _private(data: Dataset, test: Dataset, epsilon: float, epochs: int, ledger: Ledger, out: Path) -> Run:
    result = train(
        models.build("cnn"),
        data,
        _plan(_declared(data), epsilon, epochs),
        delta=DELTA,
        optimization=Optimization(learning_rate=0.5, schedule="cosine"),
        test=test,
        ledger=ledger,
        out=out,
        purpose=f"CNN at ε = {epsilon:g}",
    )
    curve = tuple(report.test_accuracy or 0.0 for report in result.history)
    return Run(
        name=f"private, ε = {epsilon:g}",
        epsilon=result.epsilon,
        test_accuracy=curve[-1],
        seconds=result.seconds,
        curve=curve,
    )


def _ask_for_more(data: Dataset, ledger: Ledger) -> str:
    try:
        ledger.charge(_plan(_declared(data), BUDGET.epsilon, 1).event(), purpose="one more model")
    except BudgetExceeded as refusal:
        return str(refusal)
    raise AssertionError("the ledger let an overspending plan through")


def _draw(runs: Sequence[Run], path: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for run in runs:
        axes.plot(
            range(1, len(run.curve) + 1), [100 * value for value in run.curve], marker="o", label=run.name
        )
    axes.set(
        xlabel="epoch", ylabel="accuracy on the public test set, %", title="What privacy costs: CNN on MNIST"
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
