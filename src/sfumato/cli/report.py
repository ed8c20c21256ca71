"""`sfumato report`: run folders as one page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import show


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    json: show.Json = False,
) -> None:
    """Draw run folders as one HTML page that needs no network and no other file.

    Example: sfumato report out/cnn out/resnet --out report.html
    """
    from sfumato.report import write_report

    page = write_report(runs, out)
    if json:
        show.emit_json({**asdict(page), "path": str(page.path)})
    else:
        show.console.print(page.headline, style="bold")
        show.facts([("page", str(page.path)), ("sections", ", ".join(page.sections))])
        for failure in page.failures:
            show.console.print(f"failed: {failure}", style="red", markup=False)
