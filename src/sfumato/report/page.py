"""Everything on one page: one HTML file that needs no network, no other file, and no script to be read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sfumato.errors import InvalidInput
from sfumato.report.headline import Headline
from sfumato.report.numbers import figure, percent, power
from sfumato.report.reading import find_runs
from sfumato.report.sections import SECTIONS
from sfumato.report.sections.meaning import digit_sheet
from sfumato.report.story import Story, releases
from sfumato.storage import write_whole


@dataclass(frozen=True, kw_only=True)
class Page:
    """What was written, and what it says first."""

    path: Path
    headline: str
    sections: tuple[str, ...]
    failures: tuple[str, ...]


def write_report(runs: Iterable[Path], out: Path) -> Page:
    """Draw the runs at and under the given folders into one HTML file."""
    story = Story(runs=find_runs(runs))
    sections = [section for draw in SECTIONS if (section := draw(story)) is not None]
    headline = Headline.of(releases(story))
    html = (
        _environment()
        .get_template("page.html")
        .render(
            headline=headline,
            rows=releases(story),
            counts=story.counts,
            sections=sections,
            sheet=digit_sheet(story),
            failures=story.failures,
            style=_asset("page.css"),
            script=_asset("page.js"),
            version=metadata.version("sfumato"),
            today=datetime.now(UTC).strftime("%-d %B %Y"),
        )
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, html.encode())
        out.chmod(0o644)
    except OSError as error:
        raise InvalidInput(
            f"expected a file that can be written at {out}, got {error.strerror}; choose another --out"
        ) from error
    return Page(
        path=out,
        headline=headline.text,
        sections=tuple(section.name for section in sections),
        failures=tuple(f"{failure['title']}: {failure['sentence']}" for failure in story.failures),
    )


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("sfumato.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "figure": figure, "power": power, "data": _data}
    return environment


def _asset(name: str) -> Markup:
    """A file of ours, as it stands."""
    return Markup((resources.files("sfumato.report") / "templates" / name).read_text(encoding="utf-8"))


def _data(value: Any) -> Markup:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))
