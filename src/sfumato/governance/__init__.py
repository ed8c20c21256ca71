"""For the people who answer for a budget: opinions on other software, plans of a year, statements.

>>> from sfumato.governance import opinion_of
>>> run = [("noise_multiplier", 1.1), ("sampling", "poisson"), ("sample_rate", 0.004), ("steps", 100)]
>>> opinion_of([*run, ("delta", 1e-5)]).relation
<Relation.ADD_REMOVE: 'add-remove'>
"""

from sfumato.governance.hazards import Hazard, checklist
from sfumato.governance.opinion import Opinion, opinion_of
from sfumato.governance.pages import write_statement
from sfumato.governance.plan import Plan, PlannedRelease, PlanPrice
from sfumato.governance.settings import read_settings
from sfumato.governance.statement import Statement, registry_entry

__all__ = [
    "Hazard",
    "Opinion",
    "Plan",
    "PlanPrice",
    "PlannedRelease",
    "Statement",
    "checklist",
    "opinion_of",
    "read_settings",
    "registry_entry",
    "write_statement",
]
