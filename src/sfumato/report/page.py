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
from sfumato.report.context import Context
from sfumato.report.headline import Headline
from sfumato.report.numbers import figure, percent, power
from sfumato.report.releases import releases
from sfumato.report.sections import SECTIONS
from sfumato.report.sections.digits import digit_sheet
from sfumato.runs import find_runs
from sfumato.storage import write_whole


@dataclass(frozen=True, kw_only=True)
class Page:
    """A written page: its path, headline, sections and failures."""

    path: Path
    headline: str
    sections: tuple[str, ...]
    failures: tuple[str, ...]


def write_report(runs: Iterable[Path], out: Path) -> Page:
    """Draw the runs at and under the given folders into one HTML file."""
    context = Context(runs=find_runs(runs))
    drawn = ((section, section.facts(context)) for section in SECTIONS)
    sections = [(section, facts) for section, facts in drawn if facts is not None]
    rows = releases(context)
    headline = Headline.of(rows, context.examples)
    html = (
        _environment()
        .get_template("page.html")
        .render(
            headline=headline,
            rows=rows,
            counts=context.counts,
            examples=context.examples,
            sections=sections,
            sheet=digit_sheet(context),
            failures=context.failures,
            style=_asset("page.css"),
            script=_asset("page.js"),
            version=metadata.version("sfumato"),
            today=datetime.now(UTC).strftime("%-d %B %Y"),
        )
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, html.encode(), readable=True)
    except OSError as error:
        raise InvalidInput(
            f"expected a file that can be written at {out}, got {error.strerror}; choose another --out"
        ) from error
    return Page(
        path=out,
        headline=headline.text,
        sections=tuple(section.name for section, _ in sections),
        failures=tuple(f"{failure.title}: {failure.sentence}" for failure in context.failures),
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
