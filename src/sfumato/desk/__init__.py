"""The desk: a web application for the people who answer for a budget, and for those who spend it.

`sfumato serve desk.toml` runs it; `connect` asks it from Python.
"""

from sfumato.desk.client import DeskClient, connect

__all__ = ["DeskClient", "connect"]
