"""Contact-tracing risk scores that protect the people behind them.

An epidemic is held down by testing whoever has the highest risk score. A score is made of what the phones of
one's contacts say, so it tells about them; a `Release` says how much noise keeps that in bounds, and what it
costs on one day, over a message's life, and for a whole person.

>>> disease = Disease()
>>> release = Release.calibrated(method="dpfn", epsilon=1, delta=1e-3, disease=disease)
>>> price = release.price(disease, contacts_per_day=10).epsilons(1e-3)
>>> price["release"] <= price["lifetime"] <= 1 < price["person"]
True
"""

from sfumato.tracing.attack import AttackResult, attack
from sfumato.tracing.campaign import UNIT, Campaign, Outcome, run
from sfumato.tracing.contacts import ContactWindow, Meetings
from sfumato.tracing.covasim import CovasimSimulator
from sfumato.tracing.disease import Disease, Kind, TestKit
from sfumato.tracing.neighbours import Belief, Evidence, believe
from sfumato.tracing.population import Population
from sfumato.tracing.release import METHODS, Price, Release
from sfumato.tracing.scoring import release_scores
from sfumato.tracing.simulators import SeirSimulator, Simulator, Town

__all__ = [
    "METHODS",
    "UNIT",
    "AttackResult",
    "Belief",
    "Campaign",
    "ContactWindow",
    "CovasimSimulator",
    "Disease",
    "Evidence",
    "Kind",
    "Meetings",
    "Outcome",
    "Population",
    "Price",
    "Release",
    "SeirSimulator",
    "Simulator",
    "TestKit",
    "Town",
    "attack",
    "believe",
    "release_scores",
    "run",
]
