"""The certificate of each release; those of parts of a larger run too."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.ledger import Certificate
from sfumato.report.context import Context
from sfumato.report.sections.section import Facts, Section


@dataclass(frozen=True, kw_only=True)
class _Certified:
    path: str
    certificate: Certificate

    @property
    def epsilon(self) -> float | None:
        """By the accountant that can price it, the tighter one first."""
        prices = self.certificate.prices
        return prices.rdp if prices.pld is None else prices.pld

    @property
    def plan(self) -> dict[str, int | float | str]:
        """The settings that fit into a line."""
        stated = self.certificate.plan.items()
        return {name: value for name, value in stated if isinstance(value, int | float | str)}


def _facts(context: Context) -> Facts | None:
    found = [
        _Certified(path=str(run.folder / "release" / "certificate.json"), certificate=run.certificate)
        for run in context.runs
        if run.certificate is not None
    ]
    return {"certificates": found} if found else None


SECTION = Section(name="certificates", title="Certificates", kinds=(), facts=_facts)
