"""Plans: what a budget buys before it is spent."""

from sfumato.governance.planning.plan import Plan, PlanPrice
from sfumato.governance.planning.releases import KINDS, PlannedRelease

__all__ = ["KINDS", "Plan", "PlanPrice", "PlannedRelease"]
