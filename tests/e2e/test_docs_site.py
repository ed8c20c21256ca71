"""The documentation builds without a warning, asks nothing of the network, and its generated page is new."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning of a strict build, such as a broken link or a page left out, is an error."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


def test_every_page_is_built_and_in_the_menu(site):
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()
    menu = (site / "index.html").read_text(encoding="utf-8")
    assert [str(page) for page in pages - {Path("index.html")} if f'href="{page}"' not in menu] == []


def test_nothing_is_fetched_from_elsewhere(site):
    loads = re.compile(
        r"""<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+href="(?:https?:)?//(?!localhost)"""
    )
    assert [str(page) for page in site.rglob("*.html") if loads.search(page.read_text(encoding="utf-8"))] == []


def test_the_command_line_reference_is_what_the_commands_say():
    path = ROOT / "docs" / "generate_cli.py"
    spec = importlib.util.spec_from_file_location("generate_cli", path)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    written = generator.PAGE.read_text(encoding="utf-8")
    assert written == generator.page(), "write it anew: .venv/bin/python docs/generate_cli.py"
