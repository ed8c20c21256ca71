"""The command line: parse, call, show; no maths.

Another package adds commands by entry points of the group `sfumato.commands`: modules with `register(app)`.
"""

from sfumato import show
from sfumato.cli.app import main
from sfumato.cli.audit import conclude, show_verdicts
from sfumato.cli.options import SHARES, Allocation, Purpose, Rule, charged, check, read_data

__all__ = [
    "SHARES",
    "Allocation",
    "Purpose",
    "Rule",
    "charged",
    "check",
    "conclude",
    "main",
    "read_data",
    "show",
    "show_verdicts",
]
