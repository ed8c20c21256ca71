"""Statements: what was promised and spent, for people who sign and people who check."""

from sfumato.governance.statements.checklist import Hazard, checklist
from sfumato.governance.statements.pages import write_statement
from sfumato.governance.statements.registry import registry_entry
from sfumato.governance.statements.statement import Statement

__all__ = ["Hazard", "Statement", "checklist", "registry_entry", "write_statement"]
