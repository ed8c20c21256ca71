"""Run folders → one self-contained HTML page. Nothing is run here, and only released halves are read.

Each section names the kinds of results it draws; `sfumato.runs` defines their fields.
"""

from sfumato.report.page import Page, write_report
from sfumato.runs import Run, find_runs, read_run

__all__ = ["Page", "Run", "find_runs", "read_run", "write_report"]
