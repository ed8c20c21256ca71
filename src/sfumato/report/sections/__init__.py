"""The parts of the page, each drawn from one kind of run, and left out where there is none."""

from __future__ import annotations

from collections.abc import Callable

from sfumato.report.sections.attacks import audit, differencing, membership
from sfumato.report.sections.budget import certificates, ledger
from sfumato.report.sections.epidemic import epidemic
from sfumato.report.sections.frontier import frontier
from sfumato.report.sections.meaning import dissolving, meaning
from sfumato.report.sections.networks import feature_maps, learning
from sfumato.report.sections.section import Section
from sfumato.report.sections.voting import voting
from sfumato.report.story import Story

SECTIONS: tuple[Callable[[Story], Section | None], ...] = (
    meaning,
    dissolving,
    frontier,
    learning,
    feature_maps,
    voting,
    differencing,
    membership,
    audit,
    epidemic,
    ledger,
    certificates,
)

__all__ = ["SECTIONS", "Section"]
