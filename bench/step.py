"""One training step, side by side in one run: plain PyTorch, ours, and Opacus and JAX-Privacy where installed.

    python bench/step.py                      everything (minutes)
    python bench/step.py --model cnn --batch 256 --repeats 20 --no-memory
    python bench/step.py --against OTHER/src  our private step against that of another checkout

Every contender has a process of its own, and they take turns. Times are the least and the median of all
steps, on two threads, as ratios to the stock plain loop; `--clock cpu` counts processor time on one thread
instead, for machines that do other work meanwhile.
Memory is the peak of a fresh process for each contender. The table goes to standard output, everything
measured to bench/results/step.json.

`--against` takes full batches, so that both checkouts work on the same rows, and counts processor time on one
thread. Beside the steps it shows the first one, which traces the model, and a short run with Poisson batches,
which meets many sizes for the first time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transformer
from sfumato.models import CNN, resnet18
from sfumato.training import clipped_gradient_sum

MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnn": CNN,
    "resnet18": resnet18,
    "encoder": transformer.Encoder,
    "lora": transformer.with_adapters,
}
BATCHES = {"cnn": (64, 256, 1024, 4096, 8192), "resnet18": (64, 256), "encoder": (32,), "lora": (32,)}
RESULTS = Path(__file__).parent / "runs" / "step.json"
per_row = partial(F.cross_entropy, reduction="none")

STEPS_A_TURN = 3
SHORT_RUN = 40  # steps

Step = Callable[[], None]


def data(model: nn.Module, rows: int) -> tuple[Tensor, Tensor]:
    if isinstance(model, transformer.Encoder):
        return transformer.sequences(rows)
    return torch.randn(rows, 1, 28, 28), torch.randint(0, 10, (rows,))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-4)


# Contenders: each makes a callable that takes one step


def plain(model: nn.Module, batch: int) -> Step:
    inputs, targets = data(model, batch)
    optimizer = sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def plain_channels_last(model: nn.Module, batch: int) -> Step:
    return plain(model.to(memory_format=torch.channels_last), batch)


def plain_backward(model: nn.Module, batch: int) -> Step:
    inputs, targets = data(model, batch)

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()

    return step


def bounded_sum(model: nn.Module, batch: int) -> Step:
    inputs, targets = data(model, batch)

    def step() -> None:
        clipped_gradient_sum(model, per_row, inputs, targets, 1.0)

    return step


def private_step(model: nn.Module, batch: int, *, rate: float = 0.25) -> Step:
    """Poisson sampling, clipping, noise on the grid, optimizer: batches vary around the expected size."""
    from sfumato.training import PrivateTrainer, TrainingPlan

    rows = round(batch / rate)
    plan = TrainingPlan(
        sample_rate=batch / rows, expected_batch=batch, steps=10**6, noise_multiplier=1.0, clip_norm=1.0
    )
    trainer = PrivateTrainer(model, sgd(model), plan)
    batches: Iterator[Any] = trainer.batches(data(model, rows))

    def step() -> None:
        trainer.step(next(batches), per_row)

    return step


def full_batches(model: nn.Module, batch: int) -> Step:
    """The same with all rows in every batch."""
    return private_step(model, batch, rate=1.0)


def short_run(model: nn.Module, batch: int) -> Step:
    """A private step that is in fact the first few of a run, each of another size."""
    one = private_step(model, batch)

    def run() -> None:
        for _ in range(SHORT_RUN):
            one()

    return run


def opacus_hooks(model: nn.Module, batch: int, **options: Any) -> Step:
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    inputs, targets = data(model, batch)
    sampled = GradSampleModule(model, **options)
    optimizer = DPOptimizer(sgd(model), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(sampled(inputs), targets).backward()
        optimizer.step()

    return step


def opacus_functorch(model: nn.Module, batch: int) -> Step:
    return opacus_hooks(model, batch, force_functorch=True)


def opacus_ghost(model: nn.Module, batch: int) -> Step:
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    inputs, targets = data(model, batch)
    sampled = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        sgd(model), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch
    )
    criterion = DPLossFastGradientClipping(sampled, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        criterion(sampled(inputs), targets).backward()
        optimizer.step()

    return step


def jax_privacy(model: nn.Module, batch: int) -> Step:
    """The quicker setting for each: a vectorised ResNet means grouped convolutions, which are slow in XLA."""
    import jax_step

    return jax_step.private_step(model, *data(model, batch), microbatch=None if isinstance(model, CNN) else 1)


CONTENDERS: dict[str, Callable[[nn.Module, int], Step]] = {
    "plain": plain,
    "plain channels-last": plain_channels_last,
    "plain forward+backward": plain_backward,
    "ours: clipped sum": bounded_sum,
    "ours: private step": private_step,
    "opacus hooks": opacus_hooks,
    "opacus functorch": opacus_functorch,
    "opacus ghost": opacus_ghost,
    "jax-privacy": jax_privacy,
}

BESIDE = {"full batches": full_batches, "short run": short_run}  # of `--against`


def ready(name: str, model: str, batch: int) -> Step | None:
    """The contender after one step, or None if it is not installed or does not run."""
    torch.manual_seed(0)
    try:
        step = {**CONTENDERS, **BESIDE}[name](MODELS[model](), batch)
        step()
    except Exception as error:
        print(f"  {name}: does not run here ({type(error).__name__}: {str(error)[:80]})", file=sys.stderr)
        return None
    return step


class Contender:
    """One contender in a process of its own, so that nobody's memory habits slow down or help the others."""

    def __init__(self, name: str, model: str, batch: int, clock: str, source: str | None = None) -> None:
        """`source`: the src folder of another checkout."""
        command = [sys.executable, __file__, "--serve", name, "--model", model, "--batch", str(batch)]
        self.name = name
        self.process = subprocess.Popen(
            [*command, "--clock", clock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ if source is None else {**os.environ, "PYTHONPATH": source},
        )
        line = self.process.stdout.readline().split()  # type: ignore[union-attr]
        self.runs = line[:1] == ["ready"]
        self.first = float(line[1]) if self.runs else 0.0

    def turn(self) -> list[float]:
        self.process.stdin.write("go\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        return json.loads(self.process.stdout.readline())  # type: ignore[union-attr]

    def stop(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()


def serve(name: str, model: str, batch: int, clock: Callable[[], float]) -> None:
    """Takes steps when told to, one turn for each line on standard input."""
    start = clock()
    step = ready(name, model, batch)
    if step is None:
        raise SystemExit(1)
    print("ready", clock() - start, flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(STEPS_A_TURN):
            start = clock()
            step()
            times.append(clock() - start)
        print(json.dumps(times), flush=True)


def measure(
    model: str, batch: int, names: list[str], *, repeats: int, seconds: float, clock: str
) -> dict[str, Any]:
    """Turns go round: whatever else the machine does hits all contenders alike."""
    started = [Contender(name, model, batch, clock) for name in names]
    contenders = [each for each in started if each.runs]
    times: dict[str, list[float]] = {each.name: [] for each in contenders}
    begin = time.perf_counter()
    for repeat in range(repeats):
        if repeat >= 3 and time.perf_counter() - begin > seconds:
            break
        for each in contenders:
            times[each.name] += each.turn()
    for each in started:
        each.stop()
    return {
        name: {"min": min(each), "median": statistics.median(each), "repeats": len(each)}
        for name, each in times.items()
    }


def against(model: str, batch: int, other: str, *, repeats: int, seconds: float) -> dict[str, Any]:
    """Our private step and that of another checkout, in turns; the ratio of ours to theirs."""
    sources = {"other": other, "ours": None}
    sides = {side: Contender("full batches", model, batch, "cpu", source) for side, source in sources.items()}
    times: dict[str, list[float]] = {side: [] for side in sides}
    begin = time.perf_counter()
    for repeat in range(repeats):
        if repeat >= 3 and time.perf_counter() - begin > seconds:
            break
        for side, contender in sides.items():
            times[side] += contender.turn()
    found = {
        side: {"min": min(each), "median": statistics.median(each), "first step": sides[side].first}
        for side, each in times.items()
    }
    for contender in sides.values():
        contender.stop()
    for side, source in sources.items():
        contender = Contender("short run", model, batch, "cpu", source)
        contender.stop()
        found[side]["short run"] = contender.first
    show_against(model, batch, found, len(times["ours"]))
    return {"model": model, "batch": batch, "steps": len(times["ours"]), **found}


def show_against(model: str, batch: int, found: dict[str, Any], steps: int) -> None:
    print(f"\n{model}, batch {batch}, {steps} steps of each, seconds of processor time")
    print(f"  {'':24s}{'other':>10s}{'ours':>10s}{'ratio':>8s}")
    names = {"min": "least", "median": "median", "first step": "first step", "short run": f"run of {SHORT_RUN}"}
    for key, name in names.items():
        theirs, ours = found["other"][key], found["ours"][key]
        print(f"  {name:24s}{theirs:10.4f}{ours:10.4f}{ours / theirs:8.3f}", flush=True)


def peak_memory(name: str, model: str, batch: int) -> int | None:
    """MiB at the peak of a fresh process that takes three steps."""
    command = [sys.executable, __file__, "--peak", name, "--model", model, "--batch", str(batch)]
    done = subprocess.run(command, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else None


def report_peak(name: str, model: str, batch: int) -> None:
    step = ready(name, model, batch)
    if step is None:
        raise SystemExit(1)
    for _ in range(2):
        step()
    # not getrusage: its maximum survives exec and would be the parent's
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) // 1024)


def show(model: str, batch: int, found: dict[str, Any]) -> None:
    base = found["plain"]
    print(
        f"\n{model}, batch {batch}: plain step {1e3 * base['min']:.1f} ms (median {1e3 * base['median']:.1f})"
    )
    print(f"  {'':24s}{'min ms':>10s}{'ratio':>8s}{'median':>8s}{'peak MiB':>10s}{'ratio':>8s}")
    for name, row in found.items():
        ratio, median = row["min"] / base["min"], row["median"] / base["median"]
        line = f"  {name:24s}{1e3 * row['min']:10.1f}{ratio:8.2f}{median:8.2f}"
        if row.get("peak") and base.get("peak"):
            line += f"{row['peak']:10d}{row['peak'] / base['peak']:8.2f}"
        print(line, flush=True)


def machine() -> dict[str, Any]:
    packages = ("torch", "opacus", "jax", "jax_privacy", "sfumato")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **versions,
    }


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=60.0, help="time for one table, roughly")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--against", metavar="SRC", help="the src folder of another checkout")
    parser.add_argument("--peak", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--serve", choices={**CONTENDERS, **BESIDE}, help=argparse.SUPPRESS)
    choice = parser.parse_args()
    torch.set_num_threads(1 if choice.clock == "cpu" else 2)
    clock = time.process_time if choice.clock == "cpu" else time.perf_counter
    if choice.peak:
        report_peak(choice.peak, choice.model, choice.batch)
        return
    if choice.serve:
        serve(choice.serve, choice.model, choice.batch, clock)
        return
    about = machine()
    print("  ".join(f"{key} {value}" for key, value in about.items()))
    tables = []
    for model in [choice.model] if choice.model else MODELS:
        for batch in [choice.batch] if choice.batch else BATCHES[model]:
            if choice.against:
                other, limits = choice.against, {"repeats": choice.repeats, "seconds": choice.seconds}
                tables.append(against(model, batch, other, **limits))
                continue
            found = measure(
                model, batch, choice.only, repeats=choice.repeats, seconds=choice.seconds, clock=choice.clock
            )
            if not choice.no_memory:
                for name in found:
                    found[name]["peak"] = peak_memory(name, model, batch)
            show(model, batch, found)
            tables.append({"model": model, "batch": batch, "contenders": found})
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": about, "tables": tables}, indent=1) + "\n")


if __name__ == "__main__":
    main()
