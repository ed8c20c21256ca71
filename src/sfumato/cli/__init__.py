"""The command line: parse, call, show; no maths."""

from sfumato import show
from sfumato.cli.app import main

__all__ = ["main", "show"]
