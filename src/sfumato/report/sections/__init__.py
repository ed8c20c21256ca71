"""The parts of the page in their order. A new part is a file here, its template, and a line below."""

from __future__ import annotations

from sfumato.report.sections import (
    audit,
    certificates,
    differencing,
    digits,
    epidemic,
    frontier,
    holders,
    learning,
    ledger,
    maps,
    meaning,
    membership,
    reproductions,
    synthetic,
    tuning,
    votes,
)
from sfumato.report.sections.section import Facts, Section

SECTIONS: tuple[Section, ...] = (
    meaning.SECTION,
    digits.SECTION,
    frontier.SECTION,
    learning.SECTION,
    maps.SECTION,
    tuning.SECTION,
    votes.SECTION,
    synthetic.SECTION,
    holders.SECTION,
    differencing.SECTION,
    membership.SECTION,
    audit.SECTION,
    epidemic.SECTION,
    reproductions.SECTION,
    ledger.SECTION,
    certificates.SECTION,
)

__all__ = ["SECTIONS", "Facts", "Section"]
