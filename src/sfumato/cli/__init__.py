"""The command line: parse, call, show; no maths."""

from sfumato.cli.app import main

__all__ = ["main"]
