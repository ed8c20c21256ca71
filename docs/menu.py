"""Puts every design note into the menu, under what its title says before the colon."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Called by MkDocs when it has read mkdocs.yml."""
    notes = sorted(Path(config.docs_dir, "design").glob("*.md"))
    config.nav.append({"Design notes": [{_title(note): f"design/{note.name}"} for note in notes]})
    return config


def _title(note: Path) -> str:
    heading = note.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    return heading.partition(":")[0]
