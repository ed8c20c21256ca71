"""Run the stages one after the other, skip finished stages, name failed ones, and go on."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from sfumato import interruption
from sfumato.errors import BudgetExceeded, InvalidInput, SfumatoError
from sfumato.runs import Failure, Result, read_run, write_run
from sfumato.storage import RunFolder, read_json
from sfumato_lab.demo.attacks import audit, balance, differencing, membership_attack
from sfumato_lab.demo.context import Shelf, Size, StageContext
from sfumato_lab.demo.dissolving import dissolving_digits, epidemic
from sfumato_lab.demo.networks import plain_and_private, sweep
from sfumato_lab.demo.releases import recipe, reports, synthetic_digits, votes


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage: its name, which is its folder, its title, and its rough duration, full and quick."""

    name: str
    title: str
    run: Callable[[StageContext], Result]
    seconds: tuple[float, float]  # on two quiet cores, to say how much time is left
    uses: tuple[str, ...] = ()  # the settings it is made with: when one changes, it is run again
    always: bool = False  # cheap, and out of date as soon as another stage was run


STAGES: tuple[Stage, ...] = (
    # Stages that charge no ledger and take seconds come first, so that the screen fills soon.
    Stage(
        name="differencing",
        title="an age out of two averages",
        run=differencing,
        seconds=(3, 3),
        uses=("differencing_tries", "reconstruction_people", "reconstruction_queries"),
    ),
    Stage(
        name="epidemic",
        title="contact tracing in an epidemic",
        run=epidemic,
        seconds=(2, 1),
        uses=("town", "days"),
    ),
    Stage(
        name="digits",
        title="digits dissolving",
        run=dissolving_digits,
        seconds=(8, 4),
        uses=("data", "test_rows", "readers_drawings", "readers_test"),
    ),
    Stage(
        name="plain-and-private",
        title="one network, plain and private",
        run=plain_and_private,
        seconds=(24, 9),
        uses=("data", "rows", "test_rows", "plain_epochs", "private_epochs"),
    ),
    Stage(
        name="sweep",
        title="the network at several ε",
        run=sweep,
        seconds=(22, 6),
        uses=("data", "rows", "test_rows", "sweep_epochs", "sweep_epsilons", "sweep_seeds"),
    ),
    Stage(
        name="best-recipe",
        title="the recipe that loses least",
        run=recipe,
        seconds=(35, 8),
        uses=("data", "rows", "test_rows", "recipe_epsilons", "recipe_seeds"),
    ),
    Stage(
        name="votes",
        title="labels by private vote",
        run=votes,
        seconds=(26, 6),
        uses=("data", "vote_rows", "test_rows", "teachers", "vote_images", "vote_adaptation"),
    ),
    Stage(
        name="synthetic",
        title="digits of nobody",
        run=synthetic_digits,
        seconds=(25, 8),
        uses=("data", "synthetic_rows", "test_rows", "synthetic_images"),
    ),
    Stage(
        name="reports",
        title="digits noised before they leave",
        run=reports,
        seconds=(16, 7),
        uses=("data", "rows", "test_rows"),
    ),
    Stage(
        name="membership",
        title="who was in the data?",
        run=membership_attack,
        seconds=(5, 2),
        uses=("data", "membership_rows", "membership_networks", "membership_targets"),
    ),
    Stage(name="audit", title="attacking the private step", run=audit, seconds=(4, 3), uses=("audit_pairs",)),
    Stage(
        name="ledger",
        title="the budget, spent",
        run=balance,
        seconds=(1, 1),
        uses=("data", "rows"),
        always=True,
    ),
)


_STAGE = "stage.json"


@dataclass(frozen=True, kw_only=True)
class StageOutcome:
    """How one stage ended."""

    stage: str
    title: str
    status: Literal["done", "already done", "failed"]
    seconds: float
    sentence: str | None = None  # of the failure


def folder_of(out: Path, size: Size) -> Path:
    return out / size.name


def begin_again(out: Path, size: Size) -> None:
    """Delete all stages and their ledger; MNIST is public, so this costs no privacy."""
    shutil.rmtree(folder_of(out, size), ignore_errors=True)


def run_stages(
    out: Path,
    size: Size,
    *,
    stages: Sequence[Stage] = STAGES,
    on_start: Callable[[Stage], None] = lambda stage: None,
    on_progress: Callable[[Stage, float], None] = lambda stage, share: None,
    on_end: Callable[[StageOutcome], None] = lambda outcome: None,
) -> tuple[StageOutcome, ...]:
    """All stages into `out`/demo/STAGE; a failure is written where the result would be."""
    folder = RunFolder.make(folder_of(out, size))
    shelf = Shelf(size.data)
    endings = []
    for stage in stages:
        on_start(stage)
        context = StageContext(
            folder=RunFolder.make(folder.path / stage.name),
            size=size,
            shelf=shelf,
            ledger_path=folder.path / "ledger.db",
            progress=lambda share, stage=stage: on_progress(stage, share),  # type: ignore[misc]
        )
        endings.append(_run_stage(stage, context))
        on_end(endings[-1])
    return tuple(endings)


def _run_stage(stage: Stage, context: StageContext) -> StageOutcome:
    key = settings_key(stage, context.size)
    if not stage.always and _is_done(context.folder, key):
        return StageOutcome(stage=stage.name, title=stage.title, status="already done", seconds=0.0)
    started = time.perf_counter()
    settings = settings_of(stage, context.size)
    outcome = partial(StageOutcome, stage=stage.name, title=stage.title)
    try:
        result = stage.run(context)
    except Exception as error:
        interruption.check()
        sentence = _in_a_sentence(error)
        trace = {"failure.txt": traceback.format_exc().encode()}
        failure = Failure(title=stage.title, sentence=sentence)
        write_run(context.folder, failure, certificate=None, private=trace)
        return outcome(status="failed", seconds=time.perf_counter() - started, sentence=sentence)
    seconds = time.perf_counter() - started
    write_run(context.folder, result, certificate=None, seconds=seconds)
    context.folder.write_json(_STAGE, {"stage": stage.name, "settings": settings, "settings_key": key})
    return outcome(status="done", seconds=seconds)


def settings_of(stage: Stage, size: Size) -> dict[str, Any]:
    return {name: getattr(size, name) for name in stage.uses}


def settings_key(stage: Stage, size: Size) -> str:
    """Return a key of the settings and the version; a stage with another key is run again."""
    made_by = {
        "stage": stage.name,
        "settings": settings_of(stage, size),
        "version": metadata.version("sfumato"),
    }
    return hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()[:16]


def _is_done(folder: RunFolder, key: str) -> bool:
    """The stage's own note is written last; a result that failed, or that cannot be read, is made again."""
    try:
        note, run = read_json(folder.release / _STAGE), read_run(folder.path)
    except (OSError, InvalidInput):
        return False
    return note.get("settings_key") == key and not isinstance(run.result, Failure)


def _in_a_sentence(error: Exception) -> str:
    if isinstance(error, BudgetExceeded):
        return f"{error}; MNIST is public, so `sfumato demo --fresh` may begin a new ledger"
    if isinstance(error, SfumatoError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    return f"{type(error).__name__}: {error}"
