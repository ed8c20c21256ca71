"""`sfumato demo`: what privacy costs and stops, on MNIST, and a page that shows it."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato import interruption
from sfumato.cli import show

if TYPE_CHECKING:
    from rich.progress import Progress

    from sfumato.report import Page
    from sfumato_lab.demo import Stage, StageOutcome


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the ledger and the page.")] = Path("out"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Run everything at a small size, in about a minute.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: remove earlier stages and their ledger.")
    ] = False,
    json: show.Json = False,
) -> None:
    """Run every kind of release and attack on MNIST under one budget, and write out/report.html.

    Three minutes on two cores. Run it again to go on after an interruption. Exit with 1 if a stage failed.

    Example: sfumato demo --quick
    """
    from sfumato.report import write_report
    from sfumato_lab import demo as story

    size = story.QUICK if quick else story.FULL
    if fresh:
        story.begin_again(out, size)
    interruption.offer("the same command goes on after the last stage that was done")
    with show.progress() as bar:
        watch = Watch(bar, story.STAGES, quick=quick, quiet=json)
        outcomes = story.run_stages(
            out,
            size,
            stages=story.STAGES,
            on_start=watch.start,
            on_progress=watch.advance,
            on_end=watch.end,
        )
        page = write_report([story.folder_of(out, size)], out / "report.html")
    if json:
        show.emit_json(_answer(outcomes, page, story.folder_of(out, size)))
    else:
        _summarize(outcomes, page, story.folder_of(out, size))
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(1)


class Watch:
    """Two bars: this stage, and everything, whose time left follows from how long stages usually take."""

    def __init__(self, bar: Progress, stages: tuple[Stage, ...], *, quick: bool, quiet: bool) -> None:
        self._bar, self._quiet = bar, quiet
        self._usual = {stage.name: stage.seconds[quick] for stage in stages}
        self._total = sum(self._usual.values())
        self._all = bar.add_task("all stages", total=self._total, note="")
        self._stage = bar.add_task("", total=100, note="")
        self._before = 0.0
        self._shown = time.monotonic()

    def start(self, stage: Stage) -> None:
        self._bar.reset(self._stage, description=stage.title, total=100)

    def advance(self, stage: Stage, share: float) -> None:
        self._bar.update(self._stage, completed=100 * share)
        self._bar.update(self._all, completed=self._before + share * self._usual[stage.name])

    def end(self, outcome: StageOutcome) -> None:
        if outcome.status == "already done":  # a jump forward would be taken for speed
            self._total -= self._usual[outcome.stage]
        else:
            self._before += self._usual[outcome.stage]
        self._bar.update(self._all, completed=self._before, total=self._total)
        if not self._quiet:
            show.console.print(_line(outcome), markup=False, highlight=False, soft_wrap=True)
            sys.stdout.flush()


def _line(outcome: StageOutcome) -> str:
    if outcome.status == "failed":
        return f"✗ {outcome.title}: {outcome.sentence}"
    return f"✓ {outcome.title}" + (
        f", {outcome.seconds:.0f} s" if outcome.status == "done" else ", done before"
    )


def _answer(outcomes: tuple[StageOutcome, ...], page: Page, folder: Path) -> dict[str, Any]:
    return {
        "headline": page.headline,
        "report": str(page.path),
        "ledger": str(folder / "ledger.db"),
        "stages": [asdict(outcome) for outcome in outcomes],
        "seconds": sum(outcome.seconds for outcome in outcomes),
    }


def _summarize(outcomes: tuple[StageOutcome, ...], page: Page, folder: Path) -> None:
    show.console.print(f"\n{page.headline}", style="bold")
    rows = [
        ("page", str(page.path)),
        ("ledger", f"sfumato ledger show {folder / 'ledger.db'}"),
        ("a certificate", f"sfumato verify {folder / 'plain-and-private/twin/release/certificate.json'}"),
        ("next", "sfumato train --help, sfumato query --help, and docs/"),
    ]
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        rows.append(
            ("failed", f"{len(failed)} of {len(outcomes)} stages; run the same command to try them again")
        )
    for name, value in rows:  # commands are copied: they must stay on one line
        show.console.print(f"{name:<15}{value}", markup=False, highlight=False, soft_wrap=True)
